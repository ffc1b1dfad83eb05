"""What the seed log does while no broker answers."""

from __future__ import annotations

import logging
import time

import pytest

from site_spider.errors import LogUnavailable
from tests.adapters.kafka.cases import lock_folder, nobody, of
from tests.contracts.seed_logs import (
    Member,
    kafka_producer,
    poll_until,
    wait_until,
)

__all__ = ["kafka_producer", "lock_folder", "nobody"]


def test_a_missing_server_is_named_by_the_check(nobody: str) -> None:
    """With the setting, the address and the time it was given."""
    with pytest.raises(
        LogUnavailable, match=f"no answer from Kafka at {nobody} within 1 s; SITE_KAFKA_BROKERS"
    ):
        of(nobody).check(1)


def test_a_consumer_waits_for_missing_servers(
    nobody: str, lock_folder: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It polls in vain and says so once; it closes."""
    member = Member(of(nobody), "topic", "group")
    poll_until([member], lambda: "does not answer" in caplog.text)
    polls_until = time.monotonic() + 2.5  # longer than the interval of looks
    poll_until([member], lambda: time.monotonic() > polls_until)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1, warnings
    assert nobody in warnings[0].message
    assert "SITE_KAFKA_BROKERS" in warnings[0].message
    member.close()


def test_a_producer_keeps_messages_for_missing_servers(
    nobody: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay under way until it is closed, and only then fail."""
    monkeypatch.setattr("site_spider.adapters.kafka.producer._CLOSE_SECONDS", 0.2)
    producer = of(nobody).producer()
    futures = [producer.send("topic", b"k", b"v") for _ in range(10)]
    wait_until(lambda: "does not answer" in caplog.text)
    assert producer.flush(0.2) == 10
    assert not any(future.done() for future in futures)
    producer.close()
    assert {type(future.exception(0)) for future in futures} == {LogUnavailable}


def test_questions_to_missing_servers_raise(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress and reading name the address."""
    monkeypatch.setattr("site_spider.adapters.kafka.seed_log._ANSWER_SECONDS", 0.5)
    log = of(nobody)
    for question in (lambda: log.progress("topic", "group"), lambda: log.read("topic")):
        with pytest.raises(LogUnavailable, match=nobody):
            question()
