"""One truth of a task: its state and its numbers, from whatever records there are."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.contracts.seed_log import Message, Partition
from site_spider.tasks.board import Board, note_key
from site_spider.tasks.closing import close_for_all
from site_spider.tasks.control_log import Endings, written
from site_spider.tasks.declaration import BadTask, Task, Usage, changed, declared, usual_task
from site_spider.tasks.ending import Attempts, Counts, EndTold, Fact, Noticed, Producing, Tally, WebhookAttempt
from site_spider.tasks.orders import TaskFacts, TaskOverview
from tests.in_process.engine import crawl, lag
from tests.tasks.test_end_in_crawl import TOPICS, close, events, seeds, told
from tests.tasks.test_pause_and_cancel import declare, desk

NOW = datetime(2026, 11, 23, tzinfo=UTC)
P = Partition("seeds", 0)


class Records:
    def __init__(self) -> None:
        self.board, self.endings = Board(), Endings()
        self._offset = 0

    def task(self, task: Task) -> None:
        self._take(task.task_id.encode(), task.value())

    def usage(self, **counts: Any) -> None:
        self._take(note_key("t", "a process"), Usage(**counts).model_dump_json().encode())

    def _take(self, key: bytes, value: bytes) -> None:
        self._offset += 1
        self.board.take(Message(Partition("tasks", 0), self._offset, key, value))

    def fact(self, fact: Fact, task_id: str = "t") -> None:
        self._offset += 1
        self.endings.take(Message(Partition("control", 0), self._offset, *written(task_id, fact)))

    def end(self, event: str, generation: int = 1, **numbers: Any) -> None:
        told = {"task_id": "t", "generation": generation, "event": event, **numbers}
        self.fact(EndTold(generation, self._offset, told))
        self.fact(Noticed(generation))

    @property
    def facts(self) -> TaskFacts:
        return TaskOverview(self.board, self.endings).of("t")


@pytest.fixture
def records() -> Records:
    return Records()


def test_a_task_that_ended_at_its_budget_is_done_and_waits_while_seeds_are_parked(records: Records) -> None:
    records.task(changed(usual_task("t"), ["max_pages=5"], NOW))
    records.fact(Producing("p", is_open=False, closes=True))
    records.usage(pages=5, begun=5, claimed=5)
    assert (records.facts.state, records.facts.is_spent) == ("running", False)  # its last page is under way
    records.usage(pages=5, begun=5, claimed=5, parked=1)
    assert (records.facts.state, records.facts.reason) == ("paused", "page_budget")
    records.usage(pages=5, begun=5, claimed=5)
    records.end("done", pages=5, seeds={"result": 5, "total": 5})
    assert (records.facts.state, records.facts.reason, records.facts.is_ended) == ("done", "", True)


@pytest.mark.parametrize("webhook", [None, "https://h.test/hook"])
def test_an_end_is_untold_until_event_and_webhook_are_out(records: Records, webhook: str | None) -> None:
    """`--until-done` waits for that: no process would be left to tell it."""

    def untold() -> list[str]:
        return [*TaskOverview(records.board, records.endings).untold()]

    records.task(declared("t", {"webhook": webhook} if webhook else {}, NOW))
    assert untold() == []
    records.fact(Producing("p", is_open=False, closes=True))
    assert untold() == ["t"]
    records.task(Task(task_id="t", state="paused"))
    assert untold() == []
    records.task(declared("t", {"webhook": webhook} if webhook else {}, NOW))
    records.fact(EndTold(1, 9, {"task_id": "t", "generation": 1, "event": "done"}))
    assert untold() == ["t"]
    records.fact(Noticed(1))
    assert untold() == (["t"] if webhook else [])
    records.fact(Attempts(1, (WebhookAttempt(5, 503, "HTTP 503"),)))
    assert untold() == []


def test_the_numbers_of_an_event_are_those_of_every_list(records: Records) -> None:
    """Also of a task that nobody has declared."""
    seeds, moved = {"result": 150, "total": 150}, {"spilled": 7}
    records.end("done", pages=150, bytes=9, seeds=seeds, moved=moved, partial=True)
    [facts] = TaskOverview(records.board, records.endings)
    assert (facts.pages, facts.bytes, facts.seeds, facts.moved) == (150, 9, {"result": 150}, {"spilled": 7})
    assert facts.is_partial
    assert facts.document()["declared"] is False


def test_an_undeclared_task_has_the_counts_of_the_control_log(records: Records) -> None:
    counts = Counts({"result": 4, "spilled": 2, "moved:result": 1, "link:failure": 3}, 1, 2, 5, 50, {"h/N": 3})
    records.fact(Tally(P, "w", 1, 0, 9, counts=counts))
    facts = records.facts
    assert (facts.seeds, facts.moved) == ({"result": 5}, {"spilled": 2, "returned": 1, "links": 3})
    assert (facts.pages, facts.bytes, facts.is_partial, facts.traps) == (5, 50, False, {"h/N": 3})
    records.task(usual_task("t"))  # declared later, by which time it had begun
    records.usage(pages=1, traps={"h/N": 1})
    assert (records.facts.pages, records.facts.traps) == (5, {"h/N": 3})
    records.usage(pages=9, traps={"h/N": 8})
    assert (records.facts.pages, records.facts.traps) == (9, {"h/N": 8})


# --- orders that meet ------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", ["paused", "running"])
def test_a_cancel_stays_whatever_is_written_behind_it(tmp_path: Path, later: str) -> None:
    declare(tmp_path)
    first, second = desk(tmp_path), desk(tmp_path)
    task = first.board.task("t")
    assert task is not None
    first.write(task.model_copy(update={"state": "cancelled"}))
    second.write(task.model_copy(update={"state": later}))
    assert desk(tmp_path).board.phase("t").name == "cancelled"
    declare(tmp_path)
    assert desk(tmp_path).board.phase("t").name == "running"


def test_a_cancel_stays_when_compaction_keeps_only_the_record_behind_it() -> None:
    board, task = Board(), declared("t", {}, NOW)
    mark = b'{"started_at": "2026-11-23T00:00:00Z"}'
    for key, value in ((note_key("t", "cancelled"), mark), (b"t", task.model_copy(update={"state": "paused"}).value())):
        board.take(Message(P, 0, key, value))
    assert board.phase("t").name == "cancelled"


def test_orders_that_meet_are_both_kept(tmp_path: Path) -> None:
    declare(tmp_path)
    first, second = desk(tmp_path), desk(tmp_path)
    first.order("t", lambda task: (task or usual_task("t")).model_copy(update={"state": "paused"}))
    second.order("t", lambda task: changed(task or usual_task("t"), ["weight=3"], NOW))
    task = desk(tmp_path).board.task("t")
    assert task is not None
    assert (task.state, task.weight) == ("paused", 3.0)


def test_an_order_that_came_too_late_is_not_what_compaction_keeps(tmp_path: Path) -> None:
    """Of two that declare a task at once one is refused, and its record, which is void, is the last one first."""
    first, second = desk(tmp_path), desk(tmp_path)

    def start(weight: float, before: Task | None) -> Task:
        if before is not None:
            raise BadTask("it is declared already")
        return usual_task("t").model_copy(update={"weight": weight})

    first.order("t", partial(start, 3.0))
    with pytest.raises(BadTask, match="already"):
        second.order("t", partial(start, 5.0))
    board = Board()
    board.take([message for message in second.log.read("seeds.tasks") if message.key == b"t"][-1])
    task = board.task("t")
    assert task is not None
    assert task.weight == 3.0


def test_an_order_that_came_too_late_brings_no_task_back_that_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is repeated as the task is, which another changes, and deletes, at that moment."""
    first, second = desk(tmp_path), desk(tmp_path)
    write, versions = second.write, []

    def meets_others(task: Task, version: int = 0) -> int:
        versions.append(version)
        if is_repeated := len(versions) == 2:
            first.order("t", lambda before: before or task)
        offset = write(task, version)
        if is_repeated:
            first.forget("t")
        return offset

    def start(before: Task | None) -> Task:
        if before is not None:
            raise BadTask("it is declared already")
        return usual_task("t")

    monkeypatch.setattr(second, "write", meets_others)
    first.order("t", start)
    with pytest.raises(BadTask, match="already"):
        second.order("t", start)
    second.read()
    assert (versions, second.board.task("t")) == ([1, 2], None)


