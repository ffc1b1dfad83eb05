"""Reads the JSON of a seed, more strictly than `json.loads`.

Whatever two readers could take differently is refused, and so is whatever costs more to
read than it is worth.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from site_spider.errors import SeedError
from site_spider.text import refused, shown

MAX_MESSAGE_BYTES = 1_000_000  # this many are refused; Kafka's own default limit is 1,048,588
MAX_NESTING = 32  # objects and lists within each other, the message itself included
MAX_VALUES = 10_000  # objects, lists, strings, numbers, ...: an empty list is two bytes here and 64 in memory
MAX_NUMBER_DIGITS = 308  # what a double can hold; also keeps int() away from its slow and refused lengths

_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(set(range(256)) - _STEP.keys())
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def read_object(value: bytes | None) -> dict[str, Any]:
    """The JSON object in a message. Raises SeedError, and nothing else, for anything else."""
    if value is None:
        raise refused("tombstone", "the message has no value")
    if len(value) >= MAX_MESSAGE_BYTES:
        raise refused("message", f"{len(value)} bytes, but must be less than {MAX_MESSAGE_BYTES}")
    text = _text(value)
    if value.count(b",") + value.count(b"{") + value.count(b"[") > MAX_NESTING:
        _check_shape(text)
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise refused("message", f"not JSON: {error.msg} at character {error.pos + 1}") from None
    if not isinstance(document, dict):
        raise refused("message", f"{shown(document)}, but must be a JSON object")
    if "\\u" in text and _SURROGATE_ESCAPE.search(text):
        _check_surrogates(document)
    return document


def _text(value: bytes) -> str:
    try:
        text = value.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise refused("message", f"not UTF-8 at byte {error.start + 1}") from None
    if not text or text.isspace():
        raise refused("message", "empty")
    return text


def _check_shape(text: str) -> None:
    """Bound what the parser makes of a text, in a few passes over it, each of them in C."""
    outside = _outside_strings(text)
    # the first ones tell: more of them are too many values in any case
    brackets = outside.encode().translate(None, _NOT_BRACKETS)[: 4 * MAX_VALUES]
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_NESTING:
        raise refused("message", f"nested deeper than {MAX_NESTING} levels")
    if outside.count(",") + outside.count("{") + outside.count("[") > MAX_VALUES:
        raise _too_many_values()


def _outside_strings(text: str) -> str:
    """The text without its strings, up to where it stops being JSON; the parser reads no further."""
    plain = text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text
    if plain.count('"') > 4 * MAX_VALUES:  # a key and a string for each value
        raise _too_many_values()
    return "".join(plain.split('"')[::2])


def _too_many_values() -> SeedError:
    return refused("message", f"more than {MAX_VALUES} values (objects, lists, strings, numbers, ...)")


def _check_surrogates(document: dict[str, Any]) -> None:
    for name, field in document.items():
        try:
            json.dumps({name: field}, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            why = "holds a lone surrogate (\\ud800 to \\udfff), which is not a character"
            raise refused(name, why) from None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise refused("message", f"key {shown(twice)} stands twice in one object")
    return found


def _int(digits: str) -> int:
    if len(digits) > MAX_NUMBER_DIGITS:
        raise refused("message", f"a number of {len(digits)} digits is too large")
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > MAX_NUMBER_DIGITS:
        raise refused("message", f"a number of {len(digits)} digits is too large")
    number = float(digits)
    if math.isinf(number):
        raise refused("message", f"number {shown(digits)} is too large")
    return number


def _constant(name: str) -> Any:
    raise refused("message", f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_constant
)
