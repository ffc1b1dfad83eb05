"""Scrapy's log lines for pages, escaped, and made only where they are written."""

from __future__ import annotations

import logging
from typing import Any, Self

from scrapy.crawler import Crawler
from scrapy.logformatter import LogFormatter
from twisted.python.failure import Failure

from site_spider.engine import log_record
from site_spider.engine.frames import without_callers


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

    def spider_error(self, failure: Failure, *arguments: Any) -> Any:
        """As Scrapy's, with the lines of the spider: without those that led to it."""
        failure.tb = without_callers(failure.value)
        return super().spider_error(failure, *arguments)

    def scraped(self, *arguments: Any) -> Any:
        """As Scrapy's; None where DEBUG lines are not written."""
        return super().scraped(*arguments) if self.is_verbose else None
