"""How the commands write what they found: a table for people, JSON lines for programs."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from site_spider.core.table import Column, render

FORMATS = ("table", "json")
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}  # JSON leaves these as they are


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """The option --format."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="table",
        help="table for people (default), or json: one object a line",
    )


def print_json(document: Mapping[str, Any]) -> None:
    """One line that any JSON reader reads, and that a terminal only shows."""
    print(json.dumps(dict(document), ensure_ascii=False, default=str).translate(_CONTROLS))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """As wide as the terminal, or as wide as it takes when the output goes elsewhere."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in render(columns, rows, width):
        print(line)
