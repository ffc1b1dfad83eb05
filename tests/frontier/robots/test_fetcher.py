"""robots.txt in the frontier: the real engine against scripted sites."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import CannotResolveHostError, DownloadConnectionRefusedError
from scrapy.http import Response
from scrapy.robotstxt import RobotParser

from site_spider.download.names import PrivateHostError
from site_spider.errors import ConfigError
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.robots import Robots
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from tests.frontier.robots.sites import FORBIDS, Hosts, hosts, obeying, said, seed
from tests.in_process import engine
from tests.in_process.engine import crawl, page, settings_for

__all__ = ["hosts"]


def test_what_is_forbidden_ends_as_a_failure_and_is_not_asked_for(tmp_path: Path, hosts: Hosts) -> None:
    """The seed is complete; the file belongs to no seed and is fetched once."""
    hosts.robots["h.test"] = FORBIDS
    urls = ["http://h.test/private", "http://h.test/public", "http://h.test/public/1?secret=1"]
    found = obeying(tmp_path, *urls)
    forbidden = "Forbidden by robots.txt"
    assert said(found) == {urls[0]: forbidden, urls[1]: None, urls[2]: forbidden}
    assert hosts.asked[0][2] == "/robots.txt"
    assert [path for _, _, path in hosts.asked[1:]] == ["/public"]
    assert (found.lag, found.seeds["completed_with_failure"], found.seeds["in_flight"]) == (0, 2, 0)
    assert found.stats["robotstxt/forbidden"] == 2


def test_where_it_is_not_obeyed_nothing_is_fetched(tmp_path: Path, hosts: Hosts) -> None:
    """Scrapy's default."""
    hosts.robots["h.test"] = FORBIDS
    found = crawl(tmp_path, [seed("http://h.test/private")])
    assert said(found) == {"http://h.test/private": None}
    assert hosts.count("/robots.txt") == {}


def test_one_fetch_serves_all_requests_of_an_origin(tmp_path: Path, hosts: Hosts) -> None:
    """Though they are 50 and the file is slow; scheme and port make another origin."""

    async def slow(_request: Request) -> str:
        await asyncio.sleep(0.3)
        return FORBIDS

    hosts.robots["h.test"] = slow
    urls = [f"http://h.test/public/{number}" for number in range(50)]
    found = obeying(tmp_path, *urls, "https://h.test/public", "http://h.test:81/public")
    assert len(found.documents) == 52
    assert set(said(found).values()) == {None}
    assert hosts.count("/robots.txt") == {"h.test": 2, "h.test:81": 1}  # http and https


def test_a_slow_robots_txt_holds_up_its_host_alone_and_takes_one_place(tmp_path: Path, hosts: Hosts) -> None:
    """With two places, and four hosts whose file takes its time, the fast host is served meanwhile."""
    order: list[str] = []

    async def slow(_request: Request) -> str:
        await asyncio.sleep(0.6)
        order.append("slow robots.txt is there")
        return ""

    hosts.robots["slow.test"] = slow
    views: list[str] = []

    def until(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        assert service is not None
        if service is not None:
            now = asyncio.get_running_loop().time()
            views.extend(v.reason for v in service.parts.room.frontier.hosts(now) if v.host == "slow.test")
        return service.parts.completion.ledger.consumed == 30 and service.parts.completion.ledger.in_flight == 0

    slow_urls = [f"http://slow.test/public/{number}" for number in range(20)]
    fast_urls = [f"http://fast.test/public/{number}" for number in range(10)]
    seeds = [seed(url) for url in slow_urls + fast_urls]
    found = crawl(tmp_path, seeds, until=until, ROBOTSTXT_OBEY=True, CONCURRENT_REQUESTS=2)
    assert len(found.documents) == 30
    first_slow = min(t for t, host, path in hosts.asked if host == "slow.test" and path != "/robots.txt")
    assert max(hosts.times("fast.test")) < first_slow
    assert "robots" in views


def test_fetching_respects_the_limit_of_downloads(tmp_path: Path, hosts: Hosts) -> None:
    """50 new hosts at once are 50 files; no more than CONCURRENT_REQUESTS are under way."""
    running, most = [0], [0]

    async def counted(_request: Request) -> str:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.02)
        running[0] -= 1
        return ""

    urls = [f"http://h{number}.test/public" for number in range(50)]
    hosts.robots = dict.fromkeys((urlsplit(url).netloc for url in urls), counted)
    found = obeying(tmp_path, *urls, CONCURRENT_REQUESTS=4)
    assert len(found.documents) == 50
    assert 2 <= most[0] <= 4


