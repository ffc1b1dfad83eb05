"""Tables for terminals and files: plain text, one line a row.

What stands in a cell may come from anywhere, so it is escaped (escape).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from site_spider.text import cut, escaped

GAP = "  "
NARROWEST = 12  # a column that may shrink stays this wide


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `shrinks` when its cells may be cut, `optional` when it may be left out to fit."""

    title: str
    right: bool = False
    shrinks: bool = False
    optional: bool = False


def render(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], width: int | None = None
) -> list[str]:
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
    while over > 0:
        shrinkable = [i for i in kept if columns[i].shrinks and widths[i] > NARROWEST]
        if not shrinkable:
            return
        widest = max(shrinkable, key=lambda i: widths[i])
        widths[widest] -= 1
        over -= 1


def _line(columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int], row: Sequence[str]) -> str:
    parts = []
    for i in kept:
        text = cut(row[i], widths[i])
        parts.append(text.rjust(widths[i]) if columns[i].right else text.ljust(widths[i]))
    return GAP.join(parts).rstrip()
