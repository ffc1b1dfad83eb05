"""The producer: whatever its client is at, `send` returns at once, and nothing is dropped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, admin

from site_spider.adapters.kafka import producer as kafka_producer_module
from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.producer import KafkaProducer, _ProducerRecord
from site_spider.contracts.seed_log import MessagePlace
from site_spider.errors import ConfigError, LogUnavailable, SinkRejected
from tests.adapters.kafka.conftest import of
from tests.contracts.seed_logs import PATIENCE_SECONDS, Case, make_kafka_topic, wait_until

NOBODY = {"SITE_KAFKA_BROKERS": "127.0.0.1:1", "SITE_KAFKA_OPTIONS": {}}
AT_ONCE_SECONDS = 60.0  # a renewal takes longer here


class Renewal:
    """A producer whose client is being replaced, for as long as the test wants."""

    def __init__(self) -> None:
        self.producer = KafkaProducer(KafkaConfig.from_settings(NOBODY))
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self._make = self.producer._new_client
        self.producer._new_client = self._slow  # type: ignore[method-assign]

    def _slow(self) -> Producer:
        self.has_begun.set()
        assert self.may_end.wait(300)
        return self._make()

    def begin(self) -> None:
        self.producer._broken = True
        assert self.has_begun.wait(300)


@pytest.fixture
def renewal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Renewal]:
    monkeypatch.setattr(kafka_producer_module, "_CLOSE_SECONDS", 0.1)
    renewal = Renewal()
    yield renewal
    renewal.may_end.set()
    renewal.producer.close()


def test_sending_does_not_wait_for_a_client_that_is_replaced(renewal: Renewal) -> None:
    """The event loop sends dead letters and links; it would stand still for seconds."""
    before = renewal.producer.send("topic", None, b"before")
    renewal.begin()
    with ThreadPoolExecutor(1) as loop:
        sending: Future[Future[None]] = loop.submit(renewal.producer.send, "topic", None, b"meanwhile")
        try:
            meanwhile = sending.result(AT_ONCE_SECONDS)
        finally:
            renewal.may_end.set()
    assert isinstance(before.exception(300), LogUnavailable)
    assert not meanwhile.done()
    assert [outgoing.value for outgoing in renewal.producer._overflow] in ([b"meanwhile"], [])


def test_nothing_of_a_closed_producer_is_left_open(renewal: Renewal) -> None:
    renewal.begin()
    meanwhile = renewal.producer.send("topic", None, b"meanwhile")
    renewal.may_end.set()
    renewal.producer.close()
    late = renewal.producer.send("topic", None, b"late")
    assert isinstance(meanwhile.exception(300), LogUnavailable)
    assert isinstance(late.exception(300), LogUnavailable)
    assert renewal.producer._unfinished == set()


def test_what_became_of_a_message_is_said_once(renewal: Renewal, threads_take_turns_often: None) -> None:
    """Reports come on whichever thread asks the client, also while the producer gives up what is left."""
    producer = renewal.producer
    renewal.begin()  # nobody else reports
    for _ in range(20):
        futures = [producer.send("topic", None, b"") for _ in range(100)]
        start = threading.Barrier(2)

        def report(futures: list[Future[MessagePlace]] = futures, start: threading.Barrier = start) -> None:
            start.wait(300)
            for future in futures:
                producer._finish(_ProducerRecord("topic", None, b"", [], future), KafkaError(-1))

        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(report) for _ in range(2)]
        assert [each.exception(0) for each in both] == [None, None]
        assert all(isinstance(future.exception(0), LogUnavailable) for future in futures)


class Silent:
    """A client that sends nothing, while servers tell it who leads a partition."""

    def __init__(self, leader: int, in_sync: int = 1, replicas: int = 1) -> None:
        self._leader, self._in_sync, self._replicas = leader, in_sync, replicas
        self.asked = threading.Semaphore(0)

    def produce(self, *_message: object, **_how: object) -> None:
        pass

    def poll(self, seconds: float) -> int:
        time.sleep(seconds)
        return 0

    flush = poll

    def purge(self) -> None:
        pass

    def list_topics(self, topic: str, timeout: float) -> admin.ClusterMetadata:
        self.asked.release()
        cluster, found, partition = admin.ClusterMetadata(), admin.TopicMetadata(), admin.PartitionMetadata()
        partition.leader = self._leader
        partition.isrs, partition.replicas = [1] * self._in_sync, [1] * self._replicas
        found.topic = topic
        found.partitions, cluster.topics = {0: partition}, {topic: found}
        return cluster


def test_a_client_that_sends_nothing_though_the_servers_answer_is_replaced(
    renewal: Renewal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not send the next message either."""
    monkeypatch.setattr(kafka_producer_module, "_SILENT_SECONDS", 0.2)
    renewal.producer._client = Silent(leader=1)  # type: ignore[assignment]
    sent = renewal.producer.send("topic", None, b"")
    assert renewal.has_begun.wait(300)
    assert isinstance(sent.exception(300), LogUnavailable)


