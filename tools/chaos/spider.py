"""The spider of runs with items: crawl_spider, and two items of each page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from scrapy.http import Response

from site_spider import SeedSpider
from tools.chaos.feed import ITEMS_OF_A_PAGE, item_text


class ChaosSpider(SeedSpider):
    """SPIDER_MODULES names this module."""

    name = "chaos"

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        """The items, the result of the page, and its links."""
        for place in range(1, ITEMS_OF_A_PAGE + 1):
            yield {"text": item_text(response.url, place)}
        for output in await super().parse(response):
            yield output
