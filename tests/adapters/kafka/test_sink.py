"""What is special about the Kafka sink: size limits, a full queue, outages without repetition."""

from __future__ import annotations

import asyncio
import gc
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from weakref import ref

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from site_spider.adapters import files
from site_spider.adapters.kafka import producer as kafka_producer
from site_spider.adapters.kafka import sink as kafka_sink
from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.sink import KafkaSink, KafkaTopic
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.results.delivery import CLOSE_SINK_SECONDS
from tests.contracts.folded_results import KafkaResults
from tests.contracts.sinks import drop_topic, kafka_settings, record
from tests.contracts.trials import answers, page, pids, stopped, written
from tests.real_servers import own_kafka, variable

__all__ = ["own_kafka"]

NOWHERE = "127.0.0.1:9"


def write(settings: dict[str, Any], *records: Record) -> list[Verdict]:
    return written(KafkaSink.from_settings(settings), records)


def messages(settings: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return KafkaResults.from_settings(settings).messages()


def noise(count: int) -> str:
    """Text that can be compressed to half its size and no further."""
    return secrets.token_hex(count // 2)


def create_topic(settings: dict[str, Any], **config: str) -> None:
    client = AdminClient(KafkaConfig.from_settings(settings).admin(lambda _: None))
    topic = NewTopic(settings["SITE_RESULTS_TOPIC"], 1, 1, config=config)
    for future in client.create_topics([topic]).values():
        future.result(timeout=300)


@pytest.fixture
def settings(kafka_brokers: str) -> Iterator[dict[str, Any]]:
    settings = kafka_settings(kafka_brokers)
    yield settings
    drop_topic(settings)


# --- Without a server ---


@pytest.mark.parametrize("brokers", ["", "localhost"])
def test_without_brokers_there_is_no_kafka_sink(brokers: str) -> None:
    """Other than the seed log, it has nothing embedded to fall back to."""
    with pytest.raises(ConfigError, match="SITE_KAFKA_BROKERS"):
        KafkaSink.from_settings(kafka_settings(brokers))


@pytest.mark.parametrize("topic", ["", "a b", "ä", "..", "x" * 250])
def test_a_topic_that_cannot_be_is_refused(topic: str) -> None:
    """The broker would refuse every result."""
    with pytest.raises(ConfigError, match="SITE_RESULTS_TOPIC"):
        KafkaSink.from_settings(kafka_settings(NOWHERE, SITE_RESULTS_TOPIC=topic))


# --- With the shared server ---


@pytest.mark.servers
def test_a_result_that_is_too_large_is_cut_and_flagged(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """For the broker, or for the client itself, which refuses more than 16 MB.

    Only its body, and no more often than needed; smaller ones beside it are left alone.
    """
    large = {"url_id": "a", "status": 200, "body": noise(6_000_000), "headers": noise(1000), "description": "d"}
    fitting = {"url_id": "b", "status": 200, "body": "can be compressed " * 400_000}
    batch = [record("a", large), record("b", fitting), record("c", {"body": "x" * 20_000_000})]
    assert answers(write(settings, *batch)) == [Answer.ACKNOWLEDGED] * 3
    stored = dict(messages(settings))
    assert len(stored) == len(messages(settings)) == 3
    assert stored["b"] == fitting
    assert stored["a"] == {**large, "body": large["body"][:1_500_000], "body_truncated": True}
    assert stored["c"] == {"body": "x" * 10_000_000, "body_truncated": True}
    cut = [line for line in caplog.messages if "cut" in line]
    assert cut[0] == (
        f"The body of a is cut, and has body_truncated: topic {settings['SITE_RESULTS_TOPIC']} takes no "
        "larger message (max.message.bytes). Bodies cut before without a line: 0"
    )
    assert len(cut) == 2


@pytest.mark.servers
def test_small_results_are_not_refused_for_their_company(settings: dict[str, Any]) -> None:
    """A topic with a low limit refuses the client's batches; each result alone passes whole."""
    create_topic(settings, **{"max.message.bytes": "30000"})
    batch = [record(str(number), {"body": noise(10_000)}) for number in range(100)]
    assert answers(write(settings, *batch)) == [Answer.ACKNOWLEDGED] * 100
    assert dict(messages(settings)) == {item.key: item.document for item in batch}
    assert len(messages(settings)) == 100


# --- With a server of our own, which is killed and stopped ---


@pytest.fixture
def own_settings(own_kafka: Path) -> dict[str, Any]:
    return kafka_settings(variable(own_kafka, "SITE_KAFKA_BROKERS", "kafka"))


@pytest.mark.servers
async def test_what_waits_in_the_client_is_not_produced_again(
    own_kafka: Path, own_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that gave up, one that was cancelled, and the one that succeeds in the end: one message."""
    [broker] = pids(own_kafka / "kafka", "kafka")
    batch = [page(number) for number in range(100)]
    begun: list[float] = []  # writes, each of which knows by then what is under way
    wait = kafka_sink._Sending.wait

    def waiting(sending: kafka_sink._Sending, until: float) -> None:
        if sending.record() is batch[0]:
            begun.append(until)
        wait(sending, until)

    monkeypatch.setattr(kafka_sink._Sending, "wait", waiting)
    sink = KafkaSink.from_settings(own_settings)
    await sink.open()
    await sink.write([page(1000)])
    with stopped(broker):
        monkeypatch.setattr(kafka_sink, "ACKNOWLEDGE_SECONDS", 0.5)
        with pytest.raises(SinkUnavailable, match=own_settings["SITE_KAFKA_BROKERS"]):
            await sink.write(batch)
        monkeypatch.setattr(kafka_sink, "ACKNOWLEDGE_SECONDS", 300)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sink.write(batch), 0.1)
        last = asyncio.ensure_future(sink.write(batch))
        while len(begun) < 3:
            await asyncio.sleep(0.01)
    verdicts = await last
    await sink.close()
    assert answers(verdicts) == [Answer.ACKNOWLEDGED] * 100
    assert Counter(key for key, _ in messages(own_settings)) == {item.key: 1 for item in [*batch, page(1000)]}


@pytest.mark.servers
async def test_closing_does_not_wait_for_a_broker_that_is_silent(
    own_kafka: Path, own_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery has waited already, and a stop has to come to an end, before the client gives up."""
    monkeypatch.setattr(kafka_producer, "_CLOSE_SECONDS", 600.0)
    assert files.CLOSE_SECONDS < CLOSE_SINK_SECONDS
    monkeypatch.setattr(files, "CLOSE_SECONDS", 0.1)
    [broker] = pids(own_kafka / "kafka", "kafka")
    sink = KafkaSink.from_settings(own_settings)
    await sink.open()
    with stopped(broker):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sink.write([page(1)]), 0.1)
        await sink.close()
        left = [thread for thread in threading.enumerate() if "kafka-sink" in thread.name]
    for thread in left:
        thread.join()


async def test_a_sink_that_is_closed_while_it_opens_leaves_no_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop ends the wait for servers; the thread that asks them goes on until they answer."""
    asked, answered = threading.Event(), threading.Event()

    def ask(*_: object) -> None:
        asked.set()
        answered.wait(30)

    monkeypatch.setattr(KafkaTopic, "_ask", ask)
    before = set(threading.enumerate())  # producers of other tests among them
    sink = KafkaSink.from_settings(kafka_settings(NOWHERE))
    opening = asyncio.create_task(sink.open())
    await asyncio.to_thread(asked.wait, 30)
    opening.cancel()
    await sink.close()
    answered.set()
    for thread in [one for one in threading.enumerate() if "kafka-sink" in one.name]:
        thread.join()
    made = set(threading.enumerate()) - before
    assert not [thread for thread in made if thread.name == "site-kafka-producer"]


def test_what_is_found_too_large_after_the_end_makes_no_producer() -> None:
    """Nobody would close it."""
    topic = KafkaTopic(KafkaConfig("127.0.0.1:9"), "results")
    topic.close()
    large = page(1)
    with pytest.raises(SinkUnavailable, match="not open"):
        topic._sent_again([kafka_sink._Sending(ref(large), Future())])
    assert topic._alone is None


def test_what_the_delivery_has_dropped_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the brokers are away a partition leaves: nobody asks for its results any more, or for their bodies."""
    monkeypatch.setattr(kafka_sink, "ACKNOWLEDGE_SECONDS", 0.0)
    topic, waiting = KafkaTopic(KafkaConfig(NOWHERE), "results"), Future[Any]()
    topic._producer = send = Mock(**{"send.return_value": waiting})
    records = [page(number) for number in range(3)]
    for _ in range(2):
        with pytest.raises(SinkUnavailable):
            topic.write(records)
    assert send.send.call_count == 3  # nothing is produced again
    waiting.set_result(None)
    assert answers(topic.write(records[:1])) == [Answer.ACKNOWLEDGED]
    del records[1:]
    gc.collect()  # the error of the write has held them
    assert not topic._sendings
