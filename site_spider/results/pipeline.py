"""The pipeline that hands items to the sinks."""

from __future__ import annotations

from typing import Any, Self

from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem, NotConfigured

from site_spider.ledger import lineage
from site_spider.results.result import Result
from site_spider.service.assembly import SeedService


class ResultPipeline:
    """Last in line: takes results, and dicts that carry a `url_id`."""

    def __init__(self, service: SeedService) -> None:
        self._service = service

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks; only for spiders that take seeds."""
        service = SeedService.of(crawler)
        if service is None:
            raise NotConfigured
        return cls(service)

    def process_item(self, item: Any) -> Any:
        """Queue an item for every sink and return it at once; its acknowledgement goes to the ledger."""
        document = item.document() if isinstance(item, Result) else item
        if not isinstance(document, dict) or not document.get("url_id"):
            raise DropItem("the item has no url_id, which every sink stores it under")
        self._service.results.submit(document, lineage.current_job())
        return item

    async def close_spider(self) -> None:
        """Let the sinks take what waits."""
        await self._service.flush()
