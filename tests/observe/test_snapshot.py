"""The one snapshot of a process: what a real crawl's holds, that it is bounded, and what it costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider.observe.snapshot import Snapshot, Watched, snapshot
from site_spider.results.failures import REASONS
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process import engine
from tests.in_process.engine import crawl, page


def watched_of(spider: SeedSpider) -> Watched:
    service = SeedService.of(spider.crawler)
    assert service is not None
    return service.parts.watched


class Snapping(SeedSpider):
    """Takes a snapshot while the page /last is being read, and one when the crawl ends."""

    name = "snapping"
    takes_seeds = True
    taken: ClassVar[list[Snapshot]] = []

    @classmethod
    def from_crawler(cls, crawler: Any, *arguments: Any, **keywords: Any) -> SeedSpider:
        cls.taken = []
        return super().from_crawler(crawler, *arguments, **keywords)

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        if response.url.endswith("/raises"):
            raise ZeroDivisionError("of this page")
        if response.url.endswith("/last"):
            await asyncio.sleep(0.3)  # the others have ended
            self.taken.append(await snapshot(watched_of(self)))
        return []


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    engine.ANSWERS.clear()
    yield snapped(tmp_path_factory.mktemp("crawl"))
    engine.ANSWERS.clear()


def snapped(folder: Path) -> Snapshot:
    def redirected(request: Request) -> Response:
        return page(request, status=302, Location="/page")

    engine.ANSWERS["/missing"] = lambda request: page(request, status=404)
    engine.ANSWERS["/old"] = redirected
    seeds = [
        {"url": "http://h.test/page", "meta": {"task_id": "a"}},
        {"url": "http://h.test/missing", "meta": {"task_id": "a"}},
        {"url": "http://h.test/raises", "meta": {"task_id": "b"}},
        {"url": "http://h.test/old"},
        {"url": "not a url"},
        {"url": "http://h.test/last", "meta": {"task_id": "b"}, "priority": -5},
    ]
    found = crawl(folder, seeds, Snapping)
    assert found.lag == 0
    [taken] = Snapping.taken
    json.dumps(taken, allow_nan=False)  # plain JSON
    return taken


def test_a_snapshot_says_where_every_seed_is_and_what_became_of_pages(taken: Snapshot) -> None:
    assert taken["conserved"] is True
    seeds = taken["seeds"]
    assert (seeds["consumed"], seeds["in_flight"], seeds["dead_lettered"]) == (6, 1, 1)
    assert (seeds["completed_with_result"], seeds["completed_with_failure"]) == (2, 2)
    pages = taken["downloads"]["page"]
    assert (pages["attempts"], pages["answers"]) == (6, 6)
    assert pages["statuses"] == {"200": 4, "404": 1, "302": 1}
    assert pages["response_bytes"] > 0
    assert {name: count for name, count in taken["reasons"].items() if count} == {
        "http_status": 1,
        "callback": 1,
    }
    assert tuple(taken["reasons"]) == REASONS
    assert taken["failures"] == {"HTTP 404": 1, "ZeroDivisionError in the spider": 1}
    assert {failed["url"] for failed in taken["newest_failures"]} == {
        "http://h.test/missing",
        "http://h.test/raises",
    }
    assert all(
        failed["seed"].startswith("seeds/") and "@" in failed["seed"] for failed in taken["newest_failures"]
    )


def test_a_snapshot_counts_tasks_and_times(taken: Snapshot) -> None:
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
    assert (
        0 < latency["seed_seconds"]["p50"] <= latency["seed_seconds"]["p99"] <= latency["seed_seconds"]["max"]
    )
    assert latency["loop_lag_seconds"]["count"] > 0
    [(partition, oldest)] = [
        (name, seconds) for name, seconds in taken["oldest_in_flight_seconds"].items() if seconds
    ]
    assert oldest >= 0.3
    assert taken["seeds_in_flight"][partition] == 1


def test_a_snapshot_names_its_process(taken: Snapshot) -> None:
    assert (taken["spider"], taken["group"], taken["topic"]) == ("snapping", "site_spider", "seeds")
    assert taken["process"].startswith(f"{taken['host_name']}-{taken['pid']}-")
    assert taken["version"] != "unknown"
    assert taken["memory"]["rss_bytes"] > 1_000_000
    [sink] = taken["sinks"]
    assert sink["available"]
    assert sink["last_accept_at"] is not None
    assert taken["pause"] == {"cause": "", "said": ""}
