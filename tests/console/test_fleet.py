"""Snapshots are read whatever they hold; sums, curves and rates of a fleet, and why a crawl is slow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from site_spider.console.diagnosis import causes, verdict
from site_spider.console.fleet import (
    WINDOW_SECONDS,
    Curves,
    Fleet,
    Life,
    LogView,
    View,
    Weight,
    duration,
    rates,
    spoken,
    time_left,
)
from site_spider.console.pages import conservation
from site_spider.console.process_state import (
    NO_TASK,
    OTHER_TASKS,
    FailureState,
    HostState,
    SinkState,
    TaskFigures,
    state_of,
)
from site_spider.contracts.seed_log import Partition
from site_spider.observe.frontier_socket import OddSnapshot
from site_spider.observe.progress import Progress
from tests.console.snapshots import NOW, host, iso, seeds, sink, snapshot, task

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_what_a_process_says_is_read() -> None:
    failed = {
        "url": "http://h.test/a",
        "at": iso(NOW),
        "reason": "dns",
        "description": "no address",
        "task_id": "t",
        "seed": "seeds/0@1",
    }
    state = state_of(
        snapshot(
            seeds=seeds(100, 50, 20, filtered=3, dead_lettered=1, cancelled=1) | {"deleted_unread": 700},
            reasons={"dns": 20},
            newest_failures=[failed],
            tasks={"largest": [task("t", 5, 1, dns=1), task(None, 1, 0)], "others": {"tasks": 3, "pages": 7}},
            sinks=[sink("elasticsearch", available=False, backlog=7)],
            largest_hosts=[host("slow.test", 9)],
            pause={"cause": "sink", "said": "the sink elasticsearch is away"},
            paused_seconds={"sink": 12.5},
        )
    )
    assert (state.consumed, state.completed, state.in_flight, state.missing) == (100, 75, 25, 0)
    assert state.outcomes == {"result": 50, "failure": 20, "filtered": 3, "dead_letter": 1, "cancelled": 1}
    assert (state.at, state.pages, state.bytes) == (NOW, 80, 800_000)
    assert state.examples == (FailureState(NOW, "http://h.test/a", "h.test", "t", "dns", "no address"),)
    assert state.hosts == (HostState("slow.test", 9, 8, "busy", None),)
    assert [found.task_id for found in state.tasks] == ["t", NO_TASK, OTHER_TASKS]
    assert state.tasks[0] == TaskFigures("t", 6, 5000, {"result": 5, "failure": 1}, {"dns": 1})
    assert state.sinks == (SinkState("elasticsearch", False, 7, 7000, 64_000_000, NOW - 5),)
    assert (state.pausing, state.paused) == ("sink", {"sink": 12.5})
    assert state.partitions == ("seeds/1",)


@example(field="process", value="")
@example(field="at", value=None)
@given(field=st.sampled_from(sorted(snapshot())), value=VALUES)
def test_any_value_of_any_field_is_read_or_refused(field: str, value: Any) -> None:
    try:
        state = state_of(snapshot() | {field: value})
    except OddSnapshot:
        assert field in ("process", "at")
        return
    assert field != "process" or value
    json.dumps([state.name, state.machine, *state.failures]).encode()
    assert state.completed >= 0
    assert state.waiting >= 0


def test_numbers_and_names_are_bounded() -> None:
    state = state_of(
        snapshot(
            waiting=10**300,
            clock_ahead_seconds=-(10**400),
            reasons={f"r{n}": 1 for n in range(5000)},
            largest_hosts=[host("h" * 5000, -3)] * 5000,
            host_name="\ud800 half",
            memory={"rss_bytes": True},
        )
    )
    assert (state.waiting, state.clock_ahead_seconds) == (10**18, -(10**18))
    assert len(state.failures) == 200
    assert len(state.hosts) == 1000
    assert (len(state.hosts[0].host), state.hosts[0].waiting) == (300, 0)
    assert state.machine == "\\ud800 half"
    assert state.memory_bytes == 0


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


def test_a_process_that_says_nothing_is_silent_and_stays_and_an_ended_one_is_forgotten_after_an_hour() -> None:
    fleet, first = Fleet(), "machine-1-1799999000"
    told(fleet, NOW)
    assert fleet.seen[first].life(NOW + 29) is Life.RUNNING
    assert fleet.seen[first].life(NOW + 31) is Life.SILENT
    later = NOW + 2 * WINDOW_SECONDS
    told(fleet, later, 2)
    assert first in fleet.seen
    assert fleet.living(later)[0].pid == 2
    fleet.end(first, later)
    assert fleet.seen[first].life(later) is Life.ENDED
    told(fleet, later + WINDOW_SECONDS + 1, 3)
    assert [name[:9] for name in fleet.seen] == ["machine-2", "machine-3"]


def test_a_killed_process_whose_place_another_has_taken_has_ended_and_has_nothing_in_flight() -> None:
    """It would be silent for ever, and its seeds in flight beside those of the process that repeats them."""
    fleet, later = Fleet(), {"slot": "machine-1", "started_at": iso(NOW + 2)}
    told(fleet, NOW, 1, seeds=seeds(100, 60, 10))
    told(fleet, NOW + 4, 2, **later, seeds=seeds(30, 10, 0))
    told(fleet, NOW + 1, 1, seeds=seeds(100, 61, 10))  # the topic is behind the socket
    found = conservation(view(fleet, NOW + 4))
    assert [seen.life(NOW + 4) for seen in fleet.seen.values()] == [Life.ENDED, Life.RUNNING]
    assert (found["conserved"], found["consumed"], found["in_flight"]) == (True, 71 + 30, 20)


def test_two_processes_that_say_the_same_place_run_both() -> None:
    """Those of two supervisors of one embedded log; and processes without a place."""
    for slot in ("machine-1", ""):
        fleet = Fleet()
        for number in (1, 2):
            told(fleet, NOW + number, number, slot=slot, started_at=iso(NOW - 100 * number))
        assert len(fleet.living(NOW + 3)) == 2


def test_an_older_snapshot_changes_nothing() -> None:
    """The topic and the socket tell of the same process, in any order; also of one that has ended."""
    fleet, name = Fleet(), "machine-1-1799999000"
    fleet.take(state_of(snapshot(at=NOW + 10, seeds=seeds(200, 100, 0))), NOW + 10, is_near=True)
    old = state_of(snapshot(at=NOW, seeds=seeds(100, 50, 0)))
    fleet.take(old, NOW + 11)
    assert fleet.seen[name].state.consumed == 200
    fleet.end(name, NOW + 12)
    fleet.take(old, NOW + 13)
    assert fleet.seen[name].life(NOW + 13) is Life.ENDED


@pytest.mark.parametrize("is_near", [True, False])
def test_a_process_whose_clock_goes_back_speaks_on(is_near: bool) -> None:
    fleet, name = Fleet(), "machine-1-1799999000"
    for number, at in enumerate((NOW, NOW - WINDOW_SECONDS, NOW + 10 - WINDOW_SECONDS)):
        said = snapshot(at=at, seeds=seeds(100 * number, 100 * number, 0))
        fleet.take(state_of(said), NOW + 20 * number, is_near=is_near)
    assert fleet.seen[name].life(NOW + 60) is Life.RUNNING
    assert fleet.seen[name].state.consumed == 200


def test_rates_are_what_was_done_however_often_processes_speak() -> None:
    for interval in (10, 30, 60):
        fleet = Fleet()
        for passed in range(0, 601, interval):
            told(fleet, NOW + passed, seeds=seeds(10_000, 5 * passed, 0))
        rate = rates(fleet.curves, NOW + 600, 60)
        assert rate["done"] == pytest.approx(5)


def test_a_new_process_counts_from_its_start_and_an_old_one_from_now() -> None:
    fleet = Fleet()
    started = snapshot()["started_at"]
    told(fleet, NOW, 1, started_at=started, seeds=seeds(1000, 1000, 0))  # 100 s old
    rate = rates(fleet.curves, NOW, 60)
    assert rate["done"] == pytest.approx(10)
    old = Fleet()
    told(old, NOW, started_at="2020-01-01T00:00:00+00:00", seeds=seeds(10**9, 10**9, 0))
    assert rates(old.curves, NOW + 10, 60) is None


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
    shortest, longest = time_left(curves, 900, 900)
    assert longest == pytest.approx(180)
    assert 90 < shortest < 100
    assert time_left(curves, 900, 0) == (0, 0)
    assert time_left(Curves(), 900, 10) is None


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
    ranges = [(60, 180), (60, 60), (0, 0), (419, 524), None]
    assert [*map(spoken, ranges)] == ["1 min to 3 min", "1 min", "none", "7 min to 9 min", "unknown"]


def scene(
    *states: dict[str, Any],
    lag: int = 1000,
    now: float = NOW + 610,
    partitions: int = 1,
    unowned: tuple[Partition, ...] | None = None,
) -> View:
    """Each process, in good order ten minutes ago and as given now."""
    fleet = Fleet()
    for number, state in enumerate(states, 1):
        fleet.take(state_of(snapshot(number)), NOW)
        fleet.take(state_of(snapshot(number, at=NOW + 600) | state), NOW + 600)
    parts = [(Partition("seeds", n), Progress(0, 0, 0 if n else lag, lag)) for n in range(partitions)]
    log = LogView(now, tuple(parts), None if unowned is None else frozenset(unowned))
    return View(fleet, now, "site_spider", "seeds", "here", log)


def said(found: View) -> str:
    return "\n".join(cause.text for cause in causes(found))


def test_a_crawl_in_good_order_has_no_cause() -> None:
    found = scene({"seeds": seeds(2000, 1900, 10)})
    assert causes(found) == causes(scene(lag=0)) == []
    assert verdict(found, []) == "Nothing is seen that slows the crawl."


def test_a_sink_that_is_away_is_named_with_the_time_it_cost() -> None:
    away = {
        "sinks": [sink("local"), sink("elasticsearch", available=False, backlog=321)],
        "pause": {"cause": "sink", "said": "the sink elasticsearch is away"},
        "paused_seconds": {"sink": 340.0},
    }
    found = scene(away, away, lag=1000)
    first = causes(found)[0]
    assert first.text == (
        "Paused 340 of the last 600 s on average of 2 processes: sink elasticsearch away, as 2 of 2 processes say; "
        "642 results wait for it."
    )
    assert first.page == "sinks"
    assert verdict(found, causes(found)) == "The crawl is held up."


def of_tasks(*largest: dict[str, Any]) -> dict[str, Any]:
    return {"tasks": {"largest": [*largest], "others": {"tasks": 0}}}


UNOWNED = (Partition("bulk", 0), Partition("seeds", 3))
SLOW_HOSTS = [host("slow.test", 900, "delay"), *(host(f"h{n}.test", 10) for n in range(10))]
CALLBACKS = of_tasks(task("good", 950, 0), task("spring", 2, 48, callback=48))
TROUBLES: list[tuple[View, Weight, str]] = [
    (scene({"waiting": 1000, "largest_hosts": SLOW_HOSTS, "seeds": seeds(1100, 90, 10)}), Weight.SLOW,
     "Host slow.test holds 90 % of the waiting requests (900 of 1,000); 8 are out, and the next one waits (delay). "
     "CONCURRENT_REQUESTS_PER_DOMAIN"),
    (scene({**CALLBACKS, "reasons": {"callback": 48, "dns": 10}, "seeds": seeds(2000, 1012, 58)}), Weight.SLOW,
     "Task spring: the spider's callback fails on 48 pages, 48 of 50 seeds failed (pages:"),
    (scene(of_tasks(task("links", 4, 0, callback=500))), Weight.SLOW,
     "Task links: the spider's callback fails on 500 pages, 0 of 4 seeds failed"),
    (scene({"seeds": seeds(1000, 460, 510), "reasons": {"dns": 410, "timeout": 100}}), Weight.SLOW,
     "56 % of the seeds of the last 10 min failed (pages: dns 400, timeout 100)."),
    (scene({"paused_seconds": {"span": 300.0}, "pause": {"cause": "span", "said": "..."}}), Weight.SLOW,
     "Paused 300 of the last 600 s: a slow seed holds its partition (SITE_MAX_SPAN_OFFSETS); 1 process now."),
    (scene({"paused_seconds": {"kafka": 300.0}}), Weight.SLOW,
     "Paused 300 of the last 600 s: the seed log is away, or does not take what is sent to it; none now."),
    (scene({"paused_seconds": {"frontier": 300.0}}), Weight.NOTE, "; none now."),  # enough to do is no trouble
    (scene({}, {}, now=NOW + 700), Weight.STOP, "No process of the group runs; lag 1,000."),
    (scene({}, {}, now=NOW + 700), Weight.STOP,
     "2 processes are silent: machine-1-1799999000, machine-2-1799999000, last heard of 1 min 40 s ago."),
    (scene({"log_is_away": True}, {}), Weight.STOP, "Kafka does not answer 1 of 2 processes."),
    (scene({"seeds": seeds(100, 60, 10) | {"in_flight": 29}, "sinks": [sink("local", available=False)]}), Weight.BUG,
     "cannot account for 1 of its seeds"),
    (scene({"hosts": {"waiting": 100, "back-off": 80, "busy": 20}}), Weight.SLOW,
     "80 of 100 waiting hosts asked for a pause"),
    (scene({"hosts": {"waiting": 10, "busy": 8, "delay": 1, "ready": 1}}), Weight.NOTE,
     "9 of 10 waiting hosts have as many requests as they may have"),
    (scene({"loop_lag_max_seconds": 3.0}), Weight.SLOW, "was late by 3.0 s"),
    (scene({"clock_ahead_seconds": 1_800.4}), Weight.SLOW, "machine is 1,800 s ahead of the broker's"),
    (scene({"clock_ahead_seconds": -11.0}), Weight.SLOW, "machine is 11 s behind the broker's"),
    (scene({}, partitions=4), Weight.SLOW, "3 of 4 partitions have no owner now."),
    (scene({"seeds_in_flight": {}}, partitions=4, unowned=UNOWNED), Weight.SLOW,  # also while no process has one
     "2 of 4 partitions have no owner now: bulk/0, seeds/3."),
]  # fmt: skip


@pytest.mark.parametrize(("found", "worst", "text"), TROUBLES, ids=[text[:30] for _, _, text in TROUBLES])
def test_a_trouble_is_said_with_its_numbers_and_what_to_set(found: View, worst: Weight, text: str) -> None:
    """The worst comes first."""
    assert causes(found)[0].weight is worst
    assert text in said(found)
    held_up = {Weight.SLOW: "Something slows or harms the crawl.", Weight.NOTE: "Nothing is seen that slows the crawl."}
    assert verdict(found, causes(found)) == held_up.get(worst, "The crawl is held up.")


@pytest.mark.parametrize(
    "found",
    [
        scene({"paused_seconds": {"span": 20.0}}),  # too short
        scene({"clock_ahead_seconds": "much"}),
        scene({}, partitions=4, unowned=()),  # a rebalance that is under way
        scene({}, lag=0),
    ],
    ids=["pause", "clock", "rebalance", "done"],
)
def test_what_is_no_trouble_is_not_said(found: View) -> None:
    assert causes(found) == []
    assert verdict(found, []) == f"Nothing is {'seen that slows the crawl' if found.lag else 'left to do'}."


def test_the_number_of_causes_does_not_grow_with_the_tasks() -> None:
    found = scene(of_tasks(*(task(f"t{n}", 0, 50, callback=50) for n in range(200))))
    assert len(causes(found)) < 10
    assert "Task good" not in said(scene(CALLBACKS))
