"""Writes documents to an HBase table, through its Thrift server."""

from __future__ import annotations

import hashlib
import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from site_spider import runtime
from site_spider.adapters.files import ThreadSink, is_late
from site_spider.adapters.hbase.connection import (
    BASE64,
    CLIENT_ERRORS,
    TABLE,
    HBaseConnection,
    HBaseOptions,
    Refusal,
    explained,
    is_from_hbase,
    is_table_there,
    refusal_in,
)
from site_spider.contracts.sink import ACKNOWLEDGED, ANY, Answer, Fields, Record, Verdict
from site_spider.errors import ConfigError, SinkRejected
from site_spider.options import SettingsView
from site_spider.results.document import MARK, Result, encode, in_doubt, looked_at, settled

# --- row: the layout of a document as a row of HBase -----------------------------------------------------
# Every field is a column of the family `f`. Text stands there as UTF-8, numbers in decimal, true and false
# as words, objects and lists as JSON. A null is an empty value: deleting the column would hide a write of
# the same millisecond as well, and to leave it out would keep the value of an earlier write. Binary
# content, `body_base64` in a document, stands in `body_bytes` as it is.

FAMILY = "f"
LONGEST_KEY_BYTES = 32_767  # HBase's own limit, met with an internal error
CELL_OVERHEAD_BYTES = 30  # of a cell on the wire, about, beside name and value

PREFIX = f"{FAMILY}:".encode()
_URL_ID, _BODY, _BYTES, _TRUNCATED = b"f:url_id", b"f:body", b"f:body_bytes", b"f:body_truncated"
_MARK = PREFIX + MARK.encode()
_LARGE = frozenset({_BYTES, PREFIX + b"text"})  # a page may have held megabytes there
_FIELDS = [field.name for field in fields(Result)]  # in the order of people's interest; HBase sorts them
_TEXT_FIELDS = {field.name for field in fields(Result) if str(field.type).startswith("str")}


class Row(NamedTuple):
    """What is written under a key; `content` names the column that may be cut, if there is one."""

    key: bytes
    cells: dict[bytes, bytes]
    content: bytes | None
    names: Collection[str] | None = None  # of the record; of an item none, and it is put as it is

    @property
    def size_bytes(self) -> int:
        cells = sum(len(name) + len(value) + CELL_OVERHEAD_BYTES for name, value in self.cells.items())
        return len(self.key) + cells

    @property
    def content_bytes(self) -> int:
        return len(self.cells[self.content]) if self.content else 0

    def shortened(self, limit_bytes: int) -> Row:
        assert self.content is not None
        value = self.cells[self.content]
        cut = value[:limit_bytes] if self.content == _BYTES else cut_text(value, limit_bytes)
        return self._replace(cells={**self.cells, self.content: cut, _TRUNCATED: b"true"})


class RowLayout:
    """Makes rows of records and documents of rows; `row_key` is the value of SITE_HBASE_ROW_KEY.

    `names` are those that fields of results have in the table.
    """

    def __init__(self, row_key: str, cell_bytes: int, names: Fields = ANY) -> None:
        self._row_key = row_key
        self._cell_bytes = cell_bytes
        others = {target for name, target in names.items() if name not in _TEXT_FIELDS}
        self._texts = {names.get(name, name) for name in _TEXT_FIELDS} - others

    def row(self, record: Record) -> Row:
        """The row of a record, its body cut to `cell_bytes`. Raises SinkRejected."""
        document = record.document
        key = _row_key(self._row_key, record.key, document).encode("utf-8", "replace")
        if not 1 <= len(key) <= LONGEST_KEY_BYTES:
            raise SinkRejected(f"the row key has {len(key)} bytes, but HBase takes 1 to {LONGEST_KEY_BYTES}")
        if record.kind == "item":  # nothing of it is ours to cut
            return Row(key, {_column(str(name)): _row_value(value) for name, value in document.items()}, None)
        cells = dict(_cell(str(name), value) for name, value in document.items())
        cells.setdefault(_URL_ID, record.key.encode("utf-8", "replace"))
        if _BODY in cells:
            cells.setdefault(_TRUNCATED, b"")  # or that of an earlier, longer body would stay
            cells.setdefault(_BYTES, b"")  # likewise
        row = Row(key, cells, _content(document, cells), record.names)
        return row.shortened(self._cell_bytes) if row.content_bytes > self._cell_bytes else row

    def key_of(self, url_id: str) -> bytes | None:
        """The key of a result's row; None if it depends on more than the url_id, b"" if there is none."""
        if self._row_key == "reversed_host":
            return None
        key = _row_key(self._row_key, url_id, {}).encode("utf-8", "replace") if url_id else b""
        return key if len(key) <= LONGEST_KEY_BYTES else b""

    def document(self, key: bytes, cells: Mapping[bytes, bytes], *, of_item: bool = False) -> dict[str, Any]:
        """What was written to a row, whoever did so. No name of an item's field means anything."""
        url_id = key.decode("utf-8", "replace")
        if separator := {"salted": "-", "reversed_host": "/"}.get(self._row_key):
            url_id = url_id.partition(separator)[2]
        document: dict[str, Any] = {"url_id": url_id}
        for column, value in cells.items():
            is_ours = column == _MARK or (column in (_TRUNCATED, _BYTES) and not value)
            if not column.startswith(PREFIX) or (is_ours and not of_item):
                continue
            if column == _BYTES and not of_item:
                document[BASE64] = b64encode(value).decode("ascii")
            else:
                name = column.removeprefix(PREFIX).decode("utf-8", "replace")
                text = value.decode("utf-8", "replace")
                is_text = name in self._texts and not (of_item and text[:1] in ("[", "{"))
                document[name] = (text or None) if is_text else _read(text)
        return {name: document[name] for name in _FIELDS if name in document} | document


