"""Scrapy's log lines for pages, escaped, and made only where they are written."""

from __future__ import annotations

import logging
from typing import Any, Self

from scrapy.crawler import Crawler
from scrapy.logformatter import LogFormatter

from site_spider.engine import log_record


class PageLogFormatter(LogFormatter):
    """Scrapy makes a log record of each page and item, also when LOG_LEVEL keeps it from being written."""

    is_verbose = True

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks."""
        log_record.install()
        made = super().from_crawler(crawler)
        level = crawler.settings.get("LOG_LEVEL")
        number = (
            level if isinstance(level, int) else logging.getLevelNamesMapping().get(str(level).upper(), 0)
        )
        made.is_verbose = number <= logging.DEBUG and crawler.settings.getbool("LOG_ENABLED")
        return made

    def crawled(self, *arguments: Any) -> Any:
        """As Scrapy's; None where DEBUG lines are not written."""
        return super().crawled(*arguments) if self.is_verbose else None

    def scraped(self, *arguments: Any) -> Any:
        """As Scrapy's; None where DEBUG lines are not written."""
        return super().scraped(*arguments) if self.is_verbose else None
