"""Whether a crawl with these settings would start, as far as that can be told without a server."""

from __future__ import annotations

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from site_spider.observe.identity import Identity
from site_spider.observe.statistics_id import statistics_id
from site_spider.service import plugins
from site_spider.service.config import ServiceSettings
from site_spider.service.observers import statistics_plan


def check_crawl(settings: Settings, spider: type[Spider]) -> None:
    """Raise ConfigError for what would end its start."""
    crawler = Crawler(spider, settings)
    spider.from_crawler(crawler)
    config = ServiceSettings.read(crawler.settings)
    plugins.sinks(crawler.settings)
    plugins.statistics_stores(crawler.settings)
    identity = Identity(spider.name, config.consumer_group, config.tiers.main, str)
    statistics_plan(crawler.settings, statistics_id(crawler.settings, identity))