def cut_text(value: bytes, limit_bytes: int) -> bytes:
    """The beginning of a UTF-8 text, without half a character at its end."""
    while 0 < limit_bytes < len(value) and value[limit_bytes] & 0xC0 == 0x80:
        limit_bytes -= 1
    return value[:limit_bytes]


def _content(document: Mapping[str, Any], cells: Mapping[bytes, bytes]) -> bytes | None:
    """The column that the page itself is in; half of a JSON object would be of no use."""
    if cells.get(_BODY) and isinstance(document["body"], str):
        return _BODY
    return _BYTES if cells.get(_BYTES) else None


def _cell(name: str, value: Any) -> tuple[bytes, bytes]:
    if name == BASE64 and value is None:
        return _BYTES, b""
    if name == BASE64 and isinstance(value, str):
        with suppress(ValueError):  # somebody's own field of this name is text like any other
            return _BYTES, b64decode(value, validate=True)
    return _column(name), _row_value(value)


def _column(name: str) -> bytes:
    return PREFIX + name.encode("utf-8", "replace")


def _row_value(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return encode({"": value})[4:-1]  # what stands between {"": and }


def _read(text: str) -> Any:
    """The value behind a text; what looks like a number or JSON is one."""
    if not text:
        return None
    try:
        value = json.loads(text)
        written = _row_value(value)
    except (ValueError, RecursionError, SinkRejected):
        return text
    return text if isinstance(value, str) or written != text.encode() else value


def _row_key(kind: str, url_id: str, document: Mapping[str, Any]) -> str:
    if kind == "salted":
        # spreads ids that were counted up over 256 ranges, so that not one region gets all new rows
        return f"{hashlib.sha256(url_id.encode('utf-8', 'replace')).hexdigest()[:2]}-{url_id}"
    if kind == "reversed_host":  # keeps the results of a host, and of a domain, together
        host = _host(document)
        labels = host.split(".")
        is_address = ":" in host or all(label.isdigit() for label in labels)
        return f"{host if is_address else '.'.join(reversed(labels))}/{url_id}"
    return url_id


def _host(document: Mapping[str, Any]) -> str:
    try:
        host = urlsplit(str(document.get("url") or "")).hostname
    except ValueError:
        host = None
    return host or str(document.get("host") or "").lower()


# --- Which empty cells of a row are written: those that would hide a producer's value are not ------------
# HBase merges nothing, so what stands in these columns is asked for before the rows are put. See
# results.document.


def _fields_of(cells: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The cells as `results.document` looks at a document: what is empty is null, and the mark is text."""
    fields: dict[str, Any] = {_name(column): value or None for column, value in cells.items()}
    return {**fields, MARK: cells[_MARK].decode("utf-8", "replace")} if _MARK in cells else fields


def over_stored(row: Row, stored: Mapping[bytes, bytes]) -> Row:
    """The row as it is put over what is stored of it."""
    if row.names is None:
        return row
    over = settled(_fields_of(stored), _fields_of(row.cells), row.names)
    cells = {
        _column(name): value.encode("utf-8", "replace") if name == MARK else value or b""
        for name, value in over.items()
    }
    return row._replace(cells=cells)


def _name(column: bytes) -> str:
    return column.removeprefix(PREFIX).decode("utf-8", "replace")


# --- table: writes records to one HBase table over one Thrift connection ---------------------------------
# Theory of operation. An object belongs to one thread, `hang_up` excepted. After any error the connection
# is thrown away, because the client would hand out the previous answer after a timeout, and send the failed
# request once more after a reconnect. A call that timed out may have been carried out; all writes are puts
# of whole cells, so doing them again is harmless.
#
# A call is refused as a whole for one bad row in it. Then its halves are written by themselves until the
# guilty row stands alone. Whatever does not speak of a row for certain is an outage (rule 7).

logger = logging.getLogger(__name__)

CALL_BYTES = 8_000_000  # of rows in one call: ten times as much wedges a Thrift server of 512 MB
CALL_ROWS = 1000
OPEN_TIMEOUT_SECONDS = 10.0
IDLE_SECONDS = 30.0  # the server closes a connection after 60 s without a call

# GZ is the one compression that every server has, without native libraries.
SCHEMA = {FAMILY: {"max_versions": 1, "compression": "GZ", "bloom_filter_type": "ROW", "block_cache_enabled": True}}


_NumberedRow = tuple[int, Row]  # where its record stands in the batch
_LATE = Verdict(Answer.RETRY, "the server took too long for the calls before this one")


class HBaseTable:
    """The table SITE_HBASE_TABLE."""

    def __init__(self, options: HBaseOptions) -> None:
        self._options = options
        self._layout = RowLayout(options.row_key, options.cell_bytes)
        self._connection: HBaseConnection | None = None
        self._is_checked = False  # whether the table is known to exist
        self._used_at = 0.0

    def open(self) -> None:
        """Connect, and create the table if it is missing. Raises SinkUnavailable, ConfigError."""
        self._is_checked = False
        with self._connected():
            pass

    def check(self) -> str:
        options = self._options
        with options.asking(OPEN_TIMEOUT_SECONDS) as connection:
            there = "is there" if self._is_there(connection) else "will be created"
        return f"{options.host}:{options.port} answers; table {options.table} {there}"

    def write(self, records: Sequence[Record]) -> list[Verdict]:
        """One verdict for each record; what is late has to be tried again. Raises SinkUnavailable."""
        verdicts: list[Verdict] = [ACKNOWLEDGED] * len(records)
        rows: list[_NumberedRow] = []
        for number, record in enumerate(records):
            try:
                row = self._layout.row(record)
                if record.is_gone:
                    verdicts[number] = self._delete(row.key)
                else:
                    rows.append((number, row))
            except SinkRejected as error:
                verdicts[number] = Verdict(Answer.REJECTED, str(error))
        for call in _calls(rows):
            for number, verdict in self._put(call):
                verdicts[number] = verdict
        return verdicts

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            _close(connection)

    def hang_up(self) -> None:
        """From any thread: whoever waits for the server stops waiting, with an error."""
        if self._connection is not None:
            _close(self._connection)

    # --- The connection ---

    @contextmanager
    def _connected(self) -> Iterator[HBaseConnection]:
        """A connection that is good; it is thrown away if what is done on it fails.

        Raises Refusal, SinkUnavailable and ConfigError.
        """
        try:
            yield self._good_connection()
        except CLIENT_ERRORS as error:
            self.close()
            if (refusal := refusal_in(error)) is None and is_from_hbase(error):
                self._is_checked = False  # a missing table is reported as servers with issues
            raise refusal or self._options.unavailable(explained(error)) from error
        except BaseException:
            self.close()
            raise
        self._used_at = runtime.monotonic()

    def _good_connection(self) -> HBaseConnection:
        if self._connection is not None and runtime.monotonic() - self._used_at > IDLE_SECONDS:
            self.close()
        if self._connection is None:
            self._connection = self._options.connect(OPEN_TIMEOUT_SECONDS)
            if not self._is_checked:
                self._ensure_table(self._connection)
                self._is_checked = True
            self._connection.set_timeout(self._options.timeout_seconds)
        return self._connection

    def _ensure_table(self, connection: HBaseConnection) -> None:
        name = self._options.table
        if self._is_there(connection):
            return
        try:
            connection.create_table(name, SCHEMA)
            logger.info("Created the HBase table %s.", name)
        except CLIENT_ERRORS as error:
            if "NamespaceNotFoundException" in explained(error):
                raise ConfigError(f"{TABLE} is {name!r}, in a namespace that does not exist: create it.") from error
            if not is_table_there(error):
                raise

    def _is_there(self, connection: HBaseConnection) -> bool:
        """Whether the table exists. Raises ConfigError for one without the family."""
        name = self._options.table
        exists = name.encode() in connection.tables()
        if exists and FAMILY.encode() not in connection.table(name).families():
            raise ConfigError(
                f"{TABLE} is {name!r}, a table without the column family {FAMILY!r}. Add it"
                f" (alter '{name}', '{FAMILY}' in the HBase shell) or name another table."
            )
        return exists

    # --- Writing ---

    def _delete(self, key: bytes) -> Verdict:
        if is_late():
            return _LATE
        try:
            with self._connected() as connection:
                connection.table(self._options.table).delete(key)
            runtime.sleep(0.002)  # what is put in the millisecond of a deletion stays hidden
        except Refusal as refusal:
            return refusal.verdict
        return ACKNOWLEDGED

    def _put(self, call: Sequence[_NumberedRow]) -> list[tuple[int, Verdict]]:
        if is_late():
            return [(number, _LATE) for number, _ in call]
        try:
            with self._connected() as connection:
                self._put_settled(connection, [row for _, row in call])
        except Refusal as refusal:
            if len(call) == 1:
                return self._put_shortened(call[0], refusal)
            middle = len(call) // 2
            return [*self._put(call[:middle]), *self._put(call[middle:])]
        return [(number, ACKNOWLEDGED) for number, _ in call]

    def _put_settled(self, connection: HBaseConnection, rows: Sequence[Row]) -> None:
        results = (_fields_of(row.cells) for row in rows if row.names is not None)
        columns = {_column(name) for name in looked_at(results)}
        stored = self._stored(connection, [row.key for row in rows], columns) if columns else {}
        over = [over_stored(row, stored.get(row.key, {})) for row in rows]
        with connection.table(self._options.table).batch(transaction=True) as batch:
            for row in over:
                batch.put(row.key, row.cells)

    def _stored(
        self, connection: HBaseConnection, keys: list[bytes], columns: Set[bytes]
    ) -> Mapping[bytes, Mapping[bytes, bytes]]:
        """These cells; large ones only of rows in which they may be a producer's."""
        table, large = connection.table(self._options.table), columns & _LARGE
        stored: dict[bytes, dict[bytes, bytes]] = dict(table.rows(keys, sorted(columns - large)))
        names = list(map(_name, large))
        doubtful = [key for key in keys if in_doubt(_fields_of(stored.get(key, {})), names)]
        for key, cells in table.rows(doubtful, sorted(large)) if doubtful else ():
            stored.setdefault(key, {}).update(cells)
        return stored

    def _put_shortened(self, place: _NumberedRow, refusal: Refusal) -> list[tuple[int, Verdict]]:
        """The server's limit is lower than SITE_HBASE_CELL_BYTES: half the body is better than none."""
        number, row = place
        if not refusal.too_large or not row.content_bytes:
            return [(number, refusal.verdict)]
        return self._put([(number, row.shortened(row.content_bytes // 2))])


def _calls(rows: Sequence[_NumberedRow]) -> Iterator[list[_NumberedRow]]:
    """The rows in portions for one call each; a row that alone is larger travels alone."""
    call: list[_NumberedRow] = []
    room = CALL_BYTES
    for place in rows:
        size = place[1].size_bytes
        if call and (size > room or len(call) == CALL_ROWS):
            yield call
            call, room = [], CALL_BYTES
        call.append(place)
        room -= size
    if call:
        yield call


def _close(connection: HBaseConnection) -> None:
    # it is broken already, or another thread closes it at this moment, on which thriftpy2 trips
    with suppress(*CLIENT_ERRORS, AttributeError):
        connection.close()


class HBaseSink(ThreadSink):
    """On one thread: a connection is good for one only."""

    name = "hbase"

    def __init__(self, options: HBaseOptions) -> None:
        self._table = HBaseTable(options)
        super().__init__(self._table)

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        return cls(HBaseOptions.from_settings(settings))

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        return cls(HBaseOptions.for_items(settings))

    async def close(self) -> None:
        self._table.hang_up()
        await super().close()
