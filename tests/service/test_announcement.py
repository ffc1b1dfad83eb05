"""What is said at the start: where results go, what has no effect, who has nothing to do."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request
from scrapy.settings import Settings
from scrapy.spiders import SitemapSpider

from site_spider import SeedSpider
from site_spider.service.log_lines import PROCESSES, SLOT
from site_spider.service.service import (
    say_idle_processes,
    say_starts_without_seeds,
    say_what_has_no_effect,
    where_results_go,
)


def settings(**given: Any) -> Settings:
    made = Settings()
    made.setmodule("site_spider.settings", priority="project")
    made.setdict(given, priority="cmdline")
    return made


def test_every_sink_is_named_with_its_place() -> None:
    given = settings(SITE_SINKS="elasticsearch, local,mine.Sink", SITE_RESULTS_INDEX="pages")
    assert where_results_go(given) == "elasticsearch (pages), local (data), mine.Sink"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, []),
        ({"JOBDIR": ""}, []),
        ({"JOBDIR": "job"}, ["JOBDIR: no effect on seeds"]),
        (
            {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue", "JOBDIR": "job"},
            ["JOBDIR, SCHEDULER_PRIORITY_QUEUE: no effect on seeds"],
        ),
        ({"SCHEDULER_MEMORY_QUEUE": "x.Queue"}, ["SCHEDULER_MEMORY_QUEUE: no effect on seeds"]),
    ],
)
def test_settings_of_scrapy_that_seeds_do_not_go_by_are_said(
    caplog: pytest.LogCaptureFixture, given: dict[str, str], said: list[str]
) -> None:
    say_what_has_no_effect(settings(**given))
    assert [message.partition(", which")[0] for message in caplog.messages] == said


class Sitemaps(SeedSpider, SitemapSpider):
    name = "shop"
    sitemap_urls = ("http://h.test/sitemap.xml",)


class Urls(SeedSpider):
    name = "shop"
    start_urls = ["http://h.test/"]  # noqa: RUF012

    def start_requests(self) -> list[Request]:
        return []


class Own(SeedSpider):
    name = "shop"

    async def start(self) -> Any:
        yield Request("http://h.test/")


class Swapped(SitemapSpider, SeedSpider):
    """Its `start` is that of SitemapSpider."""

    name = "shop"


@pytest.mark.parametrize(
    ("spider", "said"),
    [
        (SeedSpider, []),
        (Sitemaps, ["sitemap_urls of spider shop: no effect"]),
        (Urls, ["start_urls, start_requests of spider shop: no effect"]),
        (Own, ["start of spider shop: each process fetches"]),
        (Swapped, ["start of spider shop: each process fetches"]),
    ],
)
def test_what_a_spider_would_begin_with_in_scrapy_is_said(
    caplog: pytest.LogCaptureFixture, spider: type[SeedSpider], said: list[str]
) -> None:
    """With the command that makes seeds of it."""
    say_starts_without_seeds(spider())
    assert [message[: len(words)] for message, words in zip(caplog.messages, said, strict=True)] == said
    assert all("scrapy seed --spider shop" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("slot", "processes", "partitions", "idle"),
    [("1", "4", 3, 1), ("2", "4", 3, 0), ("1", "3", 3, 0), ("1", "4", 0, 0), ("1", "", 1, 0)],
)
def test_processes_without_a_partition_are_said_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    slot: str,
    processes: str,
    partitions: int,
    idle: int,
) -> None:
    """By the first process of crawl_spider.sh; a topic that is not there yet has no partitions to compare."""
    monkeypatch.setenv(SLOT, slot)
    monkeypatch.setenv(PROCESSES, processes)
    say_idle_processes(["seeds"], partitions)
    expected = [f"Topic seeds has {partitions} partitions for {processes} processes"] if idle else []
    assert [message.partition(",")[0] for message in caplog.messages] == expected
