"""Our scheduler and dupefilter in somebody else's project, where no setting of ours exists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.http import Response
from scrapy.settings import Settings


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
