"""The one snapshot of a process: what a real crawl's holds, that it is bounded, and what it costs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import given
from hypothesis import strategies as st
from scrapy.http import Response

from site_spider.bounded import NameCounts
from site_spider.contracts.seed_log import Partition
from site_spider.frontier.frontier import Frontier, HostPolicy, HostView
from site_spider.frontier.priority_queue import PROXY_LEVEL, queue_lengths
from site_spider.ledger.ledger import Ledger, Outcome
from site_spider.observe.snapshot import MOST_HOSTS, Snapshot, Survey, is_conserved, seed_counts, snapshot
from site_spider.results.failures import REASONS
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process import engine
from tests.in_process.engine import crawl, page


class Snapping(SeedSpider):
    """Takes a snapshot while the page /last is being read, and one when the crawl ends."""

    name = "snapping"
    takes_seeds = True
    taken: ClassVar[list[Snapshot]] = []

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        if response.url.endswith("/raises"):
            raise ZeroDivisionError("of this page")
        if response.url.endswith("/last"):
            await asyncio.sleep(0.3)  # the others have ended
            self.taken.append(await snapshot(SeedService.of(self.crawler).parts.watched))
        return []


def test_a_snapshot_says_where_every_seed_is_and_what_became_of_pages(tmp_path: Path) -> None:
    """By task and with times, too, and whose it is."""
    engine.ANSWERS["/missing"] = lambda request: page(request, status=404)
    engine.ANSWERS["/old"] = lambda request: page(request, status=302, Location="/page")
    seeds = [
        {"url": "http://h.test/page", "meta": {"task_id": "a"}},
        {"url": "http://h.test/missing", "meta": {"task_id": "a"}},
        {"url": "http://h.test/raises", "meta": {"task_id": "b"}},
        {"url": "http://h.test/old"},
        {"url": "not a url"},
        {"url": "http://h.test/last", "meta": {"task_id": "b"}, "priority": -5},
    ]
    assert crawl(tmp_path, seeds, Snapping).lag == 0
    [taken] = Snapping.taken
    json.dumps(taken, allow_nan=False)  # plain JSON
    assert taken["conserved"] is True
    seeds = taken["seeds"]
    assert (seeds["consumed"], seeds["in_flight"], seeds["dead_lettered"]) == (6, 1, 1)
    assert (seeds["completed_with_result"], seeds["completed_with_failure"]) == (2, 2)
    pages = taken["downloads"]["page"]
    assert (pages["attempts"], pages["answers"]) == (6, 6)
    assert pages["statuses"] == {"200": 4, "404": 1, "302": 1}
    assert pages["response_bytes"] > 0
    assert {name: count for name, count in taken["reasons"].items() if count} == {"http_status": 1, "callback": 1}
    assert tuple(taken["reasons"]) == REASONS
    assert taken["failures"] == {"HTTP 404": 1, "ZeroDivisionError in the spider": 1}
    assert {failed["url"] for failed in taken["newest_failures"]} == {"http://h.test/missing", "http://h.test/raises"}
    assert all(failed["seed"].startswith("seeds/") and "@" in failed["seed"] for failed in taken["newest_failures"])

    tasks = {task["task_id"]: task for task in taken["tasks"]["largest"]}
    assert tasks["a"]["pages"] == 2
    assert tasks["a"]["outcomes"] == {"result": 1, "failure": 1}
    assert tasks["a"]["reasons"] == {"http_status": 1}
    assert tasks["a"]["bytes"] > 0
    assert tasks["b"]["outcomes"] == {"failure": 1}
    assert tasks[None]["outcomes"] == {"result": 1, "dead_letter": 1}
    latency = taken["latency"]
    assert latency["seed_seconds"]["count"] == 5
    assert latency["download_seconds"]["count"] == 6
    assert 0 < latency["seed_seconds"]["p50"] <= latency["seed_seconds"]["p99"] <= latency["seed_seconds"]["max"]
    assert latency["loop_lag_seconds"]["count"] > 0
    [(partition, oldest)] = [(name, seconds) for name, seconds in taken["oldest_in_flight_seconds"].items() if seconds]
    assert oldest >= 0.3
    assert taken["seeds_in_flight"][partition] == 1

    assert (taken["spider"], taken["group"], taken["topic"]) == ("snapping", "site_spider", "seeds")
    assert taken["process"].startswith(f"{taken['host_name']}-{taken['pid']}-")
    assert taken["version"] != "unknown"
    assert taken["memory"]["rss_bytes"] > 1_000_000
    [sink] = taken["sinks"]
    assert sink["available"]
    assert sink["last_accept_at"] is not None
    assert taken["pause"] == {"cause": "", "said": ""}


# --- survey: what waits in the frontier


views = st.lists(
    st.builds(
        HostView,
        host=st.just("h.test"),
        waiting=st.integers(0, 5),
        out=st.integers(0, 3),
        next_at=st.floats(-10, 10),
        reason=st.sampled_from(["ready", "busy", "delay", "back-off"]),
    )
)


@given(views, st.integers(0, 5))
def test_the_counts_are_of_all_hosts_and_the_list_of_the_largest(views: list[HostView], most: int) -> None:
    survey = Survey(most)
    for half in (views[::2], views[1::2]):
        survey.add(half)
    waiting = [view for view in views if view.waiting]
    counts = survey.counts()
    assert counts.pop("waiting") == len(waiting)
    assert sum(counts.values()) == len(waiting)
    assert counts.get("delay", 0) == sum(view.reason == "delay" for view in waiting)
    assert survey.items == sum(view.waiting for view in views)
    assert survey.out == sum(view.out for view in views)
    largest = [host["waiting"] for host in survey.largest(0.0)]
    assert largest == sorted((view.waiting for view in waiting), reverse=True)[:most]


def test_a_host_says_why_it_waits_and_for_how_long() -> None:
    """Only what waits for a moment has one."""
    frontier: Frontier[int] = Frontier(lambda host: HostPolicy(1, 2.0 if host == "slow" else 0.0))
    for number in range(3):
        frontier.push(0, "slow", number, 0.0)
        frontier.push(0, "busy", number, 0.0)
        frontier.push(0, "held", number, 0.0)
    frontier.push(0, "later", 0, 0.0, not_before=9.0)
    assert {frontier.pop(0.0) for _ in range(3)} == {0}
    frontier.release("slow", 0.5)
    frontier.release("held", 0.5)
    frontier.hold("held", 30.0, "back-off", 0.5)
    survey = Survey(10)
    survey.add(frontier.hosts(0.5))
    said = {host["host"]: (host["reason"], host["next_in_seconds"]) for host in survey.largest(0.5)}
    assert said == {"slow": ("delay", 1.5), "busy": ("busy", None), "held": ("back-off", 29.5)}
    assert survey.counts() == {"waiting": 3, "back-off": 1, "busy": 1, "delay": 1}
    assert len(frontier) - survey.items == 1


def test_the_frontier_may_change_while_it_is_looked_at() -> None:
    """A look in slices goes on over whatever happens between them."""
    frontier: Frontier[int] = Frontier()
    for number in range(100):
        frontier.push(0, f"host{number}", number, 0.0)
    seen = []
    for number, view in enumerate(frontier.hosts(0.0)):
        seen.append(view.host)
        frontier.push(0, f"new{number}", number, 0.0)
        frontier.pop(0.0)
    assert seen == [f"host{number}" for number in range(100)]


def test_what_is_shown_is_bounded() -> None:
    survey = Survey(10**9)
    survey.add(HostView("x" * 10_000, 1, 0, 0.0, "busy") for _ in range(5000))
    assert len(survey.largest(0.0)) == MOST_HOSTS
    assert len(survey.largest(0.0)[0]["host"]) == 253
    assert survey.counts() == {"waiting": 5000, "busy": 5000}


def test_every_seed_is_accounted_for() -> None:
    ledger = Ledger()
    ledger.assign(Partition("t", 0), None)
    for offset, outcome in enumerate([*Outcome, None]):
        entry = ledger.take(Partition("t", 0), offset)
        assert entry is not None
        if outcome is not None:
            ledger.decide(entry, outcome)
            ledger.release(entry)
    counts = seed_counts(ledger)
    assert counts["consumed"] == 7
    assert counts["in_flight"] == 1
    assert is_conserved(counts)
    assert not is_conserved(counts | {"consumed": 8})


def test_names_from_outside_cannot_blow_up_the_index() -> None:
    """Names are bounded in number and in length, and hold no dots."""
    counts = NameCounts()
    for name in ("x" * 10_000, "Forbidden by robots.txt", *map(str, range(1000)), ""):
        counts.add(name)
    assert list(counts.counts)[:2] == ["x" * 80, "Forbidden by robots_txt"]
    assert (len(counts.counts), sum(counts.counts.values())) == (100, 1003)


def test_levels_become_five_lengths() -> None:
    """However many levels there are, the document has the same fields."""
    lengths = queue_lengths({-9: 1, -2: 2, -1: 3, 0: 6, 1: 4, 100: 5, PROXY_LEVEL - 2: 3, PROXY_LEVEL: 4})
    assert lengths == {"redirected": 3, "discovered": 3, "seeds": 6, "retried": 9, "proxied": 7}
