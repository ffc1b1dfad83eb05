"""Marks of the dupefilter in an SQLite file, kept over restarts and shared by processes of one machine.

Several processes share it (WAL). Reading and writing have a connection each, so that a read
never waits for the lock that a writer of another process holds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Self, TypeVar

from site_spider import options, runtime
from site_spider.adapters.local.database import create, open_database
from site_spider.contracts.done_store import DoneStore, DoneUnavailable
from site_spider.options import SettingsView

T = TypeVar("T")

FILE_NAME = "seen.sqlite"
_BUSY_SECONDS = 5.0  # how long one write waits for those of other processes
_CACHE_KIB = 16 * 1024  # of pages, for each connection
_BATCH = 500  # fingerprints in one statement: SQLite takes 999 values at least
_WAL_LIMIT_BYTES = 64_000_000  # what the -wal file is cut to after a burst
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS crawls (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS done (crawl INTEGER, fingerprint BLOB, PRIMARY KEY (crawl, fingerprint))"
    " WITHOUT ROWID",
)


class LocalDone(DoneStore):
    """Fulfils DoneStore. Each consumer group has fingerprints of its own."""

    name = "local"
    cache_seconds = inf  # nothing is ever forgotten

    def __init__(self, folder: Path, group: str) -> None:
        self.path = folder / FILE_NAME
        self._reader = _Connection(self.path, group)
        self._writer = _Connection(self.path, group)

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The file in SITE_DATA_DIR, for SITE_CONSUMER_GROUP. Raises ConfigError."""
        folder = options.text(settings, "SITE_DATA_DIR", required=True)
        return cls(Path(folder), options.text(settings, "SITE_CONSUMER_GROUP", required=True))

    def open(self) -> None:
        """Create the file and its tables if they are missing."""
        self._writer.run(lambda _connection, _crawl: None)

    def known(self, fingerprints: Sequence[bytes]) -> set[bytes]:
        """Those of them that are kept."""
        return self._reader.run(lambda connection, crawl: set(_select(connection, crawl, fingerprints)))

    def add(self, fingerprints: Sequence[bytes]) -> None:
        """Keep them, in one transaction."""
        # in the order of the index, in which neighbours share pages
        rows = sorted(fingerprints)

        def insert(connection: sqlite3.Connection, crawl: int) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR IGNORE INTO done VALUES (?, ?)", ((crawl, row) for row in rows))
            connection.execute("COMMIT")

        self._writer.run(insert)

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
        self._writer.close()


class _Connection:
    """Opened when it is first needed, and again after an error. Whichever thread comes waits its turn."""

    def __init__(self, path: Path, group: str) -> None:
        self._path = path
        self._group = group
        self._lock = runtime.Lock()
        self._opened: tuple[sqlite3.Connection, int] | None = None

    def run(self, action: Callable[[sqlite3.Connection, int], T]) -> T:
        with self._lock:
            try:
                if self._opened is None:
                    self._opened = self._open()
                return action(*self._opened)
            except (sqlite3.Error, OSError) as error:
                self._close()  # gives back a transaction that was left open
                raise DoneUnavailable(
                    f"SITE_DATA_DIR is {str(self._path.parent)!r}, but {self._path} cannot be used: {error}."
                    " Check its disk and permissions, or set another folder."
                ) from error

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    def _open(self) -> tuple[sqlite3.Connection, int]:
        # not durable: what a power failure takes of the last marks is fetched again, and the file stays whole
        connection = open_database(self._path, _BUSY_SECONDS, is_durable=False)
        try:
            return connection, self._prepared(connection)
        except BaseException:
            connection.close()
            raise

    def _prepared(self, connection: sqlite3.Connection) -> int:
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
        create(connection, _SCHEMA)
        connection.execute("INSERT OR IGNORE INTO crawls (name) VALUES (?)", [self._group])
        return int(connection.execute("SELECT id FROM crawls WHERE name = ?", [self._group]).fetchone()[0])


def _select(connection: sqlite3.Connection, crawl: int, fingerprints: Sequence[bytes]) -> Iterator[bytes]:
    for start in range(0, len(fingerprints), _BATCH):
        batch = fingerprints[start : start + _BATCH]
        marks = ", ".join("?" * len(batch))
        query = f"SELECT fingerprint FROM done WHERE crawl = ? AND fingerprint IN ({marks})"  # noqa: S608 - marks
        yield from (row[0] for row in connection.execute(query, [crawl, *batch]))