@pytest.mark.parametrize("lacking", [{"leader": -1}, {"leader": 1, "replicas": 3}])
def test_a_message_for_a_partition_that_takes_none_waits_and_that_is_said_once(
    renewal: Renewal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lacking: dict[str, int]
) -> None:
    """A new client would send it again, to a leader that may have it already."""
    monkeypatch.setattr(kafka_producer_module, "_SILENT_SECONDS", 0.05)
    renewal.producer._client = client = Silent(**lacking)  # type: ignore[assignment]
    sent = renewal.producer.send("topic", None, b"")
    for _ in range(3):
        assert client.asked.acquire(timeout=300)
    assert not sent.done()
    assert not renewal.has_begun.is_set()
    told = [record.getMessage() for record in caplog.records if "topic/0 1 of" in record.getMessage()]
    assert len(told) == 1


def test_a_user_who_may_write_nothing_is_told_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an error of a setting, which ends a crawl with one line and exit code 78."""
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    error = KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Cluster", fatal=True))
    client = Mock(poll=Mock(side_effect=error), flush=Mock(return_value=0))  # it is let have no producer id
    monkeypatch.setattr(kafka_producer_module, "Producer", lambda _config: client)
    producer = KafkaProducer(KafkaConfig.from_settings(NOBODY))
    producer._thread.join(300)
    producer.close()
    (failed,) = raised
    assert isinstance(failed.exc_value, ConfigError)
    assert "Write on the topics" in str(failed.exc_value)
    assert "SITE_KAFKA_OPTIONS" in str(failed.exc_value)


def test_a_message_that_may_not_be_written_names_the_right(renewal: Renewal, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    monkeypatch.setattr(renewal.producer, "_client", Mock(produce=Mock(side_effect=refused)))
    told = str(renewal.producer.send("letters", None, b"").exception(300))
    assert "Grant the user of SITE_KAFKA_OPTIONS Write and Describe on the topic letters, and create it" in told


# --- refusals, full queues, and fatal errors of the client, with servers --------------------------

PROBE = b"probe"


@pytest.mark.servers
def test_an_acknowledgement_that_names_no_offset_is_not_believed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gives it for a resend that the server calls a duplicate, which it may not be: once more."""
    producer = case.new_producer()
    offsets = iter([None, 0, 0])
    reported = producer._report  # type: ignore[attr-defined]

    def report(outgoing: Any, error: KafkaError | None, message: Any) -> None:
        place = {"topic": message.topic, "partition": message.partition, "timestamp": message.timestamp}
        reported(outgoing, error, SimpleNamespace(offset=lambda: next(offsets), **place))

    monkeypatch.setattr(producer, "_report", report)
    producer.send(case.topic, b"k", b"v").result(PATIENCE_SECONDS)
    producer.close()
    assert [message.value for message in case.log.read(case.topic)] == [b"v", b"v"]


def make_refusing(brokers: str, topic: str, *, refuses: bool) -> None:
    """The topic finds all messages too old, or none, as if the clock of this machine were wrong, or right.

    But for one that arrives within the millisecond in which it is sent.
    """
    make_kafka_topic(brokers, topic, 1)
    name, most = "message.timestamp.before.max.ms", "0" if refuses else "86400000"
    entry = admin.ConfigEntry(name, most, incremental_operation=admin.AlterConfigOpType.SET)
    resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    asking = admin.AdminClient({"bootstrap.servers": brokers})  # to be kept until it has answered
    asking.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)
    client, refused = Producer({"bootstrap.servers": brokers, "linger.ms": 20}), list[bool]()

    def is_so() -> bool:
        client.produce(topic, PROBE, b"k", on_delivery=lambda error, _: refused.append(error is not None))
        client.flush(PATIENCE_SECONDS)
        return refused[-1] is refuses

    wait_until(is_so)


