"""Results and statistics in an SQLite file: sink and reader of the embedded default."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self, TypeVar

from site_spider import runtime
from site_spider.adapters.local.database import can_never_be
from site_spider.adapters.local.filters import conditions
from site_spider.adapters.local.store import (
    BUSY_SECONDS,
    FILE_NAME,
    ITEMS,
    RESULTS,
    STATISTICS,
    LocalStore,
    Table,
    document_in,
    keep_seconds,
    unavailable,
)
from site_spider.contracts.sink import ANY, Fields, Record, StatusFilter, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.options import SettingsView, text
from site_spider.results.document import without_mark

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LocalSink:
    """Writes on a thread of its own: the disk and other processes' locks never hold up the loop."""

    name = "local"

    def __init__(
        self,
        folder: Path,
        table: Table = RESULTS,
        row_limit_bytes: int | None = None,
        keep_seconds: float = 0,
    ) -> None:
        self._store = LocalStore(folder, table, row_limit_bytes, keep_seconds)
        self._thread: runtime.ThreadPoolExecutor | None = None

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The sink of results in SITE_DATA_DIR. Raises ConfigError."""
        return cls(_folder(settings), RESULTS)

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        """The sink of items in the same file. Raises ConfigError."""
        return cls(_folder(settings), ITEMS)

    @classmethod
    def for_statistics(cls, settings: SettingsView) -> Self:
        """The sink of statistics in the same file, which forgets. Raises ConfigError."""
        return cls(_folder(settings), STATISTICS, keep_seconds=keep_seconds(settings))

    async def check(self) -> str:
        """What `open` would find. Raises SinkUnavailable."""
        return await asyncio.to_thread(self._store.check)

    async def open(self) -> None:
        """Create the file and its tables if they are missing. Raises SinkUnavailable, ConfigError."""
        try:
            await self._run(self._store.open)
        except SinkUnavailable as error:
            if can_never_be(error.__cause__):
                raise ConfigError(str(error)) from error
            raise

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Write the records in one transaction. Raises SinkUnavailable."""
        return await self._run(lambda: self._store.write(records))

    async def close(self) -> None:
        """Close the file. Never raises."""
        thread, self._thread = self._thread, None  # closed twice at once, by an opening that is cancelled
        if thread is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self._store.close)
        except sqlite3.Error:
            logger.exception("%s could not be closed.", self._store.path)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, action: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = runtime.ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-sink")
        return await asyncio.get_running_loop().run_in_executor(self._thread, action)


class LocalResults:
    """Reads the results in the file, or the items. A file that does not exist yet has none."""

    def __init__(self, folder: Path, table: Table = RESULTS) -> None:
        self._path = folder / FILE_NAME
        self._table = table
        self.address = str(self._path)

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The reader of the results in SITE_DATA_DIR. Raises ConfigError."""
        return cls(_folder(settings))

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        """The reader of the items in SITE_DATA_DIR. Raises ConfigError."""
        return cls(_folder(settings), ITEMS)

    def get(self, url_id: str) -> dict[str, Any] | None:
        """One document. Raises SinkUnavailable."""
        return next(self._documents(f"WHERE {self._table.key} = ?", [url_id]), None)

    def search(
        self,
        status: StatusFilter = None,
        task_id: str | None = None,
        limit: int | None = 1000,
        fields: Fields = ANY,
    ) -> Iterator[dict[str, Any]]:
        """At most `limit` documents (None: all) that fit all filters. Raises SinkUnavailable."""
        where, values = conditions(self._table, status, task_id, fields)
        return self._documents(f"{where} ORDER BY rowid LIMIT ?", [*values, -1 if limit is None else limit])

    def count(self, status: StatusFilter = None, task_id: str | None = None, fields: Fields = ANY) -> int:
        """How many documents fit all filters. Raises SinkUnavailable."""
        where, values = conditions(self._table, status, task_id, fields)
        return int(next(self._rows(f"SELECT count(*) FROM {self._table.name} {where}", values), [0])[0])  # noqa: S608

    def close(self) -> None:
        """Nothing is held between calls."""

    def _documents(self, where: str, values: Sequence[Any]) -> Iterator[dict[str, Any]]:
        # the clauses are constants of this module, their values are bound
        key, table = self._table.key, self._table.name
        shown = "_id" if self._table is ITEMS else key
        for found, document in self._rows(f"SELECT {key}, document FROM {table} {where}", values):  # noqa: S608
            yield {shown: found, **without_mark(document_in(document))}

    def _rows(self, query: str, values: Sequence[Any]) -> Iterator[Any]:
        try:
            self._path.stat()
            address = f"{self._path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
                tables = "SELECT 1 FROM sqlite_master WHERE name = ?"
                if connection.execute(tables, [self._table.name]).fetchone():
                    yield from connection.execute(query, values)
        except FileNotFoundError:
            return
        except (sqlite3.Error, OSError) as error:
            raise unavailable(self._path, error) from error


def _folder(settings: SettingsView) -> Path:
    return Path(text(settings, "SITE_DATA_DIR", required=True))
