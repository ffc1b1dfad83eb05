"""What a process counts: why nothing is polled, pages of tasks, lines of the log, durations."""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider import runtime
from site_spider.bounded import SECONDS, BoundedDict, Histogram, difference
from site_spider.contracts.seed_log import Partition
from site_spider.intake.room import BackPressure, Pause, PollRoom
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.observe.counters import (
    CAUSES,
    MOST_LOGGERS,
    MOST_SHOWN,
    MOST_TASKS,
    LogTally,
    LoopLag,
    PageTally,
    Pauses,
    SeedTimes,
    TaskSums,
)
from tests.in_process import virtual_time


def test_the_time_goes_to_the_first_cause_that_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    """With words for each, and to none while seeds are polled."""
    crawl: Any = SimpleNamespace(now=0.0, room=1, is_away=False, has_suspects=False, has_memory=True, stops=False)
    sink: Any = SimpleNamespace(available=True, sink=SimpleNamespace(name="elasticsearch"))
    sinks: Any = MagicMock(__iter__=lambda _self: iter([sink]))
    commits: Any = Mock(is_cut_off=False, sink_away="", is_crowded=False)
    load, soft = Mock(may_download=True), Mock(keeps_intake=False)
    asked = (lambda: False), (lambda: crawl.stops), (lambda: crawl.has_memory)
    pressure = BackPressure(load, sinks, commits, *asked, soft, lambda: crawl.has_suspects)
    poll_room = PollRoom(Ledger(), load, 1, 1, pressure.refusal, {})
    monkeypatch.setattr(poll_room, "_room", lambda: crawl.room)
    monkeypatch.setattr(runtime, "monotonic", lambda: crawl.now)
    pauses = Pauses(poll_room, lambda: crawl.is_away)

    def passes(seconds: float) -> str:
        crawl.now += seconds
        pauses.look()
        assert bool(pauses.now().said) is bool(pauses.now().cause)
        return pauses.now().cause

    assert passes(100) == ""
    assert pauses.seconds == dict.fromkeys(CAUSES, 0.0)
    crawl.room = 0
    assert passes(1) == "frontier"
    for refuses, name, value, cause in (
        (soft, "keeps_intake", True, "memory"),
        (commits, "is_crowded", True, "sink"),
        (load, "may_download", False, "kafka"),
        (sinks, "are_taking", lambda: False, "sink"),
        (crawl, "has_memory", False, "memory"),
        (crawl, "stops", True, "stop"),
    ):
        setattr(refuses, name, value)
        assert passes(1) == cause, name
        assert poll_room.now() == 0
    crawl.stops, crawl.is_away = False, True
    assert passes(2) == "kafka"
    crawl.is_away, commits.sink_away = False, "kafka"
    assert passes(0) == "sink"
    assert pauses.now().said == "the sink kafka is away"
    commits.is_cut_off, commits.sink_away = True, ""
    assert passes(0) == "kafka"
    assert pauses.now().said.startswith("the seed log does not answer, so other members")
    crawl.has_memory = True
    assert pressure.hindrance() == "kafka"
    commits.is_cut_off, crawl.is_away = False, True
    sink.available = False
    assert passes(7) == "sink"
    assert pauses.now().said == "the sink elasticsearch is away"
    crawl.has_suspects = True
    assert passes(11) == "suspicion"
    crawl.has_suspects, sink.available, crawl.is_away, crawl.room = False, True, False, 1
    soft.keeps_intake, commits.is_crowded, load.may_download, sinks.are_taking = False, False, True, lambda: True
    poll_room.closed = {Partition("seeds", 0): Pause("span", "it is slow")}  # keeps one partition, and not the others
    assert passes(5) == ""
    poll_room.closed |= {Partition("seeds", 1): Pause("frontier", "it has its share")}
    assert passes(6) == ""
    del poll_room.closed[Partition("seeds", 0)]
    assert passes(7) == ""
    assert poll_room.now() == 1
    assert pauses.seconds == {
        **{"frontier": 8, "memory": 2, "stop": 1, "kafka": 3, "sink": 9, "suspicion": 11, "span": 11}
    }


def test_a_blocked_event_loop_is_seen() -> None:
    async def blocked() -> tuple[float, float]:
        lag = LoopLag(Histogram())
        lag.start()
        await asyncio.sleep(0.15)
        time.sleep(0.4)
        await asyncio.sleep(0.15)
        during = lag.max_seconds()
        await asyncio.sleep(10)
        after = lag.max_seconds()
        lag.stop()
        return during, after

    during, after = virtual_time.run(blocked())
    assert during >= 0.25
    assert after < during


def test_seeds_that_left_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    durations, now = Histogram(), [100.0]
    monkeypatch.setattr(runtime, "monotonic", lambda: now[0])
    times = SeedTimes(TaskSums(), durations)
    done, left = (SeedInFlight(Partition("seeds", 0), offset, 1) for offset in (7, 8))
    seed: Any = SimpleNamespace(task_id="t")
    message: Any = None
    for entry in (done, left):
        times.arrived(entry, message, seed)
    now[0] = 103.0
    assert times.seconds_open(left) == 3.0
    times.fenced(left)
    done.outcome = Outcome.RESULT
    times.ended(done)
    assert (sum(durations.counts), durations.sum) == (1, 3.0)
    assert times.seconds_open(left) == times.seconds_open(done) == times.seconds_open(None) == 0.0
    [exemplar] = [found for found in durations.exemplars if found]
    assert exemplar == ((Partition("seeds", 0), 7), 3.0)  # not the seed, which would stay in memory


