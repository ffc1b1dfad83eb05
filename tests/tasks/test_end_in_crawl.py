"""The end of tasks in a crawl on the embedded log."""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, nullcontext
from itertools import islice, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider import meta_keys
from site_spider.adapters.local.log import LocalProducer, LocalSeedLog
from site_spider.contracts.seed_log import ForeignPosition, Message, Partition
from site_spider.dead_letter_replay import Replay
from site_spider.engine.background import Background
from site_spider.errors import ConfigError, LogUnavailable, SeedError, SinkRejected, TopicMissing
from site_spider.frontier.waiter import source_name
from site_spider.ledger.completion import Job
from site_spider.observe.snapshot import is_conserved
from site_spider.seed.seed import MOVED, moved_headers, parse_seed
from site_spider.service.seed_producer import SeedProducer, _settings
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from site_spider.spiders.sitemap_rules import is_page_of_seed
from site_spider.tasks import end_events, page_log, returning, webhooks
from site_spider.tasks.admission import with_source
from site_spider.tasks.closing import TaskProducer, close_for_all
from site_spider.tasks.control_log import make_ordered, read_endings
from site_spider.tasks.declaration import Task
from site_spider.tasks.end_events import EndAnnouncer, TaskCloser
from site_spider.tasks.ending import (
    Attempts,
    Counts,
    EndTold,
    SeedCounts,
    TaskEnding,
    Uncounted,
    WebhookAttempt,
    prefix_of,
)
from site_spider.tasks.follower import ORIGIN_HEADER, TASK_HEADER, Follower, TopicView
from site_spider.tasks.orders import TaskDesk
from site_spider.tasks.page_log import PageReading
from site_spider.tasks.parking import Leaving
from site_spider.tasks.tracker import Group, Tracker
from tests.adapters.raw_server import Asked, Said, answering, said
from tests.in_process.engine import ANSWERS, crawl, page, settings_for
from tests.in_process.extraction import in_a_thread
from tests.tasks.test_pause_and_cancel import TOPICS, SendingLog, declare, desk, seeds

KEY = "a key of the group for tests"


def events(folder: Path) -> list[dict[str, Any]]:
    log = LocalSeedLog(folder)
    if not log.partitions(TOPICS.events):
        return []
    return [json.loads(message.value or b"") for message in log.read(TOPICS.events)]


def ending_of(folder: Path) -> Any:
    return read_endings(LocalSeedLog(folder), TOPICS).get("t")


def told(folder: Path, count: int = 1) -> Any:
    def is_told(_crawler: Crawler) -> bool:
        return len(events(folder)) >= count

    return is_told


def produce(folder: Path, *, closes: bool = True, count: int = 5, **settings: Any) -> None:
    with SeedProducer(settings_for(folder, **settings), task_id="t", closes_task=closes) as producer:
        for seed in seeds(count):
            producer.send(seed)
    assert producer.produced == count


def close(folder: Path) -> None:
    log = LocalSeedLog(folder)
    with closing(log.producer()) as producer:
        TaskProducer(log, producer, TOPICS, "t").close_for_all()


class ItemSpider(SeedSpider):
    page_results = False


class OwnItemSpider(ItemSpider):
    def parse(self, response: Response) -> Iterator[dict[str, int]]:
        yield {"a": 1}


@pytest.mark.parametrize("spider", [ItemSpider, OwnItemSpider])
def test_pages_whose_results_nobody_wants_are_pages_of_their_task(tmp_path: Path, spider: type[SeedSpider]) -> None:
    """Items alone are stored; budgets and the end of a task are about what was fetched. Not about robots.txt."""
    produce(tmp_path)
    declare(tmp_path)
    found = crawl(tmp_path, [], spider, until=told(tmp_path), SITE_SITEMAPS="robots")
    [event] = events(tmp_path)
    used = desk(tmp_path).board.used("t")
    assert (event["pages"], event["failures"], event["bytes"], found.documents) == (5, 0, 5 * len("<p>page"), {})
    assert (used.pages, used.bytes) == (event["pages"], event["bytes"])


def test_a_producer_that_ends_in_an_outage_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task would stay open for ever."""
    read_on, troubles = TopicView.read_on, [LogUnavailable("Not leader for partition")] * 2
    with SeedProducer(settings_for(tmp_path), task_id="t", closes_task=True) as producer:
        producer.send(seeds(1)[0])
        answers = Mock(side_effect=[*troubles, None])
        with monkeypatch.context() as away:
            away.setattr(TopicView, "read_on", lambda self: (answers(), read_on(self)))
            producer.close()
    assert ending_of(tmp_path).is_closed


def test_an_end_that_is_told_in_a_stop_is_known_before_the_group_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner of the first partition would tell it again."""
    send, flush, leave = LocalProducer.send, LocalProducer.flush, SeedService._leave_group
    late: list[Callable[[], None]] = []
    noticed: list[int] = []

    def send_late(self: LocalProducer, topic: str, *rest: Any) -> Future[Any]:
        """What is told from the event on is there, or heard of, when somebody waits for it."""
        answer: Future[Any] = Future()
        if topic == TOPICS.events:
            sent = send(self, topic, *rest)
            late.append(lambda: answer.set_result(sent.result()))
        elif topic == TOPICS.control and events(tmp_path):
            late.append(lambda: answer.set_result(send(self, topic, *rest).result()))
        else:
            return send(self, topic, *rest)
        return answer

    def flush_all(self: LocalProducer, seconds: float) -> int:
        while late:
            late.pop()()
        return flush(self, seconds)

    async def look(self: SeedService, *rest: Any) -> None:
        noticed.append(ending_of(tmp_path).noticed)
        await leave(self, *rest)

    produce(tmp_path)
    for part, name, change in (
        (LocalProducer, "send", send_late),
        (LocalProducer, "flush", flush_all),
        (SeedService, "_leave_group", look),
    ):
        monkeypatch.setattr(part, name, change)
    crawl(tmp_path, [], until=told(tmp_path))
    assert noticed == [1]


