"""Bounds how many similar lines are logged in a minute."""

from __future__ import annotations

from math import inf


class LogLimit:
    """Lets `count` lines pass in each period of `period_seconds` and counts the rest."""

    def __init__(self, count: int, period_seconds: float) -> None:
        self._count = count
        self._period_seconds = period_seconds
        self._began_at = -inf
        self._passed = 0
        self._held_back = 0

    def admit(self, now: float) -> bool:
        """Whether the event at `now` may have its line."""
        if now >= self._began_at + self._period_seconds:
            self._began_at = now
            self._passed = 0
        if self._passed >= self._count:
            self._held_back += 1
            return False
        self._passed += 1
        return True

    def take_held_back(self) -> int:
        """How many events had no line since this was last asked."""
        held_back, self._held_back = self._held_back, 0
        return held_back
