"""A disk that is full slows the embedded default and drops nothing; each part says so once (rule 7)."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import LogUnavailable


@contextmanager
def no_file_larger_than(size_bytes: int) -> Iterator[None]:
    """For this process, as a full disk or a quota is: a write beyond it fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def until(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_messages_are_kept_until_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A dead letter, or a seed that is produced."""
    log = LocalSeedLog(tmp_path)
    producer = log.producer()
    producer.send("seeds", b"k", b"first").result(300)
    with no_file_larger_than(200_000):
        late = [producer.send("seeds", b"k", b"x" * 100_000) for _ in range(20)]
        until(lambda: "Trying again" in caplog.text)
        time.sleep(1.2)  # some tries
        assert not any(future.done() and future.exception() for future in late)
    for future in late:
        future.result(300)
    producer.close()
    assert sum(1 for _ in log.read("seeds")) == 21
    assert caplog.text.count("Trying again") == 1


class _Listener:
    def assigned(self, positions: Mapping[Partition, Position | None]) -> None: ...

    def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position]:
        return {}

    def lost(self, partitions: Sequence[Partition]) -> None: ...

    def reached(self, partition: Partition, offset: int) -> None: ...


def test_a_member_waits_for_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its signs of life cannot be written, nor its commits, which are tried again elsewhere."""
    monkeypatch.setattr("site_spider.adapters.local.members.BEAT_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    log = LocalSeedLog(tmp_path)
    producer = log.producer()
    for number in range(1000):
        producer.send("seeds", b"k", b"%d" % number)
    producer.close()
    consumer = log.consumer("seeds", "group", _Listener())
    got = []
    until(lambda: got.extend(consumer.poll(0.1, 1)) or got)
    with no_file_larger_than(1):
        until(lambda: got.extend(consumer.poll(0.1, 1)) or "Trying again" in caplog.text)
        got.extend(consumer.poll(0.1, 1))
        with pytest.raises(LogUnavailable, match="SITE_DATA_DIR"):
            consumer.commit({got[0].partition: Position(1, "")})
    until(lambda: got.extend(consumer.poll(0.1, 1)) or "can be written again" in caplog.text)
    consumer.commit({got[0].partition: Position(1, "")})
    until(lambda: got.extend(consumer.poll(0.1, 500)) or len(got) == 1000)
    consumer.close()
    assert caplog.text.count("Trying again") == 1
