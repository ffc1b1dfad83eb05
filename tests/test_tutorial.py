"""docs/tutorial.md: its blocks run one after the other and print what stands there, up to numbers."""

from __future__ import annotations

import re
import time
from pathlib import Path

from tests.reader import ROOT, blocks, kept_port, shape, terminal_of_a_copy

BLOCKS = [*blocks(ROOT / "docs" / "tutorial.md")]
_READS = re.compile(r"head -n \d site|curl ")  # what a program behind it may not have written yet
_PATIENCE_SECONDS = 300.0


def test_each_block_prints_what_the_tutorial_says(tmp_path: Path) -> None:
    """In a copy of the project; only the port of the console is another."""
    with kept_port() as port, terminal_of_a_copy(tmp_path) as terminal:
        for block in BLOCKS:
            command = block.command.replace("8787", f"{port}").replace(
                "scrapy console", f"scrapy console --port {port}"
            )
            give_up = time.monotonic() + _PATIENCE_SECONDS
            printed = terminal.paste(command)
            while block.output and _READS.match(command) and shape(printed) != shape(block.output):
                assert time.monotonic() < give_up, printed
                printed = terminal.paste(command)
            assert shape(printed) == shape(block.output or ""), command
    assert sum(block.output is not None for block in BLOCKS) >= 7
