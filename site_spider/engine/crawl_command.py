"""Scrapy's `crawl` command, with the crawler that it makes within reach."""

from __future__ import annotations

from scrapy.commands.crawl import Command
from scrapy.crawler import Crawler


class CrawlCommand(Command):
    """Scrapy's own `run` makes a crawler and does not let others have it."""

    def crawler_of(self, spider: str) -> Crawler:
        """A crawler of this spider, not started."""
        return self._create_crawler(spider)