def test_a_seed_with_an_unknown_source_is_a_dead_letter_of_its_task(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text("match: {hosts: [shop.test]}")
    with SeedProducer(settings_for(tmp_path), task_id="t", closes_task=True) as producer:
        producer.send(seeds(1)[0])
        producer.send({"url": "http://host.test/t/x", "meta": {"source": "unknown"}})
    with in_a_thread():
        found = crawl(tmp_path, [], until=told(tmp_path), SITE_SOURCES_DIR=str(tmp_path))
    assert len(found.dead_letters) == 1
    (event,) = events(tmp_path)
    assert (event["seeds"], event["partial"]) == ({"result": 1, "dead_letter": 1, "total": 2}, False)


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_dead_letters_that_are_put_back_begin_a_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut_short: bool
) -> None:
    """Which ends, also when somebody stops the replay."""
    with SeedProducer(settings_for(tmp_path), task_id="t", closes_task=True) as producer:
        producer.send({"url": "http://host.test/t/1", "callback": "parse"})
    crawl(tmp_path, [], until=told(tmp_path), DOWNLOAD_MAXSIZE=1)
    log = LocalSeedLog(tmp_path)
    with closing(log.producer()) as plain:  # as if it had become a dead letter
        value = json.dumps(seeds(1)[0]).encode()
        plain.send("seeds.dead-letters", b"host.test", value, [("origin_topic", b"seeds")]).result()
    replay = Replay(log, "seeds.dead-letters", lambda message, reason: None, TOPICS)
    if is_cut_short:
        monkeypatch.setattr(Replay, "_commit", MagicMock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt) if is_cut_short else nullcontext():
        replay.run()
    assert replay.replayed == 1
    crawl(tmp_path, [], until=told(tmp_path, 2))
    assert [event["generation"] for event in events(tmp_path)] == [1, 2]
    assert [event["seeds"]["total"] for event in events(tmp_path)] == [1, 2]


@pytest.mark.parametrize("is_told_of", [True, False])
def test_an_end_says_that_seeds_of_its_task_may_have_been_deleted(tmp_path: Path, *, is_told_of: bool) -> None:
    """By the log's retention, before they were read; or those of a producer that says nothing to the control log."""
    produce(tmp_path, closes=False) if is_told_of else desk(tmp_path).make_known("t")

    def until(crawler: Crawler) -> bool:
        parts = SeedService.of(crawler).parts
        if not (ending := ending_of(tmp_path)).lacks_some:
            for partition in parts.completion.ledger.partitions():
                parts.seeds.deleted(partition, 0, 99)
        elif not ending.is_closed:
            close(tmp_path)
        return bool(events(tmp_path))

    crawl(tmp_path, [] if is_told_of else seeds(5), until=until, timeout_seconds=60)
    assert events(tmp_path)[0]["partial"] is True


def test_an_end_says_that_seeds_of_its_task_may_have_been_skipped(tmp_path: Path) -> None:
    """By another client that has committed in this group: nobody has counted them."""
    produce(tmp_path)

    def until(crawler: Crawler) -> bool:
        if not ending_of(tmp_path).lacks_some:
            parts = SeedService.of(crawler).parts
            parts.seeds.assigned(dict.fromkeys(parts.completion.ledger.partitions(), ForeignPosition(99)))
        return bool(events(tmp_path))

    crawl(tmp_path, [], until=until, timeout_seconds=60)
    assert events(tmp_path)[0]["partial"] is True


def test_each_task_is_told_once_that_seeds_were_deleted() -> None:
    """Though it be of many partitions, and again; and once more if the control log did not take it."""
    control = MagicMock(endings=["t", "u"], get={"t": TaskEnding(), "u": TaskEnding(lacks_some=True)}.get)
    tracker = Tracker(Mock(), control, Mock(waiting=False), Mock())
    for number in range(9):
        tracker.deleted(Partition("seeds", number), 0, 99)
    for call in control.when_read.call_args_list:
        call.args[0]()
    assert [call.args[:2] for call in control.write.call_args_list] == [("t", Uncounted(1))]
    control.endings = Mock(unfinished={"t"}, deleted={})
    for is_durable in (False, True):
        control.write.call_args.args[2](is_durable)
        tracker.look()
    assert [call.args[:2] for call in control.write.call_args_list] == [("t", Uncounted(1))] * 2


def tracker_of(unfinished: set[str], get: Callable[[str], TaskEnding]) -> tuple[Tracker, MagicMock]:
    """Of tasks whose control log says so; nothing was polled."""
    control = MagicMock(endings=Mock(unfinished=unfinished, deleted={}), get=get)
    control.guarded = lambda _task_id: nullcontext()
    ledger = SimpleNamespace(epoch=lambda _partition: 1, next_offset=lambda _partition: 0)
    return Tracker(Mock(ledger=ledger), control, Mock(waiting=False), Mock()), control


