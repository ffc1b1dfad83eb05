"""What is special about the embedded seed log: several processes, their deaths, and the file."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider import runtime
from site_spider.adapters.local import log_file
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.log_file import FILE_NAME, LogFile, fair_share
from site_spider.adapters.local.results import LocalResults, LocalSink
from site_spider.contracts.seed_log import Partition, Position
from site_spider.contracts.sink import Record
from site_spider.errors import ConfigError, LogUnavailable
from tests.adapters.seed_log_process import process
from tests.contracts.seed_logs import Case, Member, local_case, poll_until, wait_until
from tests.contracts.trials import written

CLASS = "site_spider.adapters.local.log.LocalSeedLog"


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    with local_case(tmp_path) as made:
        yield made


def settings(folder: Path) -> dict[str, str]:
    return {"SITE_DATA_DIR": str(folder)}


# --- other processes -----------------------------------------------------------------------


def test_the_partitions_of_a_killed_process_are_taken_over_at_once(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even before its parent has noticed: a zombie does nothing any more. What was not committed comes again."""
    monkeypatch.setattr(log_file, "STALLED_SECONDS", 3600)
    values = case.produce(20)
    with process("consume", CLASS, settings(tmp_path), case.topic, case.group) as other:
        assert other.wait_for("assigned") == 4
        other.wait_for("taken")
        member = case.member()
        poll_until([member], lambda: len(member.owned) == 2)
        other.kill()
        member.own(4)
        assert other.popen.returncode is None
        assert len([*tmp_path.glob("member-*.lock")]) == 1
    member.take(20)
    assert sorted(member.values) == sorted(values)


