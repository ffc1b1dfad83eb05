"""Dupefilters in the real engine: links and seeds whose page was done, and outages of a store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import pytest
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.http import Response
from scrapy.utils.request import RequestFingerprinter

from site_spider.dupefilter.dupefilter import SeedFilter, pages_of
from site_spider.errors import ConfigError
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process import engine
from tests.in_process.engine import crawl, page
from tests.in_process.linked_site import HOST, Site, case, every_kind, kinds_elsewhere, outcomes, seed, settings, site

__all__ = ["case", "settings", "site"]

# --- links ----------------------------------------------------------------------------------


def test_no_request_is_made_for_a_link_that_would_be_filtered(tmp_path: Path, site: Site) -> None:
    """It counts as filtered all the same; with DUPEFILTER_DEBUG or another fingerprinter there is one."""
    site.has("a", "a", "b", "c")
    site.has("b", "a", "c")
    site.has("c")
    scheduled: list[str] = []

    class Watching(SeedSpider):
        @classmethod
        def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
            crawler.signals.connect(cls.note, signal=signals.request_scheduled)
            return super().from_crawler(crawler, *args, **kwargs)

        @staticmethod
        def note(request: Request) -> None:
            scheduled.append(request.url.removeprefix(f"{HOST}/"))

    for name, own, dropped in (
        ("plain", {}, []),
        ("debug", {"DUPEFILTER_DEBUG": True}, ["a", "a", "c"]),
        ("other", {"REQUEST_FINGERPRINTER_CLASS": f"{__name__}.OtherFingerprinter"}, ["a", "a", "c"]),
    ):
        scheduled.clear()
        crawled = crawl(tmp_path / name, [seed("a")], Watching, **own)
        assert sorted(scheduled) == sorted(["b", "c", *dropped])
        assert crawled.stats["dupefilter/filtered"] == 3
    assert site.visits == {"a": 3, "b": 3, "c": 3}


class OtherFingerprinter(RequestFingerprinter):
    """Of a user's own, so nothing can be known of a page from its URL alone."""


@kinds_elsewhere
def test_a_link_to_a_page_that_an_earlier_process_did_is_not_followed(
    tmp_path: Path, site: Site, settings: dict[str, Any]
) -> None:
    """The store is asked for all links of the page before the scheduler sees them."""
    site.has("a", "b", "c")
    site.has("b")
    site.has("c")
    site.has("d", "a", "b", "c", "e")
    site.has("e")
    crawl(tmp_path, [seed("a")], **settings)
    crawled = crawl(tmp_path, [seed("d")], **settings)
    assert site.visits == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
    assert crawled.stats["dupefilter/known_elsewhere"] == 3
    assert crawled.stats["dupefilter/filtered"] == 3


class TidySpider(SeedSpider):
    """Callbacks of other shapes than the spider's own."""

    def parse(self, response: Response) -> Any:  # type: ignore[override]
        return self.pages(response) if response.url.endswith("generator") else self.broken(response)

    async def pages(self, response: Response) -> Any:
        for path in ("done", "new"):
            yield Request(f"{HOST}/{path}", callback=self.leaf)
            await asyncio.sleep(0)
        yield {"url_id": "an item"}

    def broken(self, response: Response) -> Any:
        yield Request(f"{HOST}/done", callback=self.leaf)
        yield Request(f"{HOST}/newer", callback=self.leaf)
        raise ValueError("after two links")

    def leaf(self, response: Response) -> Any:
        return None


@kinds_elsewhere
def test_callbacks_of_every_shape_are_looked_up_for(tmp_path: Path, site: Site, settings: dict[str, Any]) -> None:
    """An asynchronous generator, and one that fails after it has yielded links: those count."""
    for path in ("done", "new", "newer"):
        site.has(path)
    crawl(tmp_path, [seed("done")], **settings)
    crawled = crawl(tmp_path, [seed("generator"), seed("broken")], TidySpider, **settings)
    assert site.visits == {"done": 1, "new": 1, "newer": 1}
    assert [item["url_id"] for item in crawled.items.values()] == ["an item"]


