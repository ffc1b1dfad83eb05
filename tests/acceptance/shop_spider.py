"""Spiders as people write them, for the acceptance tests: SPIDER_MODULES names this module."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy.http import Response

from site_spider import SeedSpider, page_of


class ShopSpider(SeedSpider):
    """With a topic and a group of its own."""

    name = "shop"
    custom_settings = {  # noqa: RUF012
        "SITE_SEED_TOPIC": os.environ.get("SHOP_TOPIC", "shop"),
        "SITE_CONSUMER_GROUP": os.environ.get("SHOP_GROUP", "shop"),
    }

    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        for link in response.css("a.detail"):
            yield response.follow(link, callback=self.parse_detail)

    async def parse_detail(self, response: Response) -> AsyncIterator[Any]:
        for offer in response.css("li"):
            yield {"offer": offer.css("::text").get(), "task": page_of(response).task_id}
