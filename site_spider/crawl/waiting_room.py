"""The frontier of one crawl: seeds and requests by level and host, and the engine's waking."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from math import inf

from scrapy import Request
from scrapy.settings import BaseSettings
from scrapy.utils.httpobj import urlparse_cached

from site_spider.core import options
from site_spider.core.frontier import Frontier, HostPolicy
from site_spider.core.levels import level_of
from site_spider.core.url import host_of
from site_spider.crawl import lineage
from site_spider.crawl.retry import NOT_BEFORE
from site_spider.crawl.seed_queue import Waiting

_SLOT = "download_slot"  # key in Request.meta, as in Scrapy

Waiter = Request | Waiting


class WaitingRoom:
    """What waits, and which hosts have requests out. On the event loop's thread only."""

    def __init__(self, frontier: Frontier[Waiter], wake: Callable[[], None]) -> None:
        self.frontier = frontier
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._out: dict[Request, str] = {}
        # a plain handle: uvloop gives no TimerHandle for a moment that has come
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = inf

    def __len__(self) -> int:
        return len(self.frontier)

    def put_request(self, request: Request) -> None:
        """A request waits at the level of its priority; a retry not before its moment."""
        now = self._loop.time()
        not_before = request.meta.pop(NOT_BEFORE, -inf)
        self.frontier.push(level_of(request.priority), host_key(request), request, now, not_before)

    def put_seed(self, waiting: Waiting) -> None:
        """A seed waits at level 0, or where a priority of its own belongs."""
        host = host_of(waiting.seed.url)
        self.frontier.push(level_of(waiting.seed.priority), host, waiting, self._loop.time())

    def next(self, build: Callable[[Waiting], Request | None]) -> Request | None:
        """The next request whose host is free; `build` makes it of a seed, or None when that fails."""
        while (waiter := self.frontier.pop(self._loop.time())) is not None:
            host = host_of(waiter.seed.url) if isinstance(waiter, Waiting) else host_key(waiter)
            request = build(waiter) if isinstance(waiter, Waiting) else waiter
            if request is not None:
                self._out[request] = host
                return request
            self.frontier.release(host, self._loop.time())
        self._set_alarm()
        return None

    def came_back(self, request: Request) -> None:
        """A request has left the downloader; its host may get another one."""
        host = self._out.pop(request, None)
        if host is not None:
            self.frontier.release(host, self._loop.time())

    def hold_host(self, request: Request, seconds: float, reason: str) -> None:
        """Start nothing of this request's host for a while."""
        now = self._loop.time()
        self.frontier.hold(host_key(request), now + seconds, reason, now)

    def remove_fenced(self) -> list[Waiter]:
        """Take out what waits for seeds that are another process's now."""
        return self.frontier.remove(_is_fenced, self._loop.time())

    def remove_requests(self, unwanted: Callable[[Request], bool]) -> list[Request]:
        """Take out the requests that `unwanted` picks."""
        removed = self.frontier.remove(
            lambda waiter: isinstance(waiter, Request) and unwanted(waiter), self._loop.time()
        )
        return [waiter for waiter in removed if isinstance(waiter, Request)]

    def remove_seeds(self) -> list[Waiting]:
        """Take out the seeds that have not begun."""
        removed = self.frontier.remove(lambda waiter: isinstance(waiter, Waiting), self._loop.time())
        return [waiter for waiter in removed if isinstance(waiter, Waiting)]

    def close(self) -> None:
        """Wake nobody any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm, self._alarm_at = None, inf

    def _set_alarm(self) -> None:
        moment = self.frontier.next_at()
        if moment >= self._alarm_at:
            return
        self.close()
        if moment < inf:
            self._alarm_at = moment
            self._alarm = self._loop.call_at(moment, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, inf
        self._wake()


def host_key(request: Request) -> str:
    """What politeness goes by: the host, or the download slot that a request names."""
    slot = request.meta.get(_SLOT)
    return slot if isinstance(slot, str) else urlparse_cached(request).hostname or ""


def build_frontier(settings: BaseSettings) -> Frontier[Waiter]:
    """A frontier with Scrapy's settings of politeness. Raises ConfigError."""
    concurrency = options.integer(settings, "CONCURRENT_REQUESTS_PER_DOMAIN", minimum=1)
    delay_seconds = options.seconds(settings, "DOWNLOAD_DELAY")
    jitter = options.seconds(settings, "DOWNLOAD_DELAY_JITTER")
    slots = options.mapping(settings, "DOWNLOAD_SLOTS")
    usual = HostPolicy(concurrency, delay_seconds)

    def policy(host: str) -> HostPolicy:
        own = slots.get(host)
        if not own:
            return usual
        return HostPolicy(int(own.get("concurrency", concurrency)), float(own.get("delay", delay_seconds)))

    def spread(seconds: float) -> float:
        return max(0.0, seconds * random.uniform(1 - jitter, 1 + jitter))  # noqa: S311 - varies a delay only

    return Frontier(policy, options.seconds(settings, "SITE_MAX_WAIT_SECONDS", minimum=1), spread)


def _is_fenced(waiter: Waiter) -> bool:
    if isinstance(waiter, Waiting):
        return not waiter.entry.live
    job = lineage.job_of(waiter)
    return job is not None and not job.entry.live
