"""The board takes what a topic holds, and refuses what is malformed with a reason."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

from site_spider import runtime
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.contracts.seed_log import Message, Partition
from site_spider.tasks.board import PAST, Board, PastUsage, note_key, pace_key
from site_spider.tasks.budgets import TaskState, TaskStates
from site_spider.tasks.declaration import MOST, Pace, Past, Returned, Task, Usage
from site_spider.tasks.follower import TopicView
from tests.growth import CONSTANT, assert_grows, us_a_step

TASKS = Partition("seeds.tasks", 0)


def message(key: bytes | None, value: bytes | None) -> Message:
    return Message(TASKS, 0, key, value)


HOSTILE = [
    (None, b"{}"), (b"t", b""), (b"t", b"\xff"), (b"\xff", b"{}"), (b"t", b'{"task_id": "other"}'),
    (b"t", b"[" * 1_000), (b"t", b'{"task_id": "t", "deny": ["(?=x)"]}'), (b"t", b"x" * 1_000_001),
    (b"t\x1fp", b'{"claimed": -1}'), (b"t\x1fp", b"[]"), (b"t\x1freturned", b'{"offsets": {"0": 1e99}}'),
    (b"t", b'{"task_id": "t", "weight": NaN}'), (b"", b'{"task_id": ""}'),
]  # fmt: skip


def test_malformed_records_are_said_once_each_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They change nothing, and a process starts all the same; a flood is cut off."""
    log = LocalSeedLog(tmp_path)
    log.make_topic("seeds.tasks", 1, compacted=True)
    with closing(log.producer()) as producer:
        for key, value in HOSTILE:
            producer.send("seeds.tasks", key or b"k", value)
        for number in range(100):
            producer.send("seeds.tasks", f"k{number}".encode(), b"no JSON")
        producer.send("seeds.tasks", b"t", Task(task_id="t").value()).result()
    board, skipped = Board(), list[str]()
    with caplog.at_level(logging.WARNING), closing(TopicView(log, "seeds.tasks", board.take, skipped.append)) as view:
        view.read_on(10)
    assert ([task.task_id for task in board], board.used("t"), board.was_parked("t")) == (["t"], Usage(), False)
    assert (len(skipped), len(caplog.records)) == (len(HOSTILE) + 100, 21)


class Topic:
    """A task topic as compaction leaves it, and a board that follows it, while time passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.board, self.now = Board(), 0.0
        self.records: dict[bytes, bytes] = {}
        monkeypatch.setattr(runtime, "monotonic", lambda: self.now)
        producer: Any = self
        self.past = PastUsage(self.board, "seeds.tasks", producer, lambda: True)

    def send(self, topic: str, key: bytes, value: bytes | None) -> None:
        self.records.pop(key, None)
        if value is not None:
            self.records[key] = value
        self.board.take(message(key, value))

    def tell(self, process: str, **counts: Any) -> None:
        self.send("seeds.tasks", note_key("t", process), Usage(**counts).value())

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds / 70)):
            self.now += 70
            self.past.look()

    @property
    def size_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self.records.items())

    def read(self) -> Board:
        board = Board()
        for key, value in self.records.items():
            board.take(message(key, value))
        return board


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    return Topic(monkeypatch)


def test_sums_are_of_all_processes_and_tombstones_take_back(topic: Topic) -> None:
    board = topic.board
    topic.send("seeds.tasks", b"t", Task(task_id="t", max_pages=5).value())
    for name, pages in (("a", 2), ("b", 3), ("a", 4)):
        topic.tell(name, pages=pages, claimed=pages, seeds={"result": pages})
    assert (board.used("t").pages, board.used("t").seeds) == (7, {"result": 7})
    assert board.phase("t").reason == "page_budget"
    topic.send("seeds.tasks", note_key("t", "a"), None)
    assert board.used("t").pages == 3
    topic.send("seeds.tasks", note_key("t", "returned"), Returned(waited=1).value())
    for key in (b"t", note_key("t", "b"), note_key("t", "returned")):
        topic.send("seeds.tasks", key, None)
    assert (len(board), board.used("t"), board.last_claimer("t")) == (0, Usage(), "")
    assert (board.phase("t").name, board.was_parked("t")) == ("running", False)


def test_what_was_parked_after_the_look_is_still_to_be_put_back(topic: Topic) -> None:
    topic.tell("a", parked=3)
    assert topic.board.has_parked("t")
    topic.send("seeds.tasks", note_key("t", "returned"), Returned(waited=3).value())
    for parked in (3, 5, 6):
        topic.tell("a", parked=parked, sent_on=min(2, parked - 3))
        assert topic.board.has_parked("t") == (parked == 6)


def test_what_a_release_before_told_of_a_task_counts(topic: Topic) -> None:
    """As commit bdecb89 wrote it: with figures of traps as a list, and what was put back by process."""
    told = {"claimed": 5, "begun": 4, "pages": 3, "parked": 5, "seeds": {"result": 3}, "hosts": {"h": 2}}
    for name, traps in ("a", []), ("b", [{"pattern": "h/N", "pages": 60, "texts": 2}]):
        topic.send("seeds.tasks", note_key("t", name), json.dumps({**told, "traps": traps}).encode())
    assert (topic.board.used("t").claimed, topic.board.parked("t"), topic.board.hosts("t")) == (10, 10, {"h": 4})
    topic.send("seeds.tasks", note_key("t", "returned"), b'{"parked": {"a": 5, "b": 3}, "offsets": {"0": 8}}')
    assert (topic.board.has_parked("t"), topic.board.parked("t")) == (True, 2)
    assert topic.board.returned("t") == Returned(waited=8, offsets={"0": 8})


def test_sums_may_be_larger_than_what_one_process_may_tell(topic: Topic) -> None:
    for name in "abc":
        topic.tell(name, pages=MOST, seeds={f"{name}{number}": MOST for number in range(1_000)})
    assert topic.board.used("t").pages == 3 * MOST
    assert len(topic.board.used("t").seeds) == 3_000
    topic.wait(700)
    past = topic.board.past("t")
    assert (sorted(past.folded), len(past.seeds), past.seeds["a0"]) == (["a", "b", "c"], 1_000, MOST)


def test_a_look_at_very_many_tasks_takes_no_time_of_the_event_loop(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 that have ended are kept: all at once took seconds, in each process."""
    for number in range(1_000):
        topic.send("seeds.tasks", note_key(f"t{number}", "a"), Usage(pages=1).value())
    looked_at = create_autospec(Board.told, side_effect=Board.told)
    monkeypatch.setattr(Board, "told", looked_at)
    counts = []
    for _ in range(700):
        topic.now += 1
        looked_at.reset_mock()
        before = len(topic.records)
        topic.past.look()
        counts.append((looked_at.call_count, len(topic.records) - before))
    assert max(looked for looked, _ in counts) <= 200
    assert sum(written for _, written in counts) == 1_000
    assert all(topic.board.past(f"t{number}").folded == ["a"] for number in range(1_000))


