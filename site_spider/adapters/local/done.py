"""Marks of the dupefilter in an SQLite file, kept over restarts and shared by processes of one machine.

Several processes share it (WAL). Reading and writing have a connection each, so that a read
never waits for the lock that a writer of another process holds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Self

from site_spider import options
from site_spider.adapters.files import DatabaseFile, data_folder
from site_spider.contracts.done_store import DoneStore, DoneUnavailable
from site_spider.options import SettingsView

FILE_NAME = "seen.sqlite"
_BUSY_SECONDS = 5.0  # how long one write waits for those of other processes
_CACHE_KIB = 16 * 1024  # of pages, for each connection
_BATCH = 500  # fingerprints in one statement: SQLite takes 999 values at least
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS crawls (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS done (crawl INTEGER, fingerprint BLOB, PRIMARY KEY (crawl, fingerprint)) WITHOUT ROWID",
)
_CRAWL = "(SELECT id FROM crawls WHERE name = ?)"


class LocalDone(DoneStore):
    """Fulfils DoneStore. Each consumer group has fingerprints of its own."""

    name = "local"
    cache_seconds = inf  # nothing is ever forgotten

    def __init__(self, folder: Path, group: str) -> None:
        self.path = folder / FILE_NAME
        self._group = group
        self._reader, self._writer = _MarksFile(self.path), _MarksFile(self.path)

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        return cls(data_folder(settings), options.text(settings, "SITE_CONSUMER_GROUP", required=True))

    def open(self) -> None:
        self._writer.open()

    def known(self, fingerprints: Sequence[bytes]) -> set[bytes]:
        found: set[bytes] = set()
        for start in range(0, len(fingerprints), _BATCH):
            batch = fingerprints[start : start + _BATCH]
            marks = ", ".join("?" * len(batch))
            query = f"SELECT fingerprint FROM done WHERE crawl = {_CRAWL} AND fingerprint IN ({marks})"  # noqa: S608 - marks
            found.update(mark for (mark,) in self._reader.query(query, [self._group, *batch]))
        return found

    def add(self, fingerprints: Sequence[bytes]) -> None:
        # in the order of the index, in which neighbours share pages
        rows = [(self._group, fingerprint) for fingerprint in sorted(fingerprints)]
        with self._writer.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO crawls (name) VALUES (?)", [self._group])
            connection.executemany(f"INSERT OR IGNORE INTO done VALUES ({_CRAWL}, ?)", rows)  # noqa: S608 - as above

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class _MarksFile(DatabaseFile):
    _away = DoneUnavailable

    def __init__(self, path: Path) -> None:
        # not durable: what a power failure takes of the last marks is fetched again, and the file stays whole
        super().__init__(path, _SCHEMA, _BUSY_SECONDS, is_durable=False)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        super()._prepare(connection)
