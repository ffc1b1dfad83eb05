"""Parked messages come back once, to where they were, whoever parked them and whatever the records say."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider.adapters.local.log import LocalProducer, LocalSeedLog
from site_spider.contracts.seed_log import Message, Partition
from site_spider.errors import LogUnavailable, SinkRejected
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks import returning
from site_spider.tasks.board import RETURNED, note_key
from site_spider.tasks.closing import TaskProducer
from site_spider.tasks.control_log import read_endings, written
from site_spider.tasks.declaration import Returned, Task, Usage
from site_spider.tasks.ending import EndTold, TaskEnding
from site_spider.tasks.follower import ORIGIN_HEADER, TASK_HEADER
from site_spider.tasks.orders import PutBackTasks, TaskDesk, TaskOrders
from site_spider.tasks.returning import ParkedWatch
from site_spider.tasks.tracker import Group
from tests.in_process import virtual_time
from tests.in_process.engine import crawl

TIERS = ("urgent", "seeds", "bulk")
TOPICS = CrawlTopics.beside({"SITE_SEED_TOPIC": "seeds", "SITE_SEED_TOPICS": "urgent:8,seeds:4,bulk:1"})


class Log(LocalSeedLog):
    """Knows from where its topics are read, and which topic has the name of the parked one."""

    parked_id = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.starts: list[dict[Partition, int]] = []

    def read(self, topic: str, start: Mapping[Partition, int] | None = None, since_ms: int = 0) -> Iterator[Message]:
        self.starts.append(dict(start or {}))
        return super().read(topic, start, since_ms)

    def topic_id(self, topic: str) -> str:
        return self.parked_id


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(returning, "_STILL_SECONDS", 0.5)
    monkeypatch.setattr(returning, "_LOOK_SECONDS", 0.02)
    log = Log(tmp_path)
    for topic in ("seeds.tasks", "seeds.tasks.control"):
        log.make_topic(topic, 1, compacted=True)
    log.make_topic("seeds.parked", 1, compacted=False)
    return log


def park(log: Log, count: int, told: int | None = None, task_id: str = "t", process: str = "p") -> None:
    """So many messages are parked, and a process has told of as many, or of `told`."""
    with closing(log.producer()) as producer:
        for number in range(count):
            headers = [(TASK_HEADER, task_id.encode()), (ORIGIN_HEADER, b"seeds")]
            producer.send("seeds.parked", b"k", f"{task_id} {process} {number}".encode(), headers)
        usage = Usage(parked=count if told is None else told)
        producer.send("seeds.tasks", note_key(task_id, process), usage.model_dump_json().encode()).result()


def say(log: Log, key: bytes, value: Any) -> None:
    with closing(log.producer()) as producer:
        producer.send("seeds.tasks", key, value.model_dump_json().encode()).result()


def desk(log: Log) -> TaskDesk:
    return TaskDesk(log, TOPICS)


def ending_of(log: Log) -> TaskEnding:
    return read_endings(log, TOPICS).get("t") or TaskEnding()


def back(log: Log, topic: str = "seeds") -> list[bytes | None]:
    return [message.value for message in log.read(topic)] if log.partitions(topic) else []


def test_seeds_come_back_in_their_own_tier(tmp_path: Path) -> None:
    tiers = {"SITE_SEED_TOPICS": "urgent:8,seeds:4,bulk:1"}
    log = LocalSeedLog(tmp_path)
    TaskDesk(log, TOPICS).write(Task(task_id="t", state="paused"))
    with closing(log.producer()) as producer:
        for topic in TIERS:
            value = b'{"url": "http://h.test/%s", "meta": {"task_id": "t"}}' % topic.encode()
            producer.send(topic, b"h.test", value).result()
    parked = lambda: log.partitions("seeds.parked") and len(list(log.read("seeds.parked"))) == 3  # noqa: E731
    crawl(tmp_path, [], until=lambda _: bool(parked()), **tiers)
    TaskDesk(log, TOPICS).write(Task(task_id="t"))
    assert TaskDesk(log, TOPICS).put_back("t") == 3
    for topic in TIERS:
        urls = [message.value for message in log.read(topic)]
        assert len(urls) == 2, topic
        assert urls[0] == urls[1]


@pytest.mark.parametrize("origin", [None, b"other", b"\xff", b"seeds.tasks"])
def test_what_does_not_say_where_it_was_comes_back_to_the_main_tier(log: Log, origin: bytes | None) -> None:
    """As records of releases before; no message chooses a topic that is no tier."""
    headers = [(TASK_HEADER, b"t"), *([] if origin is None else [(ORIGIN_HEADER, origin)])]
    with closing(log.producer()) as producer:
        producer.send("seeds.parked", b"k", b"v", headers).result()
    say(log, note_key("t", "p"), Usage(parked=1))
    assert desk(log).put_back("t") == 1
    assert back(log) == [b"v"]


def test_the_topic_is_read_from_where_it_was_read_to(log: Log) -> None:
    park(log, 7)
    assert desk(log).put_back("t") == 7
    park(log, 3, told=10)
    log.starts.clear()
    assert desk(log).put_back("t") == 3
    assert log.starts == [{Partition("seeds.parked", 0): 7}]


def test_what_was_parked_of_a_task_that_was_deleted_does_not_come_back_to_a_later_one(log: Log) -> None:
    park(log, 7)
    assert desk(log).put_back("t") == 7
    desk(log).forget("t")
    TaskOrders(desk(log), "t", may_be_new=True).pause()
    assert not desk(log).board.was_parked("t")
    park(log, 3)
    assert TaskOrders(desk(log), "t").resume().returned == 3
    assert len(back(log)) == 10


def test_what_was_parked_since_another_one_declared_the_task_comes_back(log: Log) -> None:
    """Whoever declares it later, and had not heard of that, passes nothing; a process dies before it tells."""
    late = desk(log)
    TaskOrders(desk(log), "t", may_be_new=True).pause()
    park(log, 3)
    late.order("t", lambda task: task or Task(task_id="t"))
    park(log, 3, told=0, process="killed")
    TaskOrders(desk(log), "t").resume()
    assert len(back(log)) == 6


@pytest.mark.parametrize(("offset", "topic_id"), [(5, ""), (7, ""), (8, ""), (2**40, ""), (4, "old")])
def test_a_record_of_a_later_offset_or_of_a_topic_that_was_made_anew_hides_nothing(
    log: Log, caplog: pytest.LogCaptureFixture, offset: int, topic_id: str
) -> None:
    park(log, 7)
    log.parked_id = "new"
    say(log, note_key("t", RETURNED), Returned(offsets={"0": offset, "9": 0}, topic_id=topic_id))
    assert desk(log).put_back("t") == 7
    assert sorted(back(log)) == [b"t p %d" % number for number in range(7)]
    assert ("made anew" if topic_id else "read") in caplog.text
    assert desk(log).put_back("t") == 0


def test_what_is_not_there_stays_counted_and_is_looked_for_once(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    park(log, 4, told=10)
    assert desk(log).put_back("t") == 4
    board = desk(log).board
    assert (board.parked("t"), board.has_parked("t")) == (6, False)
    assert "6 messages of task t" in caplog.text
    assert desk(log).put_back("t") == 0
    assert len(back(log)) == 4
    park(log, 2, told=12)
    assert desk(log).board.has_parked("t")
    assert desk(log).put_back("t") == 2
    assert desk(log).board.parked("t") == 6


def test_two_at_once_put_each_message_back_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find that nobody works for the task, then both say that they do."""
    park(log, 400)
    free, found, claims = returning._Returning._free, threading.Barrier(2), threading.Barrier(2)
    looks, pauses = itertools.count(), itertools.count()

    def both_free(mine: Any, task_ids: Any) -> Any:
        is_free = free(mine, task_ids)
        if next(looks) < 2:
            found.wait(300)
        return is_free

    def pause(_seconds: float) -> None:
        if next(pauses) < 2:
            claims.wait(300)

    def resume(_number: int) -> int:
        return TaskDesk(Log(Path(log.address).parent), TOPICS).put_back("t")

    monkeypatch.setattr(returning._Returning, "_free", both_free)
    monkeypatch.setattr(returning, "runtime", Mock(wraps=returning.runtime, sleep=pause))
    monkeypatch.setattr(returning, "_STILL_SECONDS", inf)  # the machine may stand still
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(resume, range(2))) == [0, 400]
    assert len(back(log)) == 400


