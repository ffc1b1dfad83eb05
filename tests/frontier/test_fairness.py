"""Tasks beside each other: shares by weight, over hosts and at one host, and rates; and in one crawl."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider.frontier import fair_queue
from site_spider.frontier.fair_queue import MOST_AHEAD
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.priority_queue import HostPolicy
from site_spider.frontier.waiter import TaskFlow, TaskRates, task_weights
from site_spider.ledger.ledger import Outcome
from site_spider.observe.snapshot import is_conserved
from site_spider.service.service import SeedService
from site_spider.tasks.admission import Overtaking
from site_spider.tasks.board import Board
from site_spider.tasks.control_log import Endings
from site_spider.tasks.declaration import Task
from site_spider.tasks.tracker import Group
from tests.growth import CONSTANT, assert_grows
from tests.in_process import engine
from tests.in_process.engine import crawl, page
from tests.tasks.test_pause_and_cancel import declare

SLOTS = 8


def filled(tasks: dict[str, int], hosts: int = 50, weights: dict[str, float] | None = None) -> Frontier[str]:
    frontier: Frontier[str] = Frontier(weight_of=lambda flow: (weights or {}).get(str(flow), 1.0))
    for task, count in tasks.items():
        for number in range(count):
            frontier.push(0, f"{task}{number % hosts}", task, 0.0, flow=task)
    return frontier


def test_tasks_share_in_the_ratio_of_their_weights_and_a_new_weight_counts_for_what_waits() -> None:
    weights = {"u": 3.0, "v": 0.5}
    frontier = filled({"t": 2_000, "u": 2_000, "v": 2_000}, 500, weights)
    assert Counter(frontier.pop(0.0) for _ in range(900)) == {"t": 200, "u": 600, "v": 100}
    weights |= {"u": 1.0, "v": 2.0}
    assert Counter(frontier.pop(0.0) for _ in range(400))["v"] == pytest.approx(200, abs=2)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_no_weight_shuts_anybody_out(weight: float) -> None:
    frontier = filled({"odd": 200, "usual": 200}, weights={"odd": weight})
    assert {frontier.pop(0.0) for _ in range(300)} == {"odd", "usual"}


def test_slow_pages_cost_more_and_do_not_shut_a_task_out_for_long() -> None:
    """Many that end together move it a bounded way behind the others (kubernetes#95986)."""
    frontier = filled({"slow": 500, "quick": 500})
    first = [frontier.pop(0.0) for _ in range(100)]
    for number in range(first.count("slow")):
        frontier.release(f"slow{number}", 60.0, "slow", 60.0)
    served = [frontier.pop(60.0) for _ in range(100)]
    assert served[: int(MOST_AHEAD) - 2] == ["quick"] * (int(MOST_AHEAD) - 2)
    assert "slow" in served[: int(MOST_AHEAD) + 4]


def test_tasks_that_are_done_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task for each seed leaves nothing behind: when others have caught up, or there are too many."""
    monkeypatch.setattr(fair_queue, "_MOST_IDLE", 100)
    frontier: Frontier[int] = Frontier()
    for task in [*range(1_000), *[-1] * 5]:
        frontier.push(0, "h", task, 0.0, flow=task)
        assert frontier.pop(0.0) == task
        frontier.release("h", 0.0, task, 2.0)
        assert len(frontier.flows) < 300
    assert len(frontier.flows) <= 2


@pytest.mark.parametrize("have_own_hosts", [False, True])
def test_a_turn_costs_about_the_same_with_four_times_the_tasks(have_own_hosts: bool) -> None:
    """Of a host that all tasks ask for, too: busy and free in turn."""

    def serving(tasks: int) -> Callable[[], None]:
        frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(1, 0.0))
        for number in range(3 * tasks):
            for host in ("h", f"h{number % tasks}")[: 1 + have_own_hosts]:
                frontier.push(0, host, number % tasks, 0.0, flow=number % tasks)
        assert frontier.pop(0.0) is not None
        for name in ("h", "h0"):
            if frontier._hosts.get(name) is not None and frontier._hosts[name].out:
                frontier.release(name, 0.0)
        while frontier.pop(0.0) is not None:
            pass  # all that is free begins, and what is busy is looked at once

        def serve() -> None:
            for _ in range(200):
                frontier.release("h", 0.0)
                assert frontier.pop(0.0) is not None
                assert frontier.pop(0.0) is None

        return serve

    assert_grows(serving, 1_000, most=2 * CONSTANT)


def test_the_weight_of_a_tier_multiplies_that_of_a_task() -> None:
    weights = task_weights({"urgent": 8.0, "bulk": 1.0}, lambda task_id: 0.5 if task_id == "t" else 2.0)
    assert weights(TaskFlow("t", "urgent")) == 4.0
    assert weights(TaskFlow("u", "bulk")) == 2.0
    assert weights(None) == 1.0


# --- rates --------------------------------------------------------------------------------------


def served_of(frontier: Frontier[str], seconds: float, first: float = 0.0) -> Counter[str]:
    """By a process that asks every few milliseconds, and never finds a host busy."""
    found: Counter[str] = Counter()
    for step in range(int(seconds / 0.007)):
        now = first + step * 0.007
        while (task := frontier.pop(now)) is not None:
            found[task] += 1
            frontier.release("h", now)
    return found


def rated(shares: dict[str, float], rates: dict[str | None, float]) -> Frontier[str]:
    frontier: Frontier[str] = Frontier(rates=TaskRates(rates.get, lambda _topic: shares["topic"]))
    for _ in range(5_000):
        for task in ("limited", "free"):
            frontier.push(0, "h", task, 0.0, flow=TaskFlow(task, "seeds"))
    return frontier


def test_a_rate_holds_after_a_rebalance_and_when_it_is_changed() -> None:
    """And for nobody else. Over the group: see tests/tasks/test_rates.py."""
    shares, rates = {"topic": 0.25}, dict[str | None, float]({"limited": 40.0})
    frontier = rated(shares, rates)
    assert served_of(frontier, 20.0) == {"limited": pytest.approx(200, rel=0.1), "free": 5_000}
    shares["topic"] = 1.0
    assert served_of(frontier, 20.0, 20.0)["limited"] == pytest.approx(800, rel=0.1)
    rates["limited"] = 0.001
    assert served_of(frontier, 20.0, 40.0)["limited"] <= 20
    rates["limited"] = 100.0
    assert served_of(frontier, 20.0, 60.0)["limited"] == pytest.approx(2_000, rel=0.1)


def test_when_all_rest_the_next_moment_is_told() -> None:
    frontier = rated({"topic": 1.0}, {"limited": 2.0, "free": 2.0})
    served = [frontier.pop(0.0), frontier.pop(0.0), frontier.pop(0.0)]
    assert set(served) == {"limited", "free", None}
    assert 0.4 < frontier.next_at() < 0.6


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
        if SeedService.of(crawler).parts.completion.ledger.in_flight >= self._waits_for:
            self._open.set()
        return len(self.order) >= pages


def crawled(folder: Path, site: Site, pages: int) -> None:
    slots = {"CONCURRENT_REQUESTS": SLOTS, "CONCURRENT_REQUESTS_PER_DOMAIN": SLOTS}
    crawl(folder, site.seeds, until=lambda crawler: site.has(pages, crawler), **slots)


@pytest.mark.parametrize(
    ("large", "count", "declared"), [("large", 800, ()), ("large", 1_500, ("large", "small")), ("", 1_500, ("small",))]
)
def test_a_small_task_does_not_wait_for_a_large_one(
    tmp_path: Path, large: str, count: int, declared: tuple[str, ...]
) -> None:
    """On one topic and one host, the others of a task or of none: every second page is its own."""
    for task in declared:
        declare(tmp_path, task)
    site = Site([large] * count + ["small"] * 10, waits_for=count + 10)
    crawled(tmp_path, site, pages=40)
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


@pytest.mark.parametrize(
    ("declared", "most"),
    [(["large"], 0), pytest.param(["large", "absent", "absent too"], 400, marks=pytest.mark.nightly)],
)
def test_a_large_task_moves_nothing_alone_and_each_seed_once_for_tasks_that_have_none(
    tmp_path: Path, declared: list[str], most: int
) -> None:
    for task in declared:
        declare(tmp_path, task)
    site = Site(["large"] * 400, waits_for=0)
    found = crawl(tmp_path, site.seeds, SITE_MAX_SEEDS_IN_FLIGHT=100)
    assert len(site.order) == len(found.documents) == 400
    assert found.seeds["spilled"] <= most


async def test_to_see_that_tasks_are_here_costs_the_same_with_four_times_the_tasks() -> None:
    """A thousand are looked for once a second, while ten thousand may have seeds in flight."""
    board = Board()
    board.tasks.update({task_id: Task(task_id=task_id) for task_id in map(str, range(100))})

    def looking(tasks: int) -> Callable[[], None]:
        frontier: Frontier[int] = Frontier()
        for number in reversed(range(tasks)):
            frontier.push(0, "h", number, 0.0, flow=TaskFlow(str(number), "bulk"))
        group = Mock(), Mock(), Mock(tiers=("urgent", "bulk")), board, Mock(endings=Endings()), Mock(), Mock()
        overtaking = Overtaking(Group(*group), "g", Mock(), Mock(**{"room.frontier": frontier}), Mock(), Mock())

        def look() -> None:
            assert not [*overtaking._awaited()]

        return look

    assert_grows(looking, 500, CONSTANT)


def test_a_stop_while_seeds_move_loses_none(tmp_path: Path) -> None:
    """Those that were sent and are not complete come twice; there is one document of each."""
    declare(tmp_path, "small")
    site = BehindTheWindow(["large"] * 300 + ["small"] * 10)

    def are_moving(crawler: Crawler) -> bool:
        return SeedService.of(crawler).parts.completion.ledger.outcomes[Outcome.SPILLED] > 0

    settings = {"SITE_MAX_SEEDS_IN_FLIGHT": 100, "SITE_STOP_GRACE_SECONDS": 0.2}
    assert crawl(tmp_path, site.seeds, until=are_moving, **settings).lag > 0
    found = crawl(tmp_path, [], SITE_MAX_SEEDS_IN_FLIGHT=100)
    assert (len(found.documents), found.lag) == (310, 0)