@pytest.mark.parametrize("size", [None, -1, 10**400, "many", True, 1.5, [1]])
def test_whatever_a_spider_says_of_a_page_is_counted(size: object) -> None:
    """A pipeline may have changed every field."""
    tasks = TaskSums()
    tally = PageTally(tasks, Histogram())
    tally.page({"url_id": "a", "response_size": size, "description": ["x"], "url": 7}, None)
    [task] = tasks.document()["largest"]
    assert (task["pages"], task["bytes"], task["reasons"]) == (1, 0, {"other": 1})
    assert tally.document()["newest_failures"][0]["url"] == "7"


# --- Counts by task: exact for many, bounded for all


def test_a_task_a_seed_takes_bounded_memory_and_loses_no_count() -> None:
    """The largest keep their names, and the others are shown in sum."""
    tasks = TaskSums()
    for number in range(300):
        for _ in range(number):
            tasks.of(f"t{number}").page(10)
        tasks.of(f"t{number}").outcomes["result"] += 1
        tasks.of(f"t{number}").reasons["timeout"] += 1
    for number in range(20_000):
        tasks.of(f"one{number}").page(1)
    found = tasks.document()
    assert [task["task_id"] for task in found["largest"]] == [f"t{n}" for n in range(299, 299 - MOST_SHOWN, -1)]
    assert (found["largest"][0]["pages"], found["largest"][0]["bytes"]) == (299, 2990)
    assert found["others"]["tasks"] == 20_300 - MOST_SHOWN
    assert found["others"]["outcomes"] == {"result": 300 - MOST_SHOWN}
    assert found["others"]["reasons"] == {"timeout": 300 - MOST_SHOWN}
    assert found["others"]["pages"] + sum(task["pages"] for task in found["largest"]) == sum(range(300)) + 20_000
    assert len(tasks._counts) <= MOST_TASKS


# --- Warnings and errors counted by logger, however many loggers there are


@pytest.fixture
def tally() -> Iterator[LogTally]:
    tally = LogTally()
    tally.open()
    yield tally
    tally.close()


def counts(tally: LogTally) -> dict[tuple[str, str], int]:
    return {(each["level"], each["logger"]): each["count"] for each in tally.document() if each["count"]}


def test_warnings_and_errors_count_by_logger_until_the_end(tally: LogTally) -> None:
    """Names are bounded in number and length. Prometheus sees no increase where there was no series before."""
    assert [tuple(each.values()) for each in tally.document()] == [("error", "other", 0), ("warning", "other", 0)]
    logger = logging.getLogger("tally.one")
    for level in (logging.INFO, logging.WARNING, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(level, "said")
    found = {("warning", "tally.one"): 2, ("error", "tally.one"): 2}
    assert counts(tally) == found
    for number in range(3 * MOST_LOGGERS):
        logging.getLogger(f"tally.{number}." + "x" * 1000).warning("said")
    found = counts(tally)
    assert len({logger for _, logger in found}) == MOST_LOGGERS + 1
    assert sum(found.values()) == 4 + 3 * MOST_LOGGERS
    assert all(len(logger) <= 60 for _, logger in found)
    tally.close()
    logger.warning("said")
    assert counts(tally) == found


# --- Histograms of fixed buckets


def test_values_are_counted_up_to_each_bound() -> None:
    """A value that equals a bound belongs to it, as in Prometheus. Of each bucket the latest exemplar is kept."""
    histogram = Histogram((1.0, 2.0))
    for value, exemplar in ((0.5, "a"), (1.0, "b"), (1.5, None), (2.0, "c"), (99.0, "d"), (98.0, None)):
        histogram.observe(value, exemplar)
    assert histogram.document()["buckets"] == [[1.0, 2], [2.0, 2], [None, 2]]
    assert (sum(histogram.counts), histogram.sum, histogram.largest) == (6, 202.0, 99.0)
    assert histogram.exemplars == [("b", 1.0), ("c", 2.0), ("d", 99.0)]


def test_quantiles_are_near_those_of_the_values() -> None:
    chance = random.Random(7)
    values = [chance.expovariate(2) for _ in range(10_000)]
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    cuts = statistics.quantiles(values, n=100)
    found = histogram.document()
    for name, true in (("p50", cuts[49]), ("p90", cuts[89]), ("p99", cuts[98])):
        assert true * 0.7 < found[name] < true * 1.3
    assert found["max"] == pytest.approx(max(values), abs=1e-6)


def test_two_states_subtract() -> None:
    """What an interval added, whatever was before."""
    histogram = Histogram((1.0, 10.0))
    for _ in range(100):
        histogram.observe(0.1)
    before = histogram.document()
    for _ in range(10):
        histogram.observe(5.0)
    added = difference(histogram.document(), before)
    assert (added["count"], added["sum"]) == (10, 50.0)
    assert 1.0 < added["p50"] < 10.0
    assert difference(before, None)["count"] == 100
    assert difference(before, before)["p50"] is None


# --- a dict that forgets ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers())), st.integers(1, 5))
def test_what_was_set_last_is_kept(settings: list[tuple[int, int]], most: int) -> None:
    bounded: BoundedDict[int, int] = BoundedDict(most)
    kept: list[tuple[int, int]] = []  # the one set longest ago first
    for key, value in settings:
        bounded[key] = value
        kept = [*((other, its) for other, its in kept if other != key), (key, value)][-most:]
        assert list(bounded.items()) == kept


def test_any_thread_may_write(threads_take_turns_often: None) -> None:
    """As the threads that look up names do, of which some forget what others set."""
    bounded: BoundedDict[str, int] = BoundedDict(100)

    def write(start: int) -> None:
        for number in range(5_000):
            bounded[str((number * 7 + start) % 130)] = number
            bounded.pop(str((number * 3 + start) % 130), None)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len(bounded) <= 100
