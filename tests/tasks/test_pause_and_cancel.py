"""Tasks in a crawl on the embedded log: paused, resumed, cancelled, expired, over their budget."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider import settings as project
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.commands import progress
from site_spider.contracts.seed_log import Message, Partition
from site_spider.engine.background import Background
from site_spider.engine.scrapy_parts import part_of
from site_spider.errors import LogUnavailable
from site_spider.frontier import spill
from site_spider.frontier.scheduler import Queues
from site_spider.ledger.ledger import Outcome
from site_spider.page.url import host_of
from site_spider.results.commits import OffsetCommits
from site_spider.seed.topics import CrawlTopics
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from site_spider.tasks import end_events, returning
from site_spider.tasks.admission import Overtaking, TaskAdmission
from site_spider.tasks.board import SEPARATOR, Board
from site_spider.tasks.budgets import TaskStates
from site_spider.tasks.control_log import read_endings
from site_spider.tasks.declaration import Task, Usage, declared
from site_spider.tasks.orders import TaskDesk, TaskOrders
from site_spider.tasks.parking import Leaving, Parking
from site_spider.tasks.tracker import Group
from site_spider.tasks.webhooks import Webhooks
from tests.frontier.test_spill import OwnSpider
from tests.in_process import engine
from tests.in_process.engine import crawl, page

TOPICS = CrawlTopics.beside({"SITE_SEED_TOPIC": "seeds"})


def desk(folder: Path) -> TaskDesk:
    return TaskDesk(LocalSeedLog(folder), TOPICS)


def declare(folder: Path, task_id: str = "t", state: str = "running", **fields: Any) -> None:
    desk(folder).write(declared(task_id, fields, datetime.now(UTC)).model_copy(update={"state": state}))


def seeds(count: int, task_id: str | None = "t", path: str = "page") -> list[dict[str, Any]]:
    meta = {"NotExtract": True} | ({} if task_id is None else {"task_id": task_id})
    return [{"url": f"http://host.test/{path}/{task_id}/{number}", "meta": meta} for number in range(count)]


def test_links_that_no_topic_takes_wait_and_go_beyond_no_budget(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine.ANSWERS, "http://host.test/", linked(20))
    monkeypatch.setattr(spill, "TRY_AGAIN_SECONDS", 0.2)
    declare(tmp_path, max_pages=7)
    send, refused = Parking.send, Future[Any]()
    refused.set_exception(LogUnavailable("Kafka did not take the message"))
    answers = [refused] * 20
    monkeypatch.setattr(Parking, "send", lambda *arguments: answers.pop() if answers else send(*arguments))
    found = crawl(tmp_path, SITE)
    assert (found.lag, len(fetched), len(answers)) == (0, 7, 0)
    assert TaskOrders(desk(tmp_path), "t").change(["max_pages=900"]).returned == 14


def test_links_that_their_seed_topic_does_not_take_stay_within_the_budget(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are crawled here as far as it goes, and then parked."""
    monkeypatch.setitem(engine.ANSWERS, "http://host.test/", linked(20))
    declare(tmp_path, max_pages=7)
    refused = Future[Any]()
    refused.set_exception(LogUnavailable("Kafka did not take the message"))
    monkeypatch.setattr(OffsetCommits, "spill", lambda *_arguments: refused)
    found = crawl(tmp_path, SITE, SITE_LINKS_TO="kafka")
    assert (found.lag, len(fetched)) == (0, 7)
    assert TaskOrders(desk(tmp_path), "t").change(["max_pages=900"]).returned == 14


