"""Reads results back from an HBase table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Self

from site_spider.adapters.hbase.connection import CLIENT_ERRORS, explained, is_table_missing
from site_spider.adapters.hbase.options import HBaseOptions
from site_spider.adapters.hbase.row import FAMILY, RowLayout
from site_spider.contracts.reader import StatusFilter
from site_spider.options import SettingsView

PAGE_ROWS = 20  # the Thrift server holds a page in memory whole, and a body may have megabytes
COUNT_ROWS = 1000  # without values
SCAN_SECONDS = 120.0  # a filter may have to pass over much before it finds a page

Rows = list[tuple[bytes, dict[bytes, bytes]]]


class HBaseResults:
    """Reads the table SITE_HBASE_TABLE; one that does not exist yet is empty.

    Every page has a connection of its own: the server closes one that was idle while somebody read.
    """

    def __init__(self, options: HBaseOptions) -> None:
        self._options = options
        self._layout = RowLayout(options.row_key, options.cell_bytes)
        self.address = f"{options.host}:{options.port} table {options.table}"

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """Build without connecting. Raises ConfigError."""
        return cls(HBaseOptions.from_settings(settings))

    def get(self, url_id: str) -> dict[str, Any] | None:
        """One document; with reversed_host keys all rows are looked through. Raises SinkUnavailable."""
        key = self._layout.key_of(url_id)
        if key == b"":
            return None
        if key is None:
            return next(self._documents([_equals("url_id", url_id)], 1), None)
        end = key + b"\0"
        rows = self._page(key, [], 1, row_stop=end)
        return self._layout.document(*rows[0]) if rows else None

    def search(
        self, status: StatusFilter = None, task_id: str | None = None, limit: int | None = 1000
    ) -> Iterator[dict[str, Any]]:
        """At most `limit` documents (None: all) that fit both filters. Raises SinkUnavailable."""
        return self._documents(_filters(status, task_id), limit)

    def count(self, status: StatusFilter = None, task_id: str | None = None) -> int:
        """How many documents fit both filters. Raises SinkUnavailable."""
        filters = [*_filters(status, task_id), "KeyOnlyFilter()"]
        return sum(1 for _ in self._rows(filters, COUNT_ROWS, None))

    def close(self) -> None:
        """Nothing is held between calls."""

    def _documents(self, filters: Sequence[str], limit: int | None) -> Iterator[dict[str, Any]]:
        for key, cells in self._rows(filters, PAGE_ROWS, limit):
            yield self._layout.document(key, cells)

    def _rows(self, filters: Sequence[str], page_rows: int, limit: int | None) -> Iterator[Any]:
        start = b""
        left = limit
        while left is None or left > 0:
            wanted = page_rows if left is None else min(page_rows, left)
            rows = self._page(start, filters, wanted)
            yield from rows
            if len(rows) < wanted:
                return
            start = rows[-1][0] + b"\0"
            left = None if left is None else left - len(rows)

    def _page(self, start: bytes, filters: Sequence[str], rows: int, **more: Any) -> Rows:
        with closing(self._options.connect(SCAN_SECONDS)) as connection:
            try:
                scan = connection.table(self._options.table).scan(
                    row_start=start,
                    filter=" AND ".join(filters).encode("utf-8", "replace") or None,
                    batch_size=rows,
                    limit=rows,
                    **more,
                )
                return list(scan)
            except CLIENT_ERRORS as error:
                if is_table_missing(error):
                    return []
                raise self._options.unavailable(explained(error)) from error


def _filters(status: StatusFilter, task_id: str | None) -> list[str]:
    filters = []
    if isinstance(status, int):
        filters.append(_equals("status", str(status)))
    elif status is not None:
        filters.append(_equals("status", "", needs_column=False))
    if task_id is not None:
        filters.append(_equals("task_id", task_id))
    return filters


def _equals(name: str, value: str, *, needs_column: bool = True) -> str:
    """A filter in HBase's filter language; a quote is doubled there."""
    quoted = value.replace("'", "''")
    required = str(needs_column).lower()
    return f"SingleColumnValueFilter('{FAMILY}', '{name}', =, 'binary:{quoted}', {required}, true)"
