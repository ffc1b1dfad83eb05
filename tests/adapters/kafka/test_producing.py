"""What is special about producing to Kafka: refusals, full queues, fatal errors of the client."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from site_spider.errors import LogUnavailable, SinkRejected
from tests.adapters.kafka.cases import case, lock_folder, of
from tests.contracts.seed_logs import (
    PATIENCE_SECONDS,
    Case,
    kafka_producer,
    make_kafka_topic,
    wait_until,
)

__all__ = ["case", "kafka_producer", "lock_folder"]


@pytest.mark.servers
def test_a_message_the_server_refuses_is_rejected_alone(case: Case) -> None:
    """Its neighbours in the same batch arrive."""
    producer = case.new_producer()
    before = producer.send(case.topic, b"k", b"before")
    too_large = producer.send(case.topic, b"k", os.urandom(2_000_000))
    far_too_large = producer.send(case.topic, b"k", b"x" * 17_000_000)
    after = producer.send(case.topic, b"k", b"after")
    for future in (too_large, far_too_large):
        assert isinstance(future.exception(PATIENCE_SECONDS), SinkRejected)
    before.result(PATIENCE_SECONDS)
    after.result(PATIENCE_SECONDS)
    producer.close()
    assert sorted(message.value or b"" for message in case.log.read(case.topic)) == [b"after", b"before"]


@pytest.mark.servers
def test_a_message_for_a_topic_that_cannot_be_is_rejected(case: Case) -> None:
    """By the server; the client may say before that it does not know the topic."""
    producer = case.new_producer()

    def refused() -> bool:
        error = producer.send("no topic!", b"k", b"v").exception(PATIENCE_SECONDS)
        assert isinstance(error, SinkRejected | LogUnavailable)
        return isinstance(error, SinkRejected)

    wait_until(refused)
    producer.close()


@pytest.mark.servers
def test_an_acknowledgement_that_names_no_offset_is_not_believed(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gives it for a resend that the server calls a duplicate, which it may not be: once more."""
    producer = case.new_producer()
    offsets = iter([None, 0, 0])
    reported = producer._report  # type: ignore[attr-defined]

    def report(outgoing: Any, error: KafkaError | None, message: Any) -> None:
        place = {"topic": message.topic, "partition": message.partition}
        reported(outgoing, error, SimpleNamespace(offset=lambda: next(offsets), **place))

    monkeypatch.setattr(producer, "_report", report)
    producer.send(case.topic, b"k", b"v").result(PATIENCE_SECONDS)
    producer.close()
    assert [message.value for message in case.log.read(case.topic)] == [b"v", b"v"]


@pytest.mark.servers
def test_a_full_queue_loses_nothing_and_keeps_the_order(case: Case, kafka_brokers: str) -> None:
    """What the client has no room for waits on our side."""
    make_kafka_topic(kafka_brokers, case.topic, 1)
    producer = of(kafka_brokers, **{"queue.buffering.max.messages": 10}).producer()
    futures = [producer.send(case.topic, b"k", b"%d" % number) for number in range(500)]
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert {future.exception(0) for future in futures} == {None}
    producer.close()
    assert [message.value for message in case.log.read(case.topic)] == [
        b"%d" % number for number in range(500)
    ]


@pytest.mark.servers
def test_a_producer_goes_on_after_a_fatal_error_of_its_client(case: Case) -> None:
    """A new client takes over; a message is either durable or its future says that it is not."""
    producer = case.new_producer()
    producer.send(case.topic, b"k", b"before").result(PATIENCE_SECONDS)
    old = producer._client  # type: ignore[attr-defined]
    producer._on_error(KafkaError(KafkaError._FATAL, "out of order", fatal=True))  # type: ignore[attr-defined]
    producer.send(case.topic, b"k", b"after").result(PATIENCE_SECONDS)
    assert producer._client is not old  # type: ignore[attr-defined]
    producer.close()