def test_a_look_at_very_many_tasks_that_wait_for_their_end_is_short() -> None:
    """Ten thousand are closed, of which nothing was polled: few are looked at in one turn, each one by and by."""
    highs = {Partition("seeds", number): 9 for number in range(4)}
    known = {f"t{number}": TaskEnding(is_closed=True, highs=highs) for number in range(10_000)}
    asked: list[str] = []

    def get(task_id: str) -> TaskEnding:
        asked.append(task_id)
        return known[task_id]

    tracker, control = tracker_of(set(known), get)
    announcer = EndAnnouncer(Group(Mock(), Mock(), TOPICS, Mock(), control, lambda: True, Mock()), Mock())
    for look in (tracker.look, announcer.look):
        asked.clear()
        look()
        assert 0 < len(asked) <= 5_000
        for _ in range(10):
            look()
        assert set(asked) == set(known)
    assert not tracker._countings  # nothing is kept of partitions that are not so far


def test_what_nobody_has_counted_is_said_at_once_however_many_tasks_are_closed() -> None:
    """Else the end could be told before, as that of a task of which nothing is lacking."""
    ending = TaskEnding(is_closed=True, highs={Partition("seeds", number): 9 for number in range(4)})
    names = {f"t{number}" for number in range(10_000)}
    tracker, control = tracker_of(names, lambda _: ending)
    lacking = set(islice(names, 0, None, 500))
    for task_id in lacking:
        tracker._count_uncounted(task_id, 1)
    tracker.look()
    assert {call.args[0] for call in control.write.call_args_list} == lacking


async def test_the_pages_of_a_long_task_are_deleted_in_many_turns() -> None:
    """Its page log may have a hundred thousand records, and the producer takes some at a time."""
    turn, sent_in, answers = 0, Counter[int](), []

    def send(*_record: Any) -> Future[Any]:
        sent_in[turn] += 1
        answers.append(answer := Future[Any]())
        return answer

    group = Group(Mock(), Mock(send=send), TOPICS, Mock(), MagicMock(), lambda: True, Mock())
    announcer = EndAnnouncer(group, Mock())
    announcer._table = Mock(read=Mock(return_value=PageReading({}, 0, [b"key"] * 20_000)))
    telling = asyncio.ensure_future(announcer._tell_all())
    while not telling.done():
        await asyncio.sleep(0)
        turn += 1
        assert len(answers) <= 10_000
        for answer in answers:
            answer.set_exception(LogUnavailable("not now"))
        answers.clear()
    assert sent_in.total() == 20_000
    assert max(sent_in.values()) <= 5_000


def test_a_cancelled_task_ends_without_a_close(tmp_path: Path, fetched: Counter[str]) -> None:
    """Its seeds are counted, and not written."""
    declare(tmp_path)
    produce(tmp_path, closes=False)
    declare(tmp_path, state="cancelled")
    found = crawl(tmp_path, seeds(3, None), until=told(tmp_path))
    assert (found.seeds["cancelled"], found.seeds["completed"]) == (5, 8)
    assert is_conserved(found.seeds)
    assert len(found.documents) == len(fetched) == 3
    assert desk(tmp_path).board.used("t").seeds == {"cancelled": 5}
    [event] = events(tmp_path)
    assert (event["event"], event["seeds"]) == ("cancelled", {"cancelled": 5, "total": 5})


def test_a_cancel_leaves_the_documents_of_seeds_that_were_counted(tmp_path: Path) -> None:
    """As after a death between count and commit: the seeds come again, and their task is cancelled.

    They were counted because their task was declared: no producer named it. Those that had not begun have documents
    of their own, as that is wanted.
    """
    declare(tmp_path)
    before = crawl(tmp_path, seeds(5)).documents
    declare(tmp_path, state="cancelled")
    settings = {"SITE_CANCELLED_RESULTS": True, "SITE_CONSUMER_GROUP": "with no commits"}
    after = crawl(tmp_path, seeds(3, path="late"), until=told(tmp_path), **settings)
    late = [after.documents.pop(name) for name in after.documents.keys() - before.keys()]
    assert (after.documents, len(late)) == (before, 3)
    assert {document["description"] for document in late} == {"CancelledError: task t is cancelled"}
    assert all(document["fetched_at"] and document["spider"] == "crawl_spider" for document in late)
    [event] = events(tmp_path)
    assert event["seeds"] == {"result": 5, "cancelled": 3, "total": 8}
    assert (event["pages"], event["failures"]) == (5, 3)


async def test_very_many_seeds_of_a_cancelled_task_end_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SITE_CANCELLED_RESULTS each has a result, and all wait for one reading of the control log."""
    turn, ended_in, control = 0, Counter[int](), Mock()
    parts: list[Any] = [Mock(parking=Mock(topic="parked")) for _ in range(7)]
    leaving = Leaving(*parts, Background(Mock()), control=control, writes_cancelled=True)

    def end(*_arguments: Any) -> None:
        ended_in[turn] += 1
        time.sleep(0.0001)

    monkeypatch.setattr(leaving, "_end", end)
    monkeypatch.setattr(leaving, "_was_counted", lambda *_: False)
    leaves = MagicMock(), Mock()  # the same for all: to make them takes seconds
    for _ in range(2_000):
        leaving.cancel(*leaves)
    control.when_read.call_args.args[0]()
    while ended_in.total() < 2_000:
        await asyncio.sleep(0)
        turn += 1
    assert max(ended_in.values()) <= 500
    assert control.when_read.call_count == 1


@pytest.mark.parametrize(
    ("error", "live", "expected"),
    [
        (None, True, "completion.end_as"),
        (SinkRejected("it is too large"), True, "dead_letters.set_aside"),
        (LogUnavailable("away"), True, "room.put_seed"),
        (LogUnavailable("away"), False, ""),
    ],
)
async def test_a_seed_that_cannot_be_parked_is_a_dead_letter_or_waits(
    error: Exception | None, live: bool, expected: str
) -> None:
    """Whose partition has left is its next owner's."""
    parts, future = Mock(room=Mock(is_closed=False), parking=Mock(topic="parked")), Future[None]()
    names = ("spider", "completion", "room", "spill", "parking", "results", "dead_letters")
    leaving = Leaving(
        *(getattr(parts, name) for name in names), Background(Mock()), control=None, writes_cancelled=False
    )
    waiting = Mock(live=live)
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    leaving._parked(future, waiting)
    done = [name for name, *_ in parts.mock_calls]
    assert done == [name for name in (expected,) if name]