# --- counts that lack something --------------------------------------------------------------------------


def test_a_task_that_was_closed_when_its_seeds_were_done_is_partial(tmp_path: Path) -> None:
    crawl(tmp_path, seeds(5))
    close(tmp_path)
    crawl(tmp_path, [], until=told(tmp_path))
    [event] = events(tmp_path)
    assert (event["event"], event["partial"], event["seeds"]) == ("done", True, {"total": 0})
    assert desk(tmp_path).overview().of("t").is_partial


def test_the_process_that_has_done_them_says_so(tmp_path: Path) -> None:
    """Also when the seeds are not in the topic any more: whoever closes need not look."""
    is_closed = False

    def until(_crawler: object) -> bool:
        nonlocal is_closed
        log = LocalSeedLog(tmp_path)
        if not lag(log) and not is_closed:
            is_closed = True
            with closing(log.producer()) as producer:
                close_for_all(log, producer, TOPICS, ["t"])
        return len(events(tmp_path)) == 1

    crawl(tmp_path, seeds(5), until=until)
    assert [event["partial"] for event in events(tmp_path)] == [True]
    keys = [message.key or b"" for message in LocalSeedLog(tmp_path).read(TOPICS.control)]
    assert [key for key in keys if b"uncounted" in key] == [b"t\x1funcounted"]  # it is told once
