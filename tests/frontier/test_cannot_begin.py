"""A request that cannot be begun is the end of that request, and not of the crawl."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.request import RequestFingerprinter

from site_spider.errors import EXIT_SOFTWARE, ConfigError
from site_spider.frontier import scheduler
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.politeness import build_frontier
from site_spider.frontier.waiter import WaitingLink
from site_spider.ledger.ledger import SeedInFlight
from site_spider.results.pipeline import Callbacks
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page, settings_for
from tests.intake.test_deaths import committed

BAD = "http://h.test/bad"


def seeds(*paths: str) -> list[dict[str, Any]]:
    return [{"url": f"http://h.test/{path}", "meta": {"url_id": path}} for path in paths]


class Bug(Exception):
    """Of somebody's own."""


class Fingerprinter(RequestFingerprinter):
    """Has a bug that one URL shows."""

    def fingerprint(self, request: Request) -> bytes:
        if request.url == BAD:
            raise Bug("no fingerprint")
        return super().fingerprint(request)


@pytest.mark.parametrize("filter_seeds", [False, True])
@pytest.mark.parametrize("dupefilter", ["memory", "local"])
def test_a_seed_whose_fingerprint_or_request_fails_has_a_failure_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filter_seeds: bool, dupefilter: str
) -> None:
    """It comes first, and those behind it are crawled, though its host has one place."""

    def complete(_self: Callbacks, request: Request) -> None:
        if request.url == f"{BAD}/request":
            raise Bug("no callback")

    monkeypatch.setattr(Callbacks, "complete", complete)
    found = crawl(
        tmp_path,
        seeds("bad", "bad/request", "a", "b"),
        REQUEST_FINGERPRINTER_CLASS=f"{__name__}.Fingerprinter",
        SITE_FILTER_SEEDS=filter_seeds,
        SITE_DUPEFILTER=dupefilter,
        CONCURRENT_REQUESTS_PER_DOMAIN=1,
    )
    said = {key: each["status"] or each["description"] for key, each in found.documents.items()}
    assert said == {
        "bad": "the request could not be begun: Bug('no fingerprint')",
        "bad/request": "the request could not be begun: Bug('no callback')",
        "a": 200,
        "b": 200,
    }
    assert (found.lag, found.stats["finish_reason"]) == (0, "shutdown")


class AsksLate(SeedSpider):
    answer: list[object] = []  # noqa: RUF012

    async def parse(self, response: Response) -> list[Any]:
        asyncio.get_running_loop().call_later(5, self.ask)
        return await super().parse(response)

    def ask(self) -> None:
        try:
            self.answer.append(self.crawler.engine.crawl(Request(BAD)))
        except Exception as error:  # noqa: BLE001
            self.answer.append(error)


def test_what_cannot_be_queued_after_the_end_of_its_seed_has_no_result(tmp_path: Path) -> None:
    """It is logged, as any other. Who gave it had an error of the ledger."""
    own = {"REQUEST_FINGERPRINTER_CLASS": f"{__name__}.Fingerprinter"}
    found = crawl(tmp_path, seeds("list"), AsksLate, lambda crawler: bool(crawler.spider.answer), 60, **own)
    assert (AsksLate.answer, set(found.documents), found.stats["scheduler/failed"]) == ([None], {"list"}, 1)


