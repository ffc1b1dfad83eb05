"""Records of the control log: what is written is read, and nothing else."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider.contracts.seed_log import Headers, Message, Partition
from site_spider.tasks import control_log
from site_spider.tasks.board import PAST, TIMES, Board, note_key, pace_key
from site_spider.tasks.control_log import BadRecord, Endings, read, written
from site_spider.tasks.declaration import Pace, Past, Task, TaskTimes, Usage
from site_spider.tasks.ending import (
    Attempts,
    Counts,
    EndTold,
    Fact,
    Moved,
    Noticed,
    Producing,
    TakenBack,
    Tally,
    Uncounted,
    WebhookAttempt,
)
from site_spider.tasks.follower import Follower, TopicView
from tests.growth import CONSTANT, assert_grows, us_a_step

LOG = Partition("control", 0)
PLACE = Partition("seeds.a", 3)
EVENT = {
    "task_id": "täsk/1", "generation": 1, "event": "done", "first_at": None,
    "last_at": "2026-01-02T03:04:05.000+00:00", "seeds": {"result": 1, "total": 1}, "pages": 3, "failures": 1,
    "bytes": 9, "reasons": {"HTTP 404": 1},
}  # fmt: skip
FACTS: list[Fact] = [
    Producing("p", is_open=True),
    Producing("*", is_open=False, closes=True, highs={PLACE: 7}),
    Producing("p", is_open=False, messages=-1, closed=3),
    Tally(PLACE, "w", 2, 4, 12, frozenset({5, 9}), Counts({"result": 3}, 5, 9), frozenset({2}), {PLACE: 4}),
    Moved({PLACE: 4}, {Partition("seeds", 1): 8}),
    Uncounted(4),
    EndTold(1, 20, EVENT, 12, {"result": 2}),
    Noticed(1),
    Attempts(1, (WebhookAttempt(5, 503, "HTTP 503"), WebhookAttempt(9, 204, ""))),
]


def message(key: bytes | None, value: bytes | None, headers: Headers = (), offset: int = 0) -> Message:
    return Message(LOG, offset, key, value, tuple(headers))


@pytest.mark.parametrize("fact", FACTS)
def test_what_is_written_is_read(fact: Fact) -> None:
    assert read(message(*written("täsk/1", fact))) == ("täsk/1", fact)


def test_what_is_taken_back_has_the_key_of_its_record() -> None:
    """Compaction keeps the last word of each writer, until another one carries it on."""
    facts = [Tally(PLACE, "a", 1, 1), Tally(PLACE, "b", 1, 1), FACTS[0], FACTS[2]]
    gone = [TakenBack("a", PLACE), TakenBack("b", PLACE), TakenBack("p", is_open=True), TakenBack("p")]
    keys = [written("t", fact)[0] for fact in facts]
    assert len(set(keys)) == 4
    assert [written("t", one)[0] for one in gone] == keys
    for one in gone:
        assert read(message(*written("t", one))) == ("t", one)


@pytest.mark.parametrize(
    ("key", "value", "fact"),
    [
        ("high\x1fseeds.a/3\x1fw", b'{"position":9}', Moved(highs={PLACE: 9})),
        ("high\x1fseeds.a/3\x1fw", b'{"position":0,"uncounted":2}', Uncounted(2)),
        ("passed\x1fseeds.a/3\x1fw", b'{"position":9}', Moved({PLACE: 9})),
        ("producer\x1fp", b'{"open":true,"closes":false,"highs":{}}', FACTS[0]),
    ],
)
def test_records_of_releases_before_are_read(key: str, value: bytes, fact: Fact) -> None:
    assert read(message(f"t\x1f{key}".encode(), value)) == ("t", fact)


def test_what_is_taken_back_is_not_forgotten() -> None:
    endings = Endings()
    endings.take(message(*written("t", FACTS[3])))
    endings.take(message(*written("t", TakenBack("w", PLACE)), 1))
    endings.take(message(*written("u", TakenBack("w", PLACE)), 2))
    ending = endings.get("t")
    assert ending is not None
    assert (ending.tallies[PLACE], ending.writers[PLACE], ending.read_to) == (FACTS[3], set(), 2)
    assert (endings.get("u"), endings.deleted) == (None, {})


@pytest.mark.parametrize(
    "change",
    [
        {"task_id": "other"}, {"task_id": None}, {"generation": 2}, {"generation": "1"}, {"event": None},
        {"pages": "abc"}, {"pages": -1}, {"bytes": 1.5}, {"failures": None}, {"reasons": []},
        {"reasons": {"a": "b"}}, {"reasons": None}, {"seeds": {"result": True}}, {"first_at": 5},
        {"last_at": "soon"}, {"reasons": {"\ud800": 1}}, {"more": "\udfff"},
    ],
)  # fmt: skip
def test_an_end_whose_event_is_odd_is_refused(change: dict[str, Any]) -> None:
    """It is sent on and added up as it is."""
    event = {name: value for name, value in {**EVENT, **change}.items() if value is not None}
    key, value, _ = written("täsk/1", EndTold(1, 20, EVENT, 12))
    said = {**json.loads(value), "event": event}
    if change in ({"failures": None}, {"reasons": None}):  # what is missing counts as none
        read(message(key, json.dumps(said).encode()))
        return
    with pytest.raises(BadRecord):
        read(message(key, json.dumps(said).encode()))


@pytest.mark.parametrize(
    "change",
    [
        {"counts": {"seeds": {"result": 1}, "first": 0, "last": 10**18}},
        {"counts": {"seeds": {"result": float("inf")}, "first": 0, "last": 0}},
        {"version": 2**63}, {"holes": "====" * 9}, {"left": [2]}, {"highs": {"seeds": 1}}, {"top": True},
    ],
)  # fmt: skip
def test_a_tally_with_a_number_out_of_range_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    key, value, _ = written("t", FACTS[3])
    endings = Endings()
    with pytest.raises(BadRecord):
        endings.take(message(key, json.dumps({**json.loads(value), **change}).encode()))
    assert endings.get("t") is None


def told(task_id: str, generation: int = 1) -> list[Fact]:
    event = {**EVENT, "task_id": task_id, "generation": generation}
    closed = Producing("*", is_open=False, closes=True)
    return [closed, EndTold(generation, 2**40, event, 1), Noticed(generation)]


def test_there_is_room_for_so_many_tasks_and_those_that_have_ended_can_be_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_log, "MOST_TASKS", 3)
    endings, first = Endings(), FACTS[0]
    records = [(task_id, fact) for task_id in "abc" for fact in (told(task_id) if task_id < "c" else [first])]
    for offset, (task_id, fact) in enumerate(records):
        endings.take(message(*written(task_id, fact), offset))
    assert (list(endings.ended()), endings.unfinished) == (["a", "b"], set())
    with pytest.raises(BadRecord, match="3 tasks"):
        endings.take(message(*written("d", first), 10))
    endings.take(message(written("a", first)[0], None, offset=11))
    endings.take(message(*written("d", first), 12))
    assert [task_id for task_id in "abcd" if endings.get(task_id)] == ["b", "c", "d"]


def test_a_task_with_too_many_partitions_is_set_aside() -> None:
    """Its end could not be written."""
    endings = Endings()
    endings.take(message(*written("t", Moved(highs={Partition("seeds", n): 9 for n in range(5_000)}))))
    with pytest.raises(BadRecord, match="set aside"):
        endings.take(message(*written("t", Moved(highs={Partition("seeds", 5_000): 9}))))
    endings.take(message(*written("t", FACTS[0])))
    assert endings.get("t") is None


@pytest.mark.parametrize(
    "key", [None, b"", b"t", b"t\x1fhigh", b"\xff\x1fhigh\x1fs/0\x1fw", b"t\x1fnone", b"\x1fnoticed"]
)
@pytest.mark.parametrize("value", [None, b"", b"{}", b"[" * 100_000, b"{" * 2_000_000, b'{"generation": 1}'])
def test_foreign_records_are_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(BadRecord):
        Endings().take(message(key, value))


def test_a_task_whose_records_are_deleted_is_told_to_who_counts() -> None:
    """Who counts begins anew: a task of the same name may come."""
    endings = Endings()
    written_as = [written("t", fact) for fact in (*FACTS, *told("t"))]
    for at, record in enumerate(written_as):
        with suppress(BadRecord):
            endings.take(message(*record, offset=at))
    assert (endings.deleted, endings.told) == ({}, {"t"})
    for at, record in enumerate(written_as):
        endings.take(message(record[0], None, offset=100 + at))
    assert endings.deleted.keys() == {"t"}
    assert not endings.told  # which only one process asks for, and no console
    assert endings.get("t") is None


@pytest.mark.nightly
def test_a_record_costs_the_same_however_many_tasks_have_ended() -> None:
    """A year has 100,000 tasks."""

    def prepare(tasks: int) -> Callable[[], None]:
        endings, offset = Endings(), 0
        for number in range(tasks):
            for fact in told(f"t{number}"):
                endings.take(message(*written(f"t{number}", fact), offset))
                offset += 1
        records = [written(f"new{number}", fact) for number in range(300) for fact in told(f"new{number}")]

        def work() -> None:
            for at, record in enumerate(records, offset):
                endings.take(message(*record, at))

        return work

    assert_grows(prepare, 1_000, most=CONSTANT)
    assert_grows(lambda tasks: prepare(5 * tasks), 500, most=CONSTANT)


NAME = b"task-000000"
DECLARED = {  # what the task topic says of a task that two processes have crawled
    NAME: Task(task_id=NAME.decode(), max_pages=9, state="cancelled").value(),
    note_key(NAME.decode(), TIMES): TaskTimes(expired=datetime(2026, 1, 1, tzinfo=UTC)).value(),
    note_key(NAME.decode(), "p"): Usage(claimed=9, seeds={"result": 9}).value(),
    note_key(NAME.decode(), PAST): Past(claimed=9, folded=["q"]).value(),
    pace_key(NAME.decode(), "p"): Pace(used=5).value(),
}
ENDED = dict(  # what the control log says of it
    written(NAME.decode(), fact)[:2] for fact in (*told(NAME.decode()), Tally(PLACE, "w", 1, 8), Attempts(1, ()))
)


@pytest.mark.nightly
@pytest.mark.parametrize(("reducer", "records"), [(Board, DECLARED), (Endings, ENDED)])
def test_tasks_that_are_forgotten_leave_nothing(reducer: type[Board | Endings], records: dict[bytes, bytes]) -> None:
    """A year has 100,000, of which ten are kept here: what is known of them, and the time of a record."""

    def live(state: Board | Endings, tasks: int) -> None:
        offsets = count()
        for number in range(tasks):
            for whose, is_there in ((number, True), (number - 10, False)):
                name = b"task-%06d" % whose
                for key, value in records.items() if whose >= 0 else ():
                    said = value.replace(NAME, name) if is_there else None
                    state.take(message(key.replace(NAME, name), said, offset=next(offsets)))
            if isinstance(state, Endings):  # as who counts does
                state.deleted.clear()

    states = {tasks: reducer() for tasks in (10, 1_000, 10_000, 100_000)}
    us = {tasks: us_a_step(partial(live, state, tasks), 2 * tasks * len(records)) for tasks, state in states.items()}
    sizes = {tasks: len(pickle.dumps(state)) for tasks, state in states.items()}
    print(f"{reducer.__name__}: bytes {sizes}, us a record {us}")
    assert [len(state) for state in states.values()] == [10] * 4
    assert max(sizes.values()) < 1.1 * sizes[10], sizes


def test_offsets_of_all_tasks_are_bounded_and_the_task_with_most_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of 266 kB unpacks to 20 MB, and who produces to a task may write any number of them."""
    monkeypatch.setattr(control_log, "_MOST_OFFSETS", 100)
    endings = Endings()

    def take(task_id: str, count: int, version: int = 1) -> None:
        holes = frozenset(range(5, 5 + count))
        endings.take(message(*written(task_id, Tally(PLACE, "w", version, 0, 1000, holes, left=holes))))

    for version in range(1, 99):  # what was told before is replaced
        take("good", 10, version)
    take("large", 30)
    take("good", 25, 99)  # 110 in all
    assert list(endings) == ["good"]
    with pytest.raises(BadRecord, match="set aside"):
        take("larger", 40)
    endings.take(message(written("good", Tally(PLACE, "w", 1, 0))[0], None))
    take("other", 50)
    assert list(endings) == ["other"]


async def test_records_are_taken_some_in_a_turn_of_the_event_loop() -> None:
    """Whoever writes one may have it take long to read, and thousands may come at once."""
    turn, taken_in = 0, Counter[int]()
    small = [message(b"t", b"", offset=number) for number in range(1_000)]
    large = [message(b"t", b"x" * 50_000, offset=number) for number in range(100)]
    polls = [[*small, *large]]
    reader = Mock(poll=lambda _seconds: polls.pop() if polls else [])
    view = TopicView(Mock(reader=lambda _topic, compacted: reader), "t", lambda _one: taken_in.update([turn]) or "t")
    follower = Follower(view, asyncio.get_running_loop().call_soon_threadsafe, lambda _task_ids: None)
    follower.start()
    while taken_in.total() < 1_100:
        turn += 1
        await asyncio.sleep(0)
    await asyncio.to_thread(follower.close)
    assert max(taken_in.values()) <= 100
    assert len(taken_in) >= 10 + 50
