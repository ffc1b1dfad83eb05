"""What the embedded seed log and its statistics forget, and what they never do."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from site_spider import runtime
from site_spider.adapters.local import log_file
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.results import LocalResults, LocalSink
from site_spider.contracts.seed_log import Partition, Position
from site_spider.contracts.sink import Record
from site_spider.errors import ConfigError
from tests.contracts.seed_logs import Member, wait_until
from tests.contracts.trials import written

KEEP_SECONDS = 0.5
TOPIC, GROUP = "seeds", "group"
P = Partition(TOPIC, 0)


@pytest.fixture
def log(tmp_path: Path) -> LocalSeedLog:
    return LocalSeedLog(tmp_path, 1, KEEP_SECONDS)


@pytest.fixture
def member(log: LocalSeedLog) -> Iterator[Member]:
    member = Member(log, TOPIC, GROUP)
    yield member
    member.close()


def produce(log: LocalSeedLog, count: int, size: int = 10) -> None:
    producer = log.producer()
    for _ in range(count):
        producer.send(TOPIC, None, b"x" * size)
    assert producer.flush(300) == 0
    producer.close()


def offsets(log: LocalSeedLog) -> list[int]:
    return [message.offset for message in log.read(TOPIC)]


def wait(member: Member, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        member.poll()


def test_what_is_complete_and_old_is_forgotten(log: LocalSeedLog, member: Member) -> None:
    """And nothing beyond the committed offset, complete or not."""
    produce(log, 10)
    member.take(10)
    member.consumer.commit({P: Position(4)})
    wait_until(lambda: member.poll() or offsets(log) == [4, 5, 6, 7, 8, 9])
    wait(member, 2 * KEEP_SECONDS)
    assert offsets(log) == [4, 5, 6, 7, 8, 9]
    (progress,) = log.progress(TOPIC, GROUP)
    assert (progress.start, progress.end) == (4, 10)


def test_what_another_group_has_not_read_is_kept(log: LocalSeedLog, member: Member) -> None:
    """Also of one that has committed nothing yet."""
    produce(log, 10)
    other = Member(log, TOPIC, "other")
    other.own(1)
    member.take(10)
    member.consumer.commit({P: Position(10)})
    wait(member, 2 * KEEP_SECONDS)
    assert offsets(log) == list(range(10))
    other.take(10)
    other.consumer.commit({P: Position(2)})
    other.close()
    wait_until(lambda: member.poll() or offsets(log) == list(range(2, 10)))
    wait(member, 2 * KEEP_SECONDS)
    assert offsets(log) == list(range(2, 10))


def test_keys_that_were_deleted_are_forgotten_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who follows the topic has read their tombstones. Ten a minute are deleted, and made anew."""
    now = time.time()
    monkeypatch.setattr(runtime, "time", lambda: now)
    monkeypatch.setattr(runtime, "time_ns", lambda: int(now * 1e9))
    log = LocalSeedLog(tmp_path, 1)
    log.make_topic("tasks", 1, compacted=True)
    most = 0
    with closing(log.producer()) as producer, closing(log.reader("tasks", compacted=True)) as reader:
        for number in range(10_000):
            producer.send("tasks", b"task %d" % (number % 5_000), b"declared")
            sent = producer.send("tasks", b"task %d" % (number % 5_000), None)
            now += 6
            if not number % 500:
                sent.result()
                while reader.poll(0):
                    pass
                with closing(log.reader("tasks", compacted=True)):
                    most = max(most, len(list(log.read("tasks"))))
        producer.send("tasks", b"task 7", b"declared").result()
    assert most < 2_000
    now += 7_200
    with closing(log.reader("tasks", compacted=True)) as reader:
        assert [message.value for message in reader.poll(1)] == [b"declared"]


def test_what_is_young_is_kept_and_a_group_goes_on_where_it_was(tmp_path: Path) -> None:
    log = LocalSeedLog(tmp_path, 1, 3600)
    produce(log, 5)
    member = Member(log, TOPIC, GROUP)
    member.take(5)
    member.consumer.commit({P: Position(5)})
    wait(member, 1)
    member.close()
    assert offsets(log) == list(range(5))


def test_all_forgotten_the_next_message_is_handed_out(log: LocalSeedLog, member: Member) -> None:
    produce(log, 5)
    member.take(5)
    member.consumer.commit({P: Position(5)})
    wait_until(lambda: member.poll() or offsets(log) == [])
    produce(log, 2)
    member.take(7)
    assert [message.offset for message in member.taken] == list(range(7))
    (progress,) = log.progress(TOPIC, GROUP)
    assert (progress.start, progress.end) == (5, 7)


def test_the_file_stops_growing(
    log: LocalSeedLog, member: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freed pages are used again."""
    monkeypatch.setattr(log_file, "_MOST_AT_ONCE", 100)
    sizes = []
    for number in range(1, 7):
        produce(log, 500, size=2000)
        member.take(500 * number)
        member.consumer.commit({P: Position(500 * number)})
        wait_until(lambda: member.poll() or offsets(log) == [])
        sizes.append((tmp_path / "seeds.sqlite").stat().st_size)
    assert sizes[-1] <= sizes[1] * 1.1, sizes


def test_statistics_are_forgotten_and_results_are_not(tmp_path: Path) -> None:
    old, now = "2020-01-01T00:00:00.000+00:00", datetime.now(UTC).isoformat(timespec="milliseconds")
    settings = {"SITE_DATA_DIR": str(tmp_path), "SITE_LOCAL_KEEP_SECONDS": 3600}

    batches = [
        [Record(key, {"@timestamp": at, "fetched_at": at}, 10)] for key, at in (("old", old), ("new", now))
    ]
    for sink in (LocalSink.for_statistics(settings), LocalSink.from_settings(settings)):
        written(sink, *batches)
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as store:
        assert store.execute("SELECT id FROM statistics").fetchall() == [("new",)]
    assert LocalResults(tmp_path).count() == 2


def test_a_value_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SITE_LOCAL_KEEP_SECONDS"):
        LocalSeedLog.from_settings({"SITE_DATA_DIR": str(tmp_path), "SITE_LOCAL_KEEP_SECONDS": -1})
