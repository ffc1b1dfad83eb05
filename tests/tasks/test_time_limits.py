"""Expiry and budgets of time: one record, judged by the broker's time."""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import Future
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider import runtime
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.contracts.seed_log import Message, MessagePlace, Partition, SeedLog
from site_spider.errors import LogUnavailable
from site_spider.service import config
from site_spider.tasks import board, budgets
from site_spider.tasks.board import Board, BrokerClock, note_key
from site_spider.tasks.budgets import TimeLimits, passed
from site_spider.tasks.declaration import NO_TIMES, NOTHING, Task, TaskTimes, Usage, changed, declared, phase_of
from tests.contracts.seed_logs import PATIENCE_SECONDS, wait_until
from tests.in_process.engine import crawl, settings_for
from tests.tasks.test_pause_and_cancel import SendingLog, declare, desk, seeds

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def task(**fields: Any) -> Task:
    return declared("t", fields, NOW)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def phase(of: Task, times: TaskTimes) -> str:
    return phase_of(of, NOTHING, times).name


def test_a_task_expires_when_the_record_says_so() -> None:
    expiring = task(expires="15m")
    assert passed(expiring, NO_TIMES, later(899), has_begun=False) is NO_TIMES
    times = passed(expiring, NO_TIMES, later(900), has_begun=False)
    assert (phase(expiring, NO_TIMES), phase(expiring, times)) == ("running", "expired")
    assert passed(expiring, times, later(901), has_begun=False) is times
    assert phase(changed(expiring, ["expires=2h"], NOW), times) == "running"


def test_a_budget_of_time_runs_from_the_first_seed() -> None:
    timed = task(max_time="15s")
    assert passed(timed, NO_TIMES, later(1_000), has_begun=False) is NO_TIMES
    begun = passed(timed, NO_TIMES, later(1_000), has_begun=True)
    assert phase(timed, passed(timed, begun, later(1_014), has_begun=True)) == "running"
    spent = passed(timed, begun, later(1_015), has_begun=True)
    assert phase_of(timed, NOTHING, spent) == ("paused", "time_budget")
    more = changed(timed, ["max_time=1h"], NOW)
    assert phase(more, spent) == "running"
    assert phase_of(more, NOTHING, passed(more, spent, later(9_000), has_begun=True)).reason == "time_budget"


def test_a_new_declaration_has_its_time_before_it() -> None:
    spent = TaskTimes(started_at=NOW, first_at=NOW, spent_seconds=15)
    again = declared("t", {"max_time": "15s"}, later(100))
    assert phase(again, spent) == "running"
    assert passed(again, spent, later(100), has_begun=False) is spent
    assert phase(task(max_seconds=2**53), NO_TIMES) == "running"
    assert passed(task(max_seconds=2**53), TaskTimes(started_at=NOW, first_at=NOW), later(9), has_begun=True)


def test_many_tasks_that_expire_at_the_same_moment_are_judged_some_at_a_time() -> None:
    """One that cannot be told does not keep the others from their turn."""
    known, producer, clock = Board(), Mock(), Mock(now=NOW.timestamp)
    known.tasks.update({str(number): Task(task_id=str(number), expires_at=NOW) for number in range(5_000)})
    producer.send.return_value.done.return_value = True
    limits = TimeLimits(clock, known, "seeds.tasks", producer, lambda: True)
    limits.heard(list(known.tasks))
    for look in range(1, 6):
        clock.now = lambda look=look: NOW.timestamp() + 1.1 * look
        limits.look()
        assert producer.send.call_count <= 2_500 * look
    assert {call.args[1].split(b"\x1f")[0] for call in producer.send.call_args_list} == {
        b"%d" % number for number in range(5_000)
    }


class AheadLog(SendingLog):
    """Its server's clock is behind that of this machine."""

    has_own_clock = True
    behind_seconds = 1_800.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, self._dated)

    def _dated(self, send: Any, *message: Any) -> Future[MessagePlace]:
        now = datetime.now(UTC).timestamp() - self.behind_seconds
        found: Future[MessagePlace] = Future()
        found.set_result(send(*message).result()._replace(written_ms=int(now * 1000)))
        return found


def measured(log: SeedLog, topic: str = "seeds.tasks.clock") -> BrokerClock:
    with closing(log.producer()) as producer:
        found = BrokerClock(log, producer, topic)
        found.measure()
        found.measure()
    return found


def test_a_clock_that_differs_is_said_each_time_it_is_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once that nobody says the time, or that the server does not date the topic."""
    found = measured(AheadLog(tmp_path))
    assert abs(found.ahead_seconds - 1_800) < 10
    assert [record.getMessage()[:50] for record in caplog.records] == [
        "The clock of this machine is 1800 s ahead of that "
    ] * 2
    caplog.clear()
    AheadLog.behind_seconds = 5.0
    measured(AheadLog(tmp_path))
    assert not caplog.records
    monkeypatch.setattr(AheadLog, "make_topic", Mock(side_effect=TimeoutError))
    measured(AheadLog(tmp_path))
    monkeypatch.setattr(LocalSeedLog, "has_own_clock", True)
    assert measured(LocalSeedLog(tmp_path)).ahead_seconds == 0.0
    said = ["no answer within 5 s" in message or "LogAppendTime" in message for message in caplog.messages]
    assert said == [True, True]


def test_a_crawl_whose_clock_is_ahead_cancels_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the machine in the report: half an hour ahead, and a task that expires in a quarter of an hour."""
    monkeypatch.setattr(board.BrokerClock, "now", lambda _self: runtime.time() - 1_800)
    declare(tmp_path, expires_at=(datetime.now(UTC) - timedelta(seconds=900)).isoformat())
    assert crawl(tmp_path, seeds(20)).seeds["completed_with_result"] == 20
    assert desk(tmp_path).board.times("t").expired is None


