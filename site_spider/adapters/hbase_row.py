"""How a document is laid out in a row of HBase.

Every field is a column of the family `f`. Text stands there as UTF-8, numbers in decimal, true and false
as words, objects and lists as JSON. A null is an empty value: deleting the column would hide a write
of the same millisecond as well, and to leave it out would keep the value of an earlier write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from site_spider.core.document import encode
from site_spider.core.sink import Record
from site_spider.errors import SinkRejected
from site_spider.items import Result

FAMILY = "f"
LONGEST_KEY_BYTES = 32_767  # HBase's own limit, met with an internal error
CELL_OVERHEAD_BYTES = 30  # of a cell on the wire, about, beside name and value

_PREFIX = f"{FAMILY}:".encode()
_URL_ID, _BODY, _TRUNCATED = b"f:url_id", b"f:body", b"f:body_truncated"
_TEXT_FIELDS = {field.name for field in fields(Result) if str(field.type).startswith("str")}


class Row(NamedTuple):
    """What is written under a key; `has_text` tells that the body may be cut."""

    key: bytes
    cells: dict[bytes, bytes]
    has_text: bool

    @property
    def size_bytes(self) -> int:
        """What it weighs on the wire."""
        cells = sum(len(name) + len(value) + CELL_OVERHEAD_BYTES for name, value in self.cells.items())
        return len(self.key) + cells

    def shortened(self, body_bytes: int | None = None) -> Row | None:
        """The same with a body of that size or half as long; None when there is nothing to cut off."""
        body = self.cells.get(_BODY, b"")
        if not self.has_text or not body:
            return None
        cut = cut_text(body, len(body) // 2 if body_bytes is None else body_bytes)
        return self._replace(cells={**self.cells, _BODY: cut, _TRUNCATED: b"true"})


class RowLayout:
    """Makes rows of records and documents of rows; `row_key` is the value of SITE_HBASE_ROW_KEY."""

    def __init__(self, row_key: str, cell_bytes: int) -> None:
        self._row_key = row_key
        self._key = _KEYS[row_key]
        self._cell_bytes = cell_bytes

    def row(self, record: Record) -> Row:
        """The row of a record, its body cut to `cell_bytes`. Raises SinkRejected."""
        document = record.document
        key = self._key(record.key, document).encode("utf-8", "replace")
        if not 1 <= len(key) <= LONGEST_KEY_BYTES:
            raise SinkRejected(f"the row key has {len(key)} bytes, but HBase takes 1 to {LONGEST_KEY_BYTES}")
        cells = {_PREFIX + str(name).encode("utf-8", "replace"): _value(document[name]) for name in document}
        cells.setdefault(_URL_ID, record.key.encode("utf-8", "replace"))
        if _BODY in cells:
            cells.setdefault(_TRUNCATED, b"")  # or that of an earlier, longer body would stay
        row = Row(key, cells, isinstance(document.get("body"), str))
        if len(cells.get(_BODY, b"")) > self._cell_bytes:
            return row.shortened(self._cell_bytes) or row
        return row

    def key_of(self, url_id: str) -> bytes | None:
        """The key of a result's row; None if it depends on more than the url_id, b"" if there is none."""
        if self._row_key == "reversed_host":
            return None
        key = self._key(url_id, {}).encode("utf-8", "replace") if url_id else b""
        return key if len(key) <= LONGEST_KEY_BYTES else b""

    def document(self, key: bytes, cells: Mapping[bytes, bytes]) -> dict[str, Any]:
        """What was written to a row, whoever did so."""
        document: dict[str, Any] = {"url_id": self._url_id(key.decode("utf-8", "replace"))}
        for column, value in cells.items():
            if column.startswith(_PREFIX) and (column, value) != (_TRUNCATED, b""):
                name = column.removeprefix(_PREFIX).decode("utf-8", "replace")
                document[name] = _read(name, value.decode("utf-8", "replace"))
        return document

    def _url_id(self, key: str) -> str:
        separator = {"salted": "-", "reversed_host": "/"}.get(self._row_key)
        return key.partition(separator)[2] if separator else key


def cut_text(value: bytes, limit_bytes: int) -> bytes:
    """The beginning of a UTF-8 text, without half a character at its end."""
    while 0 < limit_bytes < len(value) and value[limit_bytes] & 0xC0 == 0x80:
        limit_bytes -= 1
    return value[:limit_bytes]


def _value(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return encode({"": value})[4:-1]  # what stands between {"": and }


def _read(name: str, text: str) -> Any:
    """The value behind a text; in a field that is not ours, what looks like a number or JSON is one."""
    if not text:
        return None
    if name in _TEXT_FIELDS:
        return text
    try:
        value = json.loads(text)
        written = _value(value)
    except (ValueError, RecursionError, SinkRejected):
        return text
    return text if isinstance(value, str) or written != text.encode() else value


# --- Row keys ---


def _plain(url_id: str, _document: Mapping[str, Any]) -> str:
    return url_id


def _salted(url_id: str, _document: Mapping[str, Any]) -> str:
    """Spreads ids that were counted up over 256 ranges, so that not one region gets all new rows."""
    return f"{hashlib.sha256(url_id.encode('utf-8', 'replace')).hexdigest()[:2]}-{url_id}"


def _by_host(url_id: str, document: Mapping[str, Any]) -> str:
    """Keeps the results of a host, and of a domain, together."""
    return f"{_reversed(_host(document))}/{url_id}"


def _host(document: Mapping[str, Any]) -> str:
    try:
        host = urlsplit(str(document.get("url") or "")).hostname
    except ValueError:
        host = None
    return host or str(document.get("host") or "").lower()


def _reversed(host: str) -> str:
    labels = host.split(".")
    is_address = ":" in host or all(label.isdigit() for label in labels)
    return host if is_address else ".".join(reversed(labels))


_KEYS: dict[str, Callable[[str, Mapping[str, Any]], str]] = {
    "url_id": _plain,
    "salted": _salted,
    "reversed_host": _by_host,
}
