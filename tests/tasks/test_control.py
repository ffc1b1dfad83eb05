"""Tasks in a crawl on the embedded log: paused, resumed, cancelled, expired, over their budget."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.engine.scrapy_parts import part_of
from site_spider.errors import LogUnavailable
from site_spider.ledger.ledger import Outcome
from site_spider.observe.snapshot import is_conserved
from site_spider.seed.tiers import CrawlTopics
from site_spider.service.service import SeedService
from site_spider.tasks import ends, moving
from site_spider.tasks.control_log import read_endings
from site_spider.tasks.desk import TaskDesk
from site_spider.tasks.record import declared, in_state
from site_spider.tasks.states import TaskStates
from tests.in_process import engine
from tests.in_process.engine import crawl, page

TOPICS = CrawlTopics.beside({"SITE_SEED_TOPIC": "seeds"})


def desk(folder: Path) -> TaskDesk:
    return TaskDesk(LocalSeedLog(folder), TOPICS)


def declare(folder: Path, task_id: str = "t", state: str = "running", **fields: Any) -> None:
    desk(folder).write(in_state(declared(task_id, fields, datetime.now(UTC)), state))


def seeds(count: int, task_id: str | None = "t", path: str = "page") -> list[dict[str, Any]]:
    meta = {"NotExtract": True} | ({} if task_id is None else {"task_id": task_id})
    return [{"url": f"http://host.test/{path}/{task_id}/{number}", "meta": meta} for number in range(count)]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each URL was asked for."""
    asked: Counter[str] = Counter()

    async def answer(handler: Any, request: Request) -> Response:
        asked[request.url] += 1
        found = engine.ANSWERS.get(request.url, page)(request)
        return found if isinstance(found, Response) else await found

    monkeypatch.setattr(engine.ScriptedHandler, "download_request", answer)
    return asked


def parked(folder: Path) -> int:
    log = LocalSeedLog(folder)
    return sum(1 for _ in log.read("seeds.parked")) if log.partitions("seeds.parked") else 0


def test_nothing_of_a_paused_task_begins_and_others_go_on(tmp_path: Path, fetched: Counter[str]) -> None:
    """Its seeds are parked, so that they hold no offset."""
    declare(tmp_path, state="paused")
    found = crawl(tmp_path, [*seeds(30), *seeds(20, None)])
    assert found.lag == 0
    assert not [url for url in fetched if "/t/" in url]
    assert (found.seeds["spilled"], found.seeds["completed_with_result"]) == (30, 20)
    assert is_conserved(found.seeds)
    assert parked(tmp_path) == 30


def test_resumed_seeds_come_back_once_and_in_order(tmp_path: Path, fetched: Counter[str]) -> None:
    declare(tmp_path, state="paused")
    crawl(tmp_path, seeds(50))
    declare(tmp_path)
    assert desk(tmp_path).put_back("t") == 50
    assert desk(tmp_path).put_back("t") == 0
    found = crawl(tmp_path, [], CONCURRENT_REQUESTS_PER_DOMAIN=1)
    assert len(found.documents) == 50
    assert set(fetched.values()) == {1}
    assert list(fetched) == [seed["url"] for seed in seeds(50)]


def test_seeds_of_a_cancelled_task_are_counted_and_not_written(tmp_path: Path, fetched: Counter[str]) -> None:
    declare(tmp_path, state="cancelled")
    found = crawl(tmp_path, [*seeds(30), *seeds(3, "other")])
    assert (found.seeds["cancelled"], found.seeds["completed"]) == (30, 33)
    assert is_conserved(found.seeds)
    assert len(found.documents) == len(fetched) == 3
    assert desk(tmp_path).board.used("t").seeds == {"cancelled": 30}


def test_cancelled_seeds_have_documents_where_that_is_wanted(tmp_path: Path) -> None:
    declare(tmp_path, state="cancelled")
    found = crawl(tmp_path, seeds(5), SITE_CANCELLED_RESULTS=True)
    assert found.seeds["cancelled"] == 5
    assert {doc["description"] for doc in found.documents.values()} == {"CancelledError: task t is cancelled"}
    assert all(doc["fetched_at"] and doc["spider"] == "crawl_spider" for doc in found.documents.values())


