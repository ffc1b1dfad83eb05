"""How a host is visited, in its own log: the real engine against a scripted site."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Request
from scrapy.core.downloader import Downloader
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider.errors import ConfigError
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.politeness import PoliteFrontier, Politeness, build_frontier, build_load, build_politeness
from site_spider.intake.room import Load
from site_spider.service.config import ServiceSettings
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process import engine
from tests.in_process.engine import crawl, page, settings_for


class Log:
    def __init__(self) -> None:
        self.begins: dict[str, list[float]] = defaultdict(list)
        self.under_way: dict[str, int] = defaultdict(int)
        self.most: dict[str, int] = defaultdict(int)
        self.takes_seconds: dict[str, float] = defaultdict(lambda: 0.02)

    async def answer(self, request: Request) -> Response:
        host = request.url.split("/")[2]
        self.begins[host].append(asyncio.get_running_loop().time())
        self.under_way[host] += 1
        self.most[host] = max(self.most[host], self.under_way[host])
        await asyncio.sleep(self.takes_seconds[host])
        self.under_way[host] -= 1
        request.meta["download_latency"] = self.takes_seconds[host]
        return page(request)

    def gaps(self, host: str) -> list[float]:
        return [after - before for before, after in pairwise(self.begins[host])]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(engine, "ANSWERS", {f"/{number}": made.answer for number in range(30)})
    return made


def seeds(host: str, count: int) -> list[dict[str, Any]]:
    return [{"url": f"http://{host}/{n}", "meta": {"url_id": f"{host}/{n}"}} for n in range(count)]


def test_the_limits_of_a_host_hold(tmp_path: Path, log: Log) -> None:
    log.takes_seconds["one.test"] = 5
    slots = {"own.test": {"delay": 2.5}, "narrow.test": {"concurrency": 1}}
    crawl(
        tmp_path,
        [*seeds("one.test", 9), *seeds("own.test", 4), *seeds("narrow.test", 9)],
        DOWNLOAD_DELAY=1,
        DOWNLOAD_DELAY_JITTER=0,
        CONCURRENT_REQUESTS_PER_DOMAIN=3,
        DOWNLOAD_SLOTS=slots,
    )
    assert min(log.gaps("one.test")) >= 0.8
    assert log.most["one.test"] == 3
    assert min(log.gaps("own.test")) >= 2.2
    assert log.most["narrow.test"] == 1


class Fetching(SeedSpider):
    """Its pages need files, which come past the frontier as those of FilesPipeline do."""

    name = "fetching"
    downloader: Downloader

    async def parse(self, response: Response) -> Any:
        Fetching.downloader = self.crawler.engine.downloader

        async def fetch(number: int) -> Response:
            wanted = Request(f"http://{response.url.split('/')[2]}/{number}", meta=self.meta_of_files(response))
            return await self.crawler.engine.download_async(wanted)

        yield {"statuses": [answer.status for answer in await asyncio.gather(*map(fetch, range(10, 16)))]}

    def meta_of_files(self, response: Response) -> dict[str, Any]:
        return {}


class Copying(Fetching):
    def meta_of_files(self, response: Response) -> dict[str, Any]:
        return response.meta


def test_the_limits_of_a_host_hold_for_files_with_the_meta_of_their_page(tmp_path: Path, log: Log) -> None:
    crawl(tmp_path, seeds("slow.test", 1), Copying, DOWNLOAD_DELAY=1, DOWNLOAD_DELAY_JITTER=0)
    assert len(log.begins["slow.test"]) == 7
    assert min(log.gaps("slow.test")[1:]) >= 0.8


@pytest.mark.parametrize("throttles", [False, True])
def test_the_limits_of_a_host_hold_for_files_beside_pages(tmp_path: Path, log: Log, throttles: bool) -> None:
    """They began all at once."""
    found = crawl(
        tmp_path,
        [*seeds("slow.test", 1), *seeds("wide.test", 1)],
        Fetching,
        DOWNLOAD_DELAY=1,
        DOWNLOAD_DELAY_JITTER=0,
        CONCURRENT_REQUESTS_PER_DOMAIN=3,
        AUTOTHROTTLE_ENABLED=throttles,
        AUTOTHROTTLE_START_DELAY=1,
        DOWNLOAD_SLOTS={"wide.test": {"delay": 0, "concurrency": 2}},
    )
    assert len(found.documents) == 2
    assert len(log.begins["slow.test"]) == len(log.begins["wide.test"]) == 7
    assert min(log.gaps("slow.test")[1:]) >= 0.8
    assert throttles or log.most["wide.test"] == 2


@pytest.mark.parametrize("throttles", [False, True])
def test_files_that_wait_for_their_host_hold_no_other_up(tmp_path: Path, log: Log, throttles: bool) -> None:
    """They took the places of CONCURRENT_REQUESTS; and those of a callback that has timed out are not fetched."""
    log.takes_seconds["late.test"] = 25  # it ends when the next file of the slow host could begin
    others = [seed for number in range(9) for seed in seeds(f"{number}.test", 1)]
    found = crawl(
        tmp_path,
        [*seeds("slow.test", 1), *seeds("late.test", 1), *others],
        Fetching,
        DOWNLOAD_SLOTS={"slow.test": {"delay": "30", "concurrency": "1"}},  # as text, which the frontier takes, too
        DOWNLOAD_DELAY_JITTER=0,  # or the second file may come before the callback's time is over
        CONCURRENT_REQUESTS=4,
        AUTOTHROTTLE_ENABLED=throttles,
        AUTOTHROTTLE_START_DELAY=0.1,
        AUTOTHROTTLE_MAX_DELAY=30,
        SITE_CALLBACK_TIMEOUT_SECONDS=10,
    )
    begins = [begin for number in range(9) for begin in log.begins[f"{number}.test"]]
    assert len(begins) == 9 * 7
    assert max(begins) - min(begins) < 9
    assert found.documents["slow.test/0"]["description"].startswith("CallbackTimeout")
    assert len(log.begins["slow.test"]) <= 3
    assert not Fetching.downloader.active


def test_autothrottle_sets_the_delay_in_the_frontier(tmp_path: Path, log: Log) -> None:
    """Its delay follows the latency, and a host that waits for it takes no place of the others."""
    log.takes_seconds["slow.test"] = 4.0
    active: list[int] = []

    def until(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        active.append(len(crawler.engine.downloader.active))
        return service.parts.completion.ledger.consumed == 30 and service.parts.completion.ledger.in_flight == 0

    found = crawl(
        tmp_path,
        [*seeds("slow.test", 10), *seeds("fast.test", 20)],
        until=until,
        CONCURRENT_REQUESTS=3,
        AUTOTHROTTLE_ENABLED=True,
        AUTOTHROTTLE_START_DELAY=0.1,
        AUTOTHROTTLE_TARGET_CONCURRENCY=1.0,
        DOWNLOAD_DELAY_JITTER=0,
    )
    assert len(found.documents) == 30
    assert log.gaps("slow.test")[0] < 3  # the delay to begin with, not the latency
    assert min(log.gaps("slow.test")[-2:]) >= 3.7  # the latency
    assert log.gaps("fast.test")[0] > 0.05 > min(log.gaps("fast.test")[-5:])
    assert log.begins["fast.test"][-1] < log.begins["slow.test"][-1]
    assert sum(active) / len(active) < 2.5  # they do not wait there


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SITE_LINKS_TO", "rabbit"),
        ("SITE_LINKS_TO", ""),
        ("SITE_HOST_OWNERSHIP", "perhaps"),
        ("SITE_FRONTIER_MAX_REQUESTS", 0),
        ("SITE_FRONTIER_MAX_BYTES", "much"),
        ("SITE_ROBOTS_CACHE", 0),
        ("SITE_ROBOTS_MAX_AGE_SECONDS", 100_000),
        ("SITE_ROBOTS_WAIT_SECONDS", "soon"),
        ("SITE_CRAWL_DELAY_MAX_SECONDS", -1),
    ],
)
def test_a_setting_that_cannot_be_used_ends_the_process(tmp_path: Path, name: str, value: object) -> None:
    settings = settings_for(tmp_path, ROBOTSTXT_OBEY=True, **{name: value})

    async def read() -> None:
        ServiceSettings(settings)
        build_load(settings)
        build_politeness(Crawler(SeedSpider, settings), build_frontier(settings, Mock()), lambda: None)

    with pytest.raises(ConfigError, match=f"{name} is {value!r}, but must be"):
        asyncio.run(read())


def test_what_is_fenced_while_fenced_requests_are_taken_out_is_looked_for_again() -> None:
    """It may stand where that look has been already."""
    room = Mock(fencings=0, remove=lambda _: iter([[], []]))
    PoliteFrontier.fenced(room)
    removing = PoliteFrontier.remove_fenced(room)
    next(removing)
    PoliteFrontier.fenced(room)
    assert list(removing) == [[]]
    assert room.fencings
    assert list(PoliteFrontier.remove_fenced(room)) == [[], []]
    assert not room.fencings


async def test_while_what_is_due_is_woken_some_at_a_time_no_more_seeds_are_polled() -> None:
    """Nothing may begin of what was woken first, but of what is woken next."""
    now, awake, starved = asyncio.get_running_loop().time(), asyncio.Event(), Mock()
    frontier: Frontier[Any] = Frontier()
    frontier.close("closed.test", "robots", now)
    for number in range(1_000):
        host = "closed.test" if number < 999 else "free.test"
        frontier.push(1, host, Request(f"http://{host}/"), now - 2, not_before=now - 1)
    nothing: list[Any] = [Mock()] * 2
    room = PoliteFrontier(
        frontier,
        Politeness(Mock(), 1e9, None, None),
        Load(10**6, 10**9),
        *nothing,
        starved,
        awake.set,
        *nothing,
        takes=lambda _waiter: False,
    )
    asks = 0
    while (request := room.next(lambda waiter: waiter)) is None:  # type: ignore[arg-type, return-value]
        starved.assert_not_called()
        async with asyncio.timeout(10):
            await awake.wait()
        awake.clear()
        asks += 1
    assert request.url == "http://free.test/"
    assert asks > 1
    assert room.next(Mock()) is None
    starved.assert_called_once_with()
