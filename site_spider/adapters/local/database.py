"""Opens an SQLite file that several processes of this machine share, with a write-ahead log.

The switch to that log does not wait for other processes by itself, as everything else does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from errno import EACCES, EEXIST, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM, EROFS
from pathlib import Path

from site_spider import runtime
from site_spider.adapters.files import private_database

_ATTEMPTS = 100
_PAUSE_SECONDS = 0.05
# A path that cannot be a folder of ours, however long one waits; a full or slow disk is none of these.
_NEVER = frozenset({ENOENT, ENOTDIR, EEXIST, EISDIR, EACCES, EPERM, EROFS, ENAMETOOLONG, ELOOP})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


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


def can_never_be(error: BaseException | None) -> bool:
    """Whether a file could not be made where it was to be, and will not be later."""
    return isinstance(error, OSError) and error.errno in _NEVER


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