def test_what_no_message_can_say_stays_and_goes_on_though_its_task_is_paused() -> None:
    parts = [Mock(parking=Mock(topic="parked")) for _ in range(7)]
    leaving = Leaving(*parts, Mock(), control=None, writes_cancelled=False)
    room, spill = parts[2], parts[3]
    spill.send.return_value = False
    request = Request("http://h.test/", meta={meta_keys.JOB: Mock(spec=Job, parent=None)})
    leaving.park(request, Mock())
    room.put.assert_called_once_with(request)
    assert (request.meta.get(meta_keys.TO_TOPIC), request.meta[meta_keys.STAYS]) == (None, True)


def test_seeds_of_a_task_that_is_set_aside_are_complete_without_a_count() -> None:
    """Their offsets would be held until the process ends."""
    control, completion, share = MagicMock(), Mock(), ("t", Partition("seeds", 0))
    control.guarded = lambda _task_id: nullcontext()
    control.endings.is_aside.return_value = True
    completion.ledger.epoch.return_value = 1
    tracker, entry = Tracker(completion, control, Mock(waiting=False), Mock()), Mock()
    tracker._entries[share[1], 7] = entry
    tracker._counting(share).arrived(7)
    tracker._counting(share).done(7, Counts())
    tracker._ready.add(share)
    tracker.look()
    completion.release.assert_called_once_with(entry)
    assert not control.write.called


def test_a_seed_has_the_source_of_its_task_unless_it_names_one() -> None:
    board = Mock(task={"t": Task(task_id="t", source="of-task")}.get)
    metas: list[dict[str, Any]] = [{"task_id": "t"}, {"task_id": "t", "source": "own"}, {"task_id": "other"}]
    found = [
        with_source(parse_seed(json.dumps({"url": "http://h.test/", "meta": meta}).encode()), board) for meta in metas
    ]
    assert list(map(source_name, found)) == ["of-task", "own", None]


def test_settings_that_a_seed_producer_is_given_come_before_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SITE_SEED_TOPIC", "of-environment")
    monkeypatch.setenv("SITE_CONSUMER_GROUP", "of-environment")
    found = _settings({"SITE_SEED_TOPIC": "given"})
    assert [found[name] for name in ("SITE_SEED_TOPIC", "SITE_CONSUMER_GROUP")] == ["given", "of-environment"]


def test_a_check_that_is_cancelled_leaves_the_content(tmp_path: Path) -> None:
    declare(tmp_path)
    [before] = crawl(tmp_path, seeds(1)).documents.values()
    declare(tmp_path, state="cancelled")
    checks = [{**seed, "if_changed": True} for seed in seeds(1)]
    [after] = crawl(tmp_path, checks, until=told(tmp_path), SITE_CANCELLED_RESULTS=True).documents.values()
    assert (after["status"], after["description"]) == (None, "CancelledError: task t is cancelled")
    said = ("body", "body_hash", "checked_at", "content_type")
    assert [after[name] for name in said] == [before[name] for name in said]


def test_a_paused_task_waits_and_others_go_on(tmp_path: Path, fetched: Counter[str]) -> None:
    """Its seeds are parked, so that they hold no offset, and come back once and in their order."""
    declare(tmp_path, state="paused")
    produce(tmp_path, count=50)
    found = crawl(tmp_path, seeds(20, None))
    assert (found.lag, events(tmp_path), len(fetched)) == (0, [], 20)
    assert (found.seeds["spilled"], found.seeds["completed_with_result"]) == (50, 20)
    assert is_conserved(found.seeds)
    declare(tmp_path)
    assert [desk(tmp_path).put_back("t") for _ in range(2)] == [50, 0]
    fetched.clear()
    crawl(tmp_path, [], until=told(tmp_path), CONCURRENT_REQUESTS_PER_DOMAIN=1)
    assert list(fetched.items()) == [(seed["url"], 1) for seed in seeds(50)]
    [event] = events(tmp_path)
    assert (event["seeds"], event["moved"]) == ({"result": 50, "total": 50}, {"spilled": 50, "returned": 50})


