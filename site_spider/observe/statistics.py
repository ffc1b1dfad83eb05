"""Pushes statistics to Elasticsearch, or the local store, every interval and at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Self

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from site_spider import options
from site_spider.contracts.sink import Record, Verdict
from site_spider.engine.middlewares import ROBOTS_COUNTED
from site_spider.errors import SiteSpiderError
from site_spider.observe import document as statistics
from site_spider.observe.document import Snapshot, Totals
from site_spider.observe.look import survey
from site_spider.results.delivery import Delivery
from site_spider.service import plugins as parts
from site_spider.service.assembly import SeedService

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
_MOST_WAITING = 1_000  # documents kept for a store that is away
_STATUS = "downloader/response_status_count/"


class StatisticsExtension:
    """For spiders that take seeds. A store that is away never holds up the crawl."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._service: SeedService
        self._delivery: Delivery | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0
        self._before = Totals()
        self._since = time.monotonic()
        self._names: dict[str, str] = {}

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks."""
        if not getattr(crawler.spidercls, "takes_seeds", False):
            raise NotConfigured
        extension = cls(crawler)
        crawler.signals.connect(extension._spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(extension._spider_closed, signal=signals.spider_closed)
        return extension

    async def _spider_opened(self) -> None:
        settings = self._crawler.settings
        service = SeedService.of(self._crawler)
        if service is None:
            return
        self._service = service
        try:
            interval_seconds = options.seconds(settings, "SITE_STATS_INTERVAL_SECONDS", minimum=0.1)
            delivery = Delivery(parts.statistics_sink(settings), on_failure=service.background.fail)
        except SiteSpiderError as error:
            service.ending.refuse_to_start(error)
        self._names = {
            "spider": self._crawler.spidercls.name,
            "group": options.text(settings, "SITE_CONSUMER_GROUP"),
            "process": f"{socket.gethostname()}-{os.getpid()}-{int(time.time())}",
        }
        self._delivery = delivery
        self._tasks = [
            service.background.start(self._open(delivery), "store of statistics"),
            service.background.start(self._push_regularly(interval_seconds), "statistics"),
        ]

    async def _open(self, delivery: Delivery) -> None:
        try:
            await delivery.open(wait_seconds=float("inf"))
        except SiteSpiderError as error:
            logger.warning("No statistics are written: %s", error)

    async def _push_regularly(self, interval_seconds: float) -> None:
        while True:
            await asyncio.sleep(interval_seconds)
            await self._push()

    async def _spider_closed(self) -> None:
        for task in self._tasks[1:]:
            task.cancel()
        if self._delivery is not None:
            try:
                if self._service.seeds is not None:  # else it never started
                    await self._push()
            finally:
                self._tasks[0].cancel()
                await self._delivery.close(_CLOSE_SECONDS)

    async def _push(self) -> None:
        hosts = (await survey(self._service)).counts()
        state = self._snapshot(hosts)
        if not statistics.is_conserved(state.seeds):
            logger.error("Seeds are not conserved, which is a bug: %s", dict(state.seeds))
        now = time.monotonic()
        document = statistics.document(
            self._names, self._number, time.time(), now - self._since, state, self._before
        )
        assert self._delivery is not None
        if self._delivery.backlog_count < _MOST_WAITING:
            key = statistics.document_id(self._names["process"], self._number)
            self._delivery.submit(Record(key, document, size_bytes=2_000), _ignore)
        self._number += 1
        self._since = now
        self._before = state.totals

    def _snapshot(self, hosts: dict[str, int]) -> Snapshot:
        service = self._service
        stats: dict[str, Any] = self._crawler.stats.get_stats()
        seeds = statistics.seed_counts(service.completion.ledger)
        for name, count in seeds.items():
            self._crawler.stats.set_value(f"seeds/{name}", count)
        robots = _downloads(stats, ROBOTS_COUNTED)
        return Snapshot(
            totals=_downloads(stats).minus(robots),
            robots=robots,
            responses=_responses(stats),
            failures=dict(service.failures.counts),
            seeds=seeds,
            queues=service.queues.lengths(),
            hosts=hosts,
            unknown_fields={} if service.seeds is None else dict(service.seeds.unknown_fields.counts),
        )


def _downloads(stats: Mapping[str, Any], prefix: str = "") -> Totals:
    names = ("response_count", "response_bytes", "request_bytes")
    return Totals(*(stats.get(f"{prefix}downloader/{name}", 0) for name in names))


def _responses(stats: Mapping[str, Any]) -> dict[str, int]:
    """Answers to links, by status."""
    counts = {
        key.removeprefix(_STATUS): count - stats.get(ROBOTS_COUNTED + key, 0)
        for key, count in stats.items()
        if key.startswith(_STATUS)
    }
    return {status: count for status, count in counts.items() if count}


def _ignore(_verdict: Verdict) -> None:
    """Statistics are nobody's seed; the delivery has logged what was refused."""
