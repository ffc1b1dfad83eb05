"""Regular expressions of users, on RE2: linear in the text, whatever the pattern is."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Any

import re2

_LONGEST_PATTERN = 1_000  # characters
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 8_000_000  # bytes of one compiled pattern; more is refused


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> Any:
    """The pattern. Raises ValueError for what RE2 does not take, such as a look-ahead."""
    if len(pattern) > _LONGEST_PATTERN:
        raise ValueError(
            f"the pattern has {len(pattern)} characters, but {_LONGEST_PATTERN} at most are taken"
        )
    try:
        return re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"RE2 does not take the pattern: {said}") from None


def any_matches(patterns: Iterable[str], text: str) -> bool:
    """Whether one of the patterns is found in the text."""
    text = sound(text)
    return any(compiled(pattern).search(text) for pattern in patterns)


def sound(text: str) -> str:
    """The text without what UTF-8 cannot hold: RE2 works on UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def found(pattern: str, text: str, most: int) -> list[str]:
    """Of each match the first group, or all of it where the pattern has no group; None is left out."""
    expression = compiled(pattern)
    group = 1 if expression.groups else 0
    matches = (match.group(group) for match in islice(expression.finditer(sound(text)), most))
    return [match for match in matches if match is not None]