def test_an_end_does_not_wait_for_a_parked_message_that_was_sent_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who closed the task knew that its process had parked it, and not yet that the process sent it on."""
    monkeypatch.setattr(returning, "_QUIET_SECONDS", 0.1)
    declare(tmp_path)
    log = LocalSeedLog(tmp_path)
    log.make_topic(TOPICS.parked, 1, compacted=False)
    with closing(log.producer()) as producer:
        seed = json.dumps(seeds(1)[0]).encode()
        headers = [(TASK_HEADER, b"t"), (ORIGIN_HEADER, b"seeds")]
        producer.send(TOPICS.parked, None, seed, headers).result()
        producer.send(TOPICS.tasks, b"t\x1fits process", b'{"parked":1}').result()
        TaskProducer(log, producer, TOPICS, "t").close_for_all()
        producer.send(TOPICS.tasks, b"t\x1fits process", b'{"parked":1,"sent_on":1}').result()
        producer.send("seeds", None, seed, [(MOVED, b"")]).result()
    assert len(crawl(tmp_path, [], until=told(tmp_path)).documents) == 1


@pytest.mark.parametrize("most", [1, 7])
def test_what_is_put_back_is_cut_short_and_counts_once(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returning, "_STILL_SECONDS", 0.5)  # then who was killed is not waited for
    declare(tmp_path, state="paused")
    produce(tmp_path, count=12)
    crawl(tmp_path, [])
    declare(tmp_path)
    left = [*range(most)]

    def limited(send: Any, *message: Any) -> Any:
        left.pop()
        return send(*message)

    with pytest.raises(IndexError):  # the command is killed
        TaskDesk(SendingLog(tmp_path, limited), TOPICS).put_back("t")
    assert desk(tmp_path).put_back("t") == 12
    assert len(crawl(tmp_path, [], until=told(tmp_path)).documents) == 12
    [event] = events(tmp_path)
    assert event["seeds"] == {"result": 12, "total": 12}
    assert event["moved"] == {"spilled": 12, "returned": 12}


@pytest.mark.parametrize("task_id", ["t", None])
def test_a_check_of_the_page_of_a_link_is_a_seed_wherever_it_goes_on(task_id: str | None) -> None:
    """The page has parents, and nobody but `scrapy recrawl` has asked for it."""

    def sent(headers: Any = (("recrawl", b"batch id"),), **moved: str) -> Message:
        meta = {"task_id": task_id, "parent_url_id": "p", "seed_url_id": "s", "if_changed": True}
        meta |= {"site_moved": moved} if moved else {}
        value = json.dumps({"url": "http://a.test/", "meta": meta}).encode()
        return Message(Partition("seeds", 0), 5, b"a.test", value, headers)

    def is_link(message: Message) -> bool:
        seed: Any = parse_seed(message.value)
        entry: Any = SimpleNamespace(seed=seed, message=message, url=seed.url)
        job = Job(Request(seed.url), entry)
        assert job.is_link == (prefix_of(seed, message.headers) == "link:") != is_page_of_seed(job)
        return job.is_link

    check = sent()
    once = sent(moved_headers(parse_seed(check.value), check), url="http://b.test/")
    twice = sent(moved_headers(parse_seed(once.value), once), url="http://b.test/")
    link = sent(moved_headers(parse_seed(check.value), check, is_link=True), url="http://b.test/")
    assert list(map(is_link, (check, once, twice, link))) == [False, False, False, True]
    assert [prefix_of(parse_seed(one.value), one.headers) for one in (once, twice)] == ["again:"] * 2
    assert dict(twice.headers)["first_place"] == b"seeds/0/5"


@pytest.mark.parametrize(
    ("meta", "headers", "prefix"),
    [
        ({}, (), ""),
        ({"site_moved": {"url": "http://b.test/"}}, (), "moved:"),  # sent on by a release before
        ({}, (("moved", b""),), "moved:"),  # parked by one, and put back
        ({}, (("moved", b""), ("first_place", b"seeds/0/5")), "again:"),
        ({"parent_url_id": "p", "site_moved": {"anchor_host": "a.test"}}, (), "link:"),
    ],
)
def test_a_message_of_a_release_before_is_told_apart(meta: Any, headers: Any, prefix: str) -> None:
    """It does not say which seed it was, so it is counted as another one that came back."""
    seed = parse_seed(json.dumps({"url": "http://a.test/", "meta": {"task_id": "t", **meta}}).encode())
    assert prefix_of(seed, headers) == prefix
    counts = Counts({"spilled": 3, f"{prefix}result": 3}).seeds
    assert SeedCounts.of(counts, {}).seeds == ({"result": 3} if prefix in ("", "moved:") else {})


def test_an_end_waits_for_a_link_whose_process_died_before_it_told_of_it(tmp_path: Path) -> None:
    """The page repeats, and drops the link: as the message of the dead process it is in flight already."""
    ANSWERS["/root"] = lambda request: page(request, '<a href="/leaf/1">x</a>')
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        with SeedProducer(settings_for(folder), task_id="t", closes_task=True) as producer:
            producer.send("http://host.test/root")
    crawl(before, [], until=told(before), SITE_LINKS_TO="kafka")
    assert [(event["pages"], event["moved"]) for event in events(before)] == [(2, {"links": 1})]
    [_, link] = LocalSeedLog(before).read("seeds")
    log = LocalSeedLog(after)
    with closing(log.producer()) as producer:
        producer.send("seeds", link.key, link.value or b"", link.headers).result()
    crawl(after, [], until=told(after))
    del ANSWERS["/root"]
    [event] = events(after)
    assert (event["seeds"], event["moved"]) == ({"result": 1, "total": 1}, {"links": 1})
    assert list(ending_of(after).highs.values()) == [2]


def test_a_task_that_is_declared_anew_waits_for_nothing_of_the_one_that_was_deleted(tmp_path: Path) -> None:
    """Though its process has parked messages of that: nobody would say that they are passed."""

    def story() -> Iterator[bool]:
        while not desk(tmp_path).board.has_parked("t"):
            yield False
        declare(tmp_path)
        while not events(tmp_path):
            yield False
        for _ in range(2):
            desk(tmp_path).forget("t")
            yield from repeat(False, 20)
        declare(tmp_path)
        produce(tmp_path)
        while len(events(tmp_path)) < 2:
            yield False

    declare(tmp_path, state="paused")
    produce(tmp_path)
    steps = story()
    crawl(tmp_path, [], until=lambda _: next(steps, True))
    assert [(event["generation"], event["seeds"]["total"]) for event in events(tmp_path)] == [(1, 5), (1, 5)]


# --- webhooks --------------------------------------------------------------------------------------------


class Receiver:
    """Refuses so many requests, then takes them."""

    def __init__(self, refusals: int = 0) -> None:
        self.requests: list[Asked] = []
        self._refusals = refusals
        self._server = answering(self._answer)
        self.url = f"{self._server.__enter__()}/hook?a=1"

    def _answer(self, asked: Asked) -> Said:
        self.requests.append(asked)
        return said(b"", 503 if len(self.requests) <= self._refusals else 204)

    def close(self) -> None:
        self._server.__exit__(None, None, None)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as receiver:
        yield receiver


def attempts(folder: Path) -> list[int]:
    ending = ending_of(folder)
    return [] if ending is None or ending.attempts is None else [each.status for each in ending.attempts.made]


def signature(headers: Mapping[str, str], body: bytes) -> str:
    """With the key of the group."""
    secret = hmac.new(KEY.encode(), b"site_spider webhook", "sha256").hexdigest().encode()
    signed = headers["x-site-spider-timestamp"].encode() + b"." + body
    return "sha256=" + hmac.new(secret, signed, "sha256").hexdigest()


def test_a_webhook_does_not_wait_for_a_clock_that_was_ahead() -> None:
    """That of the process which had the first partition before."""
    made = WebhookAttempt(5 * 3_600_000, 503, "refused"), WebhookAttempt(5 * 3_600_000, 503, "refused")
    ending: Any = SimpleNamespace(ended=SimpleNamespace(generation=1), noticed=1, made=made)
    assert webhooks.due_at(ending, 60.0) == 60.0
    assert webhooks.due_at(ending, 5 * 3_600.0) == 5 * 3_600.0 + 120.0


def test_a_webhook_is_signed_and_kept_with_its_attempt(tmp_path: Path, receiver: Receiver) -> None:
    declare(tmp_path, webhook=receiver.url)
    produce(tmp_path)
    crawl(tmp_path, [], until=lambda _: attempts(tmp_path) == [204], SITE_SPILL_KEY=KEY, SITE_ALLOW_PRIVATE_HOSTS=True)
    [(_, _, headers, body)] = receiver.requests
    assert json.loads(body) == events(tmp_path)[0]
    assert headers["x-site-spider-event-id"] == "t.1"
    assert headers["x-site-spider-signature"] == signature(headers, body)


def test_a_webhook_does_not_reach_a_private_address(tmp_path: Path, receiver: Receiver) -> None:
    declare(tmp_path, webhook=receiver.url)
    produce(tmp_path, count=0)
    crawl(tmp_path, seeds(1, None), until=lambda _: attempts(tmp_path) == [0], SITE_ALLOW_PRIVATE_HOSTS=False)
    assert receiver.requests == []
    assert [event["seeds"] for event in events(tmp_path)] == [{"total": 0}]


@pytest.mark.parametrize(
    ("part", "name", "event"),
    [(webhooks, "tried", "done"), (page_log.PageTable, "read", "done"), (end_events, "close_for_all", "cancelled")],
)
def test_ends_that_are_to_be_told_are_not_idle(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, part: Any, name: str, event: str
) -> None:
    """Nor is a cancelled task that is being closed."""
    works = getattr(part, name)

    def slowly(*arguments: Any) -> Any:
        time.sleep(2)
        return works(*arguments)

    monkeypatch.setattr(part, name, slowly)
    produce(tmp_path, closes=event == "done")
    declare(tmp_path, webhook=receiver.url, state="cancelled" if event == "cancelled" else "running")
    crawl(tmp_path, [], until=lambda _: False, SITE_IDLE_CLOSE_SECONDS=1.5, SITE_ALLOW_PRIVATE_HOSTS=True)
    assert ([told["event"] for told in events(tmp_path)], attempts(tmp_path)) == ([event], [204])


def test_an_end_that_cannot_be_told_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "tried", Mock(side_effect=ZeroDivisionError))
    declare(tmp_path, webhook="http://host.test/")
    produce(tmp_path)
    found = crawl(tmp_path, [], until=lambda _: False, SITE_IDLE_CLOSE_SECONDS=0.5)
    assert (found.stats["finish_reason"], attempts(tmp_path)) == ("idle", [])


def begin(folder: Path, webhook_urls: list[str]) -> None:
    """A task with a seed for each of them."""
    with SeedProducer(settings_for(folder)) as producer:
        for number, url in enumerate(webhook_urls):
            declare(folder, f"t{number}", webhook=url)
            producer.send({"url": f"http://host.test/{number}", "meta": {"task_id": f"t{number}"}})


def end(folder: Path, *numbers: int) -> None:
    log = LocalSeedLog(folder)
    with closing(log.producer()) as producing:
        close_for_all(log, producing, TOPICS, [f"t{number}" for number in numbers])


def test_a_receiver_that_says_nothing_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer, asked, in_time = threading.Event(), list[str](), list[bool]()

    def tried(url: str, ended: EndTold, *_arguments: Any) -> Attempts:
        asked.append(url)
        if "silent" in url:
            in_time.append(may_answer.wait(60))
        elif asked.count(url) == 40:
            may_answer.set()
        return Attempts(ended.generation, (WebhookAttempt(1, 204, ""),))

    monkeypatch.setattr(webhooks, "tried", tried)
    begin(tmp_path, [f"http://{'silent' if number % 2 else 'quick'}.test/" for number in range(80)])
    end(tmp_path, *range(80))
    crawl(tmp_path, [], until=lambda _: False, SITE_IDLE_CLOSE_SECONDS=0.5)
    assert Counter(asked) == {"http://silent.test/": 40, "http://quick.test/": 40}
    assert all(in_time)


def test_receivers_that_say_nothing_take_turns_with_one_that_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they are so many that they have all places, and each has much to be told."""
    may_answer, asked = threading.Event(), list[str]()

    def tried(url: str, ended: EndTold, *_arguments: Any) -> Attempts:
        asked.append(url)
        if url == "http://quick.test/":
            may_answer.set()
        else:
            if len(asked) == 1:
                end(tmp_path, 12)
            may_answer.wait(15)
        return Attempts(ended.generation, (WebhookAttempt(1, 204, ""),))

    monkeypatch.setattr(webhooks, "tried", tried)
    monkeypatch.setattr(webhooks, "_MOST_POSTS", 2)
    monkeypatch.setattr(webhooks, "_MOST_TO_ONE", 1)
    begin(tmp_path, [*(f"http://silent{number % 2}.test/" for number in range(12)), "http://quick.test/"])
    end(tmp_path, *range(12))
    crawl(tmp_path, [], until=lambda _: len(asked) == 13)
    assert asked[-1] != "http://quick.test/"


