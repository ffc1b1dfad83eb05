"""Which empty cells of a row are written: those that would hide a producer's value are not.

HBase merges nothing, so what stands in these columns is asked for before the rows are put. See results.nulls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from site_spider.adapters.hbase.row import PREFIX, Row
from site_spider.results.document import ALWAYS, MARK, is_marked, kept, looked_at

_MARK = PREFIX + MARK.encode()


def columns_to_ask(rows: Sequence[Row]) -> list[bytes]:
    """What `settled` needs to know of the stored rows; empty if nothing."""
    names = {name for row in rows if _is_result(row) for name in _empty(row)}
    return [_column(name) for name in looked_at(sorted(names))] if names else []


def settled(row: Row, stored: Mapping[bytes, bytes]) -> Row:
    """The row as it is put over what is stored of it."""
    if not _is_result(row):
        return row
    names = _empty(row)
    theirs = kept({_name(column): _value(column, value) for column, value in stored.items()}, names)
    cells = {column: value for column, value in row.cells.items() if _name(column) not in theirs}
    return row._replace(cells={**cells, _MARK: ",".join(names).encode("utf-8", "replace")})


def _is_result(row: Row) -> bool:
    return is_marked(dict.fromkeys(map(_name, row.cells)))


def _empty(row: Row) -> list[str]:
    return [
        name for column, value in row.cells.items() if not value and (name := _name(column)) not in ALWAYS
    ]


def _value(column: bytes, value: bytes) -> Any:
    return value.decode("utf-8", "replace") if column == _MARK else value or None


def _name(column: bytes) -> str:
    return column.removeprefix(PREFIX).decode("utf-8", "replace")


def _column(name: str) -> bytes:
    return PREFIX + name.encode("utf-8", "replace")