@pytest.mark.parametrize("path", ["scrapy.dupefilters.RFPDupeFilter", "scrapy.dupefilters.BaseDupeFilter"])
def test_a_dotted_path_in_dupefilter_class_works_as_in_scrapy(tmp_path: Path, site: Site, path: str) -> None:
    """Also with the lookup of links on."""
    site.has("a", "b")
    site.has("b")
    crawled = crawl(tmp_path, [seed("a")], DUPEFILTER_CLASS=path, SITE_DUPEFILTER="local")
    assert site.visits == {"a": 1, "b": 1}
    assert len(crawled.documents) == 2


# --- outages ------------------------------------------------------------------------------------


def test_a_store_that_is_away_at_the_start_keeps_the_crawl_from_starting(tmp_path: Path) -> None:
    """As any other server: after SITE_STARTUP_WAIT_SECONDS, with the reason."""
    nobody = {"SITE_DUPEFILTER": "redis", "SITE_REDIS_URL": "redis://127.0.0.1:9/0"}
    crawled = crawl(tmp_path, [seed("a")], SITE_STARTUP_WAIT_SECONDS=0.1, **nobody)
    assert crawled.stats["finish_reason"] == "cannot_start"
    assert crawled.lag == 1


# --- seeds ----------------------------------------------------------------------------------


@every_kind
def test_a_seed_that_was_seen_ends_as_filtered(tmp_path: Path, site: Site, settings: dict[str, Any]) -> None:
    """Done, in flight or met as a link; its offset is committed, no result is written.

    But with dont_filter, and an attempt at a page that another process began, it is fetched.
    """
    site.has("a", "b")
    site.has("b")
    seeds = [seed("a"), *(seed("a", meta={"url_id": f"again {number}"}) for number in range(3))]
    seeds += [seed("a", dont_filter=True), seed("a", meta={"site_moved": {"url": f"{HOST}/before"}})]
    crawled = crawl(tmp_path, seeds, SITE_FILTER_SEEDS=True, **settings)
    assert site.visits == {"a": 3, "b": 1}
    assert outcomes(crawled) == {"completed_with_result": 3, "filtered": 3}
    assert len(crawled.documents) == 2
    assert crawled.lag == 0


@kinds_elsewhere
def test_a_seed_that_an_earlier_process_did_ends_as_filtered(
    tmp_path: Path, site: Site, settings: dict[str, Any]
) -> None:
    """The store is asked for all seeds that arrive together."""
    for number in range(30):
        site.has(f"{number}")
    crawl(tmp_path, [seed(f"{number}") for number in range(20)], **settings)
    crawled = crawl(tmp_path, [seed(f"{number}") for number in range(30)], SITE_FILTER_SEEDS=True, **settings)
    assert set(site.visits.values()) == {1}
    assert outcomes(crawled) == {"completed_with_result": 10, "filtered": 20}
    assert crawled.lag == 0


@every_kind
def test_a_seed_whose_process_stopped_before_it_was_complete_is_not_filtered(
    tmp_path: Path, site: Site, settings: dict[str, Any]
) -> None:
    """Seen means done: the replayed seed is no duplicate of itself, nor are its links."""
    site.has("a", "b", "c")
    crawlers: list[Crawler] = []

    async def until_it_stops(request: Request) -> Response:
        site.visits["b"] += 1
        while not crawlers or crawlers[0].crawling:
            await asyncio.sleep(0.01)
        return page(request)

    def b_is_loading(crawler: Crawler) -> bool:
        crawlers.append(crawler)
        return site.visits["b"] > 0

    engine.ANSWERS["/b"] = until_it_stops
    site.has("c")
    one_by_one = {"CONCURRENT_REQUESTS": 1, "SITE_FILTER_SEEDS": True}
    crawled = crawl(tmp_path, [seed("a")], until=b_is_loading, **one_by_one, **settings)
    assert site.visits == {"a": 1, "b": 1}
    assert crawled.lag == 1
    crawled = crawl(tmp_path, [], **one_by_one, **settings)
    assert site.visits == {"a": 2, "b": 2, "c": 1}
    assert outcomes(crawled) == {"completed_with_result": 1}


def test_seeds_are_not_filtered_by_what_does_not_obey_the_rule() -> None:
    """Scrapy's own dupefilter would take a replayed seed for a duplicate of itself."""
    nothing: Any = None
    with pytest.raises(ConfigError, match="DUPEFILTER_CLASS is RFPDupeFilter"):
        pages_of(RFPDupeFilter(), *[nothing] * 4, all_seeds=True)
    assert not isinstance(pages_of(RFPDupeFilter(), *[nothing] * 4, all_seeds=False), SeedFilter)
