"""Keeping to robots.txt in whole crawls: redirects, links, user agents, Crawl-delay."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.http import Response

from site_spider.spiders.crawl_spider import SeedSpider
from tests.frontier.robots.sites import FORBIDS, Hosts, hosts, obeying, said, seed
from tests.in_process import engine
from tests.in_process.engine import crawl, page

__all__ = ["hosts"]


def gaps(moments: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(moments)]


def test_a_request_that_is_redirected_is_checked_where_it_goes(tmp_path: Path, hosts: Hosts) -> None:
    """On another host, whose file is fetched for it."""
    hosts.robots["two.test"] = FORBIDS
    engine.ANSWERS["/moved"] = lambda r: page(r, "", 302, Location="http://two.test/private")
    found = obeying(tmp_path, "http://one.test/moved")
    assert said(found) == {"http://one.test/moved": "Forbidden by robots.txt"}
    assert hosts.count("/robots.txt") == {"one.test": 1, "two.test": 1}
    assert hosts.count("/private") == {}


def test_links_are_checked_as_well(tmp_path: Path, hosts: Hosts) -> None:
    """Each has its document."""
    hosts.robots["h.test"] = FORBIDS
    found = crawl(tmp_path, [{"url": "http://h.test/public", "meta": {"url_id": "x"}}], ROBOTSTXT_OBEY=True)
    by_url = {document["url"]: document["description"] for document in found.documents.values()}
    assert by_url == {
        "http://h.test/public": None,
        "http://h.test/public/link": None,
        "http://h.test/private/link": "Forbidden by robots.txt",
    }


class DisobeyingSpider(SeedSpider):
    """Its links do not obey; and it downloads one page past the scheduler."""

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        output = await super().parse(response)
        links = [item for item in output if isinstance(item, Request)]
        for link in links:
            link.meta["dont_obey_robotstxt"] = True
        if links:
            try:
                await self.crawler.engine.download_async(Request("http://other.test/private"))
            except Exception as error:  # noqa: BLE001
                self.crawler.stats.set_value("said", str(error))
        return output


def test_a_spider_may_disobey_and_what_passes_the_scheduler_by_is_checked(tmp_path: Path, hosts: Hosts) -> None:
    """`dont_obey_robotstxt` as in Scrapy; a download of the spider's own waits for the file."""
    hosts.robots = {"h.test": FORBIDS, "other.test": FORBIDS}
    engine.ANSWERS["/private/link"] = page
    found = crawl(
        tmp_path, [{"url": "http://h.test/public", "meta": {"url_id": "x"}}], DisobeyingSpider, ROBOTSTXT_OBEY=True
    )
    assert {document["description"] for document in found.documents.values()} == {None}
    assert found.stats["said"] == "Forbidden by robots.txt"
    assert hosts.jobs == [None, None]  # the files belong to no seed
    assert hosts.count("/robots.txt") == {"h.test": 1, "other.test": 1}


def test_rules_go_by_the_user_agent(tmp_path: Path, hosts: Hosts) -> None:
    """That of the request, or ROBOTSTXT_USER_AGENT."""
    hosts.robots["h.test"] = "User-agent: mine\nDisallow: /\n"
    seeds = [seed("http://h.test/public"), seed("http://h.test/public/1", headers={"User-Agent": "mine"})]
    found = crawl(tmp_path / "1", seeds, ROBOTSTXT_OBEY=True)
    assert list(said(found).values()).count("Forbidden by robots.txt") == 1
    found = crawl(tmp_path / "2", seeds, ROBOTSTXT_OBEY=True, ROBOTSTXT_USER_AGENT="mine")
    assert set(said(found).values()) == {"Forbidden by robots.txt"}


def test_crawl_delay_becomes_the_delay_of_the_host(tmp_path: Path, hosts: Hosts) -> None:
    """From the file on; other hosts go on; a cap holds, and what is forbidden takes no turn."""
    hosts.robots = {
        "slow.test": "User-agent: *\nCrawl-delay: 3\nDisallow: /private\n",
        "snail.test": "User-agent: *\nCrawl-delay: 3000\n",
    }
    names = ("slow.test", "snail.test", "fast.test")
    urls = [f"http://{name}/public/{number}" for number in range(3) for name in names]
    found = obeying(tmp_path, *urls, "http://slow.test/private", SITE_CRAWL_DELAY_MAX_SECONDS=5)
    assert len(found.documents) == 10
    slow, snail, fast = map(hosts.times, names)
    assert len(slow) == len(snail) == len(fast) == 4
    assert min(gaps(slow)) > 2.7
    assert min(gaps(snail)) > 4.7
    assert sum(gaps(slow)) < 30
    assert fast[-1] < slow[2]


def test_the_larger_of_crawl_delay_and_download_delay_counts(tmp_path: Path, hosts: Hosts) -> None:
    """Also between the file and the first page."""
    hosts.robots["h.test"] = "User-agent: *\nCrawl-delay: 0.5\n"
    urls = [f"http://h.test/public/{number}" for number in range(3)]
    obeying(tmp_path, *urls, DOWNLOAD_DELAY=3, DOWNLOAD_DELAY_JITTER=0)
    moments = hosts.times("h.test")
    assert len(moments) == 4
    assert min(gaps(moments)) > 2.7


def test_what_is_forbidden_takes_no_turn_of_its_host(tmp_path: Path, hosts: Hosts) -> None:
    """Twenty of them hold up the page behind them for no delay."""
    hosts.robots["h.test"] = "User-agent: *\nDisallow: /public/\n"
    urls = [f"http://h.test/public/{number}" for number in range(20)]
    found = obeying(tmp_path, *urls, "http://h.test/public", DOWNLOAD_DELAY=0.5, CONCURRENT_REQUESTS_PER_DOMAIN=1)
    assert len(found.documents) == 21
    (between,) = gaps(hosts.times("h.test"))
    assert between < 4  # not ten seconds
