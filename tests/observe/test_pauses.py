"""Why nothing is polled: the present cause, and the time by cause."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from site_spider.contracts.seed_log import Partition
from site_spider.histogram import Histogram
from site_spider.ledger.ledger import Outcome, SeedInFlight
from site_spider.observe.counters import CAUSES, LoopLag, Pauses, SeedTimes, TaskSums
from site_spider.observe.progress import PageTally
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
    """And forgotten when the window has passed."""

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
    assert (durations.count, durations.sum) == (1, 3.0)
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
