"""What a page costs, in CPU µs of the crawling process: ours, or stock Scrapy's.

    .venv/bin/python -m tools.measure.crawl_cost [--kind site] [--pages 2000] [--stock] [--parts]

The site is served by another process, on the last core where there are several. With `--parts`
the time is shown by part, as cProfile sees it: its own cost lies on every call, so the parts
with many small calls look larger than they are. Seeds come from the embedded log unless
SITE_KAFKA_BROKERS is set; results go to the sinks that `--sinks` names.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar, Self

import scrapy
from scrapy import signals
from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.settings import Settings

from site_spider.contracts.sink import ACKNOWLEDGED, Record, Verdict
from site_spider.service import config as parts
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider

CONCURRENCY = {"CONCURRENT_REQUESTS": 64, "CONCURRENT_REQUESTS_PER_DOMAIN": 64, "LOG_LEVEL": "WARNING"}
PARTS = {  # the first that is in the name of a file
    "page/links": "links", "page/markup": "links", "site_spider/ledger": "ledger",
    "site_spider/frontier": "frontier", "dupefilter": "dupefilter", "site_spider/download": "download",
    "adapters/": "results", "site_spider/results": "results", "scrapy_parts": "signals and statistics",
    "pydispatch": "signals and statistics", "utils/signal": "signals and statistics",
    "signalm": "signals and statistics", "statscollectors": "signals and statistics",
    "site_spider/spiders": "spider", "engine/guard": "spider", "middlewares": "middlewares",
    "scrapy/core": "engine", "site_spider/engine": "engine", "twisted": "engine",
    "scrapy/http": "requests, responses", "w3lib": "requests, responses", "urllib": "requests, responses",
    "responsetypes": "requests, responses",
}  # fmt: skip


class NoSink:
    """Acknowledges everything at once."""

    name = "none"

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        return cls()

    async def open(self) -> None:
        pass

    async def write(self, records: list[Record]) -> list[Verdict]:
        return [ACKNOWLEDGED for _ in records]

    async def close(self) -> None:
        pass


class Meter:
    """CPU time between the first and the last page."""

    def __init__(self, profiled: bool) -> None:
        self.profile = cProfile.Profile() if profiled else None
        self._began = 0.0
        self._pages = 0
        self.cost = 0.0

    def start(self, pages: int) -> None:
        self._began, self._pages = time.process_time(), pages
        if self.profile is not None:
            self.profile.enable()

    def stop(self, pages: int) -> None:
        if self.profile is not None:
            self.profile.disable()
        self.cost = (time.process_time() - self._began) / (pages - self._pages) * 1e6

    def show_parts(self) -> None:
        assert self.profile is not None
        seconds: Counter[str] = Counter()
        for (file, _, _), (_, _, own, _, callers) in pstats.Stats(self.profile).stats.items():  # type: ignore[attr-defined]
            if file == "~":  # built-in: it counts for those who call it
                for (caller, _, _), (_, _, called, _) in callers.items():
                    seconds[part_of(caller)] += called
            else:
                seconds[part_of(file)] += own
        whole = sum(seconds.values())
        for part, spent in seconds.most_common():
            print(f"{part:32} {100 * spent / whole:5.1f} %")


def part_of(file: str) -> str:
    return next((part for key, part in PARTS.items() if key in file), "other")


class StockSpider(scrapy.Spider):
    """Scrapy as it comes, with its link extractor and its feed export."""

    name = "stock"
    options: ClassVar[Any]
    meter: ClassVar[Meter]
    extractor = LinkExtractor()
    done = 0

    async def start(self) -> AsyncIterator[Any]:
        self.meter.start(0)
        for url in urls(self.options):
            yield scrapy.Request(url)

    def parse(self, response: Response) -> Any:
        self.done += 1
        if self.done == self.options.pages:
            self.meter.stop(self.done)
        links = [] if self.options.kind == "small" else self.extractor.extract_links(response)
        yield {"url": response.url, "status": response.status, "body": response.text}
        if self.options.kind == "site":
            for link in links:
                yield scrapy.Request(link.url)


def urls(options: Any) -> list[str]:
    count = 1 if options.kind == "site" else options.pages
    return [f"http://127.0.0.1:{options.port}/{options.kind}/{number}" for number in range(count)]


def crawl_stock(options: Any, meter: Meter, folder: str) -> None:
    StockSpider.options, StockSpider.meter = options, meter
    feed = {"FEEDS": {f"{folder}/items.jsonl": {"format": "jsonlines"}}, "TELNETCONSOLE_ENABLED": False}
    process = AsyncCrawlerProcess(CONCURRENCY | feed)
    process.crawl(StockSpider)
    process.start()


def crawl_ours(options: Any, meter: Meter, folder: str) -> None:
    settings = Settings()
    settings.setmodule("site_spider.settings", priority="project")
    topic = f"cost-{time.time_ns()}"
    own = {
        "SITE_KAFKA_BROKERS": os.environ.get("SITE_KAFKA_BROKERS", ""),
        "SITE_DATA_DIR": folder,
        "SITE_SEED_TOPIC": topic,
        "SITE_CONSUMER_GROUP": topic,
        "SITE_RESULTS_TOPIC": f"{topic}.results",
        "SITE_SINKS": options.sinks or f"{NoSink.__module__}.NoSink",
        "SITE_ALLOW_PRIVATE_HOSTS": True,
        "DEPTH_LIMIT": 0,
    }
    settings.setdict(CONCURRENCY | own, priority="cmdline")
    log = parts.seed_log(settings)
    producer = log.producer()
    for number, url in enumerate(urls(options)):
        producer.send(topic, b"127.0.0.1", json.dumps({"url": url, "meta": {"url_id": str(number)}}).encode())
    assert producer.flush(60) == 0
    producer.close()
    log.close()
    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(SeedSpider)

    async def opened() -> None:
        crawler.watch = asyncio.create_task(watch(crawler, options.pages, meter))  # type: ignore[attr-defined]

    crawler.signals.connect(opened, signal=signals.spider_opened)
    process.crawl(crawler)
    process.start()


async def watch(crawler: Crawler, pages: int, meter: Meter) -> None:
    def done() -> int:
        return int(crawler.stats.get_value("downloader/response_count", 0))

    service = SeedService.of(crawler)
    assert service is not None
    while not done():
        await asyncio.sleep(0.001)
    meter.start(done())
    while done() < pages or service.parts.completion.ledger.in_flight:
        await asyncio.sleep(0.02)
    meter.stop(done())
    await crawler.stop_async()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("small", "found", "site"), default="found")
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--sinks", default="")
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "tools.measure.fast_site", str(options.pages)]
    site = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    os.sched_setaffinity(site.pid, cores[-1:])
    os.sched_setaffinity(0, cores[: max(1, len(cores) - 1)][:1])
    meter = Meter(options.parts)
    try:
        assert site.stdout is not None
        options.port = int(site.stdout.readline())
        with tempfile.TemporaryDirectory() as folder:
            (crawl_stock if options.stock else crawl_ours)(options, meter, folder)
    finally:
        site.terminate()
        site.wait()
    print(f"{'stock' if options.stock else 'ours'} {options.kind}: {meter.cost:.0f} µs of CPU a page")
    if options.parts:
        meter.show_parts()


if __name__ == "__main__":
    main()
