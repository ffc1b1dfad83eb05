"""Whether a crawl with these settings would start, as far as that can be told without a server."""

from __future__ import annotations

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from site_spider.errors import ConfigError
from site_spider.observe.identity import Identity
from site_spider.observe.statistics_id import statistics_id
from site_spider.service import plugins
from site_spider.service.config import ServiceSettings
from site_spider.service.observers import statistics_plan


def check_takes_seeds(spider: type[Spider]) -> None:
    """Raise ConfigError for a spider that begins with requests of its own."""
    if not getattr(spider, "takes_seeds", False):
        raise ConfigError(
            f"Spider {spider.name} takes no seeds: `class {spider.__name__}(SeedSpider)` would, see "
            f"docs/own-spiders.md. As it is, run it once with `scrapy crawl {spider.name}`."
        )


def check_crawl(settings: Settings, spider: type[Spider]) -> None:
    """Raise ConfigError for what would end its start."""
    check_takes_seeds(spider)
    crawler = Crawler(spider, settings)
    spider.from_crawler(crawler)
    config = ServiceSettings.read(crawler.settings)
    plugins.sinks(crawler.settings)
    plugins.statistics_stores(crawler.settings)
    identity = Identity(spider.name, config.consumer_group, config.tiers.main, str)
    statistics_plan(crawler.settings, statistics_id(crawler.settings, identity))
