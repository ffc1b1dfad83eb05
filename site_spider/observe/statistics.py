"""Writes a statistics document every interval and at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from site_spider.contracts.sink import Record, Verdict
from site_spider.engine.background import Background
from site_spider.engine.middlewares import ROBOTS_COUNTED
from site_spider.errors import SiteSpiderError
from site_spider.observe import document as statistics
from site_spider.observe.document import Snapshot, Totals
from site_spider.observe.look import survey
from site_spider.observe.watched import Watched
from site_spider.results.delivery import Delivery

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
_MOST_WAITING = 1_000  # documents kept for a store that is away
_STATUS = "downloader/response_status_count/"


class Statistics:
    """A store that is away never holds up the crawl."""

    def __init__(
        self, watched: Watched, delivery: Delivery, interval_seconds: float, background: Background
    ) -> None:
        self._background = background
        self._watched = watched
        self._delivery = delivery
        self._interval_seconds = interval_seconds
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0
        self._before = Totals()
        self._since = time.monotonic()
        self._names = {
            "spider": watched.crawler.spidercls.name,
            "group": watched.member.group,
            "process": f"{socket.gethostname()}-{os.getpid()}-{int(time.time())}",
        }

    def start(self) -> None:
        """Push from now on; the store is waited for in the background."""
        self._tasks = [
            self._background.start(self._open(), "store of statistics"),
            self._background.start(self._push_regularly(), "statistics"),
        ]

    async def _open(self) -> None:
        try:
            await self._delivery.open(wait_seconds=float("inf"))
        except SiteSpiderError as error:
            logger.warning("No statistics are written: %s", error)

    async def _push_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            await self._push()

    async def close(self) -> None:
        """Push the last one."""
        if not self._tasks:
            return
        for task in self._tasks[1:]:
            task.cancel()
        try:
            await self._push()
        finally:
            self._tasks[0].cancel()
            await self._delivery.close(_CLOSE_SECONDS)

    async def _push(self) -> None:
        hosts = (await survey(self._watched)).counts()
        state = self._snapshot(hosts)
        if not statistics.is_conserved(state.seeds):
            logger.error("Seeds are not conserved, which is a bug: %s", dict(state.seeds))
        now = time.monotonic()
        document = statistics.document(
            self._names, self._number, time.time(), now - self._since, state, self._before
        )
        if self._delivery.backlog_count < _MOST_WAITING:
            key = statistics.document_id(self._names["process"], self._number)
            self._delivery.submit(Record(key, document, size_bytes=2_000), _ignore)
        self._number += 1
        self._since = now
        self._before = state.totals

    def _snapshot(self, hosts: dict[str, int]) -> Snapshot:
        watched, collector = self._watched, self._watched.crawler.stats
        assert collector is not None
        stats: dict[str, Any] = collector.get_stats()
        seeds = statistics.seed_counts(watched.ledger) | {"deleted_unread": watched.seeds.deleted_unread}
        for name, count in seeds.items():
            collector.set_value(f"seeds/{name}", count)
        robots = _downloads(stats, ROBOTS_COUNTED)
        return Snapshot(
            totals=_downloads(stats).minus(robots),
            robots=robots,
            responses=_responses(stats),
            failures=dict(watched.failures.counts),
            seeds=seeds,
            queues=watched.queues.lengths(),
            hosts=hosts,
            unknown_fields=dict(watched.seeds.unknown_fields.counts),
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