def test_a_link_that_cannot_be_begun_sets_its_seed_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no job yet that could have a result."""
    engine.ANSWERS["/root"] = lambda r: page(r, "<a href=/bad><a href=/good>")
    as_request = scheduler.as_request

    def broken(link: WaitingLink) -> Any:
        if link.url == BAD:
            raise Bug("no link")
        return as_request(link)

    monkeypatch.setattr(scheduler, "as_request", broken)
    found = crawl(tmp_path, seeds("root", "a"))
    (letter,) = found.dead_letters
    assert dict(letter.headers)["error"].startswith(b"the link http://h.test/bad could not be begun: Bug(")
    assert len(found.documents) == 3
    assert found.lag == 0


def test_a_seed_that_cannot_be_queued_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push = Frontier.push

    def broken(frontier: Any, level: int, host: str, value: Any, *moments: float) -> None:
        if isinstance(value, SeedInFlight) and value.seed.url == BAD:
            raise Bug("no place")
        push(frontier, level, host, value, *moments)

    monkeypatch.setattr(Frontier, "push", broken)
    found = crawl(tmp_path, seeds("bad", "a", "b"))
    (letter,) = found.dead_letters
    assert dict(letter.headers)["error"] == b"the seed could not be queued: Bug('no place')"
    assert found.documents.keys() == {"a", "b"}
    assert found.lag == 0


@pytest.mark.parametrize(
    "slot", [{"delay": "soon"}, {"concurrency": 0}, {"delay": -1}, {"delay": float("nan")}], ids=str
)
def test_a_wrong_slot_is_found_at_the_start(tmp_path: Path, slot: dict[str, Any]) -> None:
    """And not when the first seed of its host begins, or never would."""
    settings = settings_for(tmp_path, DOWNLOAD_SLOTS={"h.test": slot})
    with pytest.raises(ConfigError, match=rf"DOWNLOAD_SLOTS has {re.escape(repr(slot))} for h.test, but needs"):
        build_frontier(settings, Mock())


class Lives:
    """One process after the other, until one of them is stopped by the test."""

    most: ClassVar[int] = 12

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.codes: list[int] = []
        self.last: Crawled

    def run(self, first: list[dict[str, Any]]) -> None:
        while len(self.codes) < self.most:
            seen: list[Crawler] = []

            def all_done(crawler: Crawler, seen: list[Crawler] = seen) -> bool:
                seen[:] = [crawler]
                if crawler.spider is None or getattr(crawler.spider, "exit_code", 0):
                    return False  # it ends by itself
                return engine_is_idle(crawler)

            self.last = crawl(self.folder, first, until=all_done)
            first = []
            self.codes.append(getattr(seen[0].spider, "exit_code", 0))
            if self.last.lag == 0:
                return


def engine_is_idle(crawler: Crawler) -> bool:
    service = SeedService.of(crawler)
    if service is None or not service.is_open:
        return False
    positions = service.parts.completion.ledger.positions().values()
    return service.parts.completion.ledger.in_flight == 0 and sum(each.offset for each in positions) == 6


def test_an_error_of_the_frontier_counts_as_a_death_and_cannot_come_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed that shows it is found, as one is that kills its process; the others are crawled."""
    pop = Frontier.pop

    def broken(frontier: Any, now: float) -> Any:
        value = pop(frontier, now)
        if isinstance(value, SeedInFlight) and value.seed.url == BAD:
            raise Bug("no turn")
        return value

    monkeypatch.setattr(Frontier, "pop", broken)
    lives = Lives(tmp_path)
    lives.run(seeds("bad", "a", "b", "c", "d", "e"))
    assert lives.codes[0] == EXIT_SOFTWARE
    assert set(lives.codes[:-1]) == {EXIT_SOFTWARE}
    assert len(lives.codes) <= 7
    assert lives.last.lag == 0
    assert lives.last.documents.keys() == {"a", "b", "c", "d", "e"}
    (letter,) = lives.last.dead_letters
    assert b"/bad" in (letter.value or b"")


def test_the_commit_of_a_crawl_that_fails_names_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the next owner knows of a death; one that is stopped leaves no name."""

    def broken(_frontier: Any, _now: float) -> Any:
        raise Bug("no turn")

    with monkeypatch.context() as patched:
        patched.setattr(Frontier, "pop", broken)
        found = crawl(tmp_path, seeds("a"), until=lambda _crawler: False, timeout_seconds=30)
    assert found.stats["finish_reason"] == "failed"
    assert committed(tmp_path).owner
    crawl(tmp_path, [])
    assert not committed(tmp_path).owner