def test_what_is_parked_of_a_task_that_is_deleted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a tombstone, before its process has read back that it is parked."""
    declare(tmp_path, state="paused")
    monkeypatch.setattr(TaskStates, "tell_soon", lambda self: self._send(b"t", None))
    monkeypatch.setattr(TaskStates, "_tell", lambda _self: None)
    assert crawl(tmp_path, seeds(3)).seeds["completed_with_result"] == 3


def test_a_seed_that_is_not_parked_because_the_crawl_ends_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    leaving = Leaving(*[Mock(is_closed=True)] * 8, control=None, writes_cancelled=False)
    leaving._parked(Mock(exception=lambda: LogUnavailable("The producer is closed.")), Mock(live=True))
    assert not caplog.records


@pytest.mark.parametrize("has_links", [False, True])
def test_a_budget_of_pages_is_kept_exactly_and_goes_on_when_it_is_raised(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    """Most links wait for a claim; what is over the budget is parked, and comes back."""
    monkeypatch.setitem(engine.ANSWERS, "http://host.test/", linked(100))
    declare(tmp_path, max_pages=37)
    found = crawl(tmp_path, SITE if has_links else seeds(101))
    assert (found.lag, len(found.documents), len(fetched)) == (0, 37, 37)
    assert desk(tmp_path).board.phase("t").reason == "page_budget"
    assert TaskOrders(desk(tmp_path), "t").change(["weight=2"]).returned == 0
    assert TaskOrders(desk(tmp_path), "t").change(["max_pages=900"]).returned == 64
    assert len(crawl(tmp_path, []).documents) == 101
    assert set(fetched.values()) == {1}


class Rendered:
    """A downloader middleware that has each page fetched by a service."""

    def process_request(self, request: Request) -> Request | None:
        service = "http://render.test/?url="
        return None if request.url.startswith(service) else request.replace(url=service + request.url)


class CopiesMeta(SeedSpider):
    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        for number in range(9 if response.meta["depth"] == 0 else 0):
            yield Request(f"http://host.test/{number}", meta=response.meta)


class AsksAgain(SeedSpider):
    asked = False

    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        if not self.asked:
            self.asked = True
            assert response.request is not None
            yield response.request.replace(dont_filter=True)


def test_a_page_that_its_callback_asks_for_again_spends_the_budget_once(tmp_path: Path, fetched: Counter[str]) -> None:
    declare(tmp_path, max_pages=900)
    crawl(tmp_path, SITE, AsksAgain)
    assert (fetched.total(), desk(tmp_path).board.used("t").begun) == (2, 1)


@pytest.mark.parametrize(("spider", "budget"), [(SeedSpider, 4), (CopiesMeta, 900)])
@pytest.mark.parametrize("where", ["memory", "kafka"])
def test_a_page_that_a_middleware_has_fetched_in_another_way_spends_the_budget_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spider: type[SeedSpider], budget: int, where: str
) -> None:
    """What was under way is parked as such: it spends no more when it comes back, and its document is the page's."""
    monkeypatch.setitem(engine.ANSWERS, "/", linked(9, "http://host.test/"))
    parts = {"DOWNLOADER_MIDDLEWARES": {**project.DOWNLOADER_MIDDLEWARES, Rendered: 500}}
    parts |= {"SITE_LINKS_TO": where, "SITE_LINK_SCOPE": "any", "DEPTH_LIMIT": 1}
    declare(tmp_path, max_pages=budget)
    found = crawl(tmp_path, SITE, spider, **parts).documents.values()
    assert desk(tmp_path).board.used("t").begun == min(10, budget)
    if TaskOrders(desk(tmp_path), "t").change(["max_pages=1000"]).returned:
        found = crawl(tmp_path, [], spider, **parts).documents.values()
    assert (len(found), desk(tmp_path).board.used("t").begun) == (10, 10)
    assert {host_of(document["url"]) for document in found} == {"host.test"}