def test_the_clock_of_this_machine_may_jump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two measurements, and while one goes on: a task that expires earlier would be lost."""
    found, now = measured(AheadLog(tmp_path)), runtime.time()
    expected = found.now()
    monkeypatch.setattr(runtime, "time", Mock(side_effect=[now + 3_600, now, *[now - 3_600] * 9]))
    assert abs(found.now() - expected) < 10
    found.measure()
    assert abs(found.now() - expected) < 10


def test_a_crawl_writes_when_the_first_seed_began(tmp_path: Path) -> None:
    declare(tmp_path)
    crawl(tmp_path, seeds(3), until=lambda _crawler: desk(tmp_path).board.times("t").first_at is not None)


@pytest.mark.servers
def test_kafka_tells_its_time(
    kafka_brokers: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of this machine, here. An answer that takes long is none, and the machine may stand still at any time."""
    monkeypatch.setattr(board, "_ANSWER_SECONDS", PATIENCE_SECONDS)
    log = config.seed_log(settings_for(Path("unused"), SITE_KAFKA_BROKERS=kafka_brokers))
    with closing(log), closing(log.producer()) as producer, caplog.at_level(logging.WARNING):
        clock = BrokerClock(log, producer, f"clock-{uuid.uuid4().hex}")
        wait_until(lambda: (clock.measure(), clock.ahead_seconds)[1])
        earliest, found = runtime.time() - board._SURE_SECONDS, clock.now()
        assert earliest <= found <= runtime.time() + board._SURE_SECONDS
    assert not caplog.records


class Judge:
    """Limits of time over records that come at once, by a clock that the test moves on."""

    place, seconds = Partition("seeds.tasks", 0), NOW.timestamp()

    def __init__(self, *tasks: Task) -> None:
        self.board, self.sent = Board(), 0
        for each in tasks:
            self.take(each.task_id.encode(), each.value())
        here: Any = self  # the producer
        self.limits = TimeLimits(Mock(now=lambda: self.seconds), self.board, "seeds.tasks", here, lambda: True)
        self.limits.open()

    def send(self, _topic: str, key: bytes, value: bytes) -> Future[MessagePlace]:
        self.sent += 1
        self.take(key, value)
        done: Future[MessagePlace] = Future()
        done.set_result(MessagePlace(self.place, 0))
        return done

    def take(self, key: bytes, value: bytes | None) -> None:
        self.board.take(Message(self.place, 0, key, value))

    def hear(self, *task_ids: str) -> None:
        self.limits.heard(task_ids or ["t"])

    def wait(self, times: int, *task_ids: str, seconds: float = 1.0) -> None:
        for _ in range(times):
            self.seconds += seconds
            self.limits.look()
            self.hear(*task_ids)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def count(of: Task, *arguments: Any, **how: Any) -> TaskTimes:
        found.append(of.task_id)
        return passed(of, *arguments, **how)

    monkeypatch.setattr(budgets, "passed", count)
    return found


def test_only_tasks_near_a_limit_are_judged(judged: list[str]) -> None:
    """However many are declared."""
    far = [declared(f"far{number}", {"expires": "1h"}, NOW) for number in range(500)]
    free = [declared(f"free{number}", {}, NOW) for number in range(500)]
    judge = Judge(*far, *free, task(expires="15m"))
    judged.clear()
    judge.wait(900, "free7", "far7")
    assert (judged, judge.sent, judge.board.phase("t").name) == (["t"], 1, "expired")


def test_a_start_that_can_write_of_no_expiry_says_that_the_log_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is tried again: it is no error of the crawl's own."""
    monkeypatch.setattr(budgets, "_ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(Judge, "seconds", later(900).timestamp())
    monkeypatch.setattr(Judge, "send", lambda *_record: Future())
    with pytest.raises(LogUnavailable, match="does not answer"):
        Judge(task(expires="15m"))


def test_a_limit_that_is_changed_or_deleted_is_heard(judged: list[str]) -> None:
    judge = Judge(task(max_time="15s"))
    judge.take(note_key("t", "p"), Usage(begun=1).value())
    judge.hear()
    judge.wait(20)
    assert (judge.sent, len(judged), judge.board.phase("t").reason) == (2, 3, "time_budget")
    judge.take(b"t", changed(task(), ["max_time=30s"], NOW).value())
    judge.hear()
    assert judge.board.phase("t").name == "running"
    judge.wait(20)
    assert judge.board.phase("t").reason == "time_budget"
    judged.clear()
    for value in (task(expires="1h").value(), None):
        judge.take(b"t", value)
        judge.hear()
    judge.wait(1, seconds=4_000)
    assert judged == []


def test_what_was_not_taken_is_sent_again(judged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    judge, refused = Judge(task(expires="1s")), Future[MessagePlace]()
    with monkeypatch.context() as away:
        away.setattr(judge, "send", lambda *_record: refused)
        judge.wait(2, seconds=2)
    refused.set_exception(LogUnavailable("away"))
    assert judge.board.phase("t").name == "running"
    judge.wait(1, seconds=2)
    assert (judge.board.phase("t").name, len(judged)) == ("expired", 4)
