"""What the add-on changes in the settings of another project."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import scrapy
from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerRunner, Crawler
from scrapy.http import Response
from scrapy.settings import Settings

from site_spider import Addon, SeedSpider
from site_spider.service import environment

OURS = "site_spider.frontier.retry_and_redirect.PatientRetryMiddleware"
STOCK = "scrapy.downloadermiddlewares.retry.RetryMiddleware"


def settings(**project: Any) -> Settings:
    return Settings({"ADDONS": {Addon: 300}, **project})


def test_the_projects_own_values_stay() -> None:
    """Add-ons stand below settings.py; what it does not set is ours."""
    found = settings(CONCURRENT_REQUESTS=3, BOT_NAME="shop", SITE_SEED_TOPIC="books")
    environment.apply_our_settings(found)
    assert (found["CONCURRENT_REQUESTS"], found["BOT_NAME"], found["SITE_SEED_TOPIC"]) == (3, "shop", "books")
    assert found["SCHEDULER"] == "site_spider.frontier.scheduler.SeedScheduler"
    assert found["COMMANDS_MODULE"] == ""


def test_components_and_handlers_are_added_to_the_projects() -> None:
    """Its own order of one that both name stays, also when it names the class and not the path."""
    mine = {OURS: 555, "scrapy.downloadermiddlewares.useragent.UserAgentMiddleware": 1}
    found = settings(DOWNLOADER_MIDDLEWARES=mine, DOWNLOAD_HANDLERS={"https": "mine.Handler"})
    for _ in range(2):
        environment.apply_our_settings(found)
        middlewares = found.getdict("DOWNLOADER_MIDDLEWARES")
        assert middlewares.items() >= mine.items()
        assert middlewares[STOCK] is None
        handlers = found.getdict("DOWNLOAD_HANDLERS")
        assert handlers["https"] == "mine.Handler"
        assert handlers["http"] == "site_spider.download.handler.PlainDownloadHandler"
        assert handlers["file"] is None


def test_spiders_with_seeds_have_our_settings_before_they_are_made_and_others_none() -> None:
    """Scrapy makes the spider first, and asks add-ons then: ours is not even made where it has nothing to do."""
    other, ours = Crawler(scrapy.Spider, settings()), Crawler(SeedSpider, settings())
    assert ours.settings["SITE_LINK_SCOPE"] == "host"
    before = other.settings.copy_to_dict()
    for crawler in (other, ours):
        crawler.addons.load_settings(crawler.settings)
    assert other.settings.copy_to_dict() == before
    assert (len(other.addons.addons), len(ours.addons.addons)) == (0, 1)


# --- our scheduler and dupefilter in somebody else's project, where no setting of ours exists -----


class OrdinarySpider(Spider):
    """Takes no seeds."""

    name = "ordinary"

    async def start(self) -> AsyncIterator[Any]:
        for url in ("http://h.test/1", "http://h.test/2", "http://h.test/1"):
            yield Request(url)

    def parse(self, response: Response) -> Any:
        self.crawler.stats.inc_value("parsed")


def test_a_spider_without_seeds_needs_no_setting_of_ours() -> None:
    """It is crawled and filtered as with Scrapy's own parts."""
    handler = "tests.in_process.engine.ScriptedHandler"
    settings = Settings(
        {
            "TWISTED_REACTOR_ENABLED": False,
            "LOG_ENABLED": False,
            "TELNETCONSOLE_ENABLED": False,
            "REMOTE_CONTROL_ENABLED": False,
            "DOWNLOAD_HANDLERS": {"http": handler, "https": handler},
            "SCHEDULER": "site_spider.frontier.scheduler.SeedScheduler",
            "DUPEFILTER_CLASS": "site_spider.dupefilter.dupefilter.SeenDupeFilter",
        }
    )

    async def crawl() -> dict[str, Any]:
        runner = AsyncCrawlerRunner(settings)
        crawler = runner.create_crawler(OrdinarySpider)
        await runner.crawl(crawler)
        return crawler.stats.get_stats()

    stats = asyncio.run(crawl())
    assert stats["parsed"] == 2
    assert stats["dupefilter/filtered"] == 1
    assert stats["finish_reason"] == "finished"
