"""Reads results back from an HBase table."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Self

from site_spider.adapters.hbase.connection import HBaseOptions
from site_spider.adapters.hbase.sink import FAMILY, RowLayout
from site_spider.contracts.sink import ANY, Fields, StatusFilter
from site_spider.errors import ConfigError
from site_spider.options import SettingsView
from site_spider.page.url import host_of
from site_spider.results.document import result_fields

PAGE_ROWS = 20  # the Thrift server holds a page in memory whole, and a body may have megabytes
COUNT_ROWS = 1000  # without values
SCAN_SECONDS = 120.0  # a filter may have to pass over much before it finds a page

Rows = list[tuple[bytes, dict[bytes, bytes]]]


class HBaseResults:
    """Reads the table SITE_HBASE_TABLE; one that does not exist yet is empty.

    Every page has a connection of its own: the server closes one that was idle while somebody read.
    """

    def __init__(self, options: HBaseOptions, names: Fields = ANY, *, of_items: bool = False) -> None:
        self._of_items = of_items
        self._options = options
        self._layout = RowLayout(options.row_key, options.cell_bytes, names)
        self._url = names.get("url", "url")  # a row of somebody else's may have no url_id
        self.address = f"{options.host}:{options.port} table {options.table}"

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        return cls(HBaseOptions.from_settings(settings), result_fields(settings))

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        return cls(HBaseOptions.for_items(settings), of_items=True)

    def get(self, url_id: str) -> dict[str, Any] | None:
        """One document; with reversed_host keys all rows are looked through. Raises SinkUnavailable."""
        key = self._layout.key_of(url_id)
        if key == b"":
            return None
        if key is None:
            return next(self._documents([_equals("url_id", url_id)], 1), None)
        return next((self._document(*row) for row in self._rows_of([key])), None)

    def known(self, url_ids: Sequence[str], fields: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """These fields of documents. Raises SinkUnavailable, and ConfigError with reversed_host keys."""
        keys = {key: url_id for url_id in url_ids if (key := self._key_of(url_id))}
        columns = [f"{FAMILY}:{name}".encode() for name in fields]
        rows = self._rows_of(list(keys), columns)
        return {keys[key]: self._layout.document(key, cells, of_item=self._of_items) for key, cells in rows}

    def search(
        self, status: StatusFilter = None, fields: Fields = ANY, *, limit: int | None = 1000,
        before: Fields = ANY, names: Sequence[str] = (),
    ) -> Generator[dict[str, Any]]:  # fmt: skip
        if self._of_items:
            return (one for one in islice(self._items(fields), limit))
        asked = {"url_id", *names, *fields, *before} if names else ()
        columns = [f"{FAMILY}:{name}".encode() for name in sorted(asked)]
        return self._documents(_filters(status, fields, before), limit, columns)

    def count(self, status: StatusFilter = None, fields: Fields = ANY) -> int:
        if self._of_items:
            return sum(1 for _ in self._items(fields))
        filters = [*_filters(status, fields), "KeyOnlyFilter()"]
        return sum(1 for _ in self._rows(filters, COUNT_ROWS))

    def exchange(self, name: str, changes: Mapping[str, tuple[str | None, str]]) -> set[str]:
        """Set a cell where it still is what was read. Raises as `known`."""
        there = self.known(list(changes), ["url_id", self._url, name]).keys()  # a row that is not would be made
        rows = {url_id: (self._key_of(url_id), *changes[url_id]) for url_id in there}
        with self._options.asking(self._options.timeout_seconds) as connection:
            put = partial(connection.check_and_put, self._options.table, f"{FAMILY}:{name}")
            return {url_id for url_id, row in rows.items() if put(*row)}

    def _key_of(self, url_id: str) -> bytes:
        if (key := self._layout.key_of(url_id)) is None:
            raise ConfigError(f"SITE_HBASE_ROW_KEY is {self._options.row_key!r}: no row is found by its url_id.")
        return key

    def close(self) -> None:
        """Nothing is held between calls."""

    def _documents(
        self, filters: Sequence[str], limit: int | None, columns: Sequence[bytes] = ()
    ) -> Generator[dict[str, Any]]:
        most = COUNT_ROWS if columns else PAGE_ROWS
        rows = self._rows(filters, most if limit is None else min(most, limit), columns)
        return (self._document(key, cells) for key, cells in islice(rows, limit))

    def _document(self, key: bytes, cells: dict[bytes, bytes]) -> dict[str, Any]:
        document = self._layout.document(key, cells, of_item=self._of_items)
        if not self._of_items:
            return document
        if b"f:url_id" not in cells:
            del document["url_id"]
        return {"_id": key.decode("utf-8", "replace"), **document}

    def _items(self, fields: Fields) -> Iterator[dict[str, Any]]:
        """All rows are looked through: what is known of the page is one cell."""
        for document in self._documents([], None):
            page = document.get("_page")
            known = page if isinstance(page, dict) else {}
            known = {**known, "host": host_of(str(known.get("url")))}
            if all(known.get(name) == value for name, value in fields.items()):
                yield document

    def _rows(self, filters: Sequence[str], page_rows: int, columns: Sequence[bytes] = ()) -> Iterator[Any]:
        start = b""
        while rows := self._page(start, filters, page_rows, columns):
            yield from rows
            if len(rows) < page_rows:
                return
            start = rows[-1][0] + b"\0"

    def _page(self, start: bytes, filters: Sequence[str], rows: int, columns: Sequence[bytes]) -> Rows:
        said = " AND ".join(filters).encode("utf-8", "replace") or None
        with self._options.asking(SCAN_SECONDS, ends_without_table=True) as connection:
            scan = connection.table(self._options.table).scan
            return list(scan(row_start=start, filter=said, batch_size=rows, limit=rows, columns=columns or None))
        return []  # there is no table

    def _rows_of(self, keys: list[bytes], columns: Sequence[bytes] = ()) -> Rows:
        with self._options.asking(self._options.timeout_seconds, ends_without_table=True) as connection:
            found: Rows = connection.table(self._options.table).rows(keys, columns or None) if keys else []
            return found
        return []


def _filters(status: StatusFilter, fields: Fields, before: Fields = ANY) -> list[str]:
    filters = []
    if isinstance(status, int):
        filters.append(_equals("status", str(status)))
    elif status is not None:
        filters.append(_equals("status", "", needs_column=False))
    filters += [_equals(name, value, "<=", needs_column=False) for name, value in before.items()]
    return [*filters, *(_equals(name, value) for name, value in fields.items())]


def _equals(name: str, value: str, operator: str = "=", *, needs_column: bool = True) -> str:
    """A filter in HBase's filter language; a quote is doubled there."""
    quoted = value.replace("'", "''")
    required = str(needs_column).lower()
    return f"SingleColumnValueFilter('{FAMILY}', '{name}', {operator}, 'binary:{quoted}', {required}, true)"
