"""Ends of requests that take a crawl of their own: closed, dropped, outlived, hanging, spilled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response

from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process import engine
from tests.in_process.engine import crawl, page


def by_itself(_crawler: Any) -> bool:
    """The crawl is not told to stop."""
    return False


class ClosingSpider(SeedSpider):
    """Closes the crawl from its callback."""

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        raise CloseSpider("enough")


def test_a_seed_whose_callback_closes_the_spider_is_complete_and_the_rest_is_not_lost(tmp_path: Path) -> None:
    """CloseSpider emits no error signal; what was queued stays uncommitted for the next start."""
    seeds = [{"url": f"http://h.test/{number}", "meta": {"url_id": str(number)}} for number in range(20)]
    first = crawl(tmp_path, seeds, ClosingSpider, until=by_itself, CONCURRENT_REQUESTS=1)
    assert first.stats["finish_reason"] == "enough"
    done = set(first.documents)
    assert 0 < len(done) < 20
    assert {(d["body"], d["description"]) for d in first.documents.values()} == {("<p>page", "ended without a result")}
    second = crawl(tmp_path, [])
    assert second.lag == 0
    assert set(second.documents) == {str(number) for number in range(20)}
    assert second.seeds["consumed"] == 20 - len(done)


class ScheduledFilter:
    """Drops requests at request_scheduled, as an off-site filter does, past the scheduler."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> Any:
        from scrapy import signals

        made = cls()
        crawler.signals.connect(made.scheduled, signal=signals.request_scheduled)
        return made

    def scheduled(self, request: Request) -> None:
        if request.url.endswith(("/dropped", "/retried")):
            raise IgnoreRequest


def test_a_link_dropped_when_it_is_scheduled_does_not_hold_its_seed(tmp_path: Path) -> None:
    """It never reaches the scheduler, so nothing waits for it."""
    engine.ANSWERS["/with-dropped-link"] = lambda r: page(r, "<a href=/dropped>")
    found = crawl(
        tmp_path,
        [{"url": "http://h.test/with-dropped-link", "meta": {"url_id": "x"}}],
        EXTENSIONS={"site_spider.service.service.SeedService": 10, f"{__name__}.ScheduledFilter": 20},
    )
    assert set(found.documents) == {"x"}
    assert found.lag == 0


class OutlivingSpider(SeedSpider):
    """Starts a task that goes on after the callback, with a hold on the seed."""

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        assert response.request is not None
        self.hold = self.keep_seed_open(response.request)
        self.task = asyncio.create_task(self.work())
        return await super().parse(response)

    async def work(self) -> None:
        with self.hold:
            await asyncio.sleep(0.5)
            self.crawler.stats.set_value("worked", True)


def test_a_task_that_outlives_its_callback_holds_the_seed_open(tmp_path: Path) -> None:
    """The offset is committed only when the hold is released."""
    found = crawl(tmp_path, [{"url": "http://h.test/held"}], OutlivingSpider)
    assert found.stats["worked"]
    assert found.lag == 0


class OddLinkSpider(SeedSpider):
    """Follows a link that has no canonical form, and one that cannot be queued."""

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        output = await super().parse(response)
        unqueueable = Request("http://h.test/unqueueable")
        unqueueable.method = None  # type: ignore[assignment]
        return [*output, Request("http://ö..x/"), unqueueable]


def test_a_link_that_cannot_be_queued_or_named_has_a_failure_result(tmp_path: Path) -> None:
    """Its seed completes all the same."""
    engine.ANSWERS["/odd-links"] = page
    found = crawl(
        tmp_path, [{"url": "http://h.test/odd-links", "meta": {"url_id": "seed"}}], OddLinkSpider, RETRY_TIMES=0
    )
    assert found.lag == 0
    children = {d["url"]: d for d in found.documents.values() if d.get("seed_url_id") == "seed"}
    assert len(children) == 2
    assert "could not be queued" in children["http://h.test/unqueueable"]["description"]


def test_waiting_for_a_moment_that_has_come_is_no_error_under_uvloop(tmp_path: Path) -> None:
    """uvloop gives another kind of handle for it; retries make such moments, and batches that are due."""
    engine.ANSWERS.update({f"/late/{n}": lambda r: page(r, "broken", 503) for n in range(20)})
    seeds = [{"url": f"http://h.test/late/{n}", "meta": {"url_id": str(n)}} for n in range(20)]
    moments = {"SITE_RETRY_PAUSE_SECONDS": 0.0001, "SITE_SINK_FLUSH_SECONDS": 0.0001}
    found = crawl(tmp_path, seeds, run=asyncio.run, **moments)
    assert len(found.documents) == 20
    assert found.stats["finish_reason"] == "shutdown"