def test_processes_may_produce_at_the_same_time(case: Case, tmp_path: Path) -> None:
    with (
        process("produce", CLASS, settings(tmp_path), case.topic, "a") as one,
        process("produce", CLASS, settings(tmp_path), case.topic, "b") as two,
    ):
        for producer in (one, two):
            while producer.wait_for("durable") < 500:
                pass
        one.kill()
        two.kill()
    messages = list(case.log.read(case.topic))
    assert [message.offset for message in messages] == list(range(len(messages)))
    for name in (b"a", b"b"):
        numbers = [int(one.value.split()[1]) for one in messages if one.value and one.value.startswith(name)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= 500


def test_a_member_that_does_not_poll_loses_its_partitions(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot commit any more, is told at its next poll, and gets its share again."""
    case.produce(20)
    stalled = case.member()
    stalled.own(4)
    monkeypatch.setattr(log_file, "STALLED_SECONDS", 0.3)
    other = case.member()
    poll_until([other], lambda: len(other.owned) == 4)
    lost = sorted(stalled.owned)
    with pytest.raises(LogUnavailable, match="not assigned"):
        stalled.consumer.commit({lost[0]: Position(1)})
    monkeypatch.setattr(log_file, "STALLED_SECONDS", 60)
    with monkeypatch.context() as patched:  # a failure before the listener is told changes nothing
        patched.setattr(log_file.Membership, "_view", Mock(side_effect=LogUnavailable("the disk")))
        with pytest.raises(LogUnavailable, match="the disk"):
            poll_until([stalled], lambda: False)
    stalled.poll(1)
    assert sorted(stalled.listener.told("lost")) == lost
    poll_until([stalled, other], lambda: len(stalled.owned) == len(other.owned) == 2)


def test_a_member_that_could_not_leave_holds_nothing_up(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was busy for too long, say. Others notice at once, although the process goes on with another crawl."""
    monkeypatch.setattr(log_file, "STALLED_SECONDS", 3600)
    case.produce(1)
    member = case.member()
    member.own(4)
    with monkeypatch.context() as patched:
        patched.setattr(LogFile, "transaction", Mock(side_effect=LogUnavailable("busy")))
        with pytest.raises(LogUnavailable, match="busy"):
            member.consumer.close()
    case.member().own(4)


def test_a_member_of_an_earlier_release_keeps_its_partitions(case: Case, tmp_path: Path) -> None:
    """It holds no lock, and would lose them to a newer process beside it each time that this one looks."""
    case.produce(1)
    earlier = case.member()
    earlier.own(4)
    _as_of_an_earlier_release(tmp_path, runtime.monotonic())
    other = case.member()
    poll_until([earlier, other], lambda: len(earlier.owned) == len(other.owned) == 2)
    assert {kind for _, kind, _ in earlier.listener.events} == {"assigned", "revoked"}


def test_a_member_of_an_earlier_release_ends_with_the_machine(case: Case, tmp_path: Path) -> None:
    """The clock begins anew then."""
    case.produce(1)
    case.member().own(4)
    _as_of_an_earlier_release(tmp_path, runtime.monotonic() + 1_000_000)
    case.member().own(4)


def _as_of_an_earlier_release(folder: Path, seen_at_seconds: float) -> None:
    with closing(LogFile(folder)) as file, file.transaction() as connection:
        connection.execute("UPDATE members SET process = 'boot pid:[1] 1 1', seen_at_seconds = ?", (seen_at_seconds,))
    for path in folder.glob("member-*.lock"):
        path.unlink()


def test_waiting_costs_little(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle member looks whether anybody wrote, 10 µs each time, but rarely enough."""
    case.produce(1)
    member = case.member()
    member.take(1)
    looks, look = [], member.consumer._data_version
    monkeypatch.setattr(member.consumer, "_data_version", lambda: looks.append(1) or look())
    assert member.poll(0.5) == []
    assert 0 < len(looks) < 50


def test_a_batch_is_bounded_in_bytes_too(case: Case) -> None:
    """A poll does not load all that the limit allows when messages are large."""
    case.send([(b"key", b"x" * 5_000_000)] * 8)
    member = case.member()
    poll_until([member], lambda: member.taken)
    assert len(member.taken) < 8
    member.take(8)
    assert [message.offset for message in member.taken] == list(range(8))


def test_a_member_skips_nothing_when_the_file_fails(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two partitions: what was read of the first is handed out, or read again, and never passed over."""
    values, failures, works = case.produce(20), [False, True], LogFile.stream
    member = case.member()

    def fails_once(*arguments: Any) -> Any:
        if failures and failures.pop(0):
            raise LogUnavailable("the disk") from OSError(errno.EIO, "the disk")
        return works(*arguments)

    monkeypatch.setattr(LogFile, "stream", fails_once)
    member.take(20)
    assert sorted(member.values) == sorted(values)


@pytest.mark.parametrize("name", ["transaction", "query"])
def test_a_reader_skips_nothing_when_the_file_fails(case: Case, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """While it compacts, or between two partitions: an order of a task would never be heard."""
    monkeypatch.setattr("site_spider.adapters.local.log._COMPACT_EVERY", 1)
    values, read, failures = case.produce(20), list[bytes | None](), [True, False, False, True]
    with closing(case.log.reader(case.topic, compacted=True)) as reader:
        works = getattr(LogFile, name)

        def fails_now_and_then(*arguments: Any) -> Any:
            if failures and failures.pop(0):
                raise LogUnavailable("the disk")
            return works(*arguments)

        monkeypatch.setattr(LogFile, name, fails_now_and_then)
        for _ in range(10):
            with suppress(LogUnavailable):
                read += [message.value for message in reader.poll(0)]
    assert sorted(read) == sorted(values)


# --- settings and the file -------------------------------------------------------------------


def test_the_folder_comes_from_the_settings(tmp_path: Path) -> None:
    """It is made when it is missing; without one there is no place to write to."""
    log = LocalSeedLog.from_settings(settings(tmp_path / "new" / "folder"))
    log.check(1)
    assert log.address == str(tmp_path / "new" / "folder" / "seeds.sqlite")
    assert Path(log.address).exists()
    for kind, said in ((LocalSeedLog, {}), (LocalSink, {}), (LocalSink, {"SITE_DATA_DIR": ""})):
        with pytest.raises(ConfigError, match="SITE_DATA_DIR"):
            kind.from_settings(said)
    with pytest.raises(ConfigError, match="SITE_LOCAL_KEEP_SECONDS"):
        LocalSeedLog.from_settings({**settings(tmp_path), "SITE_LOCAL_KEEP_SECONDS": -1})
    (tmp_path / "file").touch()
    long = tmp_path.joinpath(*["x" * 200] * 3)  # for SQLite, whose error is that of a disk
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none"), long):  # not waited for
        for ask in (partial(LocalSeedLog(folder).check, 1), lambda: asyncio.run(LocalSink(folder).open())):  # noqa: B023
            with pytest.raises(ConfigError, match=r"^SITE_DATA_DIR is .*set another folder\.$"):
                ask()


@pytest.mark.parametrize("damage", ["corrupt", "not a folder"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, damage: str) -> None:
    """With the setting to change, whatever is asked of the log; a producer goes on when it can be used again."""
    folder = tmp_path / "data"
    if damage == "corrupt":
        folder.mkdir()
        (folder / FILE_NAME).write_bytes(b"this is no database" * 1000)
    else:
        folder.write_text("a file where a folder should be")
    log = LocalSeedLog(folder)
    words = f"SITE_DATA_DIR is '{folder}'.*{FILE_NAME}"
    with pytest.raises(ConfigError, match=words + (".*Restore it" if damage == "corrupt" else "")):
        log.check(1)
    with pytest.raises(LogUnavailable, match=words):
        log.progress("topic", "group")
    with pytest.raises(LogUnavailable, match=words):
        local_member_poll(log)
    with closing(log.producer()) as producer:
        with pytest.raises(LogUnavailable, match=words):
            producer.send("topic", b"k", b"v").result(300)
        (folder / FILE_NAME if damage == "corrupt" else folder).unlink()
        producer.send("topic", b"k", b"v").result(300)


def local_member_poll(log: LocalSeedLog) -> None:
    member = Member(log, "topic", "group")
    try:
        member.poll()
    finally:
        with pytest.raises(LogUnavailable):
            member.close()


def test_a_removed_file_is_noticed(case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is written to where nobody will find it, and members begin anew."""
    case.produce(10)
    member = case.member()
    member.take(10)
    shutil.rmtree(tmp_path)
    values = case.produce(10, first=10)
    poll_until([member], lambda: set(values) <= set(member.values))
    assert "was removed" in caplog.text


def test_a_transaction_is_on_the_disk_or_changes_nothing(tmp_path: Path) -> None:
    """The file is in WAL mode, and producers wait for an fsync."""
    file = LogFile(tmp_path, durable=True)
    assert file.query("PRAGMA synchronous")[0][0] == 2  # FULL
    assert file.query("PRAGMA journal_mode")[0][0] == "wal"

    def fail() -> None:
        with file.transaction() as connection:
            connection.execute("INSERT INTO partitions (topic, number) VALUES ('t', 0)")
            raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(LogUnavailable, match="disk I/O error"):
        fail()
    assert file.query("SELECT * FROM partitions") == []
    file.close()


# --- A disk that is full, and a writer that holds the file, slow the embedded default: nothing is lost (rule 7)


@contextmanager
def full(_folder: Path) -> Iterator[None]:
    """As a full disk or a quota is, for this process: a write fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def busy(folder: Path) -> Iterator[None]:
    with closing(LogFile(folder)) as file, file.transaction():
        yield


def test_trouble_between_two_attempts_is_an_outage_too(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that waits looks at the file all the time; it ended the crawl."""
    case.produce(1)
    member = case.member()
    member.take(1)
    make = os.mknod
    full_disk = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))

    def lose_the_file() -> None:
        monkeypatch.setattr(os, "mknod", full_disk)
        for path in tmp_path.glob(f"{FILE_NAME}*"):
            path.unlink()

    timer = runtime.Timer(0.05, lose_the_file)
    timer.start()
    wait_until(lambda: member.consumer.poll(0.15, 10) or full_disk.called)  # the timer may be late
    timer.join()
    assert full_disk.called
    assert member.consumer.is_away
    monkeypatch.setattr(os, "mknod", make)
    values = case.produce(3)
    poll_until([member], lambda: set(values) <= set(member.values))


@pytest.mark.parametrize("trouble", [full, busy])
def test_what_cannot_be_written_is_written_later(
    case: Case,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[Path], AbstractContextManager[None]],
) -> None:
    """Messages wait; so does a member, without signs of life; each says so once.

    Its commits are tried again elsewhere.
    """
    monkeypatch.setattr(log_file, "BEAT_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    case.produce(100)
    member = case.member()
    member.take(1, limit=1)
    first = {member.taken[0].partition: Position(1)}
    for part in (member.consumer, case.producer):
        part._file.close()  # type: ignore[union-attr]
        part._file._busy_seconds = 0.1  # type: ignore[union-attr]
    written = Mock(side_effect=case.producer._write)  # type: ignore[attr-defined]
    monkeypatch.setattr(case.producer, "_write", written)
    with trouble(tmp_path):
        late = [case.producer.send(case.topic, b"k", b"x" * 100_000) for _ in range(20)]
        poll_until([member], lambda: caplog.text.count("Trying again") == 2, limit=1)
        with pytest.raises(LogUnavailable, match="SITE_DATA_DIR"):
            member.consumer.commit(first)
        tries = written.call_count
        wait_until(lambda: written.call_count > tries + 1)
        assert not any(future.done() for future in late)
    for future in late:
        future.result(300)
    poll_until([member], lambda: caplog.text.count("can be written again") == 2)
    member.consumer.commit(first)
    member.take(120)
    assert caplog.text.count("Trying again") == 2


def test_a_member_that_cannot_join_leaves_no_files(case: Case, tmp_path: Path) -> None:
    """It tries to several times a second."""
    values = case.produce(1)
    member = case.member()
    with full(tmp_path):
        for _ in range(3):
            assert member.consumer.poll(0.3, 1) == []
        assert not [*tmp_path.glob("member-*.lock")]
    poll_until([member], lambda: values == member.values)
    assert len([*tmp_path.glob("member-*.lock")]) == 1


# --- What the embedded seed log and its statistics forget, and what they never do


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


def produce(log: LocalSeedLog, count: int) -> None:
    with closing(log.producer()) as producer:
        for _ in range(count):
            producer.send(TOPIC, None, b"x")
        assert producer.flush(300) == 0


def offsets(log: LocalSeedLog) -> list[int]:
    return [message.offset for message in log.read(TOPIC)]


def wait(member: Member, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        member.poll()


def test_what_is_complete_and_old_is_forgotten(
    log: LocalSeedLog, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some at a time, and nothing beyond the committed offset, complete or not. When all is, what comes is read."""
    monkeypatch.setattr(log_file, "_MOST_AT_ONCE", 3)
    produce(log, 10)
    member.take(10)
    member.consumer.commit({P: Position(4)})
    wait_until(lambda: member.poll() or offsets(log) == [4, 5, 6, 7, 8, 9])
    wait(member, 2 * KEEP_SECONDS)
    assert offsets(log) == [4, 5, 6, 7, 8, 9]
    (progress,) = log.progress(TOPIC, GROUP)
    assert (progress.start, progress.end) == (4, 10)
    member.consumer.commit({P: Position(10)})
    wait_until(lambda: member.poll() or offsets(log) == [])
    produce(log, 2)
    assert [message.offset for message in member.take(12)] == list(range(12))
    (progress,) = log.progress(TOPIC, GROUP)
    assert (progress.start, progress.end) == (10, 12)


def test_what_is_young_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "_PAUSE_SHARE", 0.0)
    log = LocalSeedLog(tmp_path, 1, 3600)
    produce(log, 5)
    with closing(Member(log, TOPIC, GROUP)) as member:
        member.take(5)
        member.consumer.commit({P: Position(5)})
        wait(member, 0.3)
    assert offsets(log) == list(range(5))


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


def test_keys_that_were_deleted_are_forgotten_after_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_statistics_beside_results_are_forgotten_and_these_are_not(tmp_path: Path) -> None:
    old, now = "2020-01-01T00:00:00.000+00:00", datetime.now(UTC).isoformat(timespec="milliseconds")
    settings = {"SITE_DATA_DIR": str(tmp_path), "SITE_LOCAL_KEEP_SECONDS": 3600}

    documents = {key: {"@timestamp": at, "fetched_at": at, "process": "p"} for key, at in (("old", old), ("new", now))}
    batches = [[Record(key, document, 10)] for key, document in documents.items()]
    for sink in (LocalSink.for_statistics(settings), LocalSink.from_settings(settings)):
        written(sink, *batches)
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as store:
        assert store.execute("SELECT id, timestamp, process FROM statistics").fetchall() == [("new", now, "p")]
    assert LocalResults(tmp_path).count() == 2


# --- shares --------------------------------------------------------------------------------

MEMBERS = st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True)
PARTITIONS = st.lists(st.integers(0, 30), max_size=12, unique=True)
OWNERS = st.dictionaries(st.integers(0, 30), st.integers(1, 12))


@given(MEMBERS, PARTITIONS, OWNERS)
def test_every_partition_has_one_member_and_shares_differ_by_one(
    members: list[int], partitions: list[int], owners: dict[int, int]
) -> None:
    target = fair_share(members, partitions, owners)
    assert set(target) == set(partitions)
    shares = Counter(dict.fromkeys(members, 0)) | Counter(target.values())
    sizes = [shares[member] for member in members]
    assert max(sizes) - min(sizes) <= 1
    assert set(target.values()) <= set(members)
    assert fair_share([], partitions, owners) == {}  # and nothing is divided by nothing


@given(MEMBERS, PARTITIONS, OWNERS, st.randoms())
def test_members_that_act_one_by_one_arrive_at_a_fair_share(
    members: list[int], partitions: list[int], owners: dict[int, int], random: object
) -> None:
    """Giving up first and claiming what is free, in any order, ends with everybody content."""
    owners = {one: owner for one, owner in owners.items() if owner in members and one in partitions}
    for _ in range(4 * (len(partitions) + 1)):
        member = random.choice(members)  # type: ignore[attr-defined]
        act(member, members, partitions, owners)
    for _ in range(len(partitions) + 2):
        for member in members:
            act(member, members, partitions, owners)
    assert owners == fair_share(members, partitions, owners)


def act(member: int, members: list[int], partitions: list[int], owners: dict[int, int]) -> None:
    target = fair_share(members, partitions, owners)
    for one in partitions:
        if owners.get(one) == member != target[one]:
            del owners[one]
        elif one not in owners and target[one] == member:
            owners[one] = member