def test_no_stop_waits_for_a_receiver_of_webhooks_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_answer, has_answered = threading.Event(), threading.Event(), threading.Event()

    def tried(*_arguments: Any) -> None:
        asked.set()
        may_answer.wait(60)
        has_answered.set()

    monkeypatch.setattr(webhooks, "tried", tried)
    declare(tmp_path, webhook="http://host.test/")
    produce(tmp_path)
    crawl(tmp_path, [], until=lambda _: asked.is_set())
    assert not has_answered.is_set()
    may_answer.set()


# --- SeedProducer ----------------------------------------------------------------------------------------


def test_a_seed_producer_refuses_what_is_no_seed(tmp_path: Path) -> None:
    with SeedProducer(settings_for(tmp_path)) as producer:
        for wrong in ("file:///etc/passwd", {"url": "http://a.test/", "method": 7}, {"url": object()}, ""):
            with pytest.raises(SeedError):
                producer.send(wrong)
        producer.send({"url": "http://a.test/", "callback": "article"})  # its spider knows which there are
    assert producer.produced == 1
    with pytest.raises(ConfigError):
        producer.send("http://a.test/")


def test_a_block_left_by_an_exception_leaves_the_task_open(tmp_path: Path) -> None:
    def work() -> None:
        with SeedProducer(settings_for(tmp_path), task_id="t", closes_task=True) as producer:
            producer.send("http://host.test/1")
            assert len(ending_of(tmp_path).sending) == 1
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert (ending_of(tmp_path).is_closed, ending_of(tmp_path).sending) == (False, set())