def test_what_is_told_of_when_it_is_back_does_not_come_back_again(log: Log) -> None:
    """As of a task whose budget is spent still: all that was ever parked of it came back each time."""
    for told in (3, 7, 12):
        park(log, 4, told=told)
        assert desk(log).put_back("t") == 4
    assert (desk(log).board.parked("t"), len(back(log))) == (0, 12)


def test_what_its_seed_topic_refuses_becomes_a_dead_letter(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a message that is too large with the headers of one that has moved."""
    send, refused = LocalProducer.send, Future[Any]()
    refused.set_exception(SinkRejected("it is too large"))
    is_taken = lambda topic, _key, value, *_: (topic, value) != ("seeds", b"t p 1")  # noqa: E731
    park(log, 3)
    monkeypatch.setattr(LocalProducer, "send", lambda self, *said: send(self, *said) if is_taken(*said) else refused)
    desk(log).put_back("t")
    [letter] = log.read("seeds.dead-letters")
    assert (letter.value, dict(letter.headers)["origin_topic"]) == (b"t p 1", b"seeds")
    assert (desk(log).board.parked("t"), len(back(log))) == (0, 2)


def test_what_fails_on_its_way_is_not_passed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more had been put back before than waits, as what is parked while its task goes on is sent on, too."""
    send, failed = LocalProducer.send, Future[Any]()
    failed.set_exception(LogUnavailable("Not leader for partition"))
    park(log, 3)
    say(log, note_key("t", RETURNED), Returned(found=5))
    is_taken = lambda topic, _key, value, *_: (topic, value) != ("seeds", b"t p 1")  # noqa: E731
    with monkeypatch.context() as away:
        away.setattr(LocalProducer, "send", lambda self, *said: send(self, *said) if is_taken(*said) else failed)
        with pytest.raises(LogUnavailable):
            desk(log).put_back("t")
    desk(log).put_back("t")
    assert b"t p 1" in back(log)


def test_who_stands_still_is_not_waited_for(log: Log) -> None:
    park(log, 5)
    say(log, note_key("t", RETURNED), Returned(by="dead.1"))
    assert desk(log).put_back("t") == 5


def test_what_waits_comes_back_while_its_task_goes_on(log: Log) -> None:
    """Processes tell of such a task all the time."""
    park(log, 3)
    control, started = Mock(**{"endings.waiting_for.return_value": []}), Mock(return_value=None)
    watch = ParkedWatch(Group(log, Mock(), TOPICS, desk(log).board, control, lambda: True, Mock(start=started)))
    watch._put_back = Mock()  # type: ignore[method-assign]

    async def look() -> None:
        for _ in range(12):
            watch.heard(["t"])
            watch.look()
            await asyncio.sleep(1)

    virtual_time.run(look())
    watch._put_back.assert_called_with(["t"])


def test_a_paused_task_is_not_asked_about_until_it_goes_on(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be tens of thousands whose budget is spent, and there are five looks a second."""
    park(log, 3)
    say(log, b"t", Task(task_id="t", state="paused"))
    board, control = desk(log).board, Mock(**{"endings.waiting_for.return_value": []})
    started = Mock(return_value=None)
    watch = ParkedWatch(Group(log, Mock(), TOPICS, board, control, lambda: True, Mock(start=started)))
    watch._put_back = Mock()  # type: ignore[method-assign]
    asked = Mock(side_effect=board.phase)
    monkeypatch.setattr(board, "phase", asked)

    async def look() -> None:
        watch.heard(["t"])
        for _ in range(60):
            watch.look()
            await asyncio.sleep(0.2)

    virtual_time.run(look())
    assert (asked.call_count, watch._put_back.called) == (1, False)
    board.tasks["t"] = Task(task_id="t")
    virtual_time.run(look())
    watch._put_back.assert_called_with(["t"])


async def test_what_cannot_be_put_back_keeps_no_process_from_ending_as_idle(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has deleted the topic of parked messages, say. It is tried again all the same."""
    park(log, 3)
    board, control = desk(log).board, Mock(**{"endings.waiting_for.return_value": ["u"]})
    monkeypatch.setattr(log, "partitions", lambda _topic: 0)
    watch = ParkedWatch(Group(log, Mock(), TOPICS, board, control, lambda: True, Mock()))
    watch.heard(["t"])
    for tried in (["t"], ["u"]):
        watch.look()
        assert watch.is_waiting
        await watch._put_back(tried)
    assert not watch.is_waiting
    watch._look_at = 0.0
    watch.look()
    assert watch._news.keys() == {"t", "u"}
    assert not watch.is_waiting
    watch.heard(["t"])
    assert watch.is_waiting


async def test_what_is_parked_while_messages_are_put_back_is_waited_for(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process had not yet heard that the task goes on."""
    park(log, 3)
    board, control = desk(log).board, Mock(**{"endings.waiting_for.return_value": []})
    watch = ParkedWatch(Group(log, Mock(), TOPICS, board, control, lambda: True, Mock()))
    watch.heard(["t"])
    monkeypatch.setattr(returning, "put_back", Mock(return_value=2))
    await watch._put_back(["t"])
    assert watch.is_waiting


ENDS = [EndTold(number, 99, {"task_id": "t", "generation": number, "event": "done"}) for number in (1, 2)]


def test_a_replay_that_begins_behind_another_one_closes(log: Log) -> None:
    """The task had ended when they began. Somebody stops the first one, whose seeds are done meanwhile."""
    value = b'{"meta": {"task_id": "t"}}'
    with closing(log.producer()) as producer:
        TaskProducer(log, producer, TOPICS, "t").close_for_all()
        producer.send(TOPICS.control, *written("t", ENDS[0])).result()
        first = PutBackTasks(log, producer, TOPICS)
        first.before("seeds", value)
        second = PutBackTasks(log, producer, TOPICS)
        first.end()
        producer.send(TOPICS.control, *written("t", ENDS[1])).result()
        second.before("seeds", value)
        second.end()
    assert ending_of(log).is_closed


NAMED = ['"meta": {"task_id": 42}', '"task_id": 42', '"task_id": "42", "meta": {"url_id": "1"}']


@pytest.mark.parametrize("said", NAMED)
def test_a_replay_knows_a_task_in_each_way_in_which_seeds_name_it(log: Log, said: str) -> None:
    """An id may be a number, and stand beside the URL although there is meta."""
    with closing(log.producer()) as producer:
        TaskProducer(log, producer, TOPICS, "42").close_for_all()
        replay = PutBackTasks(log, producer, TOPICS)
        assert replay.before("seeds", f'{{"url": "http://a.test/", {said}}}'.encode()) == "42"
        replay.end()


def test_a_replay_does_not_close_the_generation_of_a_producer_that_does_not(log: Log) -> None:
    """The task had ended when the replay began, and more of its seeds come before the first that is put back."""
    with closing(log.producer()) as producer:
        TaskProducer(log, producer, TOPICS, "t").close_for_all()
        producer.send(TOPICS.control, *written("t", ENDS[0])).result()
        replay = PutBackTasks(log, producer, TOPICS)
        other = TaskProducer(log, producer, TOPICS, "t")
        other.begin()
        replay.before("seeds", b'{"meta": {"task_id": "t"}}')
        replay.end()
        assert (ending_of(log).generation, ending_of(log).is_closed) == (2, False)
        other.end(closes=True)
    assert ending_of(log).is_closed


def test_a_replay_that_ends_when_its_task_has_ended_closes(log: Log) -> None:
    """Somebody closed the task while the replay was going on, and what comes behind that begins the next generation."""
    with closing(log.producer()) as producer:
        known = TaskProducer(log, producer, TOPICS, "t")
        known.begin()
        known.end(closes=False)
        replay = PutBackTasks(log, producer, TOPICS)
        replay.before("seeds", b'{"meta": {"task_id": "t"}}')
        TaskProducer(log, producer, TOPICS, "t").close_for_all()
        producer.send(TOPICS.control, *written("t", ENDS[0])).result()
        replay.end()
    assert (ending_of(log).generation, ending_of(log).is_closed) == (2, True)


def test_several_tasks_are_one_reading(log: Log) -> None:
    for number in range(50):
        park(log, 2, task_id=f"t{number}")
    log.starts.clear()
    assert returning.put_back(log, TOPICS, [f"t{number}" for number in range(50)]) == 100
    assert len(log.starts) == 1


def test_an_end_waits_for_what_is_being_put_back_and_none_comes_back_behind_it(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what a process has sent on itself, of which it tells alone (simulation 795575)."""
    for part in ("t", "over"):
        with closing(log.producer()) as producer:
            TaskProducer(log, producer, TOPICS, part).close_for_all()
            told = EndTold(1, 9, {"task_id": part, "generation": 1, "event": "done", "seeds": {}})
            if part == "over":
                producer.send(TOPICS.control, *written(part, told)).result()
        park(log, 3, task_id=part)
        say(log, note_key(part, "p"), Usage(parked=3, sent_on=3))
    over, send = [], returning._Returning._send

    def sent(self: Any, message: Message, work: Any) -> None:
        over.append(ending_of(log).is_over)
        send(self, message, work)

    monkeypatch.setattr(returning._Returning, "_send", sent)
    assert desk(log).put_back("over") == 0
    assert desk(log).put_back("t") == 3
    assert over == [False] * 3
    assert not ending_of(log).is_waiting_for("seeds.parked")
    assert [desk(log).board.returned(part).by for part in ("t", "over")] == ["", ""]
