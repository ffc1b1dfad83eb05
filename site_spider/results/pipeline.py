"""Scrapy's item pipeline that hands items to the sinks."""

from __future__ import annotations

from typing import Any, Self

from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem, NotConfigured

from site_spider.engine.parts import part_of, takes_seeds
from site_spider.ledger import lineage
from site_spider.results.result import Result
from site_spider.results.results import Results


class ResultPipeline:
    """Last in line: takes results, and dicts that carry a `url_id`."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks; only for spiders that take seeds."""
        if not takes_seeds(crawler):
            raise NotConfigured
        return cls(crawler)

    def process_item(self, item: Any) -> Any:
        """Queue an item for every sink and return it at once; its acknowledgement goes to the ledger."""
        results = part_of(self._crawler, Results)
        assert results is not None, "an item before the spider has opened"
        document = item.document() if isinstance(item, Result) else item
        if not isinstance(document, dict) or not document.get("url_id"):
            raise DropItem("the item has no url_id, which every sink stores it under")
        results.submit(document, lineage.current_job())
        return item
