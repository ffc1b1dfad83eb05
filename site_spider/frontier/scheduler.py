"""Scrapy's scheduler: passes requests to the dispatcher, or to Scrapy's own for spiders without seeds."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self

from scrapy import Request, Spider
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred

from site_spider.engine.parts import takes_seeds
from site_spider.frontier.dispatcher import Dispatcher


class SeedScheduler(Scheduler):
    """Serves redirected requests, then discovered links, then seeds, then retries.

    For a spider that takes no seeds it is Scrapy's own scheduler, JOBDIR included. For one that does, the
    wiring calls `serve` as the spider opens; nothing is asked of a scheduler before that.
    """

    _is_ours = False
    _dispatcher: Dispatcher | None = None
    _fail: Callable[[BaseException], None]
    _close_crawl: Callable[[str], Coroutine[Any, Any, None]]

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks; the dupefilter is DUPEFILTER_CLASS. Raises ConfigError."""
        scheduler = super().from_crawler(crawler)
        scheduler._is_ours = takes_seeds(crawler)
        return scheduler

    def serve(
        self,
        dispatcher: Dispatcher,
        fail: Callable[[BaseException], None],
        close_crawl: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        """From now on requests come from the dispatcher; `close_crawl` is the end of the crawl."""
        self._dispatcher = dispatcher
        self._fail = fail
        self._close_crawl = close_crawl

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Called by the engine before anything else happens in a crawl."""
        if not self._is_ours:
            return super().open(spider)
        self.spider = spider
        return self.df.open()

    def close(self, reason: str) -> Deferred[None] | None:
        """Called by the engine after the last pipeline has closed."""
        if not self._is_ours:
            return super().close(reason)
        if self._dispatcher is None:  # the crawl never started
            return self.df.close(reason)
        closed: Deferred[None] = deferred_from_coro(self._close_crawl(reason))
        return closed

    def __len__(self) -> int:
        if not self._is_ours:
            return super().__len__()
        return 1 if self._dispatcher is None else len(self._dispatcher)

    def enqueue_request(self, request: Request) -> bool:
        """Queue a request unless it is a duplicate."""
        if self._dispatcher is None:
            return super().enqueue_request(request)
        return self._dispatcher.enqueue(request)

    def next_request(self) -> Request | None:
        """The request to download next; None when there is none at the moment."""
        if not self._is_ours:
            return super().next_request()
        if self._dispatcher is None:
            return None
        try:
            return self._dispatcher.next()
        except Exception as error:  # noqa: BLE001 - the engine would only log it and stall
            self._fail(error)
            return None