def test_a_record_costs_the_same_however_many_processes_have_told() -> None:
    """And to ask what it has changed."""

    def told(number: int, pages: int) -> Message:
        usage = Usage(pages=pages, parked=pages, seeds={"result": pages}, hosts={"h": pages})
        return message(note_key("t", f"p{number}"), usage.value())

    def prepare(processes: int) -> Callable[[], None]:
        board, state = Board(), TaskState(Task(task_id="t", max_pages=10**6, max_pages_host=5), "p0")
        for number in range(processes):
            board.take(told(number, 1))
        news = [told(3, pages) for pages in range(2, 102)]

        def work() -> None:
            for record in news:
                board.take(record)
                board.has_parked("t")
                state.heard(board)
                state.look(board)
            assert (board.used("t").pages, board.hosts("t")) == (processes + 100, {"h": processes + 100})

        return work

    assert_grows(prepare, 250, most=CONSTANT)


def test_what_was_told_by_processes_that_are_gone_is_added_up(topic: Topic) -> None:
    topic.tell("a", claimed=5, begun=4, pages=3, seeds={"result": 2}, hosts={"h": 9}, traps={"h/N": 1})
    topic.tell("b", begun=1, parked=3, seeds={"result": 1, "failure": 1}, hosts={"h": 1, "g": 2}, traps={"h/N": 2})
    topic.send("seeds.tasks", pace_key("t", "a"), Pace(used=5).value())
    before = topic.board.used("t")
    topic.wait(560)
    topic.tell("c", begun=10)
    assert len(topic.records) == 4
    topic.wait(140)
    past = topic.board.past("t")
    assert (sorted(past.folded), past.begun, past.seeds) == (["a", "b"], 5, {"result": 3, "failure": 1})
    topic.tell("b", begun=100)  # it was not gone: what it tells now counts no more
    for board in (topic.board, topic.read()):
        assert board.used("t").begun == before.begun + 10
        assert (board.waiting("t"), board.hosts("t")) == (3, {"h": 10, "g": 2})
        assert board.used("t").traps == {"h/N": 3}
    topic.wait(140)
    assert sorted(topic.records) == [note_key("t", "c"), note_key("t", PAST)]
    assert topic.read().used("t").begun == topic.board.used("t").begun == before.begun + 10


