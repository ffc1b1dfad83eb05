"""What a process counts: why nothing is polled, pages of tasks, lines of the log, durations."""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.bounded import SECONDS, BoundedDict, Histogram, difference
from site_spider.contracts.seed_log import Partition
from site_spider.ledger.ledger import Outcome, SeedInFlight
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


class Crawl:
    """The parts that are asked, and a clock."""

    def __init__(self) -> None:
        self.quarantine = SimpleNamespace(is_closed=False)
        self.sink = SimpleNamespace(available=True, sink=SimpleNamespace(name="elasticsearch"))
        self.cause, self.room, self.wide, self.is_away = "", 10, frozenset[Partition](), False
        self.now = 0.0
        seeds = SimpleNamespace(room=lambda: self.room, too_wide=lambda: self.wide)
        pressure: Any = SimpleNamespace(cause=lambda: self.cause, is_cut_off=False)
        quarantine: Any = self.quarantine
        sinks: Any = [self.sink]
        self.pauses = Pauses(
            seeds,  # type: ignore[arg-type]
            quarantine,
            pressure,
            sinks,
            lambda: self.is_away,
            lambda: self.now,
        )

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.look()


def test_nothing_is_counted_while_seeds_are_polled() -> None:
    crawl = Crawl()
    crawl.pass_seconds(100)
    assert crawl.pauses.now() == ("", "")
    assert crawl.pauses.seconds == dict.fromkeys(CAUSES, 0.0)


def test_the_time_goes_to_the_first_cause_that_applies() -> None:
    crawl = Crawl()
    crawl.room = 0
    crawl.pass_seconds(5)
    crawl.sink.available = False
    crawl.pass_seconds(7)
    assert crawl.pauses.now().said == "the sink elasticsearch is away"
    crawl.quarantine.is_closed = True
    crawl.pass_seconds(11)
    crawl.quarantine.is_closed, crawl.sink.available, crawl.room = False, True, 1
    crawl.pass_seconds(100)
    found = {cause: seconds for cause, seconds in crawl.pauses.seconds.items() if seconds}
    assert found == {"frontier": 5, "sink": 7, "suspicion": 11}


@pytest.mark.parametrize("cause", ["sink", "kafka", "memory", "stop"])
def test_what_holds_back_downloads_has_words(cause: str) -> None:
    crawl = Crawl()
    crawl.cause = cause
    crawl.pass_seconds(1)
    assert crawl.pauses.now().cause == cause
    assert crawl.pauses.now().said
    assert crawl.pauses.seconds[cause] == 1


def test_a_log_that_is_away_and_a_slow_partition_count() -> None:
    crawl = Crawl()
    crawl.is_away = True
    crawl.pass_seconds(2)
    crawl.is_away, crawl.wide = False, frozenset({Partition("seeds", 0)})
    crawl.pass_seconds(3)
    assert (crawl.pauses.seconds["kafka"], crawl.pauses.seconds["span"]) == (2, 3)


def test_a_blocked_event_loop_is_seen() -> None:
    async def blocked() -> tuple[float, float]:
        lag = LoopLag(Histogram(), window_seconds=0.5)
        lag.start()
        await asyncio.sleep(0.15)
        time.sleep(0.4)
        await asyncio.sleep(0.15)
        during = lag.max_seconds()
        await asyncio.sleep(0.8)
        after = lag.max_seconds()
        lag.stop()
        return during, after

    during, after = virtual_time.run(blocked())
    assert during >= 0.25
    assert after < during


def test_seeds_that_left_are_not_timed() -> None:
    durations, now = Histogram(), [100.0]
    times = SeedTimes(TaskSums(), durations, lambda: now[0])
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


def test_the_largest_are_shown_by_name_and_the_others_in_sum() -> None:
    tasks = TaskSums()
    for number in range(500):
        for _ in range(number):
            tasks.of(f"t{number}").page(10)
        tasks.of(f"t{number}").ended("result")
    found = tasks.document()
    assert [task["task_id"] for task in found["largest"]] == [f"t{n}" for n in range(499, 299, -1)]
    assert found["largest"][0]["pages"] == 499
    assert found["others"]["tasks"] == 500 - MOST_SHOWN
    assert found["others"]["pages"] == sum(range(300))
    assert found["others"]["outcomes"] == {"result": 300}


def test_a_task_a_seed_takes_bounded_memory_and_loses_no_count() -> None:
    """The large ones keep their names."""
    tasks = TaskSums()
    for number in range(100_000):
        tasks.of(f"one{number}").page(1)
        if number % 100 == 0:
            tasks.of("large").page(5)
    found = tasks.document()
    assert found["largest"][0]["task_id"] == "large"
    assert found["largest"][0]["pages"] == 1000
    assert len(tasks._counts) <= MOST_TASKS
    assert found["others"]["pages"] + sum(task["pages"] for task in found["largest"]) == 101_000
    assert found["others"]["tasks"] + len(found["largest"]) == 100_001


# --- Warnings and errors counted by logger, however many loggers there are


@pytest.fixture
def tally() -> Iterator[LogTally]:
    tally = LogTally()
    tally.open()
    yield tally
    tally.close()


def counts(tally: LogTally) -> dict[tuple[str, str], int]:
    return {(each["level"], each["logger"]): each["count"] for each in tally.document() if each["count"]}


def test_warnings_and_errors_count_by_logger_and_nothing_below(tally: LogTally) -> None:
    logger = logging.getLogger("tally.one")
    for level in (logging.INFO, logging.WARNING, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(level, "said")
    assert counts(tally) == {("warning", "tally.one"): 2, ("error", "tally.one"): 2}


def test_names_are_bounded_in_number_and_length(tally: LogTally) -> None:
    for number in range(3 * MOST_LOGGERS):
        logging.getLogger(f"tally.{number}." + "x" * 1000).warning("said")
    found = counts(tally)
    assert len(found) == MOST_LOGGERS + 1
    assert sum(found.values()) == 3 * MOST_LOGGERS
    assert all(len(logger) <= 60 for _, logger in found)


def test_an_increase_from_nothing_can_be_seen(tally: LogTally) -> None:
    """Prometheus sees no increase where there was no series before."""
    assert {(each["level"], each["logger"], each["count"]) for each in tally.document()} == {
        ("warning", "other", 0),
        ("error", "other", 0),
    }


def test_nothing_counts_after_the_end() -> None:
    tally = LogTally()
    tally.open()
    tally.close()
    logging.getLogger("tally.late").warning("said")
    assert counts(tally) == {}


# --- Histograms of fixed buckets


def test_values_are_counted_up_to_each_bound() -> None:
    """A value that equals a bound belongs to it, as in Prometheus."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.document()["buckets"] == [[1.0, 2], [2.0, 2], [None, 1]]
    assert (sum(histogram.counts), histogram.sum, histogram.largest) == (5, 104.0, 99.0)


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


def test_the_latest_exemplar_of_each_bucket_is_kept() -> None:
    histogram = Histogram((1.0,))
    for value, exemplar in ((0.1, "a"), (0.2, "b"), (5.0, "c"), (6.0, None)):
        histogram.observe(value, exemplar)
    assert histogram.exemplars == [("b", 0.2), ("c", 5.0)]


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
    errors: list[Exception] = []

    def write(start: int) -> None:
        try:
            for number in range(20_000):
                bounded[str((number * 7 + start) % 130)] = number
                bounded.pop(str((number * 3 + start) % 130), None)
        except Exception as error:  # noqa: BLE001 - whatever it is
            errors.append(error)

    threads = [threading.Thread(target=write, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(bounded) <= 100
