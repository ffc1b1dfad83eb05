"""The SQLite file of results and statistics, in SITE_DATA_DIR.

Several processes share it (WAL). One object belongs to one thread; it opens the file
when it is first needed, and again after any error or when somebody removed the file.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from site_spider import options, runtime
from site_spider.adapters.local.database import create, inode_of, open_database
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import SinkRejected, SinkUnavailable
from site_spider.results.document import encode, settled

T = TypeVar("T")

FILE_NAME = "results.sqlite"
KEEP = "SITE_LOCAL_KEEP_SECONDS"
FORGET_ROWS = 1_000  # with one write
BUSY_SECONDS = 20.0  # how long one write waits for those of other processes


@dataclass(frozen=True, slots=True)
class Table:
    """A table of documents; `columns` maps columns to search by to the fields they come from."""

    name: str
    key: str
    columns: Mapping[str, str]
    is_shared: bool = False  # producers have fields of their own in its documents
    aged_by: str = ""  # the column with a time as text, by which rows are forgotten
    merges: bool = True  # a document that is written again, with what is there; else it is replaced

    @property
    def schema(self) -> Sequence[str]:
        """The statements that create it."""
        columns = "".join(f", {column}" for column in self.columns)
        table = f"{self.name} ({self.key} TEXT PRIMARY KEY, document TEXT NOT NULL{columns}, updated_at REAL)"
        indices = [
            f"CREATE INDEX IF NOT EXISTS {self.name}_{column} ON {self.name} ({column})"
            for column in self.columns
        ]
        return [f"CREATE TABLE IF NOT EXISTS {table}", *indices]

    @property
    def upsert(self) -> str:
        """The statement that writes one row: key, document, columns, time."""
        names = [self.key, "document", *self.columns, "updated_at"]
        # as bytes: SQLite copies them once, Python would make a text of them and bytes again
        marks = ", ".join("CAST(? AS TEXT)" if name == "document" else "?" for name in names)
        changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        # names are constants of this module
        insert = f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608
        return f"{insert} ON CONFLICT ({self.key}) DO UPDATE SET {changes}"

    @property
    def forget(self) -> str:
        """The statement that deletes some rows from before a time."""
        old = f"SELECT {self.key} FROM {self.name} WHERE {self.aged_by} < ? LIMIT {FORGET_ROWS}"  # noqa: S608 - as above
        return f"DELETE FROM {self.name} WHERE {self.key} IN ({old})"  # noqa: S608 - as above

    @property
    def select(self) -> str:
        """The statement that reads the document of a key."""
        return f"SELECT document FROM {self.name} WHERE {self.key} = ?"  # noqa: S608 - as above


RESULTS = Table("results", "url_id", {"status": "status", "task_id": "task_id"}, is_shared=True)
ITEMS = Table("items", "item_key", {}, merges=False)
STATISTICS = Table("statistics", "id", {"timestamp": "@timestamp", "process": "process"}, aged_by="timestamp")


class LocalStore:
    """Writes documents into one table of the file, merging them with what is there."""

    def __init__(
        self, folder: Path, table: Table, row_limit_bytes: int | None = None, keep_seconds: float = 0
    ) -> None:
        self._keep_seconds = keep_seconds if table.aged_by else 0  # of rows; 0: for ever
        self.path = folder / FILE_NAME
        self._table = table
        self._select, self._upsert = table.select, table.upsert
        self._row_limit_bytes = row_limit_bytes
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def open(self) -> None:
        """Create what is missing. Raises SinkUnavailable."""
        self._guarded(self._connected)

    def check(self) -> str:
        """What `open` would find. Raises SinkUnavailable."""
        exists = self.path.exists()
        folder = next(parent for parent in self.path.absolute().parents if parent.exists())
        if not folder.is_dir() or not os.access(self.path if exists else folder, os.W_OK):
            raise unavailable(self.path, PermissionError(f"nothing can be written in {folder}"))
        return f"{self.path} {'is there' if exists else 'will be created'}"

    def write(self, records: Sequence[Record]) -> list[Verdict]:
        """Write the records in one transaction; one verdict for each. Raises SinkUnavailable."""
        return self._guarded(lambda: self._write(records))

    def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (sqlite3.Error, OSError) as error:
            self.close()  # gives back a transaction that was left open
            raise unavailable(self.path, error) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and inode_of(self.path) != self._inode:
            self.close()
        if self._connection is None:
            # durable, since acknowledged means that it survives a power failure
            self._connection = open_database(self.path, BUSY_SECONDS, is_durable=True)
            self._prepare(self._connection)
            self._inode = self.path.stat().st_ino
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._row_limit_bytes is not None:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._row_limit_bytes)
        create(connection, self._table.schema)

    def _write(self, records: Sequence[Record]) -> list[Verdict]:
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        now = runtime.time()
        verdicts = [self._put(connection, record, now) for record in records]
        if self._keep_seconds:
            connection.execute(self._table.forget, [_as_text(now - self._keep_seconds)])
        connection.execute("COMMIT")
        return verdicts

    def _put(self, connection: sqlite3.Connection, record: Record, now: float) -> Verdict:
        try:
            document = self._merged(connection, record)
            columns = [_column(document.get(field)) for field in self._table.columns.values()]
            row = [record.key, encode(document), *columns, now]
            connection.execute(self._upsert, row)
        except SinkRejected as error:
            return Verdict(Answer.REJECTED, str(error))
        except (sqlite3.DataError, OverflowError, UnicodeEncodeError) as error:
            # too large for a row, or a key or number that SQLite has no words for
            return Verdict(Answer.REJECTED, f"{type(error).__name__}: {error}")
        return ACKNOWLEDGED

    def _merged(self, connection: sqlite3.Connection, record: Record) -> Mapping[str, Any]:
        if not self._table.merges:
            return record.document
        row = connection.execute(self._select, [record.key]).fetchone()
        stored = {} if row is None else document_in(row[0])
        return merged(stored, settled(stored, record.document) if self._table.is_shared else record.document)


def keep_seconds(settings: options.SettingsView) -> float:
    """SITE_LOCAL_KEEP_SECONDS; 0, for ever, where nobody has set it. Raises ConfigError."""
    return 0.0 if settings.get(KEEP) is None else options.seconds(settings, KEEP)


def _as_text(moment: float) -> str:
    return datetime.fromtimestamp(max(0.0, moment), UTC).isoformat(timespec="milliseconds")


def document_in(text: object) -> dict[str, Any]:
    """The document of a row; empty if there is none in it, because somebody else wrote it."""
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The old document with the fields of the new one, objects merged field by field.

    A null overwrites, as in Elasticsearch's partial update; a JSON merge patch would delete the field.
    """
    both = dict(old)
    for name, value in new.items():
        before = both.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            both[name] = merged(before, value)
        else:
            both[name] = value
    return both


def unavailable(path: Path, error: Exception) -> SinkUnavailable:
    """The error to raise when the file cannot be used."""
    return SinkUnavailable(
        f"SITE_DATA_DIR is {str(path.parent)!r}, but {path} cannot be used: {error}."
        " Check its disk and permissions, or set another folder."
    )


def _column(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else None
