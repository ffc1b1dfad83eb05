"""Tasks beside each other in one crawl."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider.ledger.ledger import Outcome
from site_spider.observe.snapshot import is_conserved
from site_spider.service.service import SeedService
from tests.in_process import engine
from tests.in_process.engine import crawl, page
from tests.tasks.test_control import declare

SLOTS = 8
WEIGHTS = {"one": 1.0, "three": 3.0, "nine": 9.0}


class Site:
    """Answers nothing until so many seeds are in flight; remembers of which task each page was."""

    def __init__(self, tasks: Iterable[str], waits_for: int) -> None:
        self.order: list[str] = []
        self.seeds: list[dict[str, Any]] = []
        self._waits_for = waits_for
        self._open = asyncio.Event()
        if not waits_for:
            self._open.set()
        for number, task in enumerate(tasks):
            path = f"/{task}/{number}"
            engine.ANSWERS[path] = self._answer
            meta = {"url_id": path, "NotExtract": True} | ({"task_id": task} if task else {})
            self.seeds.append({"url": f"http://host.test{path}", "meta": meta})

    async def _answer(self, request: Request) -> Response:
        await self._open.wait()
        self.order.append(request.url.split("/")[3])
        await asyncio.sleep(0.01)
        return page(request)

    def has(self, pages: int, crawler: Crawler) -> bool:
        """Whether so many pages were answered."""
        service = SeedService.of(crawler)
        assert service is not None
        if service.parts.completion.ledger.in_flight >= self._waits_for:
            self._open.set()
        return len(self.order) >= pages


def crawled(folder: Path, site: Site, pages: int) -> None:
    slots = {"CONCURRENT_REQUESTS": SLOTS, "CONCURRENT_REQUESTS_PER_DOMAIN": SLOTS}
    crawl(folder, site.seeds, until=lambda crawler: site.has(pages, crawler), **slots)


@pytest.mark.parametrize(("count", "is_declared"), [(800, False), (2_000, True)])
def test_a_small_task_does_not_wait_for_a_large_one_that_came_first(
    tmp_path: Path, count: int, is_declared: bool
) -> None:
    """On one topic and one host: it is polled before a page has ended, and every second one is its then."""
    for task in ("large", "small") if is_declared else ():
        declare(tmp_path, task)
    site = Site(["large"] * count + ["small"] * 10, waits_for=count + 10)
    crawled(tmp_path, site, pages=100)
    assert site.order[: 2 * 10 + 2 * SLOTS].count("small") == 10


def test_a_declared_task_does_not_wait_for_seeds_without_a_task(tmp_path: Path) -> None:
    declare(tmp_path, "small")
    site = Site([""] * 1_500 + ["small"] * 10, waits_for=1_510)
    crawled(tmp_path, site, pages=100)
    assert site.order[: 2 * 10 + 2 * SLOTS].count("small") == 10


@pytest.mark.nightly
@pytest.mark.parametrize("is_mixed", [False, True], ids=["one after the other", "mixed"])
def test_tasks_share_by_weight_however_they_were_produced(tmp_path: Path, is_mixed: bool) -> None:
    """1:3:9, over more pages than a window of a thousand seeds lasts."""
    for task, weight in WEIGHTS.items():
        declare(tmp_path, task, weight=weight)
    tasks = [task for task in WEIGHTS for _ in range(1_400)]
    site = Site(list(WEIGHTS) * 1_400 if is_mixed else tasks, waits_for=900 if is_mixed else 4_200)
    crawled(tmp_path, site, pages=1_950)
    shares = Counter(site.order[1_300:1_950])
    assert shares == {task: pytest.approx(50 * weight, abs=SLOTS) for task, weight in WEIGHTS.items()}


class BehindTheWindow(Site):
    """Answers nothing of other tasks until the seed of the small one is answered, on a host of its own."""

    def __init__(self, tasks: Iterable[str]) -> None:
        super().__init__(tasks, waits_for=0)
        for seed in self.seeds:
            if "/small/" in seed["url"]:
                seed["url"] = seed["url"].replace("host.test", "small.test")

    async def _answer(self, request: Request) -> Response:
        task = request.url.split("/")[3]
        while task != "small" and "small" not in self.order:
            await asyncio.sleep(0.01)
        self.order.append(task)
        return page(request)


@pytest.mark.parametrize(
    "large", [pytest.param("large", id="task"), pytest.param("", id="no task", marks=pytest.mark.nightly)]
)
def test_a_task_behind_more_than_may_be_in_flight_overtakes(tmp_path: Path, large: str) -> None:
    """Seeds of the large one go to the end of the topic; each is crawled once, and none is lost.

    One seed is enough: of several some may be polled alone, and the others are not looked for any more.
    """
    declare(tmp_path, "small")
    site = BehindTheWindow([large] * 500 + ["small"])
    slots = {"CONCURRENT_REQUESTS": 2 * SLOTS, "CONCURRENT_REQUESTS_PER_DOMAIN": SLOTS}
    found = crawl(tmp_path, site.seeds, SITE_MAX_SEEDS_IN_FLIGHT=100, **slots)
    assert site.order[0] == "small"
    assert len(site.order) == len(found.documents) == 501
    assert found.lag == 0
    assert 250 < found.seeds["spilled"] <= 500, "each seed moves once at most"
    assert is_conserved(found.seeds)


@pytest.mark.nightly
def test_a_declared_task_without_seeds_moves_each_seed_once_at_most(tmp_path: Path) -> None:
    """It is looked for once."""
    for task in ("large", "absent", "absent too"):
        declare(tmp_path, task)
    site = Site(["large"] * 1_000, waits_for=0)
    found = crawl(tmp_path, site.seeds, SITE_MAX_SEEDS_IN_FLIGHT=200)
    assert len(site.order) == len(found.documents) == 1_000
    assert found.seeds["spilled"] <= 1_000


def test_a_large_task_alone_moves_nothing(tmp_path: Path) -> None:
    declare(tmp_path, "large")
    site = Site(["large"] * 400, waits_for=0)
    found = crawl(tmp_path, site.seeds, SITE_MAX_SEEDS_IN_FLIGHT=100)
    assert (len(found.documents), found.seeds["spilled"]) == (400, 0)


def test_a_stop_while_seeds_move_loses_none(tmp_path: Path) -> None:
    """Those that were sent and are not complete come twice; there is one document of each."""
    declare(tmp_path, "small")
    site = BehindTheWindow(["large"] * 600 + ["small"] * 10)

    def are_moving(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        assert service is not None
        return service.parts.completion.ledger.outcomes[Outcome.SPILLED] > 0

    settings = {"SITE_MAX_SEEDS_IN_FLIGHT": 200, "SITE_STOP_GRACE_SECONDS": 0.2}
    assert crawl(tmp_path, site.seeds, until=are_moving, **settings).lag > 0
    found = crawl(tmp_path, [], SITE_MAX_SEEDS_IN_FLIGHT=200)
    assert (len(found.documents), found.lag) == (610, 0)
