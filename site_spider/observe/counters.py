"""Everybody's counters as fields of a document: Scrapy's, ours, and those of spiders and extensions.

An index makes a field of each name, with one type for ever. So names are bounded in number and length and
hold no dots, and numbers and texts are apart: a value that is a number today and a text tomorrow is in
two fields, and no document is refused for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from numbers import Real
from typing import Any, Final, NamedTuple

MOST_NUMBERS: Final = 300
MOST_TEXTS: Final = 50
LONGEST_NAME: Final = 150  # characters
LONGEST_TEXT: Final = 256
_MOST_LOOKED_AT: Final = 2_000  # keys; 1 ms
_LARGEST: Final = 2.0**63  # beyond it JSON numbers are not the same everywhere


class Counters(NamedTuple):
    """By field names; `left_out` counts what was too much, or neither a number nor a text."""

    numbers: dict[str, float]
    texts: dict[str, str]
    left_out: int


def counters(stats: Mapping[Any, Any]) -> Counters:
    """The first of each kind, in the order in which they were counted first."""
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    left_out = max(0, len(stats) - _MOST_LOOKED_AT)
    # taken at once: a thread of the user's own may count meanwhile
    for key, value in list(islice(stats.items(), _MOST_LOOKED_AT)):
        number, text = _number(value), _text(value)
        if number is not None and len(numbers) < MOST_NUMBERS:
            numbers[_free(field_name(key), numbers)] = number
        elif number is None and text is not None and len(texts) < MOST_TEXTS:
            texts[_free(field_name(key), texts)] = text
        elif value is not None:
            left_out += 1
    return Counters(numbers, texts, left_out)


def field_name(key: object) -> str:
    """A name that an index takes: `my/custom` as it is, dots and what cannot be printed as underscores."""
    name = str(key)[:LONGEST_NAME].strip().replace(".", "_")
    return "".join(sign if sign.isprintable() else "_" for sign in name) or "_"


def _free(name: str, taken: Mapping[str, object]) -> str:
    """The name, or with a number when another key has become the same."""
    if name not in taken:
        return name
    return next(other for number in range(2, len(taken) + 3) if (other := f"{name}_{number}") not in taken)


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and abs(value) < _LARGEST:
        return value
    if not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError, TypeError):
        return None
    return number if math.isfinite(number) else None


def _text(value: object) -> str | None:
    if isinstance(value, datetime):
        return value.isoformat()
    return value[:LONGEST_TEXT] if isinstance(value, str) else None
