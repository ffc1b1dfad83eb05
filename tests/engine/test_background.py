"""What runs beside the requests of a crawl is owned: its failure is seen, and ends the crawl with 70; and its turns."""

from __future__ import annotations

import ast
import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Spider
from scrapy.utils.test import get_crawler

import site_spider
from site_spider import runtime
from site_spider.adapters.local.log_file import LocalProducer
from site_spider.download import proxies as proxy_service
from site_spider.engine.background import THREAD_PREFIX, Background, Turns
from site_spider.errors import EXIT_SOFTWARE
from site_spider.service.service import SeedService
from site_spider.service.stop import Ending
from site_spider.service.wiring import Parts
from tests.in_process.engine import crawl
from tests.intake.test_deaths import committed

PACKAGE = Path(site_spider.__file__).parent
STARTERS = {"create_task", "ensure_future", "Thread", "Timer", "start_new_thread", "callInThread"}

# Where something is started without Background, and who sees its failure.
OWNED = {
    ("engine/background.py", "create_task"): "this is Background",
    ("download/connection.py", "create_task"): "reads on; a failure ends the request that is answered",
    ("download/names.py", "create_task"): "a lookup; its failure is that of who connects",
    ("results/delivery.py", "create_task"): "a write, whose outcome the delivery looks at",
    ("intake/intake.py", "ensure_future"): "an answer, which is raised on the thread that asked",
    ("intake/intake.py", "Thread"): "the intake tells its owner",
    ("engine/background.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("service/log_lines.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("engine/callback_guard.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("adapters/kafka/client.py", "Thread"): "closes a client, for which its consumer waits",
    ("adapters/kafka/producer.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("adapters/kafka/transactions.py", "Thread"): "a question, whose answer is raised where it was asked",
    ("adapters/local/log_file.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("tasks/follower.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("observe/metrics/exporter.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("observe/metrics/exporter.py", "Timer"): "ends a connection that takes too long",
    ("commands/demo.py", "Thread"): "no part of a crawl",
    ("commands/top.py", "create_task"): "no part of a crawl",
    ("console/watch.py", "create_task"): "awaited by who asks, in no crawl",
    ("console/server.py", "create_task"): "an order, whose outcome is shown or logged, in no crawl",
}


@cache
def starts() -> list[tuple[str, ast.Call]]:
    return [
        (path.relative_to(PACKAGE).as_posix(), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        if any(name in (text := path.read_text()) for name in STARTERS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and name_of(node) in STARTERS
    ]


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def test_nothing_is_started_that_nobody_owns() -> None:
    """Whoever starts something uses Background.start, or is in the list with a reason."""
    assert {(module, name_of(call)) for module, call in starts()} == OWNED.keys()


def test_threads_of_a_crawl_have_names_by_which_their_end_is_seen() -> None:
    named = {
        module: ast.literal_eval(next(each.value for each in call.keywords if each.arg == "name"))
        for module, call in starts()
        if name_of(call) == "Thread" and not module.startswith("commands/")
    }
    assert len(named) == 10
    assert [name for name in named.values() if not name.startswith(THREAD_PREFIX)] == []


class Bug(Exception):
    """Of our own."""


def fail(*_arguments: Any, **_keywords: Any) -> None:
    raise Bug("in the background")


@pytest.fixture
def assert_crawl_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Callable[..., None]:
    """A crawl that nobody stops ends because of the bug."""

    def check(**settings: Any) -> None:
        seeds = [*({"url": f"http://h.test/{n}", "meta": {"url_id": str(n)}} for n in range(3)), b"no seed"]
        found = crawl(tmp_path, seeds, until=lambda _crawler: False, SITE_STOP_GRACE_SECONDS=2, **settings)
        assert (found.exit_code, found.stats["finish_reason"]) == (EXIT_SOFTWARE, "failed")
        told = [item for item in caplog.records if item.getMessage().startswith("The crawl cannot go on")]
        assert told[0].levelno == logging.ERROR
        assert told[0].getMessage() == "The crawl cannot go on: Bug('in the background')"
        assert told[0].exc_info is not None
        assert told[0].exc_info[0] is Bug

    return check


@pytest.mark.parametrize(
    "part",
    [
        pytest.param("site_spider.frontier.scheduler.Queues.look", id="the ticker: no more would be committed"),
        pytest.param("site_spider.observe.statistics.snapshot", id="the statistics"),
        pytest.param("site_spider.ledger.ledger.Ledger.release", id="the way of a request: its seed would be held"),
    ],
)
def test_a_part_that_fails_ends_the_crawl(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_crawl_fails: Callable[..., None]
) -> None:
    monkeypatch.setattr(part, fail)
    assert_crawl_fails()
    assert committed(tmp_path).owner


def test_what_fails_while_the_crawl_opens(
    monkeypatch: pytest.MonkeyPatch, assert_crawl_fails: Callable[..., None]
) -> None:
    """What the start then does not find is no reason of its own."""

    def build(*arguments: Any) -> None:
        arguments[-1].fail(Bug("in the background"))
        raise AttributeError("the engine is gone")

    monkeypatch.setattr("site_spider.service.service.Parts", build)
    assert_crawl_fails()


def test_a_crawl_that_has_failed_before_it_opens_its_parts_opens_none(
    monkeypatch: pytest.MonkeyPatch, assert_crawl_fails: Callable[..., None]
) -> None:
    find, made = SeedService._stores, Mock()

    async def stores(service: SeedService, config: Any) -> Any:
        found = await find(service, config)
        service._ending.fail(Bug("in the background"))
        while service._crawler.crawling and service._crawler.engine.spider is not None:
            await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(SeedService, "_stores", stores)
    monkeypatch.setattr("site_spider.service.service.Parts", made)
    assert_crawl_fails()
    assert not made.called


@pytest.mark.parametrize("last", [(SeedService, "_start"), (Parts, "show")])
def test_a_crawl_that_fails_while_its_parts_open_takes_no_seeds(
    last: tuple[type, str], monkeypatch: pytest.MonkeyPatch, assert_crawl_fails: Callable[..., None]
) -> None:
    """It joined its group behind its end, with nobody to leave it."""
    last_of_all, joined = getattr(*last), Mock()

    async def fails(*arguments: Any) -> None:
        endings[0].fail(Bug("in the background"))
        await last_of_all(*arguments)

    endings: list[Ending] = []
    monkeypatch.setattr(Ending, "check", lambda ending, check=Ending.check: endings.append(ending) or check(ending))
    monkeypatch.setattr(*last, fails)
    monkeypatch.setattr("site_spider.service.wiring.Intake.start", joined)
    assert_crawl_fails()
    assert not joined.called


def test_what_follows_the_file_of_proxies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_crawl_fails: Callable[..., None]
) -> None:
    monkeypatch.setattr(proxy_service, "LOOK_SECONDS", 0.01)
    proxies = tmp_path / "proxies"
    proxies.write_text("http://127.0.0.1:1\n")
    looks = iter([1])
    monkeypatch.setattr(proxy_service, "_signature", lambda _path: next(looks, None) or fail())
    assert_crawl_fails(SITE_PROXIES=str(proxies))


def test_a_thread_of_an_adapter(monkeypatch: pytest.MonkeyPatch, assert_crawl_fails: Callable[..., None]) -> None:
    """Else no dead letter would ever be durable."""
    finish = LocalProducer._finish

    def fail_at_dead_letters(producer: LocalProducer, batch: Any, error: Any) -> None:
        if any("dead" in outgoing.topic for outgoing in batch):
            fail()
        finish(producer, batch, error)

    monkeypatch.setattr(LocalProducer, "_finish", fail_at_dead_letters)
    assert_crawl_fails()


def test_a_crawl_that_is_over_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    """A script may run many, one after the other."""
    caplog.set_level("CRITICAL", "scrapy")  # what Scrapy logs has the crawler, and pytest keeps it
    crawler = get_crawler(Spider)
    ending = Ending(crawler, lambda: None)
    assert Background.of(crawler) is ending.background
    kept = weakref.ref(crawler)
    del crawler, ending
    gc.collect()
    assert kept() is None


async def test_a_task_that_is_cancelled_has_not_failed() -> None:
    failures: list[BaseException] = []
    task = Background(failures.append).start(asyncio.Event().wait(), "waiting")
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert failures == []


# --- Work on the event loop that shares its turns

BUDGET_MS = 20


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> Turns:
    return Turns(0.02, clock)


async def turn() -> None:
    await asyncio.sleep(0)


async def test_nothing_waits_while_a_turn_has_time(turns: Turns, clock: Clock) -> None:
    for _ in range(1_000):
        clock.now += 0.00001
        waiting = turns.time()
        try:
            waiting.send(None)
        except StopIteration:
            continue
        raise AssertionError("it waited")


def in_turns(costs_ms: list[int]) -> list[list[int]]:
    """By brute force: a turn takes pieces of work until its budget is spent."""
    turns: list[list[int]] = []
    left = 0
    for number, cost in enumerate(costs_ms):
        if left <= 0:
            turns.append([])
            left = BUDGET_MS
        turns[-1].append(number)
        left -= cost
    return turns


@given(st.lists(st.integers(1, 50), min_size=1, max_size=80))
def test_a_turn_takes_as_many_as_it_has_time_for(costs_ms: list[int]) -> None:
    async def scenario() -> None:
        clock = Clock()
        turns = Turns(BUDGET_MS, clock)
        done: dict[int, list[int]] = {}
        turns.has_time()
        clock.now += 1
        of_turn = 0

        async def work(number: int) -> None:
            await turns.time()
            clock.now += costs_ms[number]
            done.setdefault(of_turn, []).append(number)

        working = [asyncio.ensure_future(work(number)) for number in range(len(costs_ms))]
        while not all(task.done() for task in working):
            of_turn += 1
            await turn()
        assert list(done.values()) == in_turns(costs_ms)

    asyncio.run(scenario())


async def test_whose_turn_it_is_does_not_wait_again_behind_others(turns: Turns, clock: Clock) -> None:
    turns.has_time()
    clock.now += 1
    order: list[str] = []

    def steps(name: str) -> Iterator[None]:
        order.append(name)
        yield

    async def work(name: str) -> None:
        await turns.time()
        await turns.run(steps(name))  # type: ignore[arg-type]
        order.append(name)

    await asyncio.gather(*(work(name) for name in "abc"))
    assert order == list("aabbcc")


async def test_a_turn_with_time_is_not_free_while_somebody_waits(turns: Turns, clock: Clock) -> None:
    async def work() -> None:
        await turns.time()
        clock.now += 1

    working = [asyncio.ensure_future(work()) for _ in range(40)]
    for _ in range(2):
        await turn()
    assert turns.has_time()  # some of them were woken, but not all
    assert not turns.is_free()
    await asyncio.gather(*working)


async def test_parts_are_made_in_as_many_turns_as_they_take(turns: Turns, clock: Clock) -> None:
    of_turn = 0

    def parts() -> Iterator[int]:
        for _ in range(5):
            clock.now += 0.011
            yield of_turn

    working = asyncio.ensure_future(turns.take(parts()))
    while not working.done():
        of_turn += 1
        await turn()
    found = await working
    assert (len(found), len(set(found)) > 1) == (5, True)


async def test_one_who_is_cancelled_holds_up_nobody(turns: Turns, clock: Clock) -> None:
    turns.has_time()
    clock.now += 1
    first, second = (asyncio.ensure_future(turns.time()) for _ in range(2))
    await turn()
    first.cancel()
    await asyncio.wait_for(second, 300)


def test_each_process_of_a_simulation_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Clock(), Clock()
    processes = iter([first, second, first])
    monkeypatch.setattr(runtime, "this_process", lambda: next(processes))
    found = [Turns.of_running_loop() for _ in range(3)]
    assert found[0] is found[2] is not found[1]


def test_each_loop_has_its_own() -> None:
    async def found() -> Turns:
        turns = Turns.of_running_loop()
        assert turns is Turns.of_running_loop()
        turns.has_time()  # its callback is never called
        return turns

    loops = [uvloop.new_event_loop() for _ in range(2)]
    first, second = (loop.run_until_complete(found()) for loop in loops)
    assert first is not second
    for loop in loops:
        loop.close()
