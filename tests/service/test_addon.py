"""What the add-on changes in the settings of another project."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import scrapy
from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerRunner, Crawler
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.http import Response
from scrapy.settings import BaseSettings, Settings
from scrapy.utils.misc import load_object

from site_spider import Addon, SeedSpider
from site_spider.service import environment

OURS = "site_spider.frontier.retry_and_redirect.PatientRetryMiddleware"
WRITES = "site_spider.results.pipeline.ResultPipeline"
STOCK = "scrapy.downloadermiddlewares.retry.RetryMiddleware"


def settings(**project: Any) -> Settings:
    return Settings({"ADDONS": {Addon: 300}} | project)


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


def test_a_part_of_the_project_is_not_loaded_before_it_is_its_turn() -> None:
    """Its module may install Twisted's usual reactor, and Scrapy's could not be installed any more."""
    found = settings(ITEM_PIPELINES={"nowhere.Pipeline": 300})
    environment.apply_our_settings(found)
    assert set(found.getdict("ITEM_PIPELINES")) == {"nowhere.Pipeline", WRITES}


@pytest.mark.parametrize("by", ["project", "custom_settings", "cmdline"])
@pytest.mark.parametrize("order", [None, 90])
def test_who_names_a_class_of_scrapys_means_the_one_in_its_place(order: int | None, by: str) -> None:
    """Without retries of ours, those of a class of the project's own are the only ones. By class or path."""
    parts = {RetryMiddleware: order, "mine.Retry": 550}

    class Spider(SeedSpider):
        custom_settings = {"DOWNLOADER_MIDDLEWARES": parts} if by == "custom_settings" else {}

    found = settings(**({"DOWNLOADER_MIDDLEWARES": {STOCK: order, "mine.Retry": 550}} if by == "project" else {}))
    if by == "cmdline":
        found.set("DOWNLOADER_MIDDLEWARES", parts, priority=by)
    for _ in range(2):
        Spider.update_settings(found)
    middlewares = {
        load_object(name): at for name, at in found.getdict("DOWNLOADER_MIDDLEWARES").items() if name != "mine.Retry"
    }
    assert middlewares[load_object(OURS)] == order
    assert middlewares[RetryMiddleware] is None
    assert "mine.Retry" in found.getdict("DOWNLOADER_MIDDLEWARES")
    named = settings(DOWNLOADER_MIDDLEWARES={STOCK: None, OURS: 555})
    environment.apply_our_settings(named)
    assert named.getdict("DOWNLOADER_MIDDLEWARES")[OURS] == 555


def test_what_stands_in_for_a_class_of_scrapys_is_one() -> None:
    """They are told apart by their order in the settings."""
    assert len(environment.STAND_INS) == 10
    for stock, instead in environment.STAND_INS.items():
        assert stock.rpartition(".")[2] == "LogStats" or issubclass(load_object(instead), load_object(stock))


def test_the_sinks_get_what_the_last_pipeline_gives() -> None:
    found = settings(ITEM_PIPELINES={"mine.Late": 950, "mine.Off": None})
    environment.apply_our_settings(found)
    environment.apply_custom_settings(found, {"ITEM_PIPELINES": {"mine.Later": 1000}})
    environment.add_our_parts(found)
    assert found.getdict("ITEM_PIPELINES")[WRITES] == 1001
    early = settings(ITEM_PIPELINES={"mine.Archive": 300, WRITES: 200})
    environment.apply_our_settings(early)
    assert early.getdict("ITEM_PIPELINES") == {"mine.Archive": 300, WRITES: 200}
    environment.apply_our_settings(settings(ITEM_PIPELINES={WRITES: "900"}))  # refused by `check_names`


@pytest.mark.parametrize("name", environment.MERGED)
def test_parts_of_the_environment_stand_beside_ours(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In the place of all, they would take the service itself out, and the crawl would wait for ever."""
    monkeypatch.setenv(name, '{"mine.Part": 500}')
    crawler = Crawler(SeedSpider, settings())
    crawler.addons.load_settings(crawler.settings)
    assert set(crawler.settings.getdict(name)) >= {"mine.Part", *environment.OUR_SETTINGS[name]}


def test_spiders_with_seeds_have_our_settings_before_they_are_made_and_others_none() -> None:
    """Scrapy makes the spider first, and asks add-ons then: ours is not even made where it has nothing to do."""
    other, ours = Crawler(scrapy.Spider, settings()), Crawler(SeedSpider, settings())
    assert ours.settings["SITE_LINK_SCOPE"] == "host"
    before = other.settings.copy_to_dict()
    for crawler in (other, ours):
        crawler.addons.load_settings(crawler.settings)
    assert other.settings.copy_to_dict() == before
    assert (len(other.addons.addons), len(ours.addons.addons)) == (0, 2)


class Replaces:
    """An add-on that sets what it could add to."""

    def update_settings(self, settings: BaseSettings) -> None:
        for name in environment.MERGED:
            settings.set(name, {"mine.Part": 500}, "addon")


@pytest.mark.parametrize("order", [200, 400])
def test_parts_that_another_add_on_sets_stand_beside_ours(order: int) -> None:
    """In the place of all, they took the service out, and the crawl waited for ever; or the pipeline, and items."""
    assert_ours_are_there(Crawler(SeedSpider, settings(ADDONS={Addon: 300, Replaces: order})))


def assert_ours_are_there(crawler: Crawler) -> None:
    crawler.addons.load_settings(crawler.settings)
    for name in environment.MERGED:
        assert set(crawler.settings.getdict(name)) >= {"mine.Part", *environment.OUR_SETTINGS[name]}


class NamesAddons(SeedSpider):
    custom_settings = {"ADDONS": {Addon: 300, Replaces: 400}}  # noqa: RUF012


class SetsParts(SeedSpider):
    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        super().update_settings(settings)
        for name in environment.MERGED:
            settings.set(name, {"mine.Part": 500}, priority="spider")


@pytest.mark.parametrize(
    ("spider", "project"), [(NamesAddons, settings()), (SetsParts, Settings(environment.OUR_SETTINGS))]
)
def test_parts_that_a_spider_sets_stand_beside_ours(spider: type[SeedSpider], project: Settings) -> None:
    """Itself as Scrapy's documentation shows it, in this project, or by an add-on."""
    assert_ours_are_there(Crawler(spider, project))


# --- our scheduler and dupefilter in somebody else's project, where no setting of ours exists -----


class OrdinarySpider(Spider):
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
