"""The other contestants."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import ClassVar

from redis import Redis

from tools.race.contestant import CONCURRENCY, PER_HOST, FileContestant
from tools.race.track import ROOT
from tools.race.workload import Workload

PEERS = Path(__file__).with_name("peers")
ENVIRONMENTS = ROOT / ".servers" / "bench"


def environment(requirements: str) -> Path:
    """Where the programs of an environment are that has exactly what that file names."""
    return ENVIRONMENTS / requirements.removesuffix(".txt") / "bin"


# What `scrapy startproject` writes, but for robots.txt and politeness, which nobody is to keep to here.
STOCK_SETTINGS = {
    "FEED_EXPORT_ENCODING": "utf-8",
    "ROBOTSTXT_OBEY": "False",
    "DOWNLOAD_DELAY": "0",
    "CONCURRENT_REQUESTS": str(CONCURRENCY),
    "CONCURRENT_REQUESTS_PER_DOMAIN": str(PER_HOST),
}


def settings_options(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]


class Stock(FileContestant):
    """Scrapy as it comes, in the version that this project has."""

    name = "Scrapy"
    spider = "page_spider.py"
    more_settings: ClassVar[dict[str, str]] = {}

    def command(self) -> list[str]:
        return [
            str(Path(sys.executable).with_name("scrapy")),
            "runspider",
            str(PEERS / self.spider),
            *("-a", f"seeds={self.heat.folder / 'seeds.txt'}"),
            *("-a", f"extract={'1' if self.heat.workload.extracts else ''}"),
            *("-O", f"{self.output}:jsonlines"),
            *settings_options(STOCK_SETTINGS | self.more_settings),
        ]


class QuietStock(Stock):
    """The same without a log line for each request and each item."""

    name = "Scrapy, LOG_LEVEL=INFO"
    more_settings: ClassVar[dict[str, str]] = {"LOG_LEVEL": "INFO"}


class Bare(FileContestant):
    """The limit."""

    name = "bare aiohttp loop"

    def command(self) -> list[str]:
        return [
            sys.executable,
            str(PEERS / "bare.py"),
            *("--seeds", str(self.heat.folder / "seeds.txt")),
            *("--output", str(self.output)),
            *("--concurrency", str(CONCURRENCY)),
            *(["--extract"] if self.heat.workload.extracts else []),
        ]


class ScrapyRedis(Stock):
    """Scrapy with scrapy-redis: seeds, queue and dupefilter in Redis."""

    name = "scrapy-redis"
    requirements = "scrapy-redis.txt"
    stops_itself = False  # it waits for more seeds
    holds_back = True
    more_settings: ClassVar[dict[str, str]] = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    }

    def prepare(self) -> None:
        with Redis.from_url(self.variables["SITE_REDIS_URL"]) as client:
            client.flushall()
            seeds = [json.dumps({"url": url}) for url in self.heat.seeds]
            client.rpush("pages:start_urls", *seeds)

    def command(self) -> list[str]:
        return [
            str(environment(self.requirements) / "scrapy"),
            "runspider",
            str(PEERS / "redis_spider.py"),
            *("-a", f"extract={'1' if self.heat.workload.extracts else ''}"),
            *("-O", f"{self.output}:jsonlines"),
            *settings_options(STOCK_SETTINGS | self.more_settings),
            *("-s", f"REDIS_URL={self.variables['SITE_REDIS_URL']}"),
        ]


class Crawlee(FileContestant):
    """crawlee-python as its guide has it: ParselCrawler and `enqueue_links`."""

    name = "crawlee-python"
    requirements = "crawlee.txt"
    way: ClassVar[list[str]] = []

    def command(self) -> list[str]:
        return [
            str(environment(self.requirements) / "python"),
            str(PEERS / "http_crawl.py"),
            *self.way,
            *("--seeds", str(self.heat.folder / "seeds.txt")),
            *("--output", str(self.output)),
            *("--concurrency", str(CONCURRENCY)),
            *(["--extract"] if self.heat.workload.extracts else []),
        ]


class LeanCrawlee(Crawlee):
    """The same with links by lxml and a set of our own: only new links reach its queue."""

    name = "crawlee-python, own links"
    way: ClassVar[list[str]] = ["--lean"]

    @classmethod
    def takes_part(cls, workload: Workload) -> bool:
        """Without links it is the same."""
        return workload.extracts
