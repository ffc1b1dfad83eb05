"""Looks the links of a page up in advance, for a store outside the process.

A spider middleware, so that it works for every callback. It is the last before the engine,
so that only what the others let pass is looked up. What does not come this way (the output
of errbacks) is compared with what this process knows, and at worst fetched once more.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response

from site_spider.dupefilter.dupefilter import is_elsewhere
from site_spider.engine.parts import takes_seeds

logger = logging.getLogger(__name__)

_BATCH = 500  # requests held back at most: a page seldom has more links


class SeenLookup:
    """Works with any DUPEFILTER_CLASS that has a coroutine method `prefetch(requests)`."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks. Raises ConfigError."""
        if not takes_seeds(crawler) or not is_elsewhere(crawler.settings):
            raise NotConfigured
        return cls(crawler)

    async def process_spider_output(
        self,
        response: Response,  # noqa: ARG002 - as Scrapy calls it
        result: AsyncIterator[Any],
    ) -> AsyncIterator[Any]:
        """Items pass at once, requests in batches."""
        held: list[Request] = []
        try:
            async for output in result:
                if not isinstance(output, Request):
                    yield output
                    continue
                held.append(output)
                if len(held) >= _BATCH:
                    requests, held = held, []
                    await self._look_up(requests)
                    for request in requests:
                        yield request
        except Exception:
            # what the callback had yielded before it failed counts, as everywhere in Scrapy
            await self._look_up(held)
            for request in held:
                yield request
            raise
        await self._look_up(held)
        for request in held:
            yield request

    async def _look_up(self, requests: list[Request]) -> None:
        prefetch = getattr(getattr(self._crawler.engine.scheduler, "df", None), "prefetch", None)
        if prefetch is None or not requests:
            return
        try:
            await prefetch(requests)
        except Exception:  # the requests go on all the same
            logger.exception("Links could not be looked up in the dupefilter")
