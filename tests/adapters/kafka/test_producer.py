"""The producer towards the event loop: whatever its client is at, `send` returns at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import ClusterMetadata, PartitionMetadata, TopicMetadata

from site_spider.adapters.kafka import producer as kafka_producer
from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.producer import KafkaProducer
from site_spider.contracts.seed_log import MessagePlace
from site_spider.errors import ConfigError, LogUnavailable

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
    monkeypatch.setattr(kafka_producer, "_CLOSE_SECONDS", 0.1)
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
    """What was sent while it closed, too."""
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
    producer, errors = renewal.producer, []
    renewal.begin()  # nobody else reports
    for _ in range(20):
        futures = [producer.send("topic", None, b"") for _ in range(100)]
        start = threading.Barrier(2)

        def report(futures: list[Future[MessagePlace]] = futures, start: threading.Barrier = start) -> None:
            start.wait(300)
            for future in futures:
                try:
                    producer._finish(future, KafkaError(-1))
                except InvalidStateError as error:
                    errors.append(error)

        threads = [threading.Thread(target=report) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(isinstance(future.exception(0), LogUnavailable) for future in futures)
    assert not errors


class Silent:
    """A client that sends nothing, while servers tell it who leads a partition."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self.asked = threading.Semaphore(0)

    def produce(self, *_message: object, **_how: object) -> None:
        pass

    def poll(self, seconds: float) -> int:
        time.sleep(seconds)
        return 0

    flush = poll

    def purge(self) -> None:
        pass

    def list_topics(self, topic: str, timeout: float) -> ClusterMetadata:
        self.asked.release()
        cluster, found, partition = ClusterMetadata(), TopicMetadata(), PartitionMetadata()
        partition.leader = self._leader
        found.partitions, cluster.topics = {0: partition}, {topic: found}
        return cluster


def test_a_client_that_sends_nothing_though_the_servers_answer_is_replaced(
    renewal: Renewal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not send the next message either."""
    monkeypatch.setattr(kafka_producer, "_SILENT_SECONDS", 0.2)
    renewal.producer._client = Silent(leader=1)  # type: ignore[assignment]
    sent = renewal.producer.send("topic", None, b"")
    assert renewal.has_begun.wait(300)
    assert isinstance(sent.exception(300), LogUnavailable)


def test_a_message_for_a_partition_without_a_leader_waits_for_one(
    renewal: Renewal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_producer, "_SILENT_SECONDS", 0.05)
    renewal.producer._client = client = Silent(leader=-1)  # type: ignore[assignment]
    sent = renewal.producer.send("topic", None, b"")
    for _ in range(3):
        assert client.asked.acquire(timeout=300)
    assert not sent.done()
    assert not renewal.has_begun.is_set()


class Refused:
    """A client of a user who may write nothing: the servers let it have no producer id."""

    def poll(self, _seconds: float) -> int:
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Cluster", fatal=True))

    def flush(self, _seconds: float) -> int:
        return 0

    def purge(self) -> None:
        """Nothing is there."""


def test_a_user_who_may_write_nothing_is_told_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an error of a setting, which ends a crawl with one line and exit code 78."""
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(kafka_producer, "Producer", lambda _config: Refused())
    producer = KafkaProducer(KafkaConfig.from_settings(NOBODY))
    producer._thread.join(300)
    producer.close()
    (failed,) = raised
    assert isinstance(failed.exc_value, ConfigError)
    assert "Write on the topics" in str(failed.exc_value)
    assert "SITE_KAFKA_OPTIONS" in str(failed.exc_value)
