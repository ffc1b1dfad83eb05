"""What the suite of dupefilters needs: each of them as a process of a crawl would have it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest
from redis import Redis
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.defer import deferred_to_future

from site_spider import meta_keys
from site_spider.contracts.seed_log import Message, Partition
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.ledger.completion import Job
from site_spider.ledger.ledger import SeedInFlight
from site_spider.seed.seed import parse_seed
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process.engine import settings_for

PATIENCE_SECONDS = 300.0
_offsets = count()


async def until(condition: Any, what: str = "") -> None:
    """Return when the condition holds; fail when it does not in time."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not in time: {what or condition}"
        await asyncio.sleep(0.01)


class Seed:
    """One seed in flight, to meet pages for."""

    def __init__(self) -> None:
        partition = Partition("seeds", 0)
        value = b'{"url": "http://host.test/seed"}'
        self.entry = SeedInFlight(partition, next(_offsets), 1)
        self.entry.message = Message(partition, self.entry.offset, None, value)
        self.entry.reads(parse_seed(value))
        self.job = Job(Request("http://host.test/seed"), self.entry)

    def request(self, page: str) -> Request:
        return Request(f"http://host.test/{page}", meta={meta_keys.JOB: self.job})


class Member:
    """The dupefilter of one process; an asynchronous context."""

    def __init__(self, settings: Settings) -> None:
        crawler = Crawler(SeedSpider, settings)
        crawler._apply_settings()
        self.stats = crawler.stats
        self.dupefilter = SeenDupeFilter.from_crawler(crawler)

    async def __aenter__(self) -> Self:
        await self.dupefilter.connect(PATIENCE_SECONDS)
        return self

    async def __aexit__(self, *_error: object) -> None:
        closing = self.dupefilter.close("finished")
        if closing is not None:
            await deferred_to_future(closing)

    async def new(self, seed: Seed, *pages: str) -> list[str]:
        """Meet pages for a seed; those that are to be fetched."""
        requests = [seed.request(page) for page in pages]
        await self.dupefilter.prefetch(requests)
        seen = self.dupefilter.request_seen
        return [page for page, request in zip(pages, requests, strict=True) if not seen(request)]

    def complete(self, seed: Seed) -> None:
        self.dupefilter.seen.complete(seed.entry)

    def forget(self, seed: Seed) -> None:
        self.dupefilter.seen.fenced(seed.entry)

    async def do(self, *pages: str) -> None:
        """A seed that meets these pages, and ends well."""
        seed = Seed()
        await self.new(seed, *pages)
        self.complete(seed)

    async def written(self) -> None:
        """Wait until the store has every mark."""
        done: Any = self.dupefilter.seen.done
        await until(lambda: getattr(done, "waiting", 0) == 0, "marks are written")

    def count(self, key: str) -> int:
        assert self.stats is not None
        return int(self.stats.get_value(f"dupefilter/{key}", 0))


class Case:
    """One kind of dupefilter, empty."""

    def __init__(self, name: str, folder: Path, **settings: Any) -> None:
        self.name = name
        self.folder = folder
        self.settings = {"SITE_DUPEFILTER": name, "SITE_CONSUMER_GROUP": uuid.uuid4().hex, **settings}

    def member(self, **settings: Any) -> Member:
        """A process."""
        return Member(settings_for(self.folder, **self.settings | settings))


KINDS = ["memory", "bloom", "rolling", "local", pytest.param("redis", marks=pytest.mark.servers)]
ELSEWHERE = KINDS[3:]


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    """The kind that the test is parametrized with."""
    if request.param != "redis":
        yield Case(request.param, tmp_path)
        return
    case = Case("redis", tmp_path, SITE_REDIS_URL=request.getfixturevalue("redis_url"))
    yield case
    with Redis.from_url(case.settings["SITE_REDIS_URL"]) as client:
        for key in client.scan_iter(f"site_spider:{case.settings['SITE_CONSUMER_GROUP']}:*"):
            client.delete(key)
