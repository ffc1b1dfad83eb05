"""The seed log on Apache Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as RawMessage
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined] # not in its stubs

from site_spider import options
from site_spider.adapters.kafka.assignment import to_position
from site_spider.adapters.kafka.config import KafkaConfig
from site_spider.adapters.kafka.consumer import KafkaConsumer, to_message
from site_spider.adapters.kafka.items import Topics as ItemTopics
from site_spider.adapters.kafka.producer import KafkaProducer
from site_spider.adapters.kafka.transactions import KafkaTransactions
from site_spider.contracts.seed_log import (
    Listener,
    Message,
    Partition,
    PartitionProgress,
    Position,
    Topics,
    each_topic,
)
from site_spider.errors import LogUnavailable, TopicMissing

_ANSWER_SECONDS = 10.0
_SILENCE_SECONDS = 30.0  # without a message, before reading a topic is given up
_READ_BATCH = 500
_COORDINATOR_PAUSE_SECONDS = 0.2
_UNCOORDINATED = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_MISSING = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)

_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call] # not in its stubs
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]

R = TypeVar("R")


class KafkaSeedLog:
    """Fulfils `site_spider.contracts.seed_log.SeedLog`; threads may share it."""

    def __init__(self, config: KafkaConfig, results_topic: str = "", items_topic: str = "") -> None:
        self.address = config.brokers
        self._results_topic = results_topic
        self._items_topic = items_topic
        self._config = config
        self._trouble = ""  # the client's last words
        self._admin = self._new_admin()

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """Read SITE_KAFKA_BROKERS, SITE_KAFKA_OPTIONS and SITE_KAFKA_GROUP_PROTOCOL. Raises ConfigError."""
        topics = (options.text(settings, name) for name in ("SITE_RESULTS_TOPIC", "SITE_ITEMS_TOPIC"))
        return cls(KafkaConfig.from_settings(settings), *topics)

    def check(self, timeout_seconds: float) -> None:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        try:
            self._admin.list_topics(timeout=timeout_seconds)
        except KafkaException as error:
            self._admin.poll(0)  # lets the client say why
            raise LogUnavailable(
                f"no answer from Kafka at {self.address} within {timeout_seconds:g} s; SITE_KAFKA_BROKERS "
                f"names it, and it must be running and reachable: {self._trouble or error.args[0].str()}"
            ) from error

    def consumer(self, topics: Topics, group: str, listener: Listener) -> KafkaConsumer:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        return KafkaConsumer(self._config, each_topic(topics), group, listener)

    def transactional_consumer(self, topics: Topics, group: str, listener: Listener) -> KafkaConsumer:
        """See `site_spider.contracts.seed_log.SeedLog`; for results and items SITE_*_TOPIC."""
        names = each_topic(topics)
        items = ItemTopics(self._results_topic, names[0], self._items_topic)

        def transactions(identity: str, member: Consumer) -> KafkaTransactions:
            return KafkaTransactions(self._config, identity, items, member)

        return KafkaConsumer(self._config, names, group, listener, transactions)

    def producer(self) -> KafkaProducer:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        return KafkaProducer(self._config)

    def progress(self, topic: str, group: str) -> list[PartitionProgress]:
        """See `site_spider.contracts.seed_log.SeedLog`. Asks the servers three questions."""
        partitions = self._partitions(topic)
        starts, ends = self._offsets(partitions, _EARLIEST), self._offsets(partitions, _LATEST)
        committed = self._committed(partitions, group)
        return [
            PartitionProgress(partition, starts[partition], ends[partition], committed[partition])
            for partition in partitions
        ]

    def partitions(self, topic: str) -> int:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        try:
            return len(self._partitions(topic))
        except TopicMissing:
            return 0

    def read(self, topic: str) -> Iterator[Message]:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        partitions = self._partitions(topic)
        starts, ends = self._offsets(partitions, _EARLIEST), self._offsets(partitions, _LATEST)
        return self._read(starts, {part: end for part, end in ends.items() if end > starts[part]})

    def close(self) -> None:
        """See `contracts.seed_log.SeedLog`; the client ends by itself when nothing refers to it."""

    def _new_admin(self) -> AdminClient:
        try:
            return AdminClient(self._config.admin(self._note_trouble))
        except (KafkaException, ValueError, TypeError) as error:
            raise self._config.refused(error) from None

    # --- questions -----------------------------------------------------------------------

    def _note_trouble(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error.str()

    def _partitions(self, topic: str) -> list[Partition]:
        try:
            found = self._admin.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic]
        except KafkaException as error:
            raise self._unavailable(error) from error
        if found.error is None:
            return [Partition(topic, number) for number in sorted(found.partitions)]
        if found.error.code() in _MISSING:
            raise TopicMissing(f"Topic {topic} does not exist in Kafka at {self.address}.")
        raise LogUnavailable(f"Topic {topic} in Kafka at {self.address} cannot be used: {found.error.str()}.")

    def _offsets(self, partitions: Sequence[Partition], which: Any) -> dict[Partition, int]:
        asked = {TopicPartition(*partition): which for partition in partitions}
        answers = self._asked(lambda: self._admin.list_offsets(asked, request_timeout=_ANSWER_SECONDS))
        return {
            Partition(raw.topic, raw.partition): self._answer(answer).offset
            for raw, answer in answers.items()
        }

    def _committed(self, partitions: Sequence[Partition], group: str) -> dict[Partition, Position | None]:
        # not by the admin client's list_consumer_group_offsets: it crashes the process (measured with
        # confluent-kafka 2.16) while the servers have no coordinator yet, as on their first day
        wanted = [TopicPartition(*partition) for partition in partitions]
        client = Consumer(self._config.reader(group, self._note_trouble))
        try:
            found = self._asked(
                lambda: _when_coordinated(lambda: client.committed(wanted, timeout=_ANSWER_SECONDS))
            )
        finally:
            client.close()
        return {Partition(raw.topic, raw.partition): to_position(raw) for raw in found}

    def _asked(self, question: Any) -> Any:
        try:
            return question()
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _answer(self, future: Future[R]) -> R:
        try:
            return future.result()
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: KafkaException) -> LogUnavailable:
        self._admin.poll(0)  # lets the client say why
        why = self._trouble or error.args[0].str()
        # measured: after an outage this client goes on failing at once, though the servers are back
        self._trouble = ""
        self._admin = self._new_admin()
        return LogUnavailable(f"Kafka at {self.address} (SITE_KAFKA_BROKERS) did not answer: {why}.")

    # --- reading without a group -----------------------------------------------------------

    def _read(self, starts: dict[Partition, int], ends: dict[Partition, int]) -> Iterator[Message]:
        if not ends:
            return
        client = Consumer(self._config.reader(f"site_spider-read-{uuid.uuid4().hex}", self._note_trouble))
        client.assign([TopicPartition(*partition, starts[partition]) for partition in ends])
        heard = time.monotonic()
        try:
            while ends:
                batch = client.consume(_READ_BATCH, 0.1)
                yield from _before_ends(batch, ends)
                heard = time.monotonic() if batch else heard
                if time.monotonic() - heard > _SILENCE_SECONDS:
                    raise LogUnavailable(f"Kafka at {self.address} stopped sending: {self._trouble}")
        finally:
            client.close()


def _when_coordinated(question: Callable[[], R]) -> R:
    """Ask again while the servers are finding out which of them coordinates the group."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            return question()
        except KafkaException as error:
            if error.args[0].code() not in _UNCOORDINATED or time.monotonic() > deadline:
                raise
        time.sleep(_COORDINATOR_PAUSE_SECONDS)


def _before_ends(batch: Iterable[RawMessage], ends: dict[Partition, int]) -> Iterator[Message]:
    """What lies before the ends; removes the partitions that are read to their end."""
    for raw in batch:
        error = raw.error()
        if error and error.code() != KafkaError._PARTITION_EOF:
            continue  # the client goes on by itself; should it not, there will be silence
        partition, offset = Partition(str(raw.topic()), raw.partition() or 0), raw.offset() or 0
        end = ends.get(partition, 0)
        if offset < end and not error:
            yield to_message(raw)
        if error or offset + 1 >= end:  # the last offsets may hold no messages, so the end counts too
            ends.pop(partition, None)
