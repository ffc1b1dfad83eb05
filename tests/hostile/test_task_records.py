"""Records that anybody may have written to topics of tasks and statistics: none ends a process or hides others."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from scrapy.crawler import Crawler

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.console.fleet import MOST_PROCESSES, SILENT_FOR_GOOD_SECONDS, Fleet
from site_spider.console.pages import failures, hosts, overview, processes, sinks, tasks
from site_spider.console.process_state import state_of
from site_spider.contracts.seed_log import Message, Partition, SeedLog
from site_spider.observe import frontier_socket
from site_spider.seed.topics import CrawlTopics
from site_spider.service.service import SeedService
from site_spider.tasks import returning
from site_spider.tasks.board import Board, Cancelled, note_key
from site_spider.tasks.closing import TaskProducer
from site_spider.tasks.control_log import BadRecord, Endings, read_endings, written
from site_spider.tasks.control_log import read as read_control
from site_spider.tasks.declaration import BadTask, Pace, Returned, Task, TaskTimes, Usage
from site_spider.tasks.ending import (
    Attempts,
    Counts,
    EndTold,
    Moved,
    Noticed,
    Producing,
    Tally,
    Uncounted,
    WebhookAttempt,
)
from site_spider.tasks.follower import ORIGIN_HEADER, TASK_HEADER
from site_spider.tasks.orders import TaskDesk, TaskOverview
from site_spider.tasks.page_log import BadPages, CountedPage, key_of, task_of
from site_spider.tasks.page_log import read as read_pages
from site_spider.tasks.page_log import written as written_pages
from tests.console import snapshots
from tests.console.consoles import watch_of
from tests.console.snapshots import NOW, snapshot
from tests.in_process.engine import crawl

EACH = 200  # mutated records of each kind
IDS = ("t", "u", "paused", "ended")
TOPICS = CrawlTopics.beside({"SITE_SEED_TOPIC": "seeds"})
PARKED = {"parked": (b"h.test", b'{"url": "http://h.test/1", "meta": {"task_id": "paused"}}')}
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
    usage = Usage(claimed=5, parked=3, seeds={"result": 2}, hosts={"h": 2})
    returned = Returned(waited=2, found=1, offsets={"0": 2}, topic_id="i", by="x.1")
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
        "tally": ("t", Tally(PLACE, "w", 2, 4, 12, frozenset({5, 9}), counts, frozenset({2}), {PLACE: 3})),
        "moved": ("t", Moved({PLACE: 4}, {PLACE: 9})),
        "uncounted": ("t", Uncounted(3)),
        "ended": ("ended", EndTold(1, 2**40, EVENT, 12, {"result": 1})),
        "noticed": ("t", Noticed(1)),
        "attempts": ("t", Attempts(1, (WebhookAttempt(5, 503, "HTTP 503"),))),
    }
    return {kind: written(task_id, fact)[:2] for kind, (task_id, fact) in facts.items()}  # type: ignore[misc,arg-type]


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
        (raw[:at], raw[:at] + b"\xff" + raw[at:], raw[:at] + raw[at + 1 :], raw * 3, b"[" * 5_000, b"", raw[at:])
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
        board.phase(task_id)


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
            written_anew = Message(Partition("any", 0), 0, *written(task_id, fact)) if fact else message
            assert read_control(written_anew) == (task_id, fact)
    assert 0 < taken < EACH


def test_a_record_of_pages_is_taken_or_refused() -> None:
    for message in records("pages", PAGES["pages"]):
        try:
            task_of(message.key)
            read_pages(message.value or b"")
        except BadPages as error:
            str(error).encode()


def _write(log: SeedLog, topic: str, kinds: dict[str, Record], headers: Any = ()) -> None:
    with closing(log.producer()) as producer:
        many = [message for kind, record in kinds.items() for message in records(kind, record, EACH // 4)]
        random.Random(1).shuffle(many)
        for message in many:
            producer.send(topic, message.key, message.value, headers)
        for key, value in kinds.values():  # and good ones behind them
            producer.send(topic, key, value, headers).result()


@pytest.fixture
def attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose topics are full of them."""
    monkeypatch.setattr(returning, "_QUIET_SECONDS", 0.1)
    monkeypatch.setattr(returning, "_STILL_SECONDS", 0.3)
    log = LocalSeedLog(tmp_path)
    for topic in ("seeds.tasks", "seeds.tasks.control", "seeds.tasks.pages"):
        log.make_topic(topic, 1, compacted=True)
    log.make_topic("seeds.parked", 1, compacted=False)
    _write(log, "seeds.tasks", TASK)
    _write(log, "seeds.tasks.control", CONTROL)
    _write(log, "seeds.tasks.pages", PAGES)
    for headers in ([(TASK_HEADER, b"paused"), (ORIGIN_HEADER, b"\xff")], [(TASK_HEADER, b"\xff\xff")], []):
        _write(log, "seeds.parked", PARKED, headers)
    log.close()
    return tmp_path


def _ends_of(crawler: Crawler) -> Callable[[str], bool]:
    endings = SeedService.of(crawler).parts.tasks.control.endings

    def has_ended(task_id: str) -> bool:
        ending = endings.get(task_id)
        return ending is not None and ending.is_told and ending.noticed >= ending.generation

    return has_ended


