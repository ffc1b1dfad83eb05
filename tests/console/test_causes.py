"""The overview says in words why a crawl is slow: the troubles that operators meet."""

from __future__ import annotations

from typing import Any

import pytest

from site_spider.console.fleet import Cause, Fleet, LogView, View, Weight
from site_spider.console.reading import state_of
from site_spider.console.rules import causes, verdict
from site_spider.contracts.seed_log import Partition
from site_spider.observe.progress import Progress
from tests.console.snapshots import NOW, host, seeds, sink, snapshot, task


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
        "Paused 340 of the last 600 s: sink elasticsearch away, as 2 of 2 processes say; 642 results wait for it."
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
