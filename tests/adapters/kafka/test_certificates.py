"""Clients of Kafka are made anew when certificates were replaced, and lose nothing by it.

Over the client's own mock of a broker, which speaks no TLS; test_renewed_certificates in acceptance does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from site_spider.adapters import files
from site_spider.adapters.kafka.client import Certificates, KafkaConfig
from site_spider.adapters.kafka.membership import MemberSlot
from site_spider.adapters.kafka.seed_log import KafkaSeedLog
from tests.adapters.kafka.cases import nobody
from tests.contracts.seed_logs import PATIENCE_SECONDS, Member, wait_until

__all__ = ["nobody"]


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOOK_SECONDS", 0.0)


@pytest.fixture
def brokers() -> Iterator[str]:
    admin = AdminClient({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    yield ",".join(f"{one.host}:{one.port}" for one in admin.list_topics(timeout=300).brokers.values())
    del admin


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    file = tmp_path / "ca.pem"
    file.write_text("before")
    return file


def config(brokers: str, authority: Path) -> KafkaConfig:
    return KafkaConfig(brokers, {"ssl.ca.location": str(authority)})


def renew(authority: Path) -> None:
    fresh = authority.with_suffix(".new")
    fresh.write_text("after")
    fresh.rename(authority)


def test_a_member_joins_again_and_repeats_nothing(
    brokers: str, authority: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is complete is committed before, and the producer and the reader go on as well."""
    caplog.set_level(logging.INFO)
    # the mock has a static member wait for the end of its own session
    monkeypatch.setattr(MemberSlot, "try_claim", lambda *_named: None)
    log = KafkaSeedLog(config(brokers, authority))
    producer, member = log.producer(), Member(log, "seeds", "group")
    member.commit_when_leaving()
    reader = log.reader("seeds", compacted=False)

    seen: list[bytes | None] = []

    def has_read(count: int) -> bool:
        seen.extend(message.value for message in reader.poll(0.1))
        return len(seen) >= count

    def send(text: str) -> list[bytes]:
        values = [f"{text} {number}".encode() for number in range(20)]
        for future in [producer.send("seeds", value, value) for value in values]:
            future.result(PATIENCE_SECONDS)
        return values

    first = send("before")
    member.take(20)
    wait_until(lambda: has_read(20))
    renew(authority)
    wait_until(lambda: (member.poll(), has_read(0), caplog.text.count("begins to use them") == 3)[2])
    second = send("after")
    assert sorted(filter(None, (message.value for message in member.take(40)))) == sorted(first + second)
    wait_until(lambda: has_read(40))
    assert sorted(filter(None, seen)) == sorted(first + second)
    assert [what for _, what, _ in member.listener.events if what == "lost"] == []
    member.close()
    reader.close()
    producer.close()


def test_files_with_which_nobody_answers_are_not_taken_and_said_once(
    nobody: str, authority: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are tried again after a growing pause."""
    certificates = Certificates(config(nobody, authority), "the client")
    assert not certificates.are_renewed()
    renew(authority)
    assert [certificates.are_renewed() for _ in range(3)] == [False] * 3
    (said,) = [record.message for record in caplog.records]
    assert "SITE_KAFKA_OPTIONS" in said
    assert str(authority) not in said


def test_without_files_nothing_is_looked_at(brokers: str) -> None:
    assert not Certificates(KafkaConfig(brokers), "the client").are_renewed()
