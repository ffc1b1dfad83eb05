"""The other contestants."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import ClassVar

from redis import Redis

from tests.benchmarks.race.contestant import CONCURRENCY, PER_HOST, FileContestant

PEERS = Path(__file__).with_name("peers")

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
