"""A spider of Scrapy's kind, for tests: SPIDER_MODULES names this module."""

from __future__ import annotations

from scrapy import Spider


class PlainSpider(Spider):
    name = "plain"
