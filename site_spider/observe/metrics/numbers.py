"""Numbers out of documents that others wrote: what is missing or of another type is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from math import isfinite
from typing import Any

_MOST_NAMES = 1000  # of one mapping
_LONGEST = 100  # characters of a label's value


def at(document: object, *path: str) -> Any:
    """What lies there; None where there is nothing."""
    for key in path:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def number(document: object, *path: str) -> float | None:
    """A number; booleans are 1 and 0."""
    value = at(document, *path)
    return value if isinstance(value, int | float) and isfinite(value) else None


def numbers(document: object, *path: str) -> Iterator[tuple[str, float]]:
    """Of a mapping, names with their numbers."""
    found = at(document, *path)
    if isinstance(found, Mapping):
        for name, value in islice(found.items(), _MOST_NAMES):
            if isinstance(value, int | float) and isfinite(value):
                yield label(name), value


def mappings(document: object, *path: str) -> Iterator[Mapping[str, Any]]:
    """Of a list, those that are mappings."""
    found = at(document, *path)
    if isinstance(found, list):
        yield from (one for one in islice(found, _MOST_NAMES) if isinstance(one, Mapping))


def moment(document: object, *path: str) -> float | None:
    """A moment in ISO 8601 as Unix time."""
    value = at(document, *path)
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def label(value: object) -> str:
    """A text fit to be a label."""
    return str(value).encode("utf-8", "replace").decode()[:_LONGEST]
