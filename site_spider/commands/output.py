"""Output of the commands: a table for people, JSON lines for programs, one line for an error.

What they write may come from anywhere, so it passes through escape.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from site_spider import runtime
from site_spider.commands.table import Column, render
from site_spider.engine import scrapy_parts
from site_spider.errors import SiteSpiderError
from site_spider.text import escaped, escaped_json, escaped_lines, for_log

FORMATS = ("table", "json")


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """The option --format."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="table",
        help="table for people (default), or json: one object a line",
    )


def show(line: str) -> None:
    """One line on standard output."""
    print(escaped(line), flush=True)


def complain(message: str) -> None:
    """One line on standard error."""
    print(for_log(message, one_line=True), file=sys.stderr)


def print_json(document: Mapping[str, Any]) -> None:
    """One line that any JSON reader reads, and that a terminal only shows."""
    print(escaped_json(json.dumps(dict(document), ensure_ascii=False, default=str)))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """As wide as the terminal, or as wide as it takes when the output goes elsewhere."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in render(columns, rows, width):
        print(line)


def escape_logs_and_tracebacks() -> None:
    """For a process that is ours: what it logs, and what it says when it ends with an exception."""
    scrapy_parts.install()
    sys.excepthook = _print_traceback
    runtime.watch_threads(_thread_failed)


def _thread_failed(failed: runtime.ThreadFailure) -> bool:
    if isinstance(failed.exc_value, SiteSpiderError):  # raised on purpose: what it says is all that helps
        complain(f"scrapy: {failed.exc_value}")
    else:
        _print_traceback(failed.exc_type, failed.exc_value, failed.exc_traceback)
    return True


def _print_traceback(
    kind: type[BaseException], error: BaseException | None, where: TracebackType | None
) -> None:
    sys.stderr.write(escaped_lines("".join(traceback.format_exception(kind, error, where))))
