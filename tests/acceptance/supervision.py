"""`task_shell/crawl_spider.sh` with a scripted `scrapy`: what it started, and when."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.acceptance import scripted_scrapy

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "task_shell" / "crawl_spider.sh"
T = TypeVar("T")


class Start(NamedTuple):
    role: str
    pid: int
    directory: str
    arguments: list[str]


def wait_until(condition: Callable[[], T], seconds: float = 300) -> T:
    """Its first value that is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return value


def lives(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the second one if it ends while it is read
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def own_control_files(folder: Path) -> dict[str, str]:
    """Variables for a script that no other one's --scale reaches."""
    return dict.fromkeys(("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "TMPDIR"), str(folder))


class Script:
    """The script with a scripted `scrapy` in a virtual environment of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / "venv"
        self.script = SCRIPT
        self.processes: list[subprocess.Popen[str]] = []
        (self.venv / "bin").mkdir(parents=True)
        scrapy = self.venv / "bin" / "scrapy"
        scrapy.write_text(f'#!/bin/sh\nexec {sys.executable} -S {scripted_scrapy.__file__} "$@"\n')
        scrapy.chmod(0o755)
        self.plan()

    def plan(self, crawl: str = "run", progress: str = "run") -> None:
        """What the processes do, a word for each start."""
        (self.folder / "plan-crawl").write_text(crawl)
        (self.folder / "plan-progress").write_text(progress)

    def edit(self, **defaults: int | str) -> None:
        """Use a copy in which these stand at the top."""
        self.script = self.folder / "task_shell" / SCRIPT.name
        shutil.copytree(SCRIPT.parent, self.script.parent)
        text = self.script.read_text()
        for name, value in defaults.items():
            text, count = re.subn(rf"^{name}=\d*", f"{name}={value}", text, flags=re.MULTILINE)
            assert count == 1
        self.script.write_text(text)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Run it, from another directory than the project's."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
        process = subprocess.Popen(
            [str(self.script), "-v", str(self.venv), *arguments],
            env=kept | own_control_files(self.folder) | {"SCRIPTED_FOLDER": str(self.folder)} | variables,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def journal(self, kind: str) -> list[list[str]]:
        """The lines of one kind, in words."""
        path = self.folder / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(f"{kind} ")]

    def starts(self, role: str = "crawl") -> list[Start]:
        found = [Start(words[0], int(words[1]), words[2], words[3:]) for words in self.journal("started")]
        return [start for start in found if start.role == role]

    def wait_for_starts(self, count: int, role: str = "crawl") -> list[Start]:
        return wait_until(lambda: found if len(found := self.starts(role)) >= count else [])

    def survivors(self) -> list[int]:
        return [start.pid for role in ("crawl", "progress") for start in self.starts(role) if lives(start.pid)]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for pid in self.survivors():
            os.kill(pid, signal.SIGKILL)


def finish(process: subprocess.Popen[str], seconds: float = 300) -> tuple[int, str]:
    """Exit code and stderr."""
    _, complaints = process.communicate(timeout=seconds)
    return process.returncode, complaints
