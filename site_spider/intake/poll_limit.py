"""How many seeds may be in flight now.

Few are enough while there is always one that can be downloaded, and few are quickly repeated or handed
over. But seeds wait for their hosts: when nothing of what was polled can be served, those of
other hosts may lie behind them. And tasks share only what was polled: while there are tasks, seeds
of another may lie behind those that fill the limit. So it goes up a step whenever either is said, as far as
the setting allows, and comes down as seeds complete.
"""

from __future__ import annotations

STEP = 1_000  # seeds


class PollLimit:
    """The limit of one process. The event loop's thread changes it; any thread may read."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._least = self.now = min(STEP, most)

    def starved(self, in_flight: int) -> None:
        """What is in flight is not enough."""
        self.now = max(self.now, min(self._most, in_flight + STEP))

    def look(self, in_flight: int) -> None:
        """Seeds may have completed."""
        self.now = max(self._least, min(self.now, in_flight + STEP))
