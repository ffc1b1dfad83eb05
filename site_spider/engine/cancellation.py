"""Scrapy's downloader and item processor, with a stray CancelledError turned into an ordinary failure.

Raised by a pipeline, it makes the items that follow vanish; raised by a download handler or
a downloader middleware, the request never ends. See also engine.guard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from scrapy import Request
from scrapy.core.downloader import Downloader, Slot
from scrapy.crawler import Crawler
from scrapy.exceptions import DownloadFailedError
from scrapy.http import Response
from scrapy.pipelines import ItemPipelineManager
from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.python import global_object_name
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from site_spider.engine.guard import CallbackCancelled, is_being_cancelled
from site_spider.engine.parts import takes_seeds
from site_spider.page.url import plain_url

_NO_LIMIT = 1_000_000  # downloads of a host at a time: the frontier has the say


class _Passage(Slot):
    """A slot in which nothing waits."""

    def download_delay(self) -> float:
        return 0.0


class SafeDownloader(Downloader):
    """Every download ends in a response, a request or an Exception.

    Where seeds are taken, politeness is decided in the frontier: what comes here is downloaded
    at once, and its host is told when it is through. A slot's delay is only a number, which
    AutoThrottle changes and the frontier keeps to.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._takes_seeds = takes_seeds(crawler)
        self.came_back: Callable[[Request], None] | None = None  # told of what is through, see engine.hooks
        # AutoThrottle needs Scrapy's own way, where each host has a slot
        self.goes_short_way = self._takes_seeds and not crawler.settings.getbool("AUTOTHROTTLE_ENABLED")

    def fetch(self, request: Request, *arguments: Any) -> Deferred[Response | Request]:
        """As Scrapy's."""
        fetched: Deferred[Response | Request] = super().fetch(request, *arguments)
        fetched.addErrback(_convert)
        return fetched if self.came_back is None else fetched.addBoth(self._through, request, self.came_back)

    def _through(self, result: Any, request: Request, came_back: Callable[[Request], None]) -> Any:
        came_back(request)
        return result

    def get_slot_key(self, request: Request) -> str:
        """As Scrapy's."""
        plain = None if self.ip_concurrency or self.DOWNLOAD_SLOT in request.meta else plain_url(request.url)
        return super().get_slot_key(request) if plain is None else plain.host

    def _get_slot(self, request: Request, *arguments: Any) -> tuple[str, Slot]:
        key, slot = super()._get_slot(request, *arguments)
        if self._takes_seeds and not isinstance(slot, _Passage):
            slot = self.slots[key] = _Passage(_NO_LIMIT, slot.delay, slot.jitter)
        return key, slot

    async def _download(self, slot: Slot, request: Request) -> Response:
        try:
            return await super()._download(slot, request)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise DownloadFailedError("the download handler raised CancelledError") from error


def _convert(failure: Failure) -> Failure:
    if failure.check(asyncio.CancelledError):  # type: ignore[no-untyped-call]
        error = DownloadFailedError("a downloader middleware raised CancelledError")
        return Failure(error)  # type: ignore[no-untyped-call]
    return failure


class SafeItemProcessor(ItemPipelineManager):
    """Every item leaves the pipelines, or ends in an Exception.

    A pipeline that returns its item is not awaited: that takes two coroutines and the pipeline's name.
    """

    async def process_item_async(self, item: Any) -> Any:
        """As Scrapy's."""
        try:
            for method in self.methods["process_item"]:
                assert method is not None
                arguments = (self._spider,) if method in self._mw_methods_requiring_spider else ()
                result = method(item, *arguments)
                if result is not item or hasattr(result, "__await__"):
                    result = await ensure_awaitable(result, _warn=global_object_name(method))
                item = result
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise CallbackCancelled("an item pipeline raised CancelledError") from error
        return item
