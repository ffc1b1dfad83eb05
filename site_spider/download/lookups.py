"""Counts the lookups of host names in this process, whichever thread makes them."""

from __future__ import annotations

from typing import Final

from site_spider import runtime
from site_spider.histogram import Histogram


class Lookups:
    """Outcomes, and the time of those that were not answered from the cache."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(("cached", "resolved", "failed", "refused"), 0)
        self.seconds = Histogram()
        self._lock = runtime.Lock()  # lookups run on several threads

    def count(self, outcome: str) -> None:
        """One that took no time."""
        with self._lock:
            self.outcomes[outcome] += 1

    def took(self, seconds: float, *, found: bool) -> None:
        """One that asked the system."""
        with self._lock:
            self.outcomes["resolved" if found else "failed"] += 1
            self.seconds.observe(seconds)


LOOKUPS: Final = Lookups()  # of the process, as the resolver is
