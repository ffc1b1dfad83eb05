"""Seeds whose page was done before, in the real engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.http import Response

from site_spider.dupefilter.dupefilter import SeedFilter, pages_of
from site_spider.errors import ConfigError
from tests.in_process import engine
from tests.in_process.engine import crawl, page
from tests.in_process.linked_site import (
    HOST,
    Site,
    case,
    every_kind,
    kinds_elsewhere,
    outcomes,
    seed,
    settings,
    site,
)

__all__ = ["case", "settings", "site"]


@every_kind
def test_seeds_are_not_filtered_unless_asked_for(
    tmp_path: Path, site: Site, settings: dict[str, Any]
) -> None:
    """A producer who sends a URL again wants it again."""
    site.has("a")
    crawled = crawl(tmp_path, [seed("a"), seed("a"), seed("a")], **settings)
    assert site.visits == {"a": 3}
    assert outcomes(crawled) == {"completed_with_result": 3}


@every_kind
def test_a_seed_that_was_seen_ends_as_filtered(tmp_path: Path, site: Site, settings: dict[str, Any]) -> None:
    """Done, in flight or met as a link; its offset is committed, no result is written."""
    site.has("a", "b")
    site.has("b")
    seeds = [seed("a"), *(seed("a", meta={"url_id": f"again {number}"}) for number in range(3))]
    crawled = crawl(tmp_path, seeds, SITE_FILTER_SEEDS=True, **settings)
    assert site.visits == {"a": 1, "b": 1}
    assert outcomes(crawled) == {"completed_with_result": 1, "filtered": 3}
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
def test_some_seeds_are_never_filtered(tmp_path: Path, site: Site, settings: dict[str, Any]) -> None:
    """With dont_filter, and an attempt at a page that another process began."""
    site.has("a")
    seeds = [
        seed("a"),
        seed("a", dont_filter=True),
        seed("a", meta={"site_moved": {"url": f"{HOST}/before"}}),
    ]
    crawled = crawl(tmp_path, seeds, SITE_FILTER_SEEDS=True, **settings)
    assert site.visits == {"a": 3}
    assert outcomes(crawled) == {"completed_with_result": 3}


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