def test_a_budget_of_bytes_pauses(tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last pages are answered when the pause is known: on a busy machine all may be fetched before."""
    declare(tmp_path, max_bytes=100)
    is_paused = asyncio.Event()

    async def last(request: Request) -> Response:
        await is_paused.wait()
        return page(request)

    wanted = seeds(120)
    for seed in wanted[50:]:
        monkeypatch.setitem(engine.ANSWERS, seed["url"], last)

    def is_done(crawler: Crawler) -> bool:
        state = part_of(crawler, TaskStates).of("t")
        if state is not None and state.phase.name == "paused":
            is_paused.set()
        ledger = SeedService.of(crawler).parts.completion.ledger
        return ledger.consumed == 120 and not ledger.in_flight

    found = crawl(tmp_path, wanted, until=is_done, CONCURRENT_REQUESTS_PER_DOMAIN=1)
    assert found.lag == 0
    assert 100 / len("<p>page") <= len(fetched) < 120
    assert desk(tmp_path).board.phase("t").reason == "byte_budget"


def linked(count: int, path: str = "/link") -> Callable[[Request], Response]:
    body = "".join(f'<a href="{path}/{number}">' for number in range(count))
    return lambda request: page(request, body)


@pytest.mark.parametrize("where", ["memory", "kafka"])
def test_a_robots_txt_that_names_sitemaps_spends_no_budget(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Also where another process asks for it."""
    declare(tmp_path, max_pages=5, max_pages_host=5)
    monkeypatch.setitem(engine.ANSWERS, "http://h.test/", linked(9))
    seed = {"url": "http://h.test/", "meta": {"task_id": "t"}}
    crawl(tmp_path, [seed], SITE_SITEMAPS="robots", SITE_LINKS_TO=where)
    assert fetched.pop("http://h.test/robots.txt") == 1
    assert (fetched.total(), desk(tmp_path).board.used("t").begun) == (5, 5)


def test_budgets_of_hosts_rules_and_depth_hold_for_links(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`allow` is for links alone: a seed was asked for. Each task has a host of its own."""
    declare(tmp_path, "hosts", max_pages_host=11)
    declare(tmp_path, "rules", allow=["/good/"], deny=["secret"], scope="any", depth=1)
    declare(tmp_path, "deep", depth=5)
    body = '<a href="/good/1"><a href="/good/secret"><a href="/other"><a href="http://b.test/good/2">'
    answers = {"http://hosts.test/": linked(100), "http://rules.test/": lambda request: page(request, body)}
    chain = {f"http://deep.test/{n}/0": linked(1, f"/{n + 1}") for n in range(9)}
    for url, answer in {**answers, **chain}.items():
        monkeypatch.setitem(engine.ANSWERS, url, answer)
    wanted = {"hosts": ["hosts.test/"], "deep": ["deep.test/0/0"]}
    wanted["rules"] = ["rules.test/", "rules.test/secret"]
    seeds = [(task_id, url) for task_id, urls in wanted.items() for url in urls]
    found = crawl(
        tmp_path, [{"url": f"http://{url}", "meta": {"task_id": task_id}} for task_id, url in seeds], DEPTH_LIMIT=2
    )
    by_host = Counter(urlsplit(url).hostname for url in fetched)
    assert by_host == {"hosts.test": 11, "rules.test": 2, "b.test": 1, "deep.test": 6}
    assert {"http://rules.test/good/1", "http://b.test/good/2"} < set(fetched)
    assert found.seeds["filtered"] == 1
    assert desk(tmp_path).board.used("hosts").links_filtered == 90


def test_progress_of_a_task_is_counted_in_the_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.commands.project import Project

    project = Project(tmp_path)
    declare(tmp_path, state="paused")
    crawl(tmp_path, [*seeds(4), *seeds(3, None)])
    engine.produce(LocalSeedLog(tmp_path), "seeds", seeds(2))
    ran = project.direct("progress", "--task-id", "t", "--format", "json")
    found = json.loads(ran.stdout)
    assert (found["waiting"], found["parked"], found["state"]) == (2, 4, "paused")
    unknown = project.scrapy("progress", "--task-id", "x")
    assert (unknown.returncode, "'x' is not known" in unknown.stderr, unknown.stdout) == (1, True, "")
    engine.produce(LocalSeedLog(tmp_path), "seeds", seeds(1, "x"))  # by a producer that says nothing of it
    assert json.loads(project.direct("progress", "--task-id", "x", "--format", "json").stdout)["waiting"] == 1
    away = LogUnavailable("no answer")
    taken_back = Mock(side_effect=[found, away, away, found | {"waiting": 0, "parked": 0}])
    monkeypatch.setattr(progress, "task_report", taken_back)
    monkeypatch.setattr(progress, "_TASK_SECONDS", 0.0)
    waited = project.scrapy("progress", "--task-id", "t", "--until-done")
    assert (waited.returncode, waited.stderr.count("no answer")) == (0, 1), waited.stderr
    dry = project.direct("task", "set", "t", "deny=t/[01]$", "--dry-run", "--json")
    assert json.loads(dry.stdout)["would_filter"] == 4


SITE, OTHER = ([{"url": "http://host.test/", "meta": {"task_id": task_id}}] for task_id in "tu")


@pytest.mark.parametrize("change", [{"state": "paused"}, {"state": "cancelled"}, {"deny": ["/link/"]}], ids=str)
def test_what_waits_goes_by_the_new_state_or_rule_of_its_task(
    tmp_path: Path, fetched: Counter[str], monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """Its seed is complete, with its own result; links that were parked come back, and others are not done."""
    asked, is_heard = 0, asyncio.Event()

    async def answer(request: Request) -> Response:
        """The tenth link declares the task anew, and ends when the process has heard of it."""
        nonlocal asked
        asked += 1
        if asked == 10:
            await asyncio.to_thread(declare, tmp_path, **change)
            await is_heard.wait()
        return page(request)

    def is_done(crawler: Crawler) -> bool:
        state = part_of(crawler, TaskStates).of("t")
        if state is not None and (state.phase.name != "running" or state.task.deny):
            is_heard.set()
        ledger = SeedService.of(crawler).parts.completion.ledger
        return ledger.consumed == 1 and not ledger.in_flight

    monkeypatch.setitem(engine.ANSWERS, "http://host.test/", linked(40))
    for number in range(40):
        monkeypatch.setitem(engine.ANSWERS, f"http://host.test/link/{number}", answer)
    declare(tmp_path)
    shared = {"SITE_DUPEFILTER": "local", "SITE_DUPEFILTER_SCOPE": "group"}
    found = crawl(tmp_path, SITE, until=is_done, CONCURRENT_REQUESTS_PER_DOMAIN=1, **shared)
    assert (found.lag, found.seeds["completed_with_result"], found.seeds["cancelled"]) == (0, 1, 0)
    assert len(found.documents) == len(fetched) == 11
    left, used = 41 - len(fetched), desk(tmp_path).board.used("t")
    ended = (left, 0) if "deny" in change else (0, left) if change["state"] == "cancelled" else (0, 0)
    assert (used.links_filtered, used.links_cancelled, used.pages) == (*ended, len(fetched))
    if change == {"state": "paused"}:
        declare(tmp_path)
        assert desk(tmp_path).put_back("t") == left
    documents = crawl(tmp_path, [] if change == {"state": "paused"} else OTHER, **shared).documents.values()
    assert (len(documents), {document["depth"] for document in documents}) == (41, {0, 1})
    assert fetched == dict.fromkeys(fetched, 1) | ({} if change == {"state": "paused"} else {"http://host.test/": 2})


@pytest.mark.parametrize("change", [{"allow": ["none"]}, {"state": "cancelled"}], ids=str)
def test_links_that_were_parked_are_counted_as_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    from tests.commands.project import Project

    monkeypatch.setitem(engine.ANSWERS, "/", linked(9))
    declare(tmp_path, max_pages=1)
    crawl(tmp_path, SITE)
    dry = Project(tmp_path).direct("task", "set", "t", "allow=none", "--dry-run", "--json")
    assert json.loads(dry.stdout)["would_filter"] == 9
    declare(tmp_path, **change)
    assert desk(tmp_path).put_back("t") == 9
    crawl(tmp_path, [])
    used = desk(tmp_path).board.used("t")
    assert (used.links_filtered, used.links_cancelled) == ((9, 0) if "allow" in change else (0, 9))


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


def test_a_retry_that_cannot_be_parked_waits_for_its_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no seed can say goes on here, and asks its host no sooner than without the pause."""
    asked: list[float] = []

    async def failing(request: Request) -> Response:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) == 1:
            await asyncio.to_thread(declare, tmp_path, state="paused")
        return page(request, status=500 if len(asked) == 1 else 200)

    declare(tmp_path)
    monkeypatch.setitem(engine.ANSWERS, "/", linked(1, "/failing"))
    monkeypatch.setitem(engine.ANSWERS, "/failing/0", failing)
    crawl(tmp_path, SITE, OwnSpider, SITE_RETRY_PAUSE_SECONDS=30)
    first, second = asked
    assert second - first >= 30


def test_what_nobody_puts_back_a_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command was killed behind its record, or the task expired while it was paused. Before it ends as idle."""
    monkeypatch.setattr(returning, "_QUIET_SECONDS", 2.0)
    declare(tmp_path, state="paused")
    assert crawl(tmp_path, seeds(10)).seeds["spilled"] == 10
    declare(tmp_path, expires_at=datetime.now(UTC).isoformat(), state="paused")
    found = crawl(tmp_path, [], until=lambda _: False, SITE_IDLE_CLOSE_SECONDS=1)
    assert (found.seeds["cancelled"], found.stats["finish_reason"]) == (10, "idle")
    assert not desk(tmp_path).board.has_parked("t")


def test_tasks_that_cannot_be_closed_are_tried_again_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    close = Mock(side_effect=[LogUnavailable("no answer"), LogUnavailable("no answer"), None])
    monkeypatch.setattr(end_events, "close_for_all", close)
    monkeypatch.setattr(end_events.TaskCloser, "every_seconds", 0.05)
    declare(tmp_path, state="cancelled")
    crawl(tmp_path, seeds(5), until=lambda _crawler: close.call_count == 3)
    assert len([line for line in caplog.messages if "cannot be closed" in line]) == 1


def test_a_control_log_that_nobody_makes_is_waited_for_by_one_thread() -> None:
    board, made = Board(), Mock()
    board.take(Message(Partition("seeds.tasks", 0), 0, b"t", Task(task_id="t").value()))
    group = Group(
        Mock(**{"partitions.return_value": 1}), Mock(), TOPICS, board, Mock(), lambda: False, Mock(start=made)
    )
    closer = end_events.TaskCloser(group)
    closer.look()
    closer.look()
    assert made.call_count == 1
    asyncio.run(made.call_args[0][0])  # it is made, and that is all
    closer.look()
    assert made.call_count == 1


@pytest.mark.parametrize("kind", [end_events.TaskCloser, partial(Webhooks, secret=b"", may_reach=Mock())])
def test_who_never_has_the_first_partition_keeps_nothing_of_tasks_that_are_gone(kind: Callable[[Group], Any]) -> None:
    """Each process hears of all tasks, of which a year has 100,000; and whoever may write to the topic names others."""
    board = Board()
    idle = kind(Group(Mock(), Mock(), TOPICS, board, Mock(), lambda: False, Mock()))
    for number in range(9):
        task_id = f"t{number}"
        for key, value in (
            (task_id, Task(task_id=task_id).value()),
            (f"{task_id}{SEPARATOR}p", Usage(claimed=1).value()),
            (f"never declared {number}{SEPARATOR}p", Usage(claimed=1).value()),
            (f"t{number - 3}", None),
        ):
            idle.heard([board.take(Message(Partition("seeds.tasks", 0), 0, key.encode(), value))])
    assert idle._heard_of == {"t6", "t7", "t8"}


class SendingLog(LocalSeedLog):
    """What is sent goes through a function, which gets `send` of the producer, and the message."""

    def __init__(self, folder: Path, sends: Callable[..., Any]) -> None:
        super().__init__(folder)
        self._sends = sends

    def producer(self, purpose: str = "") -> Any:
        producer = super().producer(purpose)
        producer.send = partial(self._sends, producer.send)  # type: ignore[method-assign]
        return producer


def test_a_task_that_was_not_declared_has_no_state(tmp_path: Path) -> None:
    """And costs nothing: nothing of it is kept, nothing is told."""

    def looks(crawler: Crawler) -> bool:
        ledger = SeedService.of(crawler).parts.completion.ledger
        return sum(ledger.outcomes.values()) == 5 and not part_of(crawler, TaskStates)

    crawl(tmp_path, seeds(5), until=looks)
    assert LocalSeedLog(tmp_path).partitions("seeds.tasks") == 0


def test_tasks_that_have_ended_are_forgotten_where_there_are_very_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones first, in all topics; those that have not ended stay."""
    monkeypatch.setattr(end_events, "_MOST_KEPT", 3)
    monkeypatch.setattr(end_events, "_MOST_FORGOTTEN", 0)
    monkeypatch.setattr(end_events.TaskCloser, "every_seconds", 0.05)
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


@pytest.mark.parametrize("live", [True, False])
async def test_a_seed_that_cannot_be_moved_waits_again_unless_its_partition_has_left(live: bool) -> None:
    sent, told, group = Future[None](), Mock(), [Mock() for _ in range(7)]
    overtaking = Overtaking(
        Group(*group)._replace(background=Background(Mock())), "g", told, told.queues, Mock(), Mock()
    )
    waiting = Mock(live=live)
    sent.set_exception(LogUnavailable("away"))
    overtaking._sent(sent, waiting)
    assert [name for name, *_ in told.mock_calls] == (["queues.room.put"] if live else [])
    moved = Future[None]()
    moved.set_result(None)
    overtaking._sent(moved, waiting)
    told.end_as.assert_called_once_with(waiting, Outcome.SPILLED)


async def test_the_event_loop_goes_on_while_what_waits_is_looked_at_though_nothing_of_it_leaves() -> None:
    def slices(_unwanted: object) -> Iterator[list[object]]:
        for _ in range(10):
            time.sleep(0.03)  # others wait by the hundred thousand
            yield []

    ended = asyncio.Event()
    seeds, room = Mock(remove=Mock(return_value=[])), Mock(remove=slices, take_kept_back=list, wake=ended.set)
    TaskAdmission(Mock(by_id={}), Queues(seeds, room, *[Mock()] * 5), Mock(), Background(Mock())).changed({"t"})
    turns = 0
    while not ended.is_set():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10
