"""Records of the topics of tasks that anybody may have written: none ends a process or hides others."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from site_spider.contracts.seed_log import Message, Partition
from site_spider.tasks.board import Board, Cancelled, note_key
from site_spider.tasks.control_log import BadRecord, Endings, written
from site_spider.tasks.control_log import read as read_control
from site_spider.tasks.counted_page import BadPages, CountedPage, key_of, task_of
from site_spider.tasks.counted_page import read as read_pages
from site_spider.tasks.counted_page import written as written_pages
from site_spider.tasks.counts import Counts
from site_spider.tasks.ending import (
    Attempts,
    EndTold,
    High,
    Noticed,
    Passed,
    Producing,
    Tally,
    WebhookAttempt,
)
from site_spider.tasks.overview import TaskOverview
from site_spider.tasks.phase import TaskTimes
from site_spider.tasks.record import BadTask, Task
from site_spider.tasks.usage import Pace, Returned, Trap, Usage

EACH = 1_000  # mutated records of each kind
IDS = ("t", "u", "paused", "ended")
PLACE = Partition("seeds", 0)
EVENT = {
    "task_id": "ended", "generation": 1, "event": "done", "first_at": None,
    "last_at": "2026-01-02T03:04:05.000+00:00", "seeds": {"result": 1, "total": 1}, "pages": 3, "failures": 1,
    "bytes": 9, "reasons": {"HTTP 404": 1},
}  # fmt: skip
WRONG: list[Any] = [
    None, True, -1, 0, 1, 2**53, 2**62, 2**63, 10**30, 1e308, float("inf"), float("nan"), "", "abc", "\ud800",
    "x" * 3_000, "9" * 5_000, [], [1], {}, {"a": "b"}, {"\udc00": 1}, [[[[[]]]]], "30000000-01-01T00:00:00Z",
    "2026-01-02T03:04:05+00:00", 9_999_999_999_999_999, "AAAA", "////", "1", "running", 1.5,
]  # fmt: skip
Record = tuple[bytes, bytes]


def _json(model: Any) -> bytes:
    found: bytes = model.model_dump_json().encode()
    return found


def _task_records() -> dict[str, Record]:
    task = Task(task_id="t", max_pages=9, max_pages_host=3, deny=["/x"], rate=5.0, webhook="http://h.test/")
    traps = [Trap(pattern="/N", pages=9, texts=1)]
    usage = Usage(claimed=5, parked=3, seeds={"result": 2}, hosts={"h": 2}, traps=traps)
    returned = Returned(waited=2, found=1, offsets={"0": 2}, topic_id="i", by="x.1", parked={"p": 1})
    return {
        "task": (b"t", _json(task)),
        "usage": (note_key("t", "p"), _json(usage)),
        "cancelled": (note_key("t", "cancelled"), _json(Cancelled(started_at=datetime.now(UTC)))),
        "times": (note_key("t", "times"), _json(TaskTimes())),
        "pace": (note_key("t", "pace\x1fp"), _json(Pace(used=4, is_held=True))),
        "returned": (note_key("paused", "returned"), _json(returned)),
    }


def _control_records() -> dict[str, Record]:
    counts = Counts({"result": 3}, 5, 9)
    facts = {
        "producer": ("t", Producing("p", is_open=False, closes=True, highs={PLACE: 7})),
        "high": ("t", High(PLACE, "w", 9)),
        "tally": ("t", Tally(PLACE, "w", 2, 4, 12, frozenset({5, 9}), counts)),
        "passed": ("t", Passed(PLACE, "w", 4)),
        "ended": ("ended", EndTold(1, 2**40, {PLACE: 7}, EVENT, 12)),
        "noticed": ("t", Noticed(1)),
        "attempts": ("t", Attempts(1, (WebhookAttempt(5, 503, "HTTP 503"),))),
    }
    return {kind: tuple(written(task_id, fact)) for kind, (task_id, fact) in facts.items()}  # type: ignore[misc,arg-type]


TASK, CONTROL = _task_records(), _control_records()
PAGES = {"pages": (key_of("t", "w", 1), written_pages([CountedPage(5, 9, True, None)] * 2))}


def mutated(chance: random.Random, record: Record) -> Record:
    """Other bytes, types, sizes, times, versions or keys."""
    key, value = record
    for _ in range(chance.choice((1, 1, 2, 3))):
        match chance.randrange(6):
            case 0:
                value = _other_bytes(chance, value)
            case 1:
                key = _other_bytes(chance, key)
            case 2:
                key = key.replace(key.split(b"\x1f")[0], chance.choice(IDS).encode(), 1)
            case _:
                value = _other_value(chance, value)
    return key, value


def _other_bytes(chance: random.Random, raw: bytes) -> bytes:
    at = chance.randrange(len(raw) + 1)
    return chance.choice(
        (
            raw[:at],
            raw[:at] + b"\xff" + raw[at:],
            raw[:at] + raw[at + 1 :],
            raw * 3,
            b"[" * 5_000,
            b"",
            raw[at:],
        )
    )


def _other_value(chance: random.Random, value: bytes) -> bytes:
    try:
        said = json.loads(value)
    except (ValueError, RecursionError):
        return value
    places = list(_places(said))
    if not places:
        return value
    place, name = chance.choice(places)
    if chance.random() < 0.15:
        del place[name]
    elif isinstance(place, dict) and chance.random() < 0.15:
        place[chance.choice(("more", "\ud800", "9" * 400, "0/0", "seeds/1"))] = place.pop(name)
    else:
        place[name] = chance.choice(WRONG)
    return json.dumps(said).encode()


def _places(said: Any) -> Iterator[tuple[Any, Any]]:
    names = list(said) if isinstance(said, dict) else range(len(said)) if isinstance(said, list) else ()
    for name in names:
        yield said, name
        yield from _places(said[name])


def records(kind: str, record: Record, count: int = EACH) -> Iterator[Message]:
    chance = random.Random(kind)
    for number in range(count):
        yield Message(Partition("any", 0), number, *mutated(chance, record))


def _look_at(board: Board) -> None:
    """All that a process or a command asks."""
    overview = TaskOverview(board, Endings())
    for task_id in {*IDS, *(task.task_id for task in board)}:
        json.dumps(overview.of(task_id).document(), ensure_ascii=False).encode()
        board.end_of(task_id)


@pytest.mark.parametrize("kind", TASK)
def test_a_record_of_the_task_topic_is_taken_or_refused(kind: str) -> None:
    board, taken = Board(), 0
    for message in records(kind, TASK[kind]):
        try:
            board.take(message)
        except BadTask as error:
            str(error).encode()
        else:
            taken += 1
        if not message.offset % 50:
            _look_at(board)
    _look_at(board)
    assert 0 < taken < EACH


@pytest.mark.parametrize("kind", CONTROL)
def test_a_record_of_the_control_log_is_taken_or_refused(kind: str) -> None:
    """What is taken can be written again, and told."""
    taken = 0
    for message in records(kind, CONTROL[kind]):
        try:
            task_id, fact = read_control(message)
        except BadRecord as error:
            str(error).encode()
        else:
            taken += 1
            assert read_control(Message(Partition("any", 0), 0, *written(task_id, fact))) == (task_id, fact)
    assert 0 < taken < EACH


def test_a_record_of_pages_is_taken_or_refused() -> None:
    for message in records("pages", PAGES["pages"]):
        try:
            task_of(message.key)
            read_pages(message.value or b"")
        except BadPages as error:
            str(error).encode()
