"""The seed log on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined] # not in its stubs
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from site_spider import options, runtime
from site_spider.adapters.kafka.config import KafkaConfig
from site_spider.adapters.kafka.consumer import KafkaConsumer
from site_spider.adapters.kafka.facts import facts
from site_spider.adapters.kafka.group_assignment import assignment_of
from site_spider.adapters.kafka.items import Topics as ItemTopics
from site_spider.adapters.kafka.messages import before_ends
from site_spider.adapters.kafka.producer import KafkaProducer
from site_spider.adapters.kafka.reader import KafkaTopicReader
from site_spider.adapters.kafka.rights import granted
from site_spider.adapters.kafka.topic_ids import ask_ids, to_position
from site_spider.adapters.kafka.transactions import KafkaTransactions
from site_spider.contracts.seed_log import (
    Granted,
    Listener,
    LogFacts,
    Message,
    Partition,
    PartitionProgress,
    Position,
    Right,
    Topics,
    each_topic,
)
from site_spider.errors import ConfigError, LogUnavailable, TopicMissing

_REFUSALS = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})
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

# a reader that is behind, but not so far, sees every record (see tasks.ending)
_COMPACTED = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}

_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call] # not in its stubs
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]

R = TypeVar("R")


class KafkaSeedLog:
    """Fulfils `site_spider.contracts.seed_log.SeedLog`; threads may share it."""

    has_own_clock = True

    def __init__(self, config: KafkaConfig, results_topic: str = "", items_topic: str = "") -> None:
        self.address = config.brokers
        self._results_topic = results_topic
        self._items_topic = items_topic
        self._config = config
        self._trouble = ""  # the client's last words
        self._is_refused = False  # by the servers, who are there
        self._kept: set[str] = set()  # topics that are there, with a retention
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
            if self._is_refused:
                raise ConfigError(
                    f"Kafka at {self.address} cannot be used: {self._trouble}. Set in SITE_KAFKA_OPTIONS the "
                    "login and the certificates (ssl.ca.location) that it accepts; see docs/security.md."
                ) from error
            raise LogUnavailable(
                f"no answer from Kafka at {self.address} within {timeout_seconds:g} s; SITE_KAFKA_BROKERS "
                f"names it, and it must be running and reachable: {self._trouble or error.args[0].str()}"
            ) from error

    def identity(self) -> str:
        """See `site_spider.contracts.seed_log.SeedLog`: the cluster's id."""
        found = self._asked(lambda: self._admin.list_topics(timeout=_ANSWER_SECONDS))
        return str(found.cluster_id or self.address)

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

    def producer(self, purpose: str = "") -> KafkaProducer:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        return KafkaProducer(self._config, purpose)

    def keep(self, topic: str, seconds: float) -> None:
        """See `site_spider.contracts.seed_log.SeedLog`: Kafka itself lets old messages go."""
        if topic in self._kept or self.partitions(topic):
            self._kept.add(topic)
            return
        kept_ms = int(seconds * 1000)
        # the segment that is written to is never let go
        config = {"retention.ms": str(kept_ms), "segment.ms": str(max(60_000, kept_ms // 4))}
        wanted = NewTopic(topic, num_partitions=1, replication_factor=-1, config=config)
        try:
            self._admin.create_topics([wanted], request_timeout=_ANSWER_SECONDS)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._unavailable(error) from error
        self._kept.add(topic)

    def progress(self, topic: str, group: str) -> list[PartitionProgress]:
        """See `site_spider.contracts.seed_log.SeedLog`. Asks the servers three questions."""
        partitions = self._partitions(topic)
        starts, ends = self._offsets(partitions, _EARLIEST), self._offsets(partitions, _LATEST)
        committed = self._committed(partitions, group)
        return [
            PartitionProgress(partition, starts[partition], ends[partition], committed[partition])
            for partition in partitions
        ]

    def facts(self, topic: str, group: str, offsets: Mapping[Partition, int]) -> LogFacts:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        self._partitions(topic)
        return facts(self._admin, self._config, topic, group, offsets)

    def unowned(self, topics: Topics, group: str) -> frozenset[Partition] | None:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        if self._config.group_protocol != "classic":
            return None
        found = assignment_of(self._admin, group, each_topic(topics), _ANSWER_SECONDS)
        return None if found is None or (found.owned and not found.is_settled) else found.unowned

    def granted(self, rights: Sequence[Right]) -> list[Granted]:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        return granted(self._admin, self._config, rights, _ANSWER_SECONDS)

    def topic_id(self, topic: str) -> str:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        with suppress(KafkaException):  # servers that do not tell
            return ask_ids(self._admin, [topic], _ANSWER_SECONDS / 5)[topic]
        return ""

    def partitions(self, topic: str) -> int:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        try:
            return len(self._partitions(topic))
        except TopicMissing:
            return 0

    def make_topic(self, topic: str, partitions: int, *, compacted: bool, dated: bool = False) -> None:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        if self.partitions(topic):
            return
        kept = _COMPACTED if compacted else {"retention.ms": "-1"}
        kept = {**kept, "message.timestamp.type": "LogAppendTime"} if dated else kept
        wanted = NewTopic(topic, partitions or -1, -1, config=kept)
        try:
            self._answer(self._admin.create_topics([wanted], operation_timeout=_ANSWER_SECONDS)[topic])
        except LogUnavailable:
            if not self.partitions(topic):  # another process may have been quicker
                raise
        deadline = runtime.monotonic() + _ANSWER_SECONDS
        while not self.partitions(topic):  # all servers hear of it
            if runtime.monotonic() > deadline:
                raise LogUnavailable(
                    f"Topic {topic} was made in Kafka at {self.address}, but is not there yet."
                )
            runtime.sleep(_COORDINATOR_PAUSE_SECONDS)

    def reader(self, topic: str, *, compacted: bool) -> KafkaTopicReader:  # noqa: ARG002 - the servers know
        """See `site_spider.contracts.seed_log.SeedLog`."""
        return KafkaTopicReader(self._config, topic)

    def read(
        self, topic: str, start: Mapping[Partition, int] | None = None, since_ms: int = 0
    ) -> Iterator[Message]:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        partitions = self._partitions(topic)
        starts, ends = self._offsets(partitions, _EARLIEST), self._offsets(partitions, _LATEST)
        later = dict(start or {})
        if timed := [partition for partition in partitions if since_ms and partition not in later]:
            found = self._offsets(timed, OffsetSpec.for_timestamp(since_ms))
            later |= {part: offset if offset >= 0 else ends[part] for part, offset in found.items()}
        starts = {part: max(first, later.get(part, 0)) for part, first in starts.items()}
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
            self._is_refused = error.code() in _REFUSALS

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
        ids: dict[str, str] = {}
        with suppress(KafkaException):  # servers that do not tell: then every position counts
            ids = ask_ids(self._admin, {partition.topic for partition in partitions}, _ANSWER_SECONDS / 5)
        return {
            Partition(raw.topic, raw.partition): to_position(raw, ids.get(raw.topic, "")) for raw in found
        }

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
        client = Consumer(self._config.reader(f"site_spider-read-{runtime.uuid4().hex}", self._note_trouble))
        client.assign([TopicPartition(*partition, starts[partition]) for partition in ends])
        heard = runtime.monotonic()
        try:
            while ends:
                batch = client.consume(_READ_BATCH, 0.1)
                yield from before_ends(batch, ends)
                heard = runtime.monotonic() if batch else heard
                if runtime.monotonic() - heard > _SILENCE_SECONDS:
                    raise LogUnavailable(f"Kafka at {self.address} stopped sending: {self._trouble}")
        finally:
            client.close()


def _when_coordinated(question: Callable[[], R]) -> R:
    """Ask again while the servers are finding out which of them coordinates the group."""
    deadline = runtime.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            return question()
        except KafkaException as error:
            if error.args[0].code() not in _UNCOORDINATED or runtime.monotonic() > deadline:
                raise
        runtime.sleep(_COORDINATOR_PAUSE_SECONDS)