def test_an_expired_task_is_cancelled(tmp_path: Path, fetched: Counter[str]) -> None:
    declare(tmp_path, expires_at=(datetime.now(UTC) - timedelta(seconds=1)).isoformat())
    found = crawl(tmp_path, seeds(5))
    assert (found.seeds["cancelled"], not fetched) == (5, True)


def test_a_budget_of_pages_is_kept_exactly_and_goes_on_when_it_is_raised(
    tmp_path: Path, fetched: Counter[str]
) -> None:
    declare(tmp_path, max_pages=20)
    found = crawl(tmp_path, seeds(50))
    assert len(fetched) == len(found.documents) == 20
    assert (found.seeds["spilled"], found.lag) == (30, 0)
    board = desk(tmp_path).board
    assert board.phase("t").reason == "page_budget"
    declare(tmp_path, max_pages=60)
    assert desk(tmp_path).put_back("t") == 30
    assert len(crawl(tmp_path, []).documents) == 50
    assert set(fetched.values()) == {1}


def test_a_budget_of_bytes_pauses(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last pages are answered when the pause is known: on a busy machine all may be fetched before."""
    declare(tmp_path, max_bytes=100)
    is_paused = asyncio.Event()

    async def last(request: Request) -> Response:
        await is_paused.wait()
        return page(request)

    wanted = seeds(300)
    for seed in wanted[50:]:
        monkeypatch.setitem(engine.ANSWERS, seed["url"], last)

    def is_done(crawler: Crawler) -> bool:
        states, service = part_of(crawler, TaskStates), SeedService.of(crawler)
        assert states is not None
        assert service is not None
        state = states.of("t")
        if state is not None and state.phase.name == "paused":
            is_paused.set()
        ledger = service.parts.completion.ledger
        return ledger.consumed == 300 and not ledger.in_flight

    found = crawl(tmp_path, wanted, until=is_done, CONCURRENT_REQUESTS_PER_DOMAIN=1)
    assert found.lag == 0
    assert 100 / len("<p>page") <= len(fetched) < 300
    assert desk(tmp_path).board.phase("t").reason == "byte_budget"


def linked(count: int, path: str = "/link") -> Callable[[Request], Response]:
    body = "".join(f'<a href="{path}/{number}">' for number in range(count))
    return lambda request: page(request, body)


def test_links_of_a_host_whose_budget_is_spent_are_filtered(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine.ANSWERS, "http://host.test/", linked(100))
    declare(tmp_path, max_pages_host=11)
    found = crawl(tmp_path, [{"url": "http://host.test/", "meta": {"task_id": "t"}}])
    assert len(found.documents) == sum(fetched.values()) == 11
    assert found.stats["tasks/links_filtered"] == 90
    assert desk(tmp_path).board.used("t").links_filtered == 90


def test_rules_hold_for_links_and_seeds(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`allow` is for links alone: a seed was asked for."""
    body = '<a href="/good/1"><a href="/good/secret"><a href="/other"><a href="http://b.test/good/2">'
    monkeypatch.setitem(engine.ANSWERS, "http://host.test/", lambda request: page(request, body))
    declare(tmp_path, allow=["/good/"], deny=["secret"], scope="any", depth=1)
    found = crawl(
        tmp_path,
        [{"url": f"http://host.test/{path}", "meta": {"task_id": "t"}} for path in ("", "secret/seed")],
    )
    assert sorted(fetched) == ["http://b.test/good/2", "http://host.test/", "http://host.test/good/1"]
    assert found.seeds["filtered"] == 1


def test_depth_of_a_task_goes_beyond_that_of_the_crawl(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for depth in range(9):
        answer = linked(1, f"/{depth}")
        url = "http://host.test/" if not depth else f"http://host.test/{depth - 1}/0"
        monkeypatch.setitem(engine.ANSWERS, url, answer)
    declare(tmp_path, depth=5)
    crawl(tmp_path, [{"url": "http://host.test/", "meta": {"task_id": "t"}}], DEPTH_LIMIT=2)
    assert len(fetched) == 6


def test_progress_of_a_task_is_counted_in_the_topics(tmp_path: Path) -> None:
    from tests.commands.project import Project

    project = Project(tmp_path)
    declare(tmp_path, state="paused")
    crawl(tmp_path, [*seeds(4), *seeds(3, None)])
    engine.produce(LocalSeedLog(tmp_path), "seeds", seeds(2))
    ran = project.direct("progress", "--task-id", "t", "--format", "json")
    found = json.loads(ran.stdout)
    assert (found["waiting"], found["parked"], found["state"]) == (2, 4, "paused")
    assert json.loads(project.direct("progress", "--task-id", "x", "--format", "json").stdout)["waiting"] == 0
    dry = project.direct("task", "set", "t", "deny=t/[01]$", "--dry-run", "--json")
    assert json.loads(dry.stdout)["would_filter"] == 4


def changing(folder: Path, at: int, **change: Any) -> Callable[[Request], Any]:
    """Pages that are slow, of which one declares the task anew on its way."""
    asked = 0

    async def answer(request: Request) -> Response:
        nonlocal asked
        asked += 1
        if asked == at:
            await asyncio.to_thread(declare, folder, **change)
        await asyncio.sleep(0.05)
        return page(request)

    return answer


def site_of_links(monkeypatch: pytest.MonkeyPatch, folder: Path, at: int, **change: Any) -> None:
    monkeypatch.setitem(engine.ANSWERS, "http://host.test/", linked(100))
    slow = changing(folder, at, **change)
    for number in range(100):
        monkeypatch.setitem(engine.ANSWERS, f"http://host.test/link/{number}", slow)


SITE = [{"url": "http://host.test/", "meta": {"task_id": "t"}}]


def test_links_that_wait_are_parked_and_come_back(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their seed is complete meanwhile, with its own result."""
    declare(tmp_path)
    site_of_links(monkeypatch, tmp_path, 10, state="paused")
    found = crawl(tmp_path, SITE, CONCURRENT_REQUESTS_PER_DOMAIN=1)
    assert (found.lag, found.seeds["completed_with_result"]) == (0, 1)
    assert 10 <= len(fetched) - 1 < 80
    declare(tmp_path)
    assert desk(tmp_path).put_back("t") == 101 - len(fetched)
    found = crawl(tmp_path, [])
    assert len(found.documents) == 101
    assert set(fetched.values()) == {1}
    assert {document["depth"] for document in found.documents.values()} == {0, 1}


def test_links_that_wait_end_with_their_task(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path)
    site_of_links(monkeypatch, tmp_path, 10, state="cancelled")
    found = crawl(tmp_path, SITE, CONCURRENT_REQUESTS_PER_DOMAIN=1)
    assert (found.lag, found.seeds["completed_with_result"], found.seeds["cancelled"]) == (0, 1, 0)
    assert len(found.documents) == len(fetched) < 80
    used = desk(tmp_path).board.used("t")
    assert (used.links_cancelled, used.pages) == (101 - len(fetched), len(fetched))


def test_a_rule_that_changes_holds_for_what_waits(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path)
    site_of_links(monkeypatch, tmp_path, 10, deny=["/link/"])
    found = crawl(tmp_path, SITE, CONCURRENT_REQUESTS_PER_DOMAIN=1)
    assert len(found.documents) == len(fetched) < 80
    assert desk(tmp_path).board.used("t").links_filtered == 101 - len(fetched)


def test_a_retry_that_waits_is_parked_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its counts: the page is tried as often as without a pause."""
    attempts = 0

    async def failing(request: Request) -> Response:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await asyncio.to_thread(declare, tmp_path, state="paused")
        return page(request, status=503)

    declare(tmp_path)
    monkeypatch.setitem(engine.ANSWERS, "/failing", failing)
    seed = {"url": "http://host.test/failing", "meta": {"task_id": "t"}}
    found = crawl(tmp_path, [seed], SITE_RETRY_PAUSE_SECONDS=3)
    assert (attempts, found.seeds["spilled"]) == (1, 1)
    declare(tmp_path)
    assert desk(tmp_path).put_back("t") == 1
    (document,) = crawl(tmp_path, []).documents.values()
    assert (attempts, document["retries"]) == (2, 1)


def test_what_nobody_puts_back_a_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command was killed behind its record, or the task expired while it was paused."""
    monkeypatch.setattr(ends, "_QUIET_SECONDS", 0.1)
    declare(tmp_path, state="paused")
    crawl(tmp_path, seeds(10))
    declare(tmp_path, expires_at=datetime.now(UTC).isoformat(), state="paused")

    def is_over(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        assert service is not None
        return service.parts.completion.ledger.outcomes[Outcome.CANCELLED] == 10

    found = crawl(tmp_path, [], until=is_over)
    assert found.seeds["cancelled"] == 10
    assert not desk(tmp_path).board.has_parked("t")


class _BrokenLog(LocalSeedLog):
    """Takes so many messages, and then no more."""

    def __init__(self, folder: Path, most: int) -> None:
        super().__init__(folder)
        self._most = most

    def producer(self) -> Any:
        producer, send = super().producer(), super().producer().send

        def limited(*arguments: Any) -> Future[None]:
            self._most -= 1
            if self._most < 0:
                raise LogUnavailable("the command was killed")
            return send(*arguments)

        producer.send = limited
        return producer


@pytest.mark.parametrize("most", [0, 1, 7, 12])
def test_what_is_cut_short_is_done_to_its_end_the_next_time(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "_STILL_SECONDS", 0.5)  # then who was killed is not waited for
    declare(tmp_path, state="paused")
    crawl(tmp_path, seeds(12))
    declare(tmp_path)
    with pytest.raises(LogUnavailable):
        TaskDesk(_BrokenLog(tmp_path, most), TOPICS).put_back("t")
    assert desk(tmp_path).put_back("t") == 12
    assert len(crawl(tmp_path, []).documents) == 12


def test_a_task_that_was_not_declared_has_no_state(tmp_path: Path) -> None:
    """And costs nothing: nothing of it is kept, nothing is told."""

    def looks(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        assert service is not None
        parts = service.parts
        return sum(parts.completion.ledger.outcomes.values()) == 5 and not part_of(crawler, TaskStates)

    crawl(tmp_path, seeds(5), until=looks)
    assert LocalSeedLog(tmp_path).partitions("seeds.tasks") == 0


def test_a_budget_of_pages_holds_for_links(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of them wait for a claim; those over the budget are parked, and come back when it is raised."""
    monkeypatch.setitem(engine.ANSWERS, "http://host.test/", linked(400))
    declare(tmp_path, max_pages=37)
    found = crawl(tmp_path, SITE)
    assert (found.lag, len(found.documents), sum(fetched.values())) == (0, 37, 37)
    declare(tmp_path)
    assert desk(tmp_path).put_back("t") == 364
    assert len(crawl(tmp_path, []).documents) == 401
    assert set(fetched.values()) == {1}


def test_tasks_that_have_ended_are_forgotten_where_there_are_very_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones first, in all topics; those that have not ended stay."""
    monkeypatch.setattr(ends, "_MOST_KEPT", 3)
    monkeypatch.setattr(ends, "_MOST_FORGOTTEN", 0)
    monkeypatch.setattr(ends.OverTasks, "every_seconds", 0.05)
    declare(tmp_path, "open")
    for number in range(6):
        declare(tmp_path, f"t{number}", state="cancelled")
    log = LocalSeedLog(tmp_path)

    def are_few(_crawler: Crawler) -> bool:
        named = list(read_endings(log, TOPICS))
        return bool(named) and len(desk(tmp_path).board) <= 3 and len(named) <= 3

    crawl(tmp_path, seeds(1, "t0"), until=are_few)
    left = {task.task_id for task in desk(tmp_path).board}
    assert "open" in left
    assert len(left) == 3