def test_without_a_file_all_is_allowed(tmp_path: Path, hosts: Hosts) -> None:
    """RFC 9309: unavailable, or none that can be read."""
    files = (301, 401, 403, 404, 410, "\x00\xff\xfe", "Disallow", "<html>no", "User-agent\nDisallow: [", "")
    hosts.robots = {f"h{number}.test": file for number, file in enumerate(files)}
    urls = [f"http://{host}/private" for host in hosts.robots]
    assert said(obeying(tmp_path, *urls)) == dict.fromkeys(urls)


FAILURES = {
    "a.test": (503, "HTTP 503 Service Unavailable"),
    "b.test": (429, "HTTP 429 Too Many Requests"),
    "c.test": (DownloadConnectionRefusedError(), "ConnectionRefusedError: c.test refuses connections"),
    "d.test": (CannotResolveHostError(), "DNSLookupError: no address for host d.test"),
}


def test_a_file_that_cannot_be_fetched_is_tried_again_and_then_its_seeds_fail(tmp_path: Path, hosts: Hosts) -> None:
    """After SITE_ROBOTS_WAIT_SECONDS; pages are not asked for."""
    hosts.robots = {host: failure for host, (failure, _) in FAILURES.items()}
    parts = {f"http://{host}/public{more}": part for host, (_, part) in FAILURES.items() for more in ("", "/1")}
    found = obeying(tmp_path, *parts, SITE_ROBOTS_WAIT_SECONDS=0.3)
    assert said(found) == {url: f"robots.txt could not be fetched: {part}" for url, part in parts.items()}
    assert all(4 <= hosts.count("/robots.txt")[host] <= 7 for host in FAILURES)
    assert hosts.count("/public") == {}
    assert found.lag == 0


def test_a_private_host_is_not_tried_again(tmp_path: Path, hosts: Hosts) -> None:
    """Waiting cannot help: its seeds fail at once."""
    hosts.robots["h.test"] = PrivateHostError("h.test has no public address")
    found = obeying(tmp_path, "http://h.test/public")
    (description,) = said(found).values()
    assert "robots.txt could not be fetched: PrivateHostError: h.test has no public address" in str(description)
    assert hosts.count("/robots.txt") == {"h.test": 1}


def test_a_site_that_comes_back_in_time_is_crawled(tmp_path: Path, hosts: Hosts) -> None:
    """The seeds waited, and others did not."""
    hosts.robots["h.test"] = [503, DownloadConnectionRefusedError(), 503, FORBIDS]
    urls = ["http://h.test/public", "http://h.test/private", "http://other.test/public"]
    found = obeying(tmp_path, *urls)
    assert list(said(found).values()).count(None) == 2
    assert said(found)["http://h.test/private"] == "Forbidden by robots.txt"
    assert hosts.count("/robots.txt") == {"h.test": 4, "other.test": 1}


def test_redirects_of_the_file_are_followed_up_to_five(tmp_path: Path, hosts: Hosts) -> None:
    """A sixth makes it unavailable: all is allowed."""

    def hop(request: Request) -> Response:
        url = urlsplit(request.url)
        left = int(url.query or {"five.test": 5, "six.test": 6}[url.netloc])
        if left == 0:
            return page(request, FORBIDS)
        return page(request, "", 301, Location=f"/elsewhere/robots?{left - 1}")

    async def hopping(request: Request) -> Response:
        return hop(request)

    engine.ANSWERS["/elsewhere/robots"] = hop
    hosts.robots = {"five.test": hopping, "six.test": hopping}
    found = obeying(tmp_path, "http://five.test/private", "http://six.test/private")
    assert said(found) == {"http://five.test/private": "Forbidden by robots.txt", "http://six.test/private": None}


