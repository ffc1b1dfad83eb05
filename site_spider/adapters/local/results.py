"""Results and statistics in an SQLite file: sink and reader of the embedded default."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Self

from site_spider import options, runtime
from site_spider.adapters.files import DatabaseFile, ThreadSink, data_folder, settings_to_blame, unusable
from site_spider.contracts.sink import ACKNOWLEDGED, ANY, Answer, Fields, Record, StatusFilter, Verdict
from site_spider.errors import SinkRejected, SinkUnavailable
from site_spider.options import SettingsView
from site_spider.page.url import beginnings_of
from site_spider.results.document import encode, settled, without_mark

# --- store: the SQLite file of results and statistics, in SITE_DATA_DIR ----------------------------------
# Several processes share it (WAL). One object belongs to one thread.

FILE_NAME = "results.sqlite"
KEEP = "SITE_LOCAL_KEEP_SECONDS"
FORGET_ROWS = 1_000  # with one write
_PART_ROWS, _PART_CHARACTERS = 1_000, 2_000_000  # that are read with one question, unless the last one is longer
BUSY_SECONDS = 20.0  # how long one write waits for those of other processes


@dataclass(frozen=True, slots=True)
class Table:
    """A table of documents; `columns` maps columns to search by to the fields they come from."""

    name: str
    key: str
    columns: Mapping[str, str]
    is_shared: bool = False  # producers have fields of their own in its documents
    merges: bool = True  # a document that is written again, with what is there; else it is replaced

    @property
    def schema(self) -> Sequence[str]:
        columns = "".join(f", {column}" for column in self.columns)
        table = f"{self.name} ({self.key} TEXT PRIMARY KEY, document TEXT NOT NULL{columns}, updated_at REAL)"
        indices = [
            f"CREATE INDEX IF NOT EXISTS {self.name}_{column} ON {self.name} ({column})" for column in self.columns
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


RESULTS = Table("results", "url_id", {"status": "status", "task_id": "task_id"}, is_shared=True)
ITEMS = Table("items", "item_key", {}, merges=False)
STATISTICS = Table("statistics", "id", {"timestamp": "@timestamp", "process": "process"})


class LocalStore(DatabaseFile):
    """Writes documents into one table of the file, merging them with what is there."""

    _away = SinkUnavailable

    def __init__(self, folder: Path, table: Table, keep_seconds: float = 0) -> None:
        # durable, since acknowledged means that it survives a power failure
        super().__init__(folder / FILE_NAME, table.schema, BUSY_SECONDS, is_durable=True)
        self._keep_seconds = keep_seconds  # of statistics; 0: for ever
        self._table = table
        self._select = f"SELECT document FROM {table.name} WHERE {table.key} = ?"  # noqa: S608 - as above
        self._delete = f"DELETE FROM {table.name} WHERE {table.key} = ?"  # noqa: S608 - as above
        self._upsert = table.upsert

    def write(self, records: Sequence[Record]) -> list[Verdict]:
        with self.transaction() as connection:
            now, name, key = runtime.time(), self._table.name, self._table.key
            verdicts = [self._put(connection, record, now) for record in records]
            if self._keep_seconds:
                before = datetime.fromtimestamp(max(0.0, now - self._keep_seconds), UTC)
                old = f"SELECT {key} FROM {name} WHERE timestamp < ? LIMIT {FORGET_ROWS}"  # noqa: S608 - as above
                forget = f"DELETE FROM {name} WHERE {key} IN ({old})"  # noqa: S608 - as above
                connection.execute(forget, [before.isoformat(timespec="milliseconds")])
        return verdicts

    def _put(self, connection: sqlite3.Connection, record: Record, now: float) -> Verdict:
        if record.is_gone:
            connection.execute(self._delete, [record.key])
            return ACKNOWLEDGED
        try:
            document = self._merged(connection, record)
            columns = [_column(document.get(field)) for field in self._table.columns.values()]
            connection.execute(self._upsert, [record.key, encode(document), *columns, now])
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
        is_shared, document = self._table.is_shared, record.document
        return merged(stored, settled(stored, document, record.names) if is_shared else document)


def keep_seconds(settings: options.SettingsView) -> float:
    """SITE_LOCAL_KEEP_SECONDS; 0, for ever, where nobody has set it. Raises ConfigError."""
    return 0.0 if settings.get(KEEP) is None else options.seconds(settings, KEEP)


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
        if isinstance(before, dict) and isinstance(value, Mapping):
            both[name] = merged(before, value)
        else:
            both[name] = value
    return both


def _column(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else None


# --- Filters of documents as conditions of SQL. The clauses are constants, their values are bound --------

# a document may be somebody else's text
_WITHOUT_BODY = "CASE WHEN json_valid(document) THEN json_remove(document, '$.body', '$.body_base64', '$.headers') END"
_FIELD_IS = "CASE WHEN json_valid(document) THEN json_extract(document, ?) IS ? END"


def conditions(table: Table, status: StatusFilter, fields: Fields, before: Fields = ANY) -> tuple[str, list[Any]]:
    """A WHERE clause, empty if there is no filter, and its values."""
    found: list[tuple[str, list[Any]]] = []
    if isinstance(status, int):
        found.append(("status = ?", [status]))
    elif status is not None:
        found.append(("status IS NULL", []))
    found += [_condition(table, name, value) for name, value in fields.items()]
    found += [(f"NOT coalesce({_field(name)} > ?, false)", [value]) for name, value in before.items()]
    clauses, values = [clause for clause, _ in found], [value for _, some in found for value in some]
    return ("WHERE " + " AND ".join(clauses) if clauses else ""), values


def _field(name: str, inside: str = "") -> str:
    """The value in a document; `name` is ours, or one that SITE_RESULT_FIELDS gives, with dots at most."""
    return f"CASE WHEN json_valid(document) THEN json_extract(document, '$.{inside}\"{name}\"') END"


def _condition(table: Table, name: str, value: str) -> tuple[str, list[Any]]:
    if name in table.columns:
        return f"{name} = ?", [value]
    if table is ITEMS and name == "host":
        return _of_host(_field("url", "_page."), value)
    return f"{_field(name, '_page.' if table is ITEMS else '')} = ?", [value]


def _of_host(url: str, host: str) -> tuple[str, list[Any]]:
    beginnings = beginnings_of(host)
    either = " OR ".join([f"substr({url}, 1, ?) = ?"] * len(beginnings))
    return f"({either})", [value for begin in beginnings for value in (len(begin), begin)]


class LocalSink(ThreadSink):
    """Documents in one table of the file."""

    name = "local"

    def __init__(self, folder: Path, table: Table = RESULTS, keep_seconds: float = 0) -> None:
        super().__init__(LocalStore(folder, table, keep_seconds))

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        return cls(data_folder(settings), RESULTS)

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        return cls(data_folder(settings), ITEMS)

    @classmethod
    def for_statistics(cls, settings: SettingsView) -> Self:
        return cls(data_folder(settings), STATISTICS, keep_seconds=keep_seconds(settings))


class LocalResults:
    """Reads the results in the file, or the items. A file that does not exist yet has none."""

    def __init__(self, folder: Path, table: Table = RESULTS) -> None:
        self._path = folder / FILE_NAME
        self._table = table
        self.address = str(self._path)

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        return cls(data_folder(settings))

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        return cls(data_folder(settings), ITEMS)

    def get(self, url_id: str) -> dict[str, Any] | None:
        return next(self._documents(f"WHERE {self._table.key} = ?", [url_id]), None)

    def known(self, url_ids: Sequence[str], fields: Sequence[str]) -> dict[str, Mapping[str, Any]]:  # noqa: ARG002
        """The documents without their bodies. Raises SinkUnavailable."""
        key, table, marks = self._table.key, self._table.name, ", ".join("?" * len(url_ids))
        query = f"SELECT {key}, {_WITHOUT_BODY} FROM {table} WHERE {key} IN ({marks})"  # noqa: S608
        return {url_id: document_in(text) for url_id, text in self._rows(query, url_ids)}

    def search(
        self, status: StatusFilter = None, fields: Fields = ANY, *, limit: int | None = 1000,
        before: Fields = ANY, names: Sequence[str] = (),
    ) -> Generator[dict[str, Any]]:  # fmt: skip
        found = self._documents(*conditions(self._table, status, fields, before), has_body=not names)
        return (one for one in islice(found, limit))

    def count(self, status: StatusFilter = None, fields: Fields = ANY) -> int:
        where, values = conditions(self._table, status, fields)
        return int(next(self._rows(f"SELECT count(*) FROM {self._table.name} {where}", values), [0])[0])  # noqa: S608

    def exchange(self, name: str, changes: Mapping[str, tuple[str | None, str]]) -> set[str]:
        """Set a field where it still is what was read, in one transaction. Raises SinkUnavailable."""
        path, table, column = f'$."{name}"', self._table.name, self._table.key
        statement = f"UPDATE {table} SET document = json_set(document, ?, ?) WHERE {column} = ? AND {_FIELD_IS}"  # noqa: S608
        rows = [(key, [path, new, key, path, old]) for key, (old, new) in changes.items()]
        with closing(LocalStore(self._path.parent, self._table)) as store, store.transaction() as connection:
            return {key for key, values in rows if connection.execute(statement, values).rowcount}

    def close(self) -> None:
        """Nothing is held between calls."""

    def _documents(self, where: str, values: Sequence[Any], *, has_body: bool = True) -> Generator[dict[str, Any]]:
        """In parts: while a question lasts, the file's log could not be shortened, whatever is written meanwhile."""
        key, last, shown = self._table.key, 0, "_id" if self._table is ITEMS else self._table.key
        what, where = "document" if has_body else _WITHOUT_BODY, where or "WHERE true"
        after = f"FROM {self._table.name} {where} AND rowid > ? ORDER BY rowid LIMIT {_PART_ROWS}"
        is_over = False
        while not is_over:
            part, is_over = self._part(f"SELECT {key}, {what}, rowid {after}", [*values, last])
            documents = ((found, document_in(document)) for found, document, _ in part)
            read = without_mark if self._table.is_shared else dict[str, Any]
            yield from ({shown: found, **read(document)} for found, document in documents)
            last = part[-1][2] if part else last

    def _part(self, query: str, values: Sequence[Any]) -> tuple[list[Any], bool]:
        """And whether there is no further one: to look for it without an index takes long."""
        part, size = [], 0
        with closing(self._rows(query, values)) as rows:
            for row in rows:
                part.append(row)
                if (size := size + len(str(row[1]))) > _PART_CHARACTERS:
                    return part, False
        return part, len(part) < _PART_ROWS

    def _rows(self, query: str, values: Sequence[Any]) -> Generator[Any]:
        try:
            self._path.stat()
            address = f"{self._path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
                if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [self._table.name]).fetchone():
                    yield from connection.execute(query, values)
        except FileNotFoundError:
            return
        except (sqlite3.Error, OSError) as error:
            with settings_to_blame():
                raise SinkUnavailable(unusable(self._path, error)) from error