def test_a_producer_whose_seed_is_refused_has_ended_and_closes_nothing(tmp_path: Path) -> None:
    """Else the task waits for it without end, though others close it."""
    producer = SeedProducer(settings_for(tmp_path), task_id="t", closes_task=True)
    producer.send("http://host.test/1")
    refused = Future[Any]()
    refused.set_exception(SinkRejected("it is too large"))
    producer._stream._under_way.appendleft((0, 0, refused))
    with pytest.raises(SinkRejected):
        producer.close()
    assert (ending_of(tmp_path).is_closed, ending_of(tmp_path).sending) == (False, set())
    assert (producer.produced, list(ending_of(tmp_path).highs.values())) == (1, [1])


def test_a_seed_producer_may_close_itself_in_a_with_statement_of_its_own(tmp_path: Path) -> None:
    class Own(SeedProducer):
        def __exit__(self, *_error: object) -> None:
            self.close()

    with Own(settings_for(tmp_path), task_id="t", closes_task=True) as producer:
        producer.send("http://host.test/1")
    assert (ending_of(tmp_path).is_closed, producer.produced) == (True, 1)


def test_a_seed_producer_that_cannot_begin_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    for needs_end in ({"max_task_lag": 3}, {"closes_task": True}):  # of which nobody hears
        with pytest.raises(ConfigError, match="SITE_KAFKA_EXACTLY_ONCE"):
            SeedProducer(settings_for(tmp_path, SITE_KAFKA_EXACTLY_ONCE=True), task_id="t", **needs_end)
    monkeypatch.setattr(TaskProducer, "begin", Mock(side_effect=LogUnavailable("not now")))
    with pytest.raises(LogUnavailable):
        SeedProducer(settings_for(tmp_path), task_id="t")
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("limit", "of_others"), [({"max_lag": 3}, 0), ({"task_id": "t", "max_task_lag": 3}, 20)])
def test_a_seed_producer_waits_while_too_many_messages_or_seeds_of_its_task_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any], of_others: int
) -> None:
    """Seeds of others are no matter to a task."""
    monkeypatch.setattr("site_spider.service.seed_producer._PAUSE_SECONDS", 0.1)  # of the time by the wall
    settings = settings_for(tmp_path)
    with SeedProducer(settings) as others:
        for seed in seeds(of_others, None):
            others.send(seed)
    sent = threading.Event()

    def work() -> None:
        with SeedProducer(settings, **limit) as producer:
            for seed in seeds(6):
                producer.send(seed)
        sent.set()

    def produced() -> int:
        return sum(part.end for part in LocalSeedLog(tmp_path).progress("seeds", "g"))

    thread = threading.Thread(target=work)
    thread.start()
    assert not sent.wait(0.5)
    assert produced() == of_others + 3
    crawl(tmp_path, [], until=lambda _: sent.is_set())
    thread.join()
    assert produced() == of_others + 6


