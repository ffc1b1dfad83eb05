"""Output of the commands: a table for people, JSON lines for programs, one line for an error.

What they write may come from anywhere, so it passes through escape.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TextIO

from site_spider import runtime
from site_spider.engine import scrapy_parts
from site_spider.errors import SiteSpiderError
from site_spider.text import cut, escaped, escaped_json, escaped_lines, for_log

if TYPE_CHECKING:
    from tqdm import tqdm

# --- Tables for terminals and files: plain text, one line a row ------------------------------------------
# What stands in a cell may come from anywhere, so it is escaped (escape).

GAP = "  "
NARROWEST = 12  # a column that may shrink stays this wide


class Column(NamedTuple):
    """A column; `shrinks` when its cells may be cut, `optional` when it may be left out to fit."""

    title: str
    right: bool = False
    shrinks: bool = False
    optional: bool = False


def render(columns: Sequence[Column], rows: Sequence[Sequence[object]], width: int | None = None) -> list[str]:
    """The lines of a table, its head first; None stands as "-". `width` None: as wide as it takes."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(column.title), *(len(row[i]) for row in cells)]) for i, column in enumerate(columns)]
    kept = list(range(len(columns)))
    if width is not None:
        kept = _kept(columns, widths, width)
        _shrink(columns, widths, kept, width)
    titles = [column.title for column in columns]
    return [_line(columns, widths, kept, row) for row in [titles, *cells]]


def _cell(value: object) -> str:
    return "-" if value is None else escaped(str(value))


def _kept(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Which columns to show: all, or without the optional ones if they do not fit otherwise."""
    least = [min(w, NARROWEST) if c.shrinks else w for c, w in zip(columns, widths, strict=True)]
    everything = sum(least) + len(GAP) * (len(columns) - 1)
    return [i for i, column in enumerate(columns) if everything <= width or not column.optional]


def _shrink(columns: Sequence[Column], widths: list[int], kept: Sequence[int], width: int) -> None:
    """Take from the widest column that may shrink until the table fits."""
    over = sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1) - width
    for _ in range(over):
        shrinkable = [i for i in kept if columns[i].shrinks and widths[i] > NARROWEST]
        if not shrinkable:
            return
        widths[max(shrinkable, key=lambda i: widths[i])] -= 1


def _line(columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int], row: Sequence[str]) -> str:
    parts = ((cut(row[i], widths[i]), widths[i], columns[i].right) for i in kept)
    return GAP.join(text.rjust(width) if right else text.ljust(width) for text, width, right in parts).rstrip()


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """The option --format."""
    said = "table for people (default), or json: one object a line"
    parser.add_argument("--format", choices=("table", "json"), default="table", help=said)


def add_group_options(parser: argparse.ArgumentParser) -> None:
    """The options --group and --topic, of a SiteCommand."""
    parser.add_argument("--group", metavar="G", type="name", help="default: SITE_CONSUMER_GROUP")
    parser.add_argument("--topic", metavar="T", type="topic", help="default: all of SITE_SEED_TOPICS")


def add_limit_option(parser: argparse.ArgumentParser, verb: str) -> None:
    """The option --limit."""
    said = f"{verb} at most N (default: 1000; 0: all)"
    parser.add_argument("--limit", metavar="N", type=partial(number, least=0), default=1000, help=said)


def number(text: str, least: int = 1, most: int = 1_000_000_000) -> int:
    """For options. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and len(text) < 19 and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number from {least} to {most}")
    return int(text)


def show(line: str) -> None:
    """One line on standard output."""
    print(escaped(line), flush=True)


def complain(message: str) -> None:
    """One line on standard error."""
    print(for_log(message, one_line=True), file=sys.stderr)


def takes_no_more(stream: TextIO) -> None:
    """What it still holds is lost: at the end of the process Python would try again, and exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(document: Mapping[str, Any]) -> None:
    """One line that any JSON reader reads, and that a terminal only shows."""
    print(escaped_json(json.dumps(dict(document), ensure_ascii=False, default=str)))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """As wide as the terminal, or as wide as it takes when the output goes elsewhere."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in render(columns, rows, width):
        print(line)


def print_counted(title: str, columns: Sequence[Column], rows: Sequence[Sequence[object]], among: str = "") -> None:
    """How many there are, and a table of them."""
    show(f"{title}: {len(rows)}{among}")
    if rows:
        print_table(columns, rows)


def progress_bar(what: str, unit: str = "", total: int | None = None) -> tqdm[NoReturn]:
    """On stderr, if that is a terminal. tqdm draws nothing where its size is 0, as in some containers."""
    from tqdm import tqdm  # noqa: PLC0415 - of two commands alone

    columns = lines = None
    with suppress(OSError, ValueError):  # it is no terminal
        columns, lines = os.get_terminal_size(sys.stderr.fileno())
        columns, lines = columns or 80, lines or 24
    bar = partial(tqdm, desc=what, total=total, unit=unit, unit_scale=bool(unit), leave=False)
    return bar(disable=None, file=sys.stderr, ncols=columns, nrows=lines)


def complain_above_bar(message: str) -> None:
    """The same as `complain`, where there may be a bar."""
    from tqdm import tqdm  # noqa: PLC0415 - as above

    tqdm.write(for_log(message, one_line=True), file=sys.stderr)


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


def _print_traceback(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> None:
    sys.stderr.write(escaped_lines("".join(traceback.format_exception(kind, error, where))))
