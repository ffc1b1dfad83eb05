"""Many regular expressions of a user as one automaton of RE2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import re2

from site_spider.sources.model import compiled, sound

_MAX_MEMORY_BYTES = 32_000_000
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = _MAX_MEMORY_BYTES


class PatternSet:
    """Whether one of the patterns is found in a text. Raises ValueError for what RE2 does not take."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._set: Any = None
        if not patterns:
            return
        self._set = re2.Set.SearchSet(_OPTIONS)
        for pattern in patterns:
            compiled(pattern)  # with a reason that names the place
            self._set.Add(pattern)
        self._set.Compile()
        self.matches("")

    def __bool__(self) -> bool:
        return self._set is not None

    def matches(self, text: str) -> bool:
        """Raises ValueError when all patterns together need too much memory."""
        if self._set is None:
            return False
        try:
            return bool(self._set.Match(sound(text)))
        except (re2.error, RuntimeError) as error:
            raise ValueError(f"the patterns together need more than {_MAX_MEMORY_BYTES} bytes") from error
