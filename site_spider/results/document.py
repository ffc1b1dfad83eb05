"""A result document as JSON, the form that every sink sends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from site_spider.errors import SinkRejected

# In a text without others, non-ASCII signs need not be looked for: three fifths of the time.
_ascii = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_any = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

_BODIES = ("body", "body_base64")
_LONG = 65_536  # characters that are encoded in one call


def encode(document: Mapping[str, Any]) -> bytes:
    """Compact UTF-8 JSON in one line. Raises SinkRejected when JSON has no words for a value.

    Half a surrogate pair, which UTF-8 cannot carry, becomes a question mark; NaN and
    infinity are refused, because a single one makes a server refuse the whole batch.
    """
    if any(isinstance(text := document.get(name), str) and len(text) > _LONG for name in _BODIES):
        return _in_slices(document)
    return _at_once(document)


def _in_slices(document: Mapping[str, Any]) -> bytes:
    """Field by field, and a body slice by slice: in one go it is in memory five times."""
    output = BytesIO(b"{")
    output.seek(1)
    for name, value in document.items():
        output.write(b"," if output.tell() > 1 else b"")
        if name in _BODIES and isinstance(value, str):
            output.write(b'"%b":"' % name.encode())
            for begin in range(0, len(value), _LONG):
                output.write(_any(value[begin : begin + _LONG])[1:-1].encode("utf-8", "replace"))
            output.write(b'"')
        else:
            output.write(_at_once({name: value})[1:-1])
    output.write(b"}")
    return output.getvalue()


def _at_once(document: Mapping[str, Any]) -> bytes:
    try:
        text = (_ascii if _is_ascii(document) else _any)(dict(document))
    except (TypeError, ValueError, RecursionError) as error:
        raise SinkRejected(f"the document cannot be written as JSON: {error}") from None
    return text.encode("utf-8", "replace")


def _is_ascii(document: Mapping[str, Any]) -> bool:
    """Whether all of it is; false also for what is not worth a closer look."""
    for name, value in document.items():
        if isinstance(value, str):
            if not value.isascii():
                return False
        elif value and not isinstance(value, int | float):
            return False
        if not (isinstance(name, str) and name.isascii()):
            return False
    return True


def shortened(document: Mapping[str, Any], halvings: int) -> Mapping[str, Any] | None:
    """The document with its body halved so often, and flagged; None when nothing is left to halve."""
    if halvings == 0:
        return document
    field = "body_base64" if document.get("body") is None else "body"
    body = document.get(field)
    if not isinstance(body, str) or not len(body) >> (halvings - 1):
        return None
    length = len(body) >> halvings
    if field == "body_base64":
        length -= length % 4  # what can be decoded
    return {**document, field: body[:length], "body_truncated": True}
