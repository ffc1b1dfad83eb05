"""Sums, curves and rates of a fleet."""

from __future__ import annotations

from typing import Any

import pytest

from site_spider.console import rules
from site_spider.console.fleet import MOST_PROCESSES, WINDOW_SECONDS, Curves, Fleet, Life, View
from site_spider.console.pages import conservation
from site_spider.console.reading import state_of
from site_spider.console.rules import Range, duration, spoken
from tests.console.snapshots import NOW, seeds, snapshot


def view(fleet: Fleet, now: float) -> View:
    return View(fleet=fleet, now=now, group="site_spider", topic="seeds", address="somewhere")


def told(fleet: Fleet, at: float, number: int = 1, **fields: Any) -> None:
    fleet.take(state_of(snapshot(number, at=at, **fields)), at)


def test_conservation_holds_over_all_processes_also_those_that_are_gone() -> None:
    fleet = Fleet()
    told(fleet, NOW, 1, seeds=seeds(100, 60, 10))
    told(fleet, NOW, 2, seeds=seeds(50, 50, 0))
    fleet.end("machine-2-1799999000", NOW)
    found = conservation(view(fleet, NOW + 300))
    assert (found["conserved"], found["consumed"], found["in_flight"]) == (True, 150, 30)
    assert found["outcomes"]["result"] == 110


def test_a_seed_that_is_missing_is_said() -> None:
    fleet = Fleet()
    told(fleet, NOW, seeds=seeds(100, 60, 10) | {"in_flight": 27})
    found = conservation(view(fleet, NOW))
    assert (found["conserved"], found["missing"]) == (False, 3)
    assert found["processes_with_missing"] == ["machine-1-1799999000"]


def test_a_process_that_says_nothing_is_silent_and_stays() -> None:
    fleet = Fleet()
    told(fleet, NOW)
    seen = fleet.seen["machine-1-1799999000"]
    assert seen.life(NOW + 29) is Life.RUNNING
    assert seen.life(NOW + 31) is Life.SILENT
    told(fleet, NOW + 2 * WINDOW_SECONDS, 2)
    assert "machine-1-1799999000" in fleet.seen
    assert fleet.living(NOW + 2 * WINDOW_SECONDS)[0].pid == 2


def test_an_ended_process_is_forgotten_after_an_hour() -> None:
    fleet = Fleet()
    told(fleet, NOW)
    fleet.end("machine-1-1799999000", NOW)
    assert fleet.seen["machine-1-1799999000"].life(NOW) is Life.ENDED
    told(fleet, NOW + WINDOW_SECONDS + 1, 2)
    assert list(fleet.seen) == ["machine-2-1799999000"]


def test_an_older_snapshot_changes_nothing() -> None:
    """The topic and the socket tell of the same process, in any order."""
    fleet = Fleet()
    told(fleet, NOW + 10, seeds=seeds(200, 100, 0))
    told(fleet, NOW, seeds=seeds(100, 50, 0))
    assert fleet.seen["machine-1-1799999000"].state.consumed == 200


def test_processes_are_bounded() -> None:
    fleet = Fleet()
    for number in range(MOST_PROCESSES + 20):
        told(fleet, NOW + number, number)
    assert len(fleet.seen) == MOST_PROCESSES
    assert "machine-0-1799999000" not in fleet.seen


def test_rates_are_what_was_done_however_often_processes_speak() -> None:
    for interval in (10, 30, 60):
        fleet = Fleet()
        for passed in range(0, 601, interval):
            told(fleet, NOW + passed, seeds=seeds(10_000, 5 * passed, 0))
        rate = rules.rates(fleet.curves, NOW + 600, 60)
        assert rate is not None
        assert rate.done == pytest.approx(5)


def test_a_new_process_counts_from_its_start_and_an_old_one_from_now() -> None:
    fleet = Fleet()
    started = snapshot()["started_at"]
    told(fleet, NOW, 1, started_at=started, seeds=seeds(1000, 1000, 0))  # 100 s old
    rate = rules.rates(fleet.curves, NOW, 60)
    assert rate is not None
    assert rate.done == pytest.approx(10)
    old = Fleet()
    told(old, NOW, started_at="2020-01-01T00:00:00+00:00", seeds=seeds(10**9, 10**9, 0))
    assert rules.rates(old.curves, NOW + 10, 60) is None


def test_curves_are_bounded_and_in_order() -> None:
    curves = Curves()
    for at in range(0, 20_000, 7):
        curves.add(at, at + 7, {f"name-{at}": 1.0})
        curves.gauge(at, {"lag": at})
    curves.add(19_000, 19_500, {"late": 500.0})
    curves.add(0, 10**9, {"endless": 1.0})
    steps = list(curves.between(0, 10**10))
    assert len(steps) <= 361
    assert [step.number for step in steps] == sorted({step.number for step in steps})
    assert max(len(step.counts) for step in steps) <= 101


def test_the_time_left_is_a_range() -> None:
    curves = Curves()
    for number in range(90):  # 10 a second, of late 5
        curves.add(number * 10, number * 10 + 10, {"done": 100.0 if number < 84 else 50.0})
    left = rules.time_left(curves, 900, 900)
    assert left is not None
    assert left.longest == pytest.approx(180)
    assert 90 < left.shortest < 100
    assert rules.time_left(curves, 900, 0) == Range(0, 0)
    assert rules.time_left(Curves(), 900, 10) is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (600, "10 min"), (3600, "1 h"), (5400, "1 h 30 min"),
        (90_000, "1 d 1 h"), (10**7, "115 d"), (-1, "0 s"),
    ],
)  # fmt: skip
def test_durations_are_said_as_people_do(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_range_is_said_in_words() -> None:
    assert spoken(Range(60, 180)) == "1 min to 3 min"
    assert spoken(Range(60, 60)) == "1 min"
    assert spoken(Range(0, 0)) == "none"
    assert spoken(Range(419, 524)) == "7 min to 9 min"
    assert spoken(None) == "unknown"