def test_a_crawl_goes_on_and_tells_the_end_of_a_good_task(attacked: Path) -> None:
    """The seeds of every task are done, attacked or not, and commands answer."""
    log = LocalSeedLog(attacked)
    desk = TaskDesk(log, TOPICS)
    desk.write(Task(task_id="good"))
    with closing(log.producer()) as producer:
        good = TaskProducer(log, producer, TOPICS, "good")
        good.begin()
        for number in range(5):
            value = {"url": f"http://h.test/{number}", "meta": {"task_id": "good", "NotExtract": True}}
            good.sent(producer.send("seeds", b"h.test", json.dumps(value).encode()).result())
        good.end(closes=True)
    seeds = [{"url": f"http://h.test/{task_id}", "meta": {"task_id": task_id, "NotExtract": True}} for task_id in IDS]
    found = crawl(attacked, seeds, until=lambda crawler: _ends_of(crawler)("good"))
    assert found.exit_code == 0
    assert found.stats["tasks/records_skipped"] > EACH
    assert len([url for url in found.documents.values() if "/good" not in url["url"]]) >= 5
    again = crawl(attacked, seeds)
    assert (again.exit_code, again.lag) == (0, 0)
    desk.read()
    _look_at(desk.board)
    for task_id in IDS:
        desk.put_back(task_id)
    assert read_endings(log, TOPICS, "good").get("good") is not None


# --- statistics: no console fails or waits, and no process is hidden -------------------------------------


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**400, float("nan"), float("inf"), "", "x" * 5_000, "\ud800", "1e999", [], {},
    [[]] * 9, {"a": {"b": []}}, {"\ud800": "x"}, "9999-12-31T23:59:59+00:00", "-30000000-01-01", {"": 10**30},
)  # fmt: skip
REAL = 7


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier_socket, "folders", lambda: iter(()))


def write(log: LocalSeedLog, *records: tuple[bytes | None, bytes | None]) -> None:
    producer = log.producer()
    for future in [producer.send("seeds.stats", key, value) for key, value in records]:
        future.result(300)
    producer.close()


def record(document: dict[str, Any]) -> tuple[bytes, bytes]:
    return str(document.get("process")).encode("utf-8", "replace"), json.dumps(document).encode()


def mutated_snapshot(random_: random.Random, number: int) -> tuple[bytes | None, bytes | None]:
    """A snapshot with some odd fields at any depth, or with odd bytes, keys and sizes."""
    document = snapshot(number, at=time.time(), tasks={"largest": [snapshots.task("t", 1, 1, dns=1)], "others": {}})
    for _ in range(random_.randint(1, 4)):
        place: Any = document
        while True:
            name = random_.choice(list(place))
            if isinstance(place[name], dict) and place[name] and random_.random() < 0.7:
                place = place[name]
                continue
            place[name] = random_.choice(ODD)
            break
    key, value = record(document)
    cut = random_.randrange(len(value))
    forms: tuple[Callable[[], tuple[bytes | None, bytes | None]], ...] = (
        *([lambda: (key, value)] * 6),
        lambda: (key, value[:cut]),
        lambda: (key, random_.randbytes(200)),
        lambda: (None, value),
        lambda: (b"\xff", value),
        lambda: (key, None),
        lambda: (key, b"[" * 100_000),
        lambda: (key, b" " * 300_000 + value),
    )
    return random_.choice(forms)()


@pytest.mark.usefixtures("no_sockets")
def test_mutated_records_leave_every_page_and_the_real_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, random_ = LocalSeedLog(tmp_path), random.Random(24)
    write(log, record(snapshot(REAL, at=time.time())))
    write(log, *(mutated_snapshot(random_, 1_000 + number) for number in range(200)))
    watch = watch_of(log)
    with caplog.at_level(logging.WARNING):
        asyncio.run(watch.look_once())
        asyncio.run(watch.look_once())
    view = watch.view()
    assert REAL in {seen.state.pid for seen in view.fleet.seen.values()}
    for document in (overview(view), tasks(view), processes(view), hosts(view), sinks(view), failures(view, [], "d")):
        json.dumps(document).encode()
    assert sum("no snapshot" in said.getMessage() for said in caplog.records) == 1
    assert any("no snapshots were skipped; the last at seeds.stats/" in said for said in view.troubles)
    assert not any("could not look" in said for said in view.troubles)


@pytest.mark.usefixtures("no_sockets")
def test_processes_that_nobody_runs_are_bounded_and_hide_none(tmp_path: Path) -> None:
    log, now = LocalSeedLog(tmp_path), time.time()
    write(log, record(snapshot(REAL, at=now)))
    write(log, *(record(snapshot(1_000 + number, at=now)) for number in range(3_000)))
    watch = watch_of(log)
    asyncio.run(watch.look_once())
    view = watch.view()
    assert len(view.fleet.seen) == MOST_PROCESSES
    assert REAL in {seen.state.pid for seen in view.fleet.seen.values()}
    assert any(f"{MOST_PROCESSES} at most" in said for said in view.troubles)


def test_a_process_of_this_host_gets_the_place_of_one_that_is_only_told_of() -> None:
    fleet = Fleet()
    for number in range(MOST_PROCESSES + 5):
        fleet.take(state_of(snapshot(1_000 + number)), NOW)
    fleet.take(state_of(snapshot(REAL)), NOW, is_near=True)
    assert len(fleet.seen) == MOST_PROCESSES
    assert {1_000, REAL} <= {seen.state.pid for seen in fleet.seen.values()}
    fleet.take(state_of(snapshot(9)), NOW + SILENT_FOR_GOOD_SECONDS + 1)
    assert 9 in {seen.state.pid for seen in fleet.seen.values()}
