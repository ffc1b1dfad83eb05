"""docs/tutorial.md: its blocks run one after the other and print what stands there, up to numbers."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

from tests.commands.project import environment
from tests.reader import ROOT, Terminal, blocks, copy_of_the_project, shape

BLOCKS = [*blocks(ROOT / "docs" / "tutorial.md")]
_READS = re.compile(r"head -n \d site|curl ")  # what a program behind it may not have written yet
_PATIENCE_SECONDS = 300.0


def test_each_block_prints_what_the_tutorial_says(tmp_path: Path) -> None:
    """In a copy of the project; only the port of the console is another."""
    project, temporary = tmp_path / "project", tmp_path / "tmp"
    project.mkdir()
    temporary.mkdir()
    copy_of_the_project(project)
    variables = environment(Path("data"), TMPDIR=str(temporary), XDG_RUNTIME_DIR=str(temporary))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Terminal(project, variables) as terminal:
        for block in BLOCKS:
            command = block.command.replace("8787", str(port)).replace(
                "scrapy console", f"scrapy console --port {port}"
            )
            give_up = time.monotonic() + _PATIENCE_SECONDS
            printed = terminal.paste(command)
            while block.output and _READS.match(command) and shape(printed) != shape(block.output):
                assert time.monotonic() < give_up, printed
                printed = terminal.paste(command)
            assert shape(printed) == shape(block.output or ""), command
    assert sum(block.output is not None for block in BLOCKS) >= 7
