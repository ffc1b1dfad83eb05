"""A result document as JSON, the form that every sink sends.

orjson writes plain values in a tenth of the time. It differs from Python's json on others: NaN becomes null,
and it has words for classes that json refuses. So json writes those, and what orjson refuses: half a
surrogate pair, a number of more than 64 bits, a key that is no text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from io import BytesIO
from math import isfinite
from types import NoneType
from typing import Any

import orjson

from site_spider.errors import SinkRejected

_any = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

_ALIKE = frozenset((str, int, bool, NoneType))  # both write them alike
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
                output.write(_at_once(value[begin : begin + _LONG])[1:-1])
            output.write(b'"')
        else:
            output.write(_at_once({name: value})[1:-1])
    output.write(b"}")
    return output.getvalue()


def _at_once(value: Any) -> bytes:
    try:
        if _is_plain(value):
            return orjson.dumps(value)
    except (TypeError, RecursionError):
        pass  # json may have words for it
    try:
        text = _any(dict(value) if isinstance(value, Mapping) else value)
    except (TypeError, ValueError, RecursionError) as error:
        raise SinkRejected(f"the document cannot be written as JSON: {error}") from None
    return text.encode("utf-8", "replace")


def _is_plain(value: Any) -> bool:
    """Whether orjson writes it as json does, or refuses it."""
    kind = type(value)
    if kind is dict:
        return _are_plain(value.values())
    if kind is list:
        return _are_plain(value)
    return isfinite(value) if kind is float else kind in _ALIKE


def _are_plain(values: Iterable[Any]) -> bool:
    return all(map(_is_plain, [value for value in values if type(value) not in _ALIKE]))


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
