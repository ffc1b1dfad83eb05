"""Whether a crawl with these settings would start: its settings, and its rights in the seed log."""

from __future__ import annotations

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings, Settings

from site_spider import options
from site_spider.contracts.seed_log import Right, SeedLog
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


def needed_rights(config: ServiceSettings, settings: BaseSettings) -> list[Right]:
    """Without these no seed could be crawled, or none could end."""
    topics: dict[str, tuple[str, ...]] = dict.fromkeys(config.tiers.topics, ("Read", "Write"))
    topics[config.dead_letter_topic] = ("Write",)
    if "kafka" in options.names(settings, "SITE_SINKS"):
        for name in ("SITE_RESULTS_TOPIC", "SITE_ITEMS_TOPIC"):
            topics[options.text(settings, name, required=True)] = ("Write",)
    rights = [Right("topic", topic, operations) for topic, operations in topics.items()]
    return [*rights, Right("group", config.consumer_group, ("Read",))]


def check_rights(log: SeedLog, config: ServiceSettings, settings: BaseSettings) -> None:
    """Raise ConfigError for those that are missing, LogUnavailable when nobody answers."""
    answers = log.granted(needed_rights(config, settings))
    missing = [
        f"{' and '.join(said.missing)} on the {said.right.kind} {said.right.name}"
        for said in answers
        if said.missing and said.exists  # one that does not exist may be made by somebody else
    ]
    if missing:
        raise ConfigError(
            f"Kafka at {log.address} refuses this process. Grant the user of SITE_KAFKA_OPTIONS "
            f"{'; '.join(missing)}; docs/security.md has the commands."
        )
