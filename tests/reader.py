"""Somebody who reads a document, pastes its blocks into a terminal and compares what they print."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from tests.commands.project import environment

ROOT = Path(__file__).resolve().parents[1]

_PATIENCE_SECONDS = 300.0  # for one block; then the shell and what it started are killed

_HEADING_OR_BLOCK = re.compile(
    r"^#+ +(?P<heading>[^\n]+)$|^```sh\n(?P<command>.*?)^```$(?:\n\n^```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_VARYING = (  # what is another at each run, and what stands for it
    (re.compile(r"\b[0-9a-f]{40}\b"), "ID"),
    (re.compile(r"(?m)time left +.*$"), "time left T"),  # a dash while it is not known
    (re.compile(r"rate (?:-|[\d.]+/s)"), "rate R"),
    (re.compile(r"\b\d[\d,.]* (?:ms|s|min|h|days?)\b"), "a while"),
    (re.compile(r"\d[\d,.]*[KMG]?"), "N"),
    (re.compile(r"(?m)[ \t]+"), " "),  # columns are as wide as their numbers
)


class Block(NamedTuple):
    """Commands of a document, and what it says that they print."""

    heading: str
    command: str
    output: str | None


def blocks(document: Path, section: str = "") -> Iterator[Block]:
    """All that are to be run, in order; of one section of the second level alone, if it is given."""
    text = document.read_text(encoding="utf-8")
    if section:
        text = re.split(r"^## ", text.partition(f"\n## {section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    heading = section
    for found in _HEADING_OR_BLOCK.finditer(text):
        heading = found["heading"] or heading
        if found["command"]:
            yield Block(heading, found["command"], found["output"])


def shape(text: str) -> list[str]:
    """The lines without what is another at each run: order of rows, numbers, ids, widths of columns."""
    for pattern, stand_in in _VARYING:
        text = pattern.sub(stand_in, text)
    return sorted(line.strip() for line in text.strip().splitlines())


def copy_of_the_project(folder: Path) -> None:
    """Of what a crawl needs, with a virtual environment that runs the copy."""
    for name in ("site_spider", "task_shell", "resources"):
        shutil.copytree(ROOT / name, folder / name)  # with bytecode, which the first process would make anew
    shutil.copy(ROOT / "scrapy.cfg", folder)
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    for name in ("python", "scrapy"):
        module = "" if name == "python" else "-m scrapy "
        program(bin_folder / name, f'exec {sys.executable} {module}"$@"')
    (bin_folder / "activate").write_text(f"PATH={bin_folder}:$PATH\n")


def program(path: Path, line: str) -> None:
    """A program of one line of sh."""
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@contextmanager
def kept_port() -> Iterator[int]:
    """Of 127.0.0.1, for a server that sets SO_REUSEADDR: meanwhile the kernel gives it to nobody else."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


@contextmanager
def terminal_of_a_copy(folder: Path) -> Iterator[Terminal]:
    """In the project of `folder`, where temporary files have their place as well."""
    project, temporary = folder / "project", folder / "tmp"
    project.mkdir()
    temporary.mkdir()
    copy_of_the_project(project)
    variables = environment(Path("data"), TMPDIR=str(temporary), XDG_RUNTIME_DIR=str(temporary))
    with Terminal(project, variables) as terminal:
        yield terminal


class Terminal:
    """One shell; what a block sets and starts is there for the next."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._blocks = Path(tempfile.mkdtemp(dir=folder.parent))
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with self._shell:
            self.paste("kill $(jobs -p) 2> /dev/null; wait")

    def paste(self, commands: str) -> str:
        """What the commands print on both streams."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        mark = secrets.token_hex(8)
        file = self._blocks / mark
        file.write_text(commands)
        self._shell.stdin.write(f". {file} < /dev/null; printf '%s\\n' {mark}\n")
        self._shell.stdin.flush()
        printed = ""
        patience = threading.Timer(_PATIENCE_SECONDS, os.killpg, (self._shell.pid, signal.SIGKILL))
        patience.start()
        try:
            for line in self._shell.stdout:
                if line.endswith(f"{mark}\n"):
                    return printed + line.removesuffix(f"{mark}\n")
                printed += line
        finally:
            patience.cancel()
        raise AssertionError(f"the shell ended in:\n{commands}\n{printed}")