def test_what_is_fetched_of_robots_txt_is_no_link_downloaded(tmp_path: Path, hosts: Hosts) -> None:
    """Each answer, redirects of the file included, is counted apart; its bytes, too."""
    engine.ANSWERS["/elsewhere/robots"] = lambda r: page(r, "")
    hosts.robots["one.test"] = Response(
        "http://one.test/robots.txt", 301, {"Location": "http://one.test/elsewhere/robots"}
    )
    found = obeying(tmp_path, "http://one.test/public", "http://two.test/public")
    last = last_statistics(tmp_path)
    assert (last["total_num"], last["responses"]) == (2, {"200": 2})
    assert last["robots"]["num"] == 3
    for name in ("response", "request"):
        parts = last[f"total_{name}_size"], last["robots"][f"{name}_size"]
        assert min(parts) > 0
        assert sum(parts) == found.stats[f"downloader/{name}_bytes"]


def last_statistics(folder: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(folder / "results.sqlite")) as store:
        rows = [json.loads(text) for (text,) in store.execute("SELECT document FROM statistics")]
    return dict(max(rows, key=lambda row: row["interval"]))


def test_when_it_is_too_old_it_is_fetched_anew_once(tmp_path: Path, hosts: Hosts) -> None:
    """And its new rules count; all that wait wait for the one fetch."""
    hosts.robots["h.test"] = ["", FORBIDS]
    urls = [f"http://h.test/public/{number}" for number in range(5)] + ["http://h.test/private"]
    found = obeying(
        tmp_path,
        *urls,
        SITE_ROBOTS_MAX_AGE_SECONDS=1,
        DOWNLOAD_DELAY=0.2,
        DOWNLOAD_DELAY_JITTER=0,
        CONCURRENT_REQUESTS_PER_DOMAIN=4,
    )
    assert said(found)["http://h.test/private"] == "Forbidden by robots.txt"
    assert hosts.count("/robots.txt") == {"h.test": 2}


class FailingParser(RobotParser):
    """Somebody's own, with mistakes."""

    @classmethod
    def from_crawler(cls, crawler: Crawler, robotstxt_body: bytes) -> FailingParser:
        if robotstxt_body == b"unreadable":
            raise ValueError("unreadable")
        return cls()

    def allowed(self, url: str | bytes, user_agent: str | bytes) -> bool:
        raise ValueError("allowed")

    def crawl_delay(self, user_agent: str | bytes) -> float | None:
        raise ValueError("crawl_delay")


@pytest.mark.parametrize("body", ["unreadable", "readable"])
def test_a_parser_that_fails_allows_all(tmp_path: Path, hosts: Hosts, body: str) -> None:
    """And ends no crawl."""
    hosts.robots["h.test"] = body
    parser = f"{__name__}.FailingParser"
    found = obeying(tmp_path, "http://h.test/public", ROBOTSTXT_PARSER=parser)
    assert said(found) == {"http://h.test/public": None}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SITE_ROBOTS_CACHE", 0),
        ("SITE_ROBOTS_MAX_AGE_SECONDS", 100_000),
        ("SITE_ROBOTS_WAIT_SECONDS", "soon"),
        ("SITE_CRAWL_DELAY_MAX_SECONDS", -1),
    ],
)
def test_settings_that_cannot_be_used_are_named(tmp_path: Path, name: str, value: Any) -> None:
    """As every setting."""
    settings = settings_for(tmp_path, ROBOTSTXT_OBEY=True, **{name: value})

    async def make() -> None:
        Robots.from_crawler(Crawler(SeedSpider, settings), Frontier(), lambda: None, lambda _url: False)

    with pytest.raises(ConfigError, match=name):
        asyncio.run(make())
