"""Keeps a producer from running too far ahead of a consumer group."""

from __future__ import annotations

import time
from collections.abc import Callable

from site_spider.contracts.seed_log import SeedLog
from site_spider.errors import TopicMissing
from site_spider.observe.progress import of_partition, total

_PAUSE_SECONDS = 1.0
_SAY_SECONDS = 10.0  # from one line about the wait to the next


class LagGate:
    """`wait`, before each seed, returns when at most `most` messages wait for the group, this one included.

    The group is asked again only when what it left room for is used up. `say` hears of a wait now and then.
    """

    def __init__(self, log: SeedLog, topic: str, group: str, most: int, say: Callable[[str], None]) -> None:
        self._log = log
        self._topic = topic
        self._group = group
        self._most = most
        self._say = say
        self._room = 0
        self._said_at = -_SAY_SECONDS

    def wait(self) -> None:
        """Blocks. Raises LogUnavailable."""
        while self._room <= 0:
            lag = self._lag()
            self._room = self._most - lag
            if self._room <= 0:
                self._report(lag)
                time.sleep(_PAUSE_SECONDS)
        self._room -= 1

    @property
    def is_shut(self) -> bool:
        """Whether `wait` will ask the group: what is under way has to be durable before."""
        return self._room <= 0

    def _lag(self) -> int:
        try:
            return total(map(of_partition, self._log.progress(self._topic, self._group))).lag
        except TopicMissing:
            return 0

    def _report(self, lag: int) -> None:
        if time.monotonic() >= self._said_at + _SAY_SECONDS:
            self._said_at = time.monotonic()
            self._say(f"waiting: {lag:,} messages wait for group {self._group}, at most {self._most:,} may")
