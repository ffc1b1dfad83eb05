"""Why nothing is polled now, and for how long which cause has kept the crawl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from site_spider import runtime
from site_spider.intake.room import BackPressure
from site_spider.intake.seeds import Seeds
from site_spider.intake.suspects import Quarantine
from site_spider.results.results import Sinks

CAUSES: Final = ("sink", "frontier", "span", "suspicion", "kafka", "memory", "stop")

SPAN_SAID: Final = (  # of one partition
    "its slowest seed is too far behind (SITE_MAX_SPAN_OFFSETS), or too many of the seeds in flight are its"
)


class Pause(NamedTuple):
    """A cause, one of CAUSES, in words; both are empty when seeds are polled."""

    cause: str = ""
    said: str = ""


_NONE: Final = Pause()


class Pauses:
    """Looked at some times a second. One cause counts at a time: the first that applies."""

    def __init__(
        self,
        seeds: Seeds,
        quarantine: Quarantine,
        back_pressure: BackPressure,
        sinks: Sinks,
        is_log_away: Callable[[], bool],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._seeds = seeds
        self._quarantine = quarantine
        self._back_pressure = back_pressure
        self._sinks = sinks
        self._is_log_away = is_log_away
        self._clock = clock or runtime.monotonic
        self._looked_at = self._clock()
        self.seconds = dict.fromkeys(CAUSES, 0.0)  # since the start, by cause

    def look(self) -> None:
        """Count the time since the last look to what keeps the crawl now."""
        now = self._clock()
        cause = self.now().cause or ("span" if self._seeds.too_wide() else "")
        if cause:
            self.seconds[cause] += now - self._looked_at
        self._looked_at = now

    def now(self) -> Pause:
        """What keeps all partitions."""
        if self._quarantine.is_closed:
            return Pause("suspicion", "seeds suspected of killing the process are crawled one by one")
        away = [delivery.sink.name for delivery in self._sinks if not delivery.available]
        if away:
            return Pause("sink", f"the sink {away[0]} is away")
        if self._back_pressure.is_cut_off or self._is_log_away():
            return Pause("kafka", "the seed log does not answer, so other members may own the partitions")
        cause = self._back_pressure.cause()
        if cause:
            return Pause(cause, _SAID[cause])
        if self._seeds.room() <= 0:
            return Pause("frontier", _SAID["frontier"])
        return _NONE


_SAID: Final = {
    "sink": "too many results wait for a sink (SITE_SINK_BACKLOG_BYTES)",
    "kafka": "the seed topic does not take what is sent to it",
    "memory": "memory is short (SITE_BODIES_MAX_BYTES, SITE_MEMORY_SOFT_BYTES)",
    "stop": "the crawl stops, or partitions leave",
    "frontier": (
        "as many seeds are in flight as may be (SITE_MAX_SEEDS_IN_FLIGHT), or memory is full "
        "(SITE_FRONTIER_MAX_REQUESTS, SITE_FRONTIER_MAX_BYTES)"
    ),
}
