"""Hands statistics documents to their stores and to the statistics topic.

Theory: a document is made every interval, when the crawl falls idle, and at its end. SITE_STATS_WHEN says
which of these the stores get; the topic gets each interval and the end, for whoever watches the fleet.
Each store has a delivery of its own, which retries in the background. One that is away gets a bounded
backlog; beyond it documents are dropped, which is said once for an outage. No store can end or slow the
crawl.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from site_spider import runtime
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.engine.background import Background
from site_spider.errors import SiteSpiderError
from site_spider.observe.document import Made, Series, without_names
from site_spider.observe.snapshot import Snapshot, snapshot, stats_of
from site_spider.observe.stats_topic import StatsTopic
from site_spider.observe.watched import Watched
from site_spider.results.delivery import Delivery

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
_MOST_WAITING = 1_000  # documents kept for a store that is away
_MOST_WAITING_BYTES = 16_000_000
_LOOK_SECONDS = 1.0  # whether the crawl has fallen idle


@dataclass(frozen=True, slots=True)
class StatisticsPlan:
    """What is written when; see the settings SITE_STATS_*."""

    statistics_id: str
    interval_seconds: float
    moments: Set[str]  # of document.MOMENTS, for the stores
    topic_moments: Set[str]


class Statistics:
    """On the event loop's thread only."""

    def __init__(
        self,
        watched: Watched,
        stores: Sequence[Delivery],
        topic: StatsTopic,
        plan: StatisticsPlan,
        background: Background,
    ) -> None:
        self._background = background
        self._watched = watched
        self._stores = [_Store(delivery) for delivery in stores]
        self._topic = topic
        self._plan = plan
        self._tasks: list[asyncio.Task[None]] = []
        self._opening: list[asyncio.Task[None]] = []  # of the stores
        now = runtime.monotonic()
        self._series = Series(plan.statistics_id, now)
        self._topic_series = Series(plan.statistics_id, now)
        self._ended_before = 0  # seeds that had ended when the crawl was idle last

    def start(self) -> None:
        """Write from now on; the stores are waited for in the background."""
        self._opening = [
            self._background.start(store.open(), f"statistics for {store.name}") for store in self._stores
        ]
        self._tasks = [
            self._background.start(self._topic.open(), "statistics topic"),
            self._background.start(self._push_regularly(), "statistics"),
        ]

    async def close(self) -> None:
        """Write the last one."""
        if not self._tasks:
            return
        self._tasks.pop().cancel()
        try:
            await self._push("close")
        finally:
            for task in self._tasks:
                task.cancel()
            closing = map(self._close_store, self._stores, self._opening)
            await asyncio.gather(*closing, self._topic.close(_CLOSE_SECONDS))

    async def _close_store(self, store: _Store, opening: asyncio.Task[None]) -> None:
        """A crawl may be over before its store has opened: what waits is written all the same."""
        until = runtime.monotonic() + _CLOSE_SECONDS
        await asyncio.wait([opening], timeout=_CLOSE_SECONDS)
        opening.cancel()
        await store.close(max(0.0, until - runtime.monotonic()))

    async def _push_regularly(self) -> None:
        push_at = runtime.monotonic() + self._plan.interval_seconds
        while True:
            await asyncio.sleep(max(0.0, min(_LOOK_SECONDS, push_at - runtime.monotonic())))
            if runtime.monotonic() >= push_at:
                push_at = runtime.monotonic() + self._plan.interval_seconds
                await self._push("interval")
            if "idle" in self._plan.moments and self._has_fallen_idle():
                await self._push("idle")

    def _has_fallen_idle(self) -> bool:
        """Whether nothing is in flight any more, and something has ended since that was so last."""
        ledger = self._watched.ledger
        ended = sum(ledger.outcomes.values())
        if ledger.in_flight or ended == self._ended_before:
            return False
        self._ended_before = ended
        return True

    async def _push(self, moment: str) -> None:
        taken = await snapshot(self._watched)
        self._note_seeds(taken)
        stats, now = stats_of(self._watched), runtime.monotonic()
        if moment in self._plan.topic_moments:
            made = self._topic_series.next(taken, stats, moment, now)
            self._topic.send(taken["process"], {**made.document, **taken})
        if moment in self._plan.moments:
            made = self._series.next(taken, stats, moment, now)
            for store in self._stores:
                store.submit(made)

    def _note_seeds(self, taken: Snapshot) -> None:
        """In Scrapy's statistics, too."""
        collector = self._watched.crawler.stats
        assert collector is not None
        for name, count in taken["seeds"].items():
            collector.set_value(f"seeds/{name}", count)
        if not taken["conserved"]:
            logger.error("Seeds are not conserved, which is a bug: %s", taken["seeds"])


class _Store:
    """One store with its delivery."""

    def __init__(self, delivery: Delivery) -> None:
        self.name = delivery.sink.name
        self._delivery = delivery
        self._is_dropping = False
        self._said_too_many = False

    async def open(self) -> None:
        try:
            await self._delivery.open(wait_seconds=float("inf"))
        except SiteSpiderError as error:
            logger.warning("No statistics are written to %s: %s", self.name, error)
        except Exception:
            logger.exception("No statistics are written to %s, which failed unexpectedly", self.name)

    async def close(self, seconds: float) -> None:
        await self._delivery.close(seconds)

    def submit(self, made: Made) -> None:
        delivery = self._delivery
        is_full = delivery.backlog_count >= _MOST_WAITING or delivery.backlog_bytes >= _MOST_WAITING_BYTES
        if is_full and not self._is_dropping:
            logger.warning(
                "The store of statistics %s is away, and %d documents wait for it: new ones are dropped "
                "until it is there. The crawl goes on",
                self.name,
                delivery.backlog_count,
            )
        self._is_dropping = is_full
        if not is_full:
            self._send(made.key, made.document, partial(self._answered, made))

    def _send(self, key: str, document: Mapping[str, Any], done: Any) -> None:
        self._delivery.submit(Record(key, document, len(json.dumps(document))), done)

    def _answered(self, made: Made, verdict: Verdict) -> None:
        """One that is refused is sent once more, without the names that an index may have too many of."""
        if verdict.answer is not Answer.REJECTED:
            return
        if not self._said_too_many:
            self._said_too_many = True
            logger.warning(
                "The store of statistics %s refuses a document, so those it refuses are written without "
                "counters and failures by name: %s",
                self.name,
                verdict.reason,
            )
        try:
            self._send(made.key, without_names(made.document), _ignore)
        except SiteSpiderError:  # the crawl has ended meanwhile
            logger.debug("The last statistics were refused by %s", self.name)


def _ignore(_verdict: Verdict) -> None:
    """Statistics are nobody's seed; the delivery has logged what was refused."""
