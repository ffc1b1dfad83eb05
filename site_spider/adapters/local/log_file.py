"""The SQLite file of the embedded seed log, shared by the processes of one machine.

Write-ahead logging lets readers and one writer work at the same time. A message's id is its partition's id
and its offset in one number, so that a partition is one stretch of one B-tree.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from site_spider.adapters.local.database import create, error_code, inode_of, is_busy, open_database
from site_spider.errors import LogUnavailable

logger = logging.getLogger(__name__)

FILE_NAME = "seeds.sqlite"
OFFSET_BITS = 40  # a partition holds 10^12 messages, a file 8 million partitions

_VERSION = 1
_WAL_LIMIT_BYTES = 64_000_000  # what the -wal file is cut to after a burst
_PASSING = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,  # others open it again at the same time, as after each error
}
_PASSING_ERRNOS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
}

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS partitions (
        id INTEGER PRIMARY KEY, topic TEXT NOT NULL, number INTEGER NOT NULL,
        next_offset INTEGER NOT NULL DEFAULT 0, UNIQUE (topic, number))""",
    """CREATE TABLE IF NOT EXISTS messages (
        id INTEGER PRIMARY KEY, key BLOB, value BLOB, headers TEXT, timestamp_ms INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS positions (
        consumer_group TEXT NOT NULL, partition_id INTEGER NOT NULL, next_offset INTEGER NOT NULL,
        metadata TEXT NOT NULL, PRIMARY KEY (consumer_group, partition_id)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS members (
        id INTEGER PRIMARY KEY, consumer_group TEXT NOT NULL, topic TEXT NOT NULL,
        process TEXT NOT NULL, seen_at_seconds REAL NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS claims (
        consumer_group TEXT NOT NULL, partition_id INTEGER NOT NULL, member INTEGER NOT NULL,
        PRIMARY KEY (consumer_group, partition_id)) WITHOUT ROWID""",
    f"PRAGMA user_version = {_VERSION}",
)


# between two ids, at most so many; see `message_id`
SELECT_MESSAGES = (
    "SELECT id, key, value, headers, timestamp_ms FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
)


def message_id(partition_id: int, offset: int) -> int:
    """The id of a message."""
    return partition_id << OFFSET_BITS | offset


def offset_of(identifier: int) -> int:
    """The offset of a message from its id."""
    return identifier & ((1 << OFFSET_BITS) - 1)


def may_pass(error: LogUnavailable) -> bool:
    """Whether waiting may help: another process held the file for long, or the disk is full or read-only."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return is_busy(cause) or error_code(cause) in _PASSING
    return isinstance(cause, OSError) and cause.errno in _PASSING_ERRNOS


class LogFile:
    """One connection to the file; one thread at a time uses it.

    It opens the file when it is first needed, and again after an error or when somebody removed
    the file. `durable` writes survive a power failure and cost an fsync each; others
    survive the death of the process.
    """

    def __init__(self, folder: Path, durable: bool = False, busy_seconds: float = 30) -> None:
        self.path = folder / FILE_NAME
        self._durable = durable
        self._busy_seconds = busy_seconds
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows that a SELECT or PRAGMA yields. Raises LogUnavailable."""
        with self._guarded():
            return self._connected().execute(statement, values).fetchall()

    def stream(self, statement: str, values: Sequence[Any] = ()) -> Generator[Any, None, None]:
        """The same, row by row; to be closed when it is not read to its end. Raises LogUnavailable."""
        with self._guarded():
            cursor = self._connected().execute(statement, values)
            try:
                yield from cursor
            finally:
                cursor.close()  # or else the file's log could not be shortened

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction, alone in the file; rolled back when the block raises.

        Raises LogUnavailable.
        """
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
            raise LogUnavailable(
                f"SITE_DATA_DIR is {str(self.path.parent)!r}, but the seed log {self.path} cannot be used: "
                f"{error}. Check its disk and permissions, or set another folder."
            ) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and inode_of(self.path) != self._inode:
            logger.warning("The seed log %s was removed; beginning a new one.", self.path)
            self.close()
        if self._connection is None:
            self._connection = open_database(self.path, self._busy_seconds, is_durable=self._durable)
            self._prepare(self._connection)
            self._inode = self.path.stat().st_ino
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
        if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            create(connection, _SCHEMA)
