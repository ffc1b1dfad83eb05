"""Stores of marks, forgotten by age, count and hits, or elsewhere; and a Bloom filter."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from scrapy import Request
from scrapy.http import Response

from site_spider import runtime
from site_spider.contracts.done_store import DoneUnavailable
from site_spider.dupefilter.filters import BloomDone, RollingDone
from site_spider.dupefilter.remote import DoneCourier, SeenLookup
from site_spider.engine.background import Background
from site_spider.errors import ConfigError
from tests.in_process import virtual_time


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def rolling(**limits: Any) -> tuple[RollingDone, Clock]:
    clock = Clock()
    return RollingDone(clock, **limits), clock


@given(
    st.lists(st.tuples(st.sampled_from(["add", "meet", "wait"]), st.integers(0, 3)), min_size=20, max_size=60),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 3),
)
def test_it_agrees_with_a_simple_model(moves: list[tuple[str, int]], seconds: int, count: int, hits: int) -> None:
    done, clock = rolling(seconds=seconds, count=count, hits=hits)
    model: dict[bytes, list[float]] = {}  # in the order of their age: since when, hits left
    for move, number in moves:
        page = bytes([number])
        if move == "wait":
            clock.seconds += number / 2
        if seconds:
            model = {p: v for p, v in model.items() if v[0] > clock.seconds - seconds}
        if move == "add":
            model.pop(page, None)
            model[page] = [clock.seconds, hits]
            if count:
                model = dict(list(model.items())[-count:])
            done.add(page)
        if move == "meet":
            assert (page in done) == (page in model)
            if hits and page in model:
                model[page][1] -= 1
                if model[page][1] == 0:
                    del model[page]
    assert not count or len(done) <= count


# --- marks in a Bloom filter -----------------------------------------------------------------------------

RATE = 0.01


def pages(first: int, count: int) -> list[bytes]:
    return [b"page %d" % number for number in range(first, first + count)]


def mistakes(done: BloomDone) -> float:
    """The part of pages that were never added, but seem so."""
    never = pages(10_000_000, 50_000)
    return sum(page in done for page in never) / len(never)


@pytest.mark.parametrize("count", [1_000, 10_500])
def test_the_last_pages_are_in_it_up_to_its_capacity_and_others_seldom(count: int) -> None:
    """Beyond that it forgets instead of erring more: the first ones are fetched again."""
    done = BloomDone(1_000, RATE)
    for page in pages(0, count):
        done.add(page)
    assert all(page in done for page in pages(count - 1_000, 1_000))
    assert mistakes(done) <= RATE
    first = pages(0, max(0, count - 2_500))
    assert sum(page in done for page in first) <= 2 * RATE * len(first)


def test_what_is_added_again_takes_no_room() -> None:
    done = BloomDone(100, RATE)
    for page in [*pages(0, 90), *(pages(0, 1) * 500)]:
        done.add(page)
    assert all(page in done for page in pages(0, 90))


@pytest.mark.parametrize(
    ("kind", "limit"),
    [(BloomDone, "SITE_BLOOM_ERROR_RATE"), (BloomDone, "SITE_BLOOM_CAPACITY"), (RollingDone, "SITE_ROLLING_COUNT")],
)
def test_limits_that_make_no_sense_are_refused(kind: Any, limit: str) -> None:
    """Such as hits alone, which keep every page that is met once."""
    usual = {"SITE_BLOOM_CAPACITY": 10, "SITE_BLOOM_ERROR_RATE": 0.1, "SITE_ROLLING_SECONDS": 0, "SITE_ROLLING_HITS": 3}
    with pytest.raises(ConfigError, match=limit):
        kind.from_settings(usual | {limit: 0}, Clock())


# --- the end of the way to a store that is elsewhere -----------------------------------------------------

MARK = b"1" * 20


class SlowStore:
    """Takes marks when the test lets it."""

    name = "slow"
    cache_seconds = 60.0

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.added: list[bytes] = []
        self.under_way = 0
        self.most_under_way = 0
        self.is_closed = False
        self.is_away = False

    def open(self) -> None:
        pass

    def add(self, fingerprints: Sequence[bytes]) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.has_begun.set()
        try:
            assert self.may_end.wait(300)
            assert not self.is_closed
            if self.is_away:
                raise DoneUnavailable("away")
            self.added += fingerprints
        finally:
            self.under_way -= 1

    def close(self) -> None:
        self.is_closed = True


async def closed_while_marks_are_under_way(store: Any) -> DoneCourier:
    failures: list[BaseException] = []
    background, now = Background(failures.append), asyncio.get_running_loop().time
    courier = DoneCourier(store, 1, lambda _key, _by: None, background, known_limit=100, now=now)
    courier.add(MARK)
    await courier.open(300)
    await asyncio.to_thread(store.has_begun.wait, 10)
    closing = asyncio.create_task(courier.close())
    for _ in range(20):  # whatever it would do beside the call under way, it does now
        await asyncio.sleep(0.005)
    store.may_end.set()
    await closing
    assert failures == []
    return courier


@pytest.mark.parametrize("is_away", [False, True])
def test_the_end_waits_for_marks_that_are_under_way_and_not_for_a_store_that_is_away(is_away: bool) -> None:
    """A store may take one call at a time only, and none once it is closed."""
    store = SlowStore()
    store.is_away = is_away
    done = asyncio.run(asyncio.wait_for(closed_while_marks_are_under_way(store), 300))
    assert store.most_under_way == 1
    assert (store.added, store.is_closed, done.waiting) == (([], False, 1) if is_away else ([MARK], True, 0))


def test_a_store_that_is_away_is_asked_twice_a_second() -> None:
    calls: list[float] = []

    class Away(SlowStore):
        def add(self, fingerprints: Sequence[bytes]) -> None:
            calls.append(runtime.monotonic())
            raise DoneUnavailable("away")

    async def away() -> None:
        background = Background(pytest.fail)
        store: Any = Away()
        courier = DoneCourier(store, 1, lambda *_: None, background, known_limit=100, now=runtime.monotonic)
        courier.add(MARK)
        await courier.open(300)
        await asyncio.sleep(5)
        await courier.close()

    virtual_time.run(away())
    assert len(calls) > 5
    assert all(later - earlier > 0.4 for earlier, later in itertools.pairwise(calls[:-1]))  # the last by the close


# --- what a process knows of a store that is elsewhere ---------------------------------------------------


PAGES = st.integers(0, 9).map(lambda number: bytes([number]))
PENDING_LIMIT, KNOWN_LIMIT, KNOWN_SECONDS = 4, 3, 10.0

COUNTED: Counter[str] = Counter()


def near_side(now: Callable[[], float], known_limit: int = 10, marks_limit: int = 10) -> DoneCourier:
    """Of a store whose answers count for ten seconds."""
    store: Any = SimpleNamespace(name="a set", cache_seconds=KNOWN_SECONDS)
    nobody: Any = None
    COUNTED.clear()
    limits = {"known_limit": known_limit, "marks_limit": marks_limit}
    return DoneCourier(store, 1, lambda key, by: COUNTED.update({key: by}), nobody, now=now, **limits)


class NearSide(RuleBasedStateMachine):
    """Beside a store that is a set: a page counts as done only if some process said so."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.done = near_side(lambda: self.now, KNOWN_LIMIT, PENDING_LIMIT)
        self.store: set[bytes] = set()
        self.marked: set[bytes] = set()

    @rule(page=PAGES)
    def mark(self, page: bytes) -> None:
        self.done.add(page)
        self.marked.add(page)
        assert page in self.done

    @rule(page=PAGES)
    def another_process_writes(self, page: bytes) -> None:
        self.store.add(page)
        self.marked.add(page)

    @rule(pages=st.lists(PAGES, max_size=KNOWN_LIMIT))
    def prefetch(self, pages: list[bytes]) -> None:
        unknown = self.done.unknown(pages)
        self.done.learn(self.store.intersection(unknown))
        if unknown == list(dict.fromkeys(pages)):
            assert {page for page in pages if page in self.done} == self.store & set(pages)

    @rule(limit=st.integers(1, 3), succeeds=st.booleans())
    def write(self, limit: int, succeeds: bool) -> None:
        batch = self.done.take(limit)
        assert batch == self.done.take(len(batch))
        if succeeds:
            self.store.update(batch)
            self.done.written()

    @rule(seconds=st.sampled_from([1.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_counts_as_done_that_nobody_did(self) -> None:
        assert {page for page in map(bytes, ([n] for n in range(10))) if page in self.done} <= self.marked

    @invariant()
    def its_memory_is_bounded(self) -> None:
        assert self.done.waiting <= PENDING_LIMIT + 3
        assert len(self.done._known) <= KNOWN_LIMIT


TestNearSide = NearSide.TestCase


def test_what_the_store_said_counts_for_a_while_only() -> None:
    """The store may forget."""
    now = 0.0
    done = near_side(lambda: now)
    done.learn([b"page"])
    assert done.unknown([b"page", b"other", b"other"]) == [b"other"]
    now = 10.0
    assert done.unknown([b"page"]) == [b"page"]


def test_a_mark_counts_until_the_store_has_it_and_after() -> None:
    done = near_side(lambda: 0.0)
    done.add(b"page")
    for _ in range(2):
        assert b"page" in done
        assert done.take(10) == [b"page"]
    assert b"page" in done
    done.written()
    assert b"page" in done
    assert done.waiting == 0


def test_the_oldest_marks_make_room_and_are_counted() -> None:
    """Their pages are fetched again, nothing else."""
    done = near_side(lambda: 0.0, marks_limit=2)
    for page in (b"1", b"2", b"3"):
        done.add(page)
    assert done.take(10) == [b"2", b"3"]
    done.written()
    done.written()
    assert COUNTED == {"dupefilter/marks_written": 2, "dupefilter/marks_dropped": 1}


async def test_the_page_of_a_callback_that_fails_is_freed_at_once() -> None:
    """What it had yielded before is passed on."""
    lookup = SeenLookup(SimpleNamespace(engine=SimpleNamespace(scheduler=None)))  # type: ignore[arg-type]
    response, found = Response("http://a.test/"), []

    async def callback() -> AsyncIterator[Request]:
        yield Request("http://a.test/link")
        raise ZeroDivisionError

    gc.disable()
    try:
        with suppress(ZeroDivisionError):
            async for request in lookup.process_spider_output(response, callback()):
                found.append(request.url)
        kept = weakref.ref(response)
        del response
        assert kept() is None
    finally:
        gc.enable()
    assert found == ["http://a.test/link"]
