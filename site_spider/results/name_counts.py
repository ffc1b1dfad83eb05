"""Counts names that come from outside, with a bound on how many."""

from __future__ import annotations

from collections import Counter

_MOST_NAMES = 100  # distinct ones: each becomes a field of the index
_LONGEST_NAME = 80  # characters
_OTHER = "other"


class NameCounts:
    """Counts by names that come from outside: bounded in number and length, fit to be field names."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str) -> None:
        """Count one; names beyond the bound count as `other`."""
        name = name.strip()[:_LONGEST_NAME].replace(".", "_") or _OTHER
        if name not in self.counts and len(self.counts) >= _MOST_NAMES:
            name = _OTHER
        self.counts[name] += 1
