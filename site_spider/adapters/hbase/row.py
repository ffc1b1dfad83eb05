"""The layout of a document as a row of HBase.

Every field is a column of the family `f`. Text stands there as UTF-8, numbers in decimal, true and false
as words, objects and lists as JSON. A null is an empty value: deleting the column would hide a write
of the same millisecond as well, and to leave it out would keep the value of an earlier write.
Binary content, `body_base64` in a document, stands in `body_bytes` as it is.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from site_spider.contracts.sink import Record
from site_spider.errors import SinkRejected
from site_spider.results.document import MARK, Result, encode

FAMILY = "f"
LONGEST_KEY_BYTES = 32_767  # HBase's own limit, met with an internal error
CELL_OVERHEAD_BYTES = 30  # of a cell on the wire, about, beside name and value

PREFIX = f"{FAMILY}:".encode()
_URL_ID, _BODY, _BYTES, _TRUNCATED = b"f:url_id", b"f:body", b"f:body_bytes", b"f:body_truncated"
_MARK = PREFIX + MARK.encode()
_BASE64 = "body_base64"
_FIELDS = [field.name for field in fields(Result)]  # in the order of people's interest; HBase sorts them
_TEXT_FIELDS = {field.name for field in fields(Result) if str(field.type).startswith("str")}


class Row(NamedTuple):
    """What is written under a key; `content` names the column that may be cut, if there is one."""

    key: bytes
    cells: dict[bytes, bytes]
    content: bytes | None

    @property
    def size_bytes(self) -> int:
        """What it weighs on the wire."""
        cells = sum(len(name) + len(value) + CELL_OVERHEAD_BYTES for name, value in self.cells.items())
        return len(self.key) + cells

    @property
    def content_bytes(self) -> int:
        """How much there is to cut."""
        return len(self.cells[self.content]) if self.content else 0

    def shortened(self, limit_bytes: int) -> Row:
        """The same with its content cut to `limit_bytes`."""
        assert self.content is not None
        value = self.cells[self.content]
        cut = value[:limit_bytes] if self.content == _BYTES else cut_text(value, limit_bytes)
        return self._replace(cells={**self.cells, self.content: cut, _TRUNCATED: b"true"})


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
        if record.kind == "item":  # nothing of it is ours to cut
            return Row(key, {_column(str(name)): _value(value) for name, value in document.items()}, None)
        cells = dict(_cell(str(name), value) for name, value in document.items())
        cells.setdefault(_URL_ID, record.key.encode("utf-8", "replace"))
        if _BODY in cells:
            cells.setdefault(_TRUNCATED, b"")  # or that of an earlier, longer body would stay
            cells.setdefault(_BYTES, b"")  # likewise
        row = Row(key, cells, _content(document, cells))
        return row.shortened(self._cell_bytes) if row.content_bytes > self._cell_bytes else row

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
            if (
                not column.startswith(PREFIX)
                or column == _MARK
                or (column in (_TRUNCATED, _BYTES) and not value)
            ):
                continue
            if column == _BYTES:
                document[_BASE64] = b64encode(value).decode("ascii")
            else:
                name = column.removeprefix(PREFIX).decode("utf-8", "replace")
                document[name] = _read(name, value.decode("utf-8", "replace"))
        return {name: document[name] for name in _FIELDS if name in document} | document

    def _url_id(self, key: str) -> str:
        separator = {"salted": "-", "reversed_host": "/"}.get(self._row_key)
        return key.partition(separator)[2] if separator else key


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
    if name == _BASE64 and value is None:
        return _BYTES, b""
    if name == _BASE64 and isinstance(value, str):
        with suppress(ValueError):  # somebody's own field of this name is text like any other
            return _BYTES, b64decode(value, validate=True)
    return _column(name), _value(value)


def _column(name: str) -> bytes:
    return PREFIX + name.encode("utf-8", "replace")


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
