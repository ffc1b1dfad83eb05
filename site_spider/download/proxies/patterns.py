"""Regular expressions that are searched in pages, checked so that none can block the event loop.

Python's `re` tries one way of matching after the other. `(a+)+b` has exponentially many ways, `.*a.*b`
as many as the text is long, squared, from each place. So the ways are counted beforehand, from above,
and a pattern that has too many is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import exp, inf, log
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

SEARCHED_BYTES = 8192  # of the beginning of a page
_MOST_STEPS = 4 * SEARCHED_BYTES**2  # one repeat without limit from each place, and a little choice
_REMEDY = "let it have one * or + at most, not of a group, and write a bound for others, such as .{0,50}"

_REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT}
_LOOK_AROUND = {_constants.ASSERT, _constants.ASSERT_NOT}


class PatternError(ValueError):
    """A pattern cannot be used; the message says why."""


class PagePatterns:
    """Several patterns, as one question. Raises PatternError for the first that cannot be used."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [(pattern, _compiled(pattern)) for pattern in patterns]

    def found(self, body: bytes) -> str | None:
        """The first pattern that matches in the beginning of a page; None when none does."""
        beginning = body[:SEARCHED_BYTES]
        return next((text for text, pattern in self._patterns if pattern.search(beginning)), None)


def _compiled(text: str) -> re.Pattern[bytes]:
    pattern = text.encode()
    try:
        parsed = _parser.parse(pattern)
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        raise PatternError(f"{text!r} is no regular expression: {error}") from None
    if SEARCHED_BYTES * exp(min(_ways(parsed), 100)) > _MOST_STEPS:
        raise PatternError(f"{text!r} could take too long on a hostile page: {_REMEDY}")
    return compiled


def _ways(items: Iterable[tuple[Any, Any]]) -> float:
    """The logarithm of how many ways of matching there are from one place, at most."""
    return sum(_item_ways(kind, value) for kind, value in items)


def _item_ways(kind: Any, value: Any) -> float:
    if kind in _REPEATS:
        return _repeat_ways(*value)
    if kind is _constants.SUBPATTERN:
        return _ways(value[-1])
    if kind is _constants.BRANCH:
        return log(sum(exp(min(_ways(branch), 100)) for branch in value[1]))
    if kind is _constants.GROUPREF_EXISTS:
        return inf  # rare, and not worth counting
    return _ways(value[1] if kind in _LOOK_AROUND else value if kind is _constants.ATOMIC_GROUP else ())


def _repeat_ways(least: Any, most: Any, items: Any) -> float:
    least, most = min(int(least), SEARCHED_BYTES), min(int(most), SEARCHED_BYTES)
    return log(most - least + 1) + (most * inner if (inner := _ways(items)) else 0.0)
