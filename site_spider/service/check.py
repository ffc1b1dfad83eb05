"""Whether a crawl with these settings would start, as far as that can be told without a server."""

from __future__ import annotations

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from site_spider.service import plugins
from site_spider.service.config import ServiceSettings


def check_crawl(settings: Settings, spider: type[Spider]) -> None:
    """Raise ConfigError for what would end its start."""
    crawler = Crawler(spider, settings)
    spider.from_crawler(crawler)
    ServiceSettings.read(crawler.settings)
    plugins.sinks(crawler.settings)
    plugins.statistics_stores(crawler.settings)