def test_what_is_added_up_stands_for_a_while_before_anything_is_taken_back(topic: Topic) -> None:
    """Another owner of the first partition may have added up other ones at the same moment."""
    topic.tell("a", begun=1)
    topic.tell("b", begun=2)
    topic.wait(700)
    late = Past.of(Past(), {"a": Usage(begun=1)})
    topic.send("seeds.tasks", note_key("t", PAST), late.value())
    topic.wait(70)
    assert note_key("t", "b") in topic.records
    topic.wait(2_000)
    assert topic.read().used("t").begun == 3


@pytest.mark.parametrize("starts", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_the_task_topic_is_as_small_however_many_processes_have_started(topic: Topic, starts: int) -> None:
    keys, size_bytes = Counter[int](), Counter[int]()  # the most of so many starts

    def live(first: int, last: int) -> None:
        for start in range(first, last):
            topic.tell(f"host-{start:05}", begun=1, seeds={"result": 1})
            topic.wait(70)
            keys[last] = max(keys[last], len(topic.records))
            size_bytes[last] = max(size_bytes[last], topic.size_bytes)

    us = {last: us_a_step(partial(live, first, last), last - first) for first, last in ((0, 10), (10, starts))}
    print(f"keys {dict(keys)}, bytes {dict(size_bytes)}, us a start {us}")
    assert keys[starts] < 2 * keys[10]
    assert size_bytes[starts] < 2 * size_bytes[10]
    assert topic.read().used("t").seeds == {"result": starts}


# --- a budget of pages that processes share, against all that the order of the topic allows -----------------

TOPIC = Partition("tasks", 0)


class Process:
    """Reads the topic as late as chance has it, and begins pages as the rules allow."""

    def __init__(self, name: str, task: Task, topic: list[Message]) -> None:
        self.name, self.topic, self.read = name, topic, 0
        self.board = Board()
        self.state = TaskState(task, name)

    def tell(self) -> None:
        if self.state.is_news:
            value = self.state.told().value()
            self.topic.append(Message(TOPIC, len(self.topic), note_key("t", self.name), value))

    def hear(self, count: int) -> None:
        """Records come in batches, and are looked at when all of a batch are taken."""
        for message in self.topic[self.read : self.read + count]:
            self.board.take(message)
            self.read += 1
        self.state.heard(self.board)

    def work(self) -> bool:
        self.state.claim_more()
        if self.state.left > 0:
            self.state.count("begun")
            return True
        return False


def test_pages_are_given_back_until_all_of_a_budget_is_claimed() -> None:
    """Else the seeds that others have parked come back for them, more than can begin, without end."""
    task = Task(task_id="t", max_pages=100)
    topic = [Message(TOPIC, 0, b"t", task.value())]
    one, two = (Process(name, task, topic) for name in ("one", "two"))

    def talk() -> None:
        for each in (one, two, one, two):
            each.tell()
            each.hear(len(topic))

    one.work()
    talk()
    one.state.give_back()
    talk()
    assert two.board.used("t").claimed == 0
    one.work()
    talk()
    for _ in range(200):
        two.work()
        talk()
    one.state.give_back()
    talk()
    assert two.board.used("t").claimed == 100
    assert two.board.phase("t").reason == "page_budget"


@pytest.mark.parametrize("number", range(30))
def test_no_more_pages_begin_than_the_budget_says(number: int) -> None:
    """And all of them begin in the end, unless a process died with what it had claimed."""
    chance = random.Random(number)
    budget = chance.choice([1, 2, 7, 40, 300])
    task = Task(task_id="t", max_pages=budget)
    topic = [Message(TOPIC, 0, b"t", task.value())]
    processes = [Process(f"p{index}", task, topic) for index in range(chance.randint(1, 4))]
    for _ in range(2_000):
        each = chance.choice(processes)
        chance.choice([each.tell, each.work, each.work, lambda each=each: each.hear(chance.randint(1, 5))])()
        assert sum(process.state.counts["begun"] for process in processes) <= budget
    for _ in range(300):
        for each in processes:
            each.tell()
            each.hear(len(topic))
            if not each.work() and chance.random() < 0.2:
                each.state.give_back()
    assert sum(process.state.counts["begun"] for process in processes) == budget


async def test_a_process_that_ends_tells_of_all_its_tasks_at_once() -> None:
    """Nobody sends anything later, and what it has claimed and does not give back is lost."""
    board, told = Board(), list[bytes]()
    for number in range(450):
        board.take(message(b"t%d" % number, Task(task_id=f"t{number}", max_pages=9).value()))

    states = TaskStates(board, "p", lambda key, _: told.append(key), Mock())
    for number in range(450):
        state = states.of(f"t{number}")
        assert state is not None
        state.claim_more()
    states.close()

    assert len(set(told)) == 450
