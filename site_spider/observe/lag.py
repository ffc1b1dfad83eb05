"""Keeps a producer from running too far ahead of a consumer group."""

from __future__ import annotations

from collections.abc import Callable

from site_spider import runtime
from site_spider.contracts.seed_log import SeedLog
from site_spider.errors import TopicMissing
from site_spider.observe.progress import of_partition, total

_PAUSE_SECONDS = 1.0
_SAY_SECONDS = 10.0  # from one line about the wait to the next


class LagGate:
    """`wait`, before each seed, returns when at most `most` messages wait, this one included.

    `lag` is asked again only when what it left room for is used up. `say` hears of a wait now and then;
    `what` is what waits.
    """

    def __init__(self, lag: Callable[[], int], most: int, what: str, say: Callable[[str], None]) -> None:
        self._lag = lag
        self._most = most
        self._what = what
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
                runtime.sleep(_PAUSE_SECONDS)
        self._room -= 1

    @property
    def is_shut(self) -> bool:
        """Whether `wait` will ask: what is under way has to be durable before."""
        return self._room <= 0

    def _report(self, lag: int) -> None:
        if runtime.monotonic() >= self._said_at + _SAY_SECONDS:
            self._said_at = runtime.monotonic()
            self._say(f"waiting: {lag:,} {self._what}, at most {self._most:,} may")


def group_gate(log: SeedLog, topic: str, group: str, most: int, say: Callable[[str], None]) -> LagGate:
    """A gate by the lag of a consumer group."""

    def lag() -> int:
        try:
            return total(map(of_partition, log.progress(topic, group))).lag
        except TopicMissing:
            return 0

    return LagGate(lag, most, f"messages wait for group {group}", say)