@pytest.mark.servers
def test_messages_that_are_refused_because_of_the_clock_are_sent_when_it_is_right(
    case: Case, kafka_brokers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once when it begins and once when it is over; in their order; and other topics go on."""
    caplog.set_level(logging.INFO)
    make_refusing(kafka_brokers, case.topic, refuses=True)
    other = f"{case.topic}.other"
    make_kafka_topic(kafka_brokers, other, 1)
    with closing(case.new_producer()) as producer:
        futures = [producer.send(case.topic, b"k", b"%d" % number) for number in range(200)]
        wait_until(lambda: "an outage of ours" in caplog.text)
        futures += [producer.send(case.topic, b"k", b"%d" % number) for number in range(200, 300)]
        producer.send(other, b"k", b"v").result(PATIENCE_SECONDS)
        assert not all(future.done() for future in futures)
        make_refusing(kafka_brokers, case.topic, refuses=False)
        for future in futures:
            future.result(PATIENCE_SECONDS)
    found = [message.value for message in case.log.read(case.topic) if message.value != PROBE]
    assert found == [b"%d" % number for number in range(300)]
    said = [record.message for record in caplog.records if record.name == kafka_producer_module.__name__]
    assert ["because of its clock" in line for line in said] == [True, False]
    assert "again after" in said[1]


@pytest.mark.servers
def test_a_record_that_a_topic_does_not_take_is_rejected_alone(case: Case, kafka_brokers: str) -> None:
    """A compacted topic wants keys; the server calls all records of the batch invalid."""
    topic = f"{case.topic}.compacted"
    make_kafka_topic(kafka_brokers, topic, 1, **{"cleanup.policy": "compact"})
    with closing(case.new_producer()) as producer:
        keys = [b"a", None, b"b", None, b"c"]
        futures = [producer.send(topic, key, b"v") for key in keys]
        errors = [future.exception(PATIENCE_SECONDS) for future in futures]
        assert [type(error) for error in errors] == [SinkRejected if key is None else type(None) for key in keys]
    assert [message.key for message in case.log.read(topic)] == [b"a", b"b", b"c"]


@pytest.mark.servers
def test_a_producer_that_is_closed_gives_up_what_is_refused_because_of_the_clock(
    case: Case, kafka_brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_producer_module, "_CLOSE_SECONDS", 0.5)
    make_refusing(kafka_brokers, case.topic, refuses=True)

    def is_given_up() -> bool:
        """Not what arrives within a millisecond."""
        with closing(case.new_producer()) as producer:
            futures = [producer.send(case.topic, b"k", b"v") for _ in range(10)]
        return {type(future.exception(0)) for future in futures} - {type(None)} == {LogUnavailable}

    wait_until(is_given_up)


@pytest.mark.servers
def test_a_full_queue_loses_nothing_and_keeps_the_order(case: Case, kafka_brokers: str) -> None:
    """What the client has no room for waits on our side."""
    make_kafka_topic(kafka_brokers, case.topic, 1)
    with closing(of(kafka_brokers, **{"queue.buffering.max.messages": 10}).producer()) as producer:
        futures = [producer.send(case.topic, b"k", b"%d" % number) for number in range(500)]
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert {future.exception(0) for future in futures} == {None}
    assert [message.value for message in case.log.read(case.topic)] == [b"%d" % number for number in range(500)]


@pytest.mark.servers
def test_a_producer_goes_on_after_a_fatal_error_of_its_client(case: Case) -> None:
    """A new client takes over; a message is either durable or its future says that it is not."""
    with closing(case.new_producer()) as producer:
        producer.send(case.topic, b"k", b"before").result(PATIENCE_SECONDS)
        old = producer._client  # type: ignore[attr-defined]
        producer._on_error(KafkaError(KafkaError._FATAL, "out of order", fatal=True))  # type: ignore[attr-defined]
        producer.send(case.topic, b"k", b"after").result(PATIENCE_SECONDS)
        assert producer._client is not old  # type: ignore[attr-defined]
