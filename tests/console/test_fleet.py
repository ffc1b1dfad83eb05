"""Snapshots are read whatever they hold; sums, curves and rates of a fleet, and why a crawl is slow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.console import rules
from site_spider.console.fleet import MOST_PROCESSES, WINDOW_SECONDS, Cause, Curves, Fleet, Life, LogView, View, Weight
from site_spider.console.pages import conservation
from site_spider.console.reading import NO_TASK, OTHER_TASKS, FailureState, HostState, SinkState, TaskFigures, state_of
from site_spider.console.rules import Range, causes, duration, spoken, verdict
from site_spider.contracts.seed_log import Partition
from site_spider.observe.frontier_socket import LARGEST_BYTES, OddSnapshot, parsed
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


@given(field=st.sampled_from(sorted(snapshot())), value=VALUES)
def test_any_value_of_any_field_is_read_or_refused(field: str, value: Any) -> None:
    try:
        state = state_of(snapshot() | {field: value})
    except OddSnapshot:
        assert field in ("process", "at")
        return
    json.dumps([state.name, state.machine, *state.failures]).encode()
    assert state.completed >= 0
    assert state.waiting >= 0


@given(st.dictionaries(st.text(), VALUES))
def test_any_object_is_read_or_refused(document: dict[str, Any]) -> None:
    with pytest.raises(OddSnapshot):
        state_of(document)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"null", b"{", b"\xff", b"[" * 100_000, b" " * (LARGEST_BYTES + 1)])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(OddSnapshot):
        parsed(raw)


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
        assert rate.done == pytest.approx(5)


def test_a_new_process_counts_from_its_start_and_an_old_one_from_now() -> None:
    fleet = Fleet()
    started = snapshot()["started_at"]
    told(fleet, NOW, 1, started_at=started, seeds=seeds(1000, 1000, 0))  # 100 s old
    rate = rules.rates(fleet.curves, NOW, 60)
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


def first(found: View) -> Cause:
    return causes(found)[0]


def test_a_crawl_in_good_order_has_no_cause() -> None:
    found = scene({"seeds": seeds(2000, 1900, 10)})
    assert causes(found) == causes(scene(lag=0)) == []
    assert verdict(found, []) == "Nothing is seen that slows the crawl."


def test_a_sink_that_is_away_is_named_with_the_time_it_cost() -> None:
    """The first of three planted troubles."""
    away = {
        "sinks": [sink("local"), sink("elasticsearch", available=False, backlog=321)],
        "pause": {"cause": "sink", "said": "the sink elasticsearch is away"},
        "paused_seconds": {"sink": 340.0},
    }
    found = scene(away, away, lag=1000)
    assert first(found).text == (
        "Paused 340 of the last 600 s on average of 2 processes: sink elasticsearch away, as 2 of 2 processes say; "
        "642 results wait for it."
    )
    assert first(found).page == "sinks"
    assert verdict(found, causes(found)) == "The crawl is held up."


def test_one_slow_host_with_most_of_the_seeds_is_named() -> None:
    """The second."""
    hosts = [host("slow.test", 900, "delay"), *(host(f"h{n}.test", 10) for n in range(10))]
    found = scene({"waiting": 1000, "largest_hosts": hosts, "seeds": seeds(1100, 90, 10)})
    assert "Host slow.test holds 90 % of the waiting requests (900 of 1,000)" in said(found)
    assert "delay" in said(found)
    assert "CONCURRENT_REQUESTS_PER_DOMAIN" in said(found)


def test_a_callback_that_fails_for_one_task_is_named_with_the_task() -> None:
    """The third."""
    tasks = {"largest": [task("good", 950, 0), task("spring", 2, 48, callback=48)], "others": {"tasks": 0}}
    reasons = {"callback": 48, "dns": 10}
    found = scene({"tasks": tasks, "reasons": reasons, "seeds": seeds(2000, 1012, 58)})
    assert "Task spring: the spider's callback fails on 48 pages, 48 of 50 seeds failed (pages:" in said(found)
    assert "Task good" not in said(found)
    of_links = scene({"tasks": {"largest": [task("links", 4, 0, callback=500)], "others": {"tasks": 0}}})
    assert "Task links: the spider's callback fails on 500 pages, 0 of 4 seeds failed" in said(of_links)


def test_many_failures_are_said_with_their_reasons() -> None:
    found = scene({"seeds": seeds(1000, 460, 510), "reasons": {"dns": 410, "timeout": 100}})
    assert "56 % of the seeds of the last 10 min failed (pages: dns 400, timeout 100)." in said(found)


def test_other_pauses_are_said_with_what_to_set() -> None:
    pause = {"cause": "span", "said": "..."}
    found = scene({"paused_seconds": {"span": 300.0}, "pause": pause})
    assert "Paused 300 of the last 600 s" in said(found)
    assert "SITE_MAX_SPAN_OFFSETS" in said(found)
    full = scene({"paused_seconds": {"frontier": 300.0}})
    assert "; none now." in said(full)
    assert [cause.weight for cause in causes(full)] == [Weight.NOTE], "enough to do is no trouble"


def test_a_short_pause_is_not_said() -> None:
    assert causes(scene({"paused_seconds": {"span": 20.0}})) == []


def test_silent_processes_are_named() -> None:
    found = scene({}, {}, now=NOW + 700)
    assert "No process of the group runs; lag 1,000." in said(found)
    assert "2 processes are silent: machine-1-1799999000, machine-2-1799999000" in said(found)
    assert "last heard of 1 min 40 s ago" in said(found)


def test_kafka_that_is_away_is_said() -> None:
    assert "Kafka does not answer 1 of 2 processes." in said(scene({"log_is_away": True}, {}))


def test_a_lost_seed_comes_before_everything() -> None:
    found = scene({"seeds": seeds(100, 60, 10) | {"in_flight": 29}, "sinks": [sink("local", available=False)]})
    assert first(found).weight is Weight.BUG
    assert "cannot account for 1 of its seeds" in first(found).text


def test_hosts_that_ask_for_pauses_are_said() -> None:
    found = scene({"hosts": {"waiting": 100, "back-off": 80, "busy": 20}})
    assert "80 of 100 waiting hosts asked for a pause" in said(found)


def test_hosts_that_get_all_they_may_are_said() -> None:
    found = scene({"hosts": {"waiting": 10, "busy": 8, "delay": 1, "ready": 1}})
    assert "9 of 10 waiting hosts have as many requests as they may have" in said(found)
    assert first(found).weight is Weight.NOTE
    assert verdict(found, causes(found)) == "Nothing is seen that slows the crawl."


def test_a_blocked_loop_is_said() -> None:
    assert "was late by 3.0 s" in said(scene({"loop_lag_max_seconds": 3.0}))


@pytest.mark.parametrize(("seconds", "which"), [(1_800.4, "ahead of"), (-11.0, "behind")])
def test_a_clock_that_differs_from_the_brokers_is_said(seconds: float, which: str) -> None:
    found = said(scene({"clock_ahead_seconds": seconds}))
    assert f"{abs(seconds):,.0f} s {which} the broker's" in found
    assert "broker's" not in said(scene({"clock_ahead_seconds": "much"}))


def test_partitions_without_an_owner_are_said() -> None:
    found = scene({}, partitions=4)
    assert "3 of 4 partitions have no owner now." in said(found)


def test_partitions_without_an_owner_are_named_where_the_log_tells() -> None:
    """Also while no process has a partition; a rebalance that is under way is none."""
    found = scene({"seeds_in_flight": {}}, partitions=4, unowned=(Partition("bulk", 0), Partition("seeds", 3)))
    assert "2 of 4 partitions have no owner now: bulk/0, seeds/3." in said(found)
    assert "no owner" not in said(scene({}, partitions=4, unowned=()))


def test_nothing_left_is_said() -> None:
    found = scene({}, lag=0)
    assert verdict(found, causes(found)) == "Nothing is left to do."


def test_the_number_of_causes_does_not_grow_with_the_tasks() -> None:
    failing = [task(f"t{n}", 0, 50, callback=50) for n in range(200)]
    found = scene({"tasks": {"largest": failing, "others": {"tasks": 0}}})
    assert len(causes(found)) < 10
