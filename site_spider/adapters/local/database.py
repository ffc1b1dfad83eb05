"""An SQLite file that several processes of this machine share, with a write-ahead log.

The switch to that log does not wait for other processes by itself, as everything else does.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from site_spider import runtime
from site_spider.adapters.files import private_database
from site_spider.errors import SiteSpiderError

logger = logging.getLogger(__name__)

_ATTEMPTS = 100
_PAUSE_SECONDS = 0.05
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_WAL_LIMIT_BYTES = 64_000_000  # what the -wal file is cut to after a burst


class DatabaseFile:
    """One connection to a file; one thread at a time uses it. All its methods but `close` raise `_away`.

    It opens the file when it is first needed, and again after an error or when somebody removed
    the file. A write waits `busy_seconds` for those of other processes.
    """

    _away: ClassVar[type[SiteSpiderError]]

    def __init__(self, path: Path, schema: Sequence[str], busy_seconds: float, *, is_durable: bool) -> None:
        self.path = path
        self._schema = schema
        self._busy_seconds = busy_seconds
        self._is_durable = is_durable
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None

    def open(self) -> None:
        """Create what is missing."""
        with self._guarded():
            self._connected()

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows that a SELECT or PRAGMA yields."""
        with self._guarded():
            return self._connected().execute(statement, values).fetchall()

    def stream(self, statement: str, values: Sequence[Any] = ()) -> Generator[Any, None, None]:
        """The same, row by row; to be closed when it is not read to its end."""
        with self._guarded():
            cursor = self._connected().execute(statement, values)
            try:
                yield from cursor
            finally:
                cursor.close()  # or else the file's log could not be shortened

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction, alone in the file; rolled back when the block raises."""
        with self._guarded():
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection; it opens again when used."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if not is_busy(error):
                self.close()
            raise self._away(unusable(self.path, error)) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and inode_of(self.path) != self._inode:
            logger.warning("%s was removed; beginning a new one.", self.path)
            self.close()
        if self._connection is None:
            self._connection = open_database(self.path, self._busy_seconds, is_durable=self._is_durable)
            self._connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
            self._prepare(self._connection)
            self._inode = inode_of(self.path)
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        create(connection, self._schema)


def unusable(path: Path, error: Exception) -> str:
    """What to say when a file cannot be used."""
    return (
        f"SITE_DATA_DIR is {str(path.parent)!r}, but {path} cannot be used: {error}."
        " Check its disk and permissions, or set another folder."
    )


def open_database(path: Path, busy_seconds: float, *, is_durable: bool) -> sqlite3.Connection:
    """A new connection; a write waits `busy_seconds` for those of other processes.

    A commit survives the death of the process, and if `is_durable`, at the cost of an fsync, a power failure.
    One thread at a time may use it. Raises sqlite3.Error and OSError.
    """
    private_database(path)
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    try:
        _switch_to_wal(connection)
        connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
    except BaseException:
        connection.close()
        raise
    return connection


def inode_of(path: Path) -> int | None:
    """Which file is there now; None when it is gone.

    What goes into a file that was removed or replaced is lost, without an error.
    """
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def create(connection: sqlite3.Connection, schema: Iterable[str]) -> None:
    """Run these statements in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in schema:
        connection.execute(statement)
    connection.execute("COMMIT")


def error_code(error: sqlite3.Error) -> int:
    """Without what extends it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: Exception) -> bool:
    """Whether another process is at work in the file."""
    return isinstance(error, sqlite3.Error) and error_code(error) in _BUSY


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or attempt == _ATTEMPTS - 1:
                raise
            runtime.sleep(_PAUSE_SECONDS)
        else:
            return