@pytest.mark.parametrize("wrong", [{"closes_task": 1}, {"max_lag": 0}, {"max_task_lag": 3}, {"task_id": "\udcff"}])
def test_a_seed_producer_names_what_does_not_fit(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SeedProducer(settings_for(tmp_path), **wrong)


def test_an_event_has_counts_that_add_up_and_is_told_once(tmp_path: Path) -> None:
    """However many crawls follow; the next generation adds its pages."""
    ANSWERS["/page/t/3"] = lambda request: page(request, status=404)
    produce(tmp_path)
    crawl(tmp_path, seeds(4, "other"), until=told(tmp_path))
    crawl(tmp_path, seeds(2, None))
    [event] = events(tmp_path)
    assert event["seeds"] == {"result": 4, "failure": 1, "total": 5}
    assert (event["event"], event["generation"], sum(event["reasons"].values())) == ("done", 1, 1)
    assert event["first_at"] <= event["last_at"]
    produce(tmp_path, count=7)
    crawl(tmp_path, [], until=told(tmp_path, 2))
    del ANSWERS["/page/t/3"]
    first, second = events(tmp_path)
    assert (first["pages"], first["failures"]) == (5, 1)
    assert (second["pages"], second["failures"], second["bytes"]) == (12, 2, first["bytes"] // 5 * 12)
    assert second["reasons"] == dict.fromkeys(first["reasons"], 2)


TIERS = {"SITE_SEED_TOPIC": "seeds", "SITE_SEED_TOPICS": "urgent:8,seeds:1"}


def test_an_end_covers_all_tiers_and_counts_a_page_once(tmp_path: Path) -> None:
    """Some producers say nothing of the task; a page may have several messages, in any tier."""
    known, log, twice = settings_for(tmp_path, **TIERS), LocalSeedLog(tmp_path), seeds(1)[0]
    with SeedProducer(known, topic="urgent", task_id="t", closes_task=False) as producer:
        for seed in [*seeds(4), twice]:
            producer.send(seed)
    with closing(log.producer()) as plain:
        for number, meta in enumerate([{"url_id": "of the producer"}, {}]):
            seed = {"url": f"http://host.test/page/t/{4 * number}", "meta": meta | twice["meta"]}
            plain.send("seeds", b"host.test", json.dumps(seed).encode()).result()
        topics = TOPICS._replace(tiers=("urgent", "seeds"))
        TaskProducer(log, plain, topics, "t").close_for_all()
    crawl(tmp_path, [], until=told(tmp_path), **TIERS)
    [event] = events(tmp_path)
    assert (event["seeds"], event["pages"]) == ({"result": 7, "total": 7}, 5)


def test_an_end_comes_though_the_main_tier_has_no_topic_yet(tmp_path: Path) -> None:
    """Nobody has its first partition, so another tier's counts."""
    with SeedProducer(settings_for(tmp_path, **TIERS), topic="urgent", task_id="t", closes_task=True) as producer:
        for seed in seeds(4):
            producer.send(seed)
    with pytest.raises(TopicMissing):  # says who counts what is left of the main tier when all has ended
        crawl(tmp_path, [], until=told(tmp_path), **TIERS)
    assert [event["seeds"]["result"] for event in events(tmp_path)] == [4]


class Hearsay(LocalSeedLog):
    """As a cluster in which the server that is asked has not heard of a new topic yet."""

    def partitions(self, topic: str) -> int:
        found = super().partitions(topic)
        return found if found > 1 else 0


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_control_log_has_one_partition_or_is_not_heard_of_yet(tmp_path: Path, partitions: int) -> None:
    log = Hearsay(tmp_path)
    log.make_topic(TOPICS.control, partitions, compacted=True)
    if partitions == 1:
        make_ordered(log, TOPICS, TOPICS.control)
    else:
        with pytest.raises(ConfigError, match=r"has 2 partitions.*SITE_TASK_TOPIC"):
            make_ordered(log, TOPICS, TOPICS.control)


def test_a_cancelled_task_is_not_closed_again_by_who_has_not_read_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that takes over the first partition may be far behind with the control log."""
    produce(tmp_path, closes=False)
    declare(tmp_path, state="cancelled")
    crawl(tmp_path, [], until=told(tmp_path))
    may_read, looks = threading.Event(), 0
    poll, look = Follower._poll, TaskCloser.look

    def poll_late(follower: Follower) -> list[Message]:
        is_control = follower._view.topic == TOPICS.control
        return poll(follower) if not is_control or may_read.wait(0.05) else []

    def counted_look(over: TaskCloser) -> None:
        nonlocal looks
        look(over)
        looks += 1
        if looks > 1:
            may_read.set()

    monkeypatch.setattr(Follower, "_poll", poll_late)
    monkeypatch.setattr(TaskCloser, "look", counted_look)
    crawl(tmp_path, seeds(1, None), until=lambda _: looks > 2)
    assert (ending_of(tmp_path).generation, len(events(tmp_path))) == (1, 1)
