"""Spiders as people write them, for the acceptance tests: SPIDER_MODULES names this module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy.http import Response

from site_spider import SeedSpider, page_of


class ShopSpider(SeedSpider):
    name = "shop"

    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        for link in response.css("a.detail"):
            yield response.follow(link, callback=self.parse_detail)

    async def parse_detail(self, response: Response) -> AsyncIterator[Any]:
        for offer in response.css("li"):
            yield {"offer": offer.css("::text").get(), "task": page_of(response).task_id}


class TopicSpider(SeedSpider):
    """With a topic and a group of its own."""

    name = "own_topic"
    custom_settings = {"SITE_SEED_TOPIC": "topic-of-own-topic", "SITE_CONSUMER_GROUP": "group-of-own-topic"}  # noqa: RUF012

    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        yield {"item_id": response.url, "title": response.css("title::text").get()}
