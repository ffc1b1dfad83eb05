"""The seed log on Apache Kafka."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Any, NamedTuple, Self, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Message as RawMessage
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec  # type: ignore[attr-defined] # not in its stubs

from site_spider import options, runtime
from site_spider.adapters.kafka.assignment import assignment_of, described
from site_spider.adapters.kafka.client import MISSING, Certificates, KafkaConfig, LastErrors, insisted, to_message
from site_spider.adapters.kafka.consumer import KafkaConsumer
from site_spider.adapters.kafka.positions import ask_ids, to_position
from site_spider.adapters.kafka.producer import KafkaProducer
from site_spider.adapters.kafka.transactions import Topics
from site_spider.contracts.seed_log import (
    Granted,
    Listener,
    LogFacts,
    Message,
    Partition,
    PartitionProgress,
    Position,
    Right,
    SeedLog,
    TopicReader,
)
from site_spider.errors import ConfigError, LogUnavailable, TopicMissing

logger = logging.getLogger(__name__)

# --- reader: reads a Kafka topic from its beginning on, without a group, and follows it ------------------

_READER_BATCH = 500
_ASK_SECONDS = 1.0  # between two questions whether there is such a topic

Bounds = Mapping[int, tuple[int, int]]  # of partitions: the first offset, and the one behind the last


class KafkaTopicReader(TopicReader):
    """Partitions that are added later are not read.

    With `bounds` it reads these partitions alone, from these offsets on and to those.
    """

    def __init__(self, config: KafkaConfig, topic: str, bounds: Bounds | None = None) -> None:
        self._topic = topic
        self.words = LastErrors(config.brokers)
        self._config = config
        self._certificates = Certificates(config, f"the reader of {topic}")
        self._client = self._new_client()
        self._ends: dict[int, int] | None = None  # those not reached; None: there is no such topic yet
        self._next: dict[int, int] = {}  # positions of partitions
        self._ask_at = 0.0
        self._refusal = ""  # the client says it once of a partition
        if bounds is None:
            self._begin()
        else:
            self._assign(bounds)

    @property
    def is_at_end(self) -> bool:
        return not self._ends

    def mark_end(self) -> None:
        if self._ends is None:
            self._begin()
            return
        bounds = self._bounds(self._next)
        self._ends = {
            number: high for number, (low, high) in bounds.items() if high > max(low, self._next.get(number, 0))
        }

    def poll(self, timeout_seconds: float) -> list[Message]:
        if self._certificates.are_renewed():
            self._renew()
        if self._ends is None:
            self._client.poll(timeout_seconds)  # waits, and lets the client say what is wrong
            if runtime.monotonic() >= self._ask_at:
                self._begin()
        if self._ends is None:
            return []
        first = self._client.poll(timeout_seconds)
        found = () if first is None else (first, *self._client.consume(_READER_BATCH, 0))
        messages = [message for raw in found if (message := self._taken(raw))]
        if self._refusal and not messages:
            self._seek()
            raise LogUnavailable(
                f"{self._refusal}. {KafkaConfig.to_grant(f'Read and Describe on the topic {self._topic}')}"
            )
        return messages

    def close(self) -> None:
        self._client.close()

    def _new_client(self) -> Consumer:
        group = f"site_spider-read-{runtime.uuid4().hex}"
        return self._config.made(Consumer, self._config.reader(group, self.words))

    def _renew(self) -> None:
        before, self._client = self._client, self._new_client()
        before.close()
        self._seek()

    def _seek(self) -> None:
        self._client.assign([TopicPartition(self._topic, *position) for position in self._next.items()])

    def _begin(self) -> None:
        self._ask_at = runtime.monotonic() + _ASK_SECONDS
        try:
            found = self._client.list_topics(self._topic, timeout=_ANSWER_SECONDS).topics[self._topic]
        except KafkaException as error:
            raise self.words.unavailable(error) from error
        if found.error is None and found.partitions:
            self._assign(self._bounds(found.partitions))

    def _bounds(self, numbers: Iterable[int]) -> Bounds:
        parts = [TopicPartition(self._topic, number) for number in numbers]
        try:
            return {part.partition: self._client.get_watermark_offsets(part, timeout=_ANSWER_SECONDS) for part in parts}
        except KafkaException as error:
            raise self.words.unavailable(error) from error

    def _assign(self, bounds: Bounds) -> None:
        self._ends = {number: end for number, (start, end) in bounds.items() if end > start}
        self._next = {number: start for number, (start, _) in bounds.items()}
        self._seek()

    def _taken(self, raw: RawMessage) -> Message | None:
        error = raw.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self._refusal = error.str()
            return None  # the client goes on by itself
        self._refusal = ""
        number, offset = raw.partition() or 0, raw.offset() or 0
        assert self._ends is not None
        # the last offsets may hold no messages, so the end counts too
        self._next[number] = offset if error is not None else offset + 1
        if self._next[number] >= self._ends.get(number, 0):
            self._ends.pop(number, None)
        return to_message(raw) if error is None else None


# --- What Kafka knows of a topic and a group: members, retention, times of messages ----------------------

_FACTS_ANSWER_SECONDS = 5.0
_READ_SECONDS = 3.0  # for the messages of all partitions


def _config_of(admin: AdminClient, topic: str) -> dict[str, str]:
    """The settings of a topic; none where the servers do not tell."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        (answer,) = admin.describe_configs([resource], request_timeout=_FACTS_ANSWER_SECONDS).values()
        return {name: str(entry.value) for name, entry in answer.result().items()}
    except KafkaException:
        return {}


def _written_at(config: KafkaConfig, topic: str, offsets: Mapping[Partition, int]) -> dict[Partition, float]:
    """Of those that answer in time."""
    found: dict[Partition, float] = {}
    deadline = runtime.monotonic() + _READ_SECONDS
    bounds = {partition.number: (offset, offset + 1) for partition, offset in offsets.items()}
    with suppress(KafkaException, LogUnavailable), closing(KafkaTopicReader(config, topic, bounds)) as reader:
        while not reader.is_at_end and runtime.monotonic() < deadline:
            for message in reader.poll(_READ_POLL_SECONDS):
                # at an offset beyond the end the client begins anew
                if message.offset >= offsets[message.partition]:
                    found.setdefault(message.partition, message.timestamp_ms / 1000)
    return found


# --- rights: what the user of a Kafka client may do, as the servers say it; nothing is joined or written -

_CREATE = "Create"
_OF_GROUPS = frozenset({"READ", "DESCRIBE", "DELETE"})
_STEP_SECONDS = 0.5
_GROUP_SECONDS = 8.0  # servers on their first day have no coordinator yet, which this client waits for
_REFUSED = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
})  # fmt: skip


class _Authorized(NamedTuple):
    operations: frozenset[str] | None = None  # None: the servers do not say
    exists: bool = True


def granted(admin: AdminClient, config: KafkaConfig, rights: Sequence[Right], seconds: float) -> list[Granted]:
    """As SeedLog.granted; what nobody answers is not known."""
    topics = sorted({right.name for right in rights if right.kind == "topic"})
    groups = sorted({right.name for right in rights if right.kind == "group"})
    more: dict[str, Any] = {"include_authorized_operations": True, "request_timeout": seconds}
    asked = admin.describe_topics(TopicCollection(topics), **more) if topics else {}
    of_topics = {name: _read(answer) for name, answer in asked.items()}
    of_groups = {name: _of_group(config, name, [*topics, name][0], seconds) for name in groups}
    refused = set(_not_creatable(admin, [name for name, said in of_topics.items() if not said.exists], seconds))
    said = {"topic": of_topics, "group": of_groups}
    return [_judged(right, said[right.kind][right.name], refused) for right in rights]


def _of_group(config: KafkaConfig, group: str, topic: str, seconds: float) -> _Authorized:
    """Who may see a group's positions is taken to have all rights to it; if not, joining it says so.

    The servers say more, but not without a risk (see `assignment.described`).
    """
    client = config.made(Consumer, config.reader(group, lambda _error: None))
    give_up = runtime.monotonic() + min(seconds, _GROUP_SECONDS)
    try:
        while runtime.monotonic() < give_up:
            try:
                client.committed([TopicPartition(topic, 0)], timeout=_STEP_SECONDS)
                return _Authorized(_OF_GROUPS)
            except KafkaException as refusal:
                if refusal.args[0].code() in _REFUSED:
                    return _Authorized(frozenset())
            if _is_refused(client):
                return _Authorized(frozenset())
    finally:
        client.close()
    return _Authorized()


def _is_refused(client: Consumer) -> bool:
    """Who may not see a group's positions hears it from the client, not as the answer to the question."""
    said = client.poll(0)
    error = None if said is None else said.error()
    return error is not None and error.code() in _REFUSED


def _judged(right: Right, said: _Authorized, not_creatable: Container[str]) -> Granted:
    if not said.exists:
        return Granted(right, (_CREATE,) if right.name in not_creatable else (), exists=False)
    if said.operations is None:
        return Granted(right, (), is_known=False)
    return Granted(right, tuple(one for one in right.operations if one.upper() not in said.operations))


def _read(answer: Future[Any]) -> _Authorized:
    try:
        operations = answer.result().authorized_operations
    except KafkaException as error:
        code = error.args[0].code()
        return _Authorized(frozenset() if code in _REFUSED else None, exists=code not in MISSING)
    return _Authorized(frozenset(operation.name for operation in operations) if operations else None)


def _not_creatable(admin: AdminClient, names: Iterable[str], seconds: float) -> Iterator[str]:
    """Of topics that do not exist; nothing is created."""
    wanted = [NewTopic(name, -1, -1) for name in names]
    if not wanted:
        return
    for name, answer in admin.create_topics(wanted, validate_only=True, request_timeout=seconds).items():
        try:
            answer.result()
        except KafkaException as error:
            if error.args[0].code() in _REFUSED:
                yield name


_ANSWER_SECONDS = 10.0
_FAULT_SECONDS = 5.0  # for what a topic lacks, and then for servers to make it
_SILENCE_SECONDS = 30.0  # without a message, before reading a topic is given up
_READ_POLL_SECONDS = 0.1
_COORDINATOR_PAUSE_SECONDS = 0.2
_UNCOORDINATED = frozenset(  # while the servers find out which of them coordinates the group
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
# a reader that is behind, but not so far, sees every record (see tasks.ending)
_COMPACTED = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}

_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call] # not in its stubs
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]

R = TypeVar("R")


class KafkaSeedLog(SeedLog):
    """Threads may share it."""

    has_own_clock = True

    def __init__(self, config: KafkaConfig, topics: Topics | None = None) -> None:
        self.address = config.brokers
        self._topics = topics or {}  # of results in transactions
        self._config = config
        self._words = LastErrors(config.brokers)
        self._admin = self._config.made(AdminClient, self._config.admin(self._words))
        self._compacted: set[str] = set()  # topics of which the policy was looked at

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        results, items = (options.text(settings, name) for name in ("SITE_RESULTS_TOPIC", "SITE_ITEMS_TOPIC"))
        return cls(KafkaConfig.from_settings(settings), {"result": results, "item": items})

    def check(self, timeout_seconds: float) -> None:
        try:
            self._admin.list_topics(timeout=timeout_seconds)
        except KafkaException as error:
            self._admin.poll(0)  # lets the client say why
            if self._words.is_refusal:
                raise ConfigError(
                    f"Kafka at {self.address} cannot be used: {self._words.said}. Set in SITE_KAFKA_OPTIONS "
                    "the login and the certificates (ssl.ca.location) that it accepts; see docs/security.md."
                ) from error
            raise LogUnavailable(
                f"no answer from Kafka at {self.address} within {timeout_seconds:g} s; SITE_KAFKA_BROKERS "
                "names it, it must be running and reachable, and SITE_KAFKA_OPTIONS must fit its listener "
                f"(security.protocol, certificates): {self._words.said or error.args[0].str()}"
            ) from error

    def identity(self) -> str:
        found = self._asked(lambda: self._admin.list_topics(timeout=_ANSWER_SECONDS))
        return str(found.cluster_id or self.address)

    def consumer(
        self, topics: tuple[str, ...], group: str, listener: Listener, *, with_results: bool = False
    ) -> KafkaConsumer:
        for topic in topics:
            if "compact" in _config_of(self._admin, topic).get("cleanup.policy", ""):
                logger.warning(
                    "Topic %s has cleanup.policy=compact: Kafka keeps the newest message of each key, usually one a"
                    " host, and deletes the others unread. Set cleanup.policy=delete, and produce them again.",
                    topic,
                )
        return KafkaConsumer(self._config, topics, group, listener, self._topics if with_results else None)

    def producer(self, purpose: str = "") -> KafkaProducer:
        return KafkaProducer(self._config, purpose)

    def keep(self, topic: str, seconds: float) -> None:
        """Kafka itself lets old messages go."""
        kept_ms = int(seconds * 1000)
        # the segment that is written to is never let go
        config = {"retention.ms": str(kept_ms), "segment.ms": str(max(60_000, kept_ms // 4))}
        self._create(NewTopic(topic, 1, -1, config=config))

    def progress(self, topic: str, group: str | None) -> list[PartitionProgress]:
        partitions = self._partitions(topic)
        starts, ends = self._offsets(partitions, _EARLIEST), self._offsets(partitions, _LATEST)
        committed = {} if group is None else self._committed(partitions, group)
        return [
            PartitionProgress(partition, starts[partition], ends[partition], committed.get(partition))
            for partition in partitions
        ]

    def facts(self, topic: str, group: str, offsets: Mapping[Partition, int]) -> LogFacts:
        self._partitions(topic)
        found = described(self._admin, group, _FACTS_ANSWER_SECONDS)
        kept_ms = _config_of(self._admin, topic).get("retention.ms", "")  # -1: for ever
        # a right that is missing leaves one of them unknown
        return LogFacts(
            None if found is None else len(found.members),
            int(kept_ms) / 1000 if kept_ms.isdecimal() else None,
            _written_at(self._config, topic, offsets),
        )

    def unowned(self, topics: tuple[str, ...], group: str) -> frozenset[Partition] | None:
        found = assignment_of(self._admin, group, topics, _ANSWER_SECONDS)
        return None if found is None or (found.owned and not found.is_settled) else found.unowned

    def granted(self, rights: Sequence[Right]) -> list[Granted]:
        return granted(self._admin, self._config, rights, _ANSWER_SECONDS)

    def fault_of(self, topic: str) -> str:
        right = Right("topic", topic, ("Describe", "Write"))
        [said] = granted(self._admin, self._config, [right], _FAULT_SECONDS)
        if said.exists and said.missing:
            return (
                f"Topic {topic} may not be written: grant the user of SITE_KAFKA_OPTIONS "
                f"{' and '.join(said.missing)} on it; see docs/security.md"
            )
        if said.exists or self._is_made(topic):
            return ""
        return f"Topic {topic} does not exist in Kafka at {self.address}: create it"

    def _is_made(self, topic: str) -> bool:
        """Whether servers make it when a producer asks for it, or do not answer."""
        client = self._config.made(Producer, self._config.producer(self._words))
        deadline = runtime.monotonic() + _FAULT_SECONDS
        while runtime.monotonic() < deadline:
            try:
                found = client.list_topics(topic, timeout=_FAULT_SECONDS).topics[topic]
            except KafkaException:
                return True
            if found.error is None:
                return True
            runtime.sleep(_COORDINATOR_PAUSE_SECONDS)
        return False

    def topic_id(self, topic: str) -> str:
        with suppress(KafkaException):  # servers that do not tell
            return ask_ids(self._admin, [topic], _ANSWER_SECONDS / 5)[topic]
        return ""

    def partitions(self, topic: str) -> int:
        try:
            return len(self._partitions(topic))
        except TopicMissing:
            return 0

    def make_topic(self, topic: str, partitions: int, *, compacted: bool, dated: bool = False) -> None:
        kept = _COMPACTED if compacted else {"retention.ms": "-1"}
        kept = {**kept, "message.timestamp.type": "LogAppendTime"} if dated else kept
        self._create(NewTopic(topic, partitions or -1, -1, config=kept))

    def _create(self, wanted: NewTopic) -> None:
        topic = wanted.topic
        if self.partitions(topic):
            return
        try:
            self._asked(self._admin.create_topics([wanted], operation_timeout=_ANSWER_SECONDS)[topic].result)
        except LogUnavailable:
            if not self.partitions(topic):  # another process may have been quicker
                raise
        deadline = runtime.monotonic() + _ANSWER_SECONDS
        while not self.partitions(topic):  # all servers hear of it
            if runtime.monotonic() > deadline:
                raise LogUnavailable(f"Topic {topic} was made in Kafka at {self.address}, but is not there yet.")
            runtime.sleep(_COORDINATOR_PAUSE_SECONDS)

    def reader(self, topic: str, *, compacted: bool) -> KafkaTopicReader:
        reader = KafkaTopicReader(self._config, topic)  # first: servers that are away are not waited for twice
        if compacted and topic not in self._compacted:
            self._compacted.add(topic)
            self._say_retention(topic)
        return reader

    def _say_retention(self, topic: str) -> None:
        found = _config_of(self._admin, topic)
        if "delete" in found.get("cleanup.policy", "") and found.get("retention.ms") != "-1":
            logger.warning(
                "Topic %s has cleanup.policy=%s: Kafka deletes old records, such as that a task is paused or"
                " cancelled, and its seeds are crawled then. Set cleanup.policy=compact, and give these orders again.",
                topic, found["cleanup.policy"],
            )  # fmt: skip

    def read(self, topic: str, start: Mapping[Partition, int] | None = None, since_ms: int = 0) -> Iterator[Message]:
        partitions = self._partitions(topic)
        # what stands behind the first record of an open transaction is given to no reader yet
        starts, ends = self._offsets(partitions, _EARLIEST), self._offsets(partitions, _LATEST, is_committed=True)
        later = dict(start or {})
        if timed := [partition for partition in partitions if since_ms > 0 and partition not in later]:
            found = self._offsets(timed, OffsetSpec.for_timestamp(since_ms))
            later |= {part: offset if offset >= 0 else ends[part] for part, offset in found.items()}
        bounds = {part.number: (max(at, later.get(part, 0)), ends[part]) for part, at in starts.items()}
        return self._read(topic, {one: (start, end) for one, (start, end) in bounds.items() if end > start})

    # --- questions -----------------------------------------------------------------------

    def _partitions(self, topic: str) -> list[Partition]:
        try:
            found = self._admin.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic]
        except KafkaException as error:
            raise self._unavailable(error) from error
        if found.error is None:
            return [Partition(topic, number) for number in sorted(found.partitions)]
        if found.error.code() in MISSING | {KafkaError._UNKNOWN_PARTITION}:
            raise TopicMissing(f"Topic {topic} does not exist in Kafka at {self.address}.")
        raise LogUnavailable(f"Topic {topic} in Kafka at {self.address} cannot be used: {found.error.str()}.")

    def _offsets(
        self, partitions: Sequence[Partition], which: Any, *, is_committed: bool = False
    ) -> dict[Partition, int]:
        asked = {TopicPartition(*partition): which for partition in partitions}
        more = {"isolation_level": IsolationLevel(is_committed), "request_timeout": _ANSWER_SECONDS}
        answers = self._asked(lambda: self._admin.list_offsets(asked, **more))
        return {
            Partition(raw.topic, raw.partition): self._asked(answer.result).offset for raw, answer in answers.items()
        }

    def _committed(self, partitions: Sequence[Partition], group: str) -> dict[Partition, Position | None]:
        # not by the admin client's list_consumer_group_offsets: it crashes the process (measured with
        # confluent-kafka 2.16) while the servers have no coordinator yet, as on their first day
        wanted = [TopicPartition(*partition) for partition in partitions]
        client = self._config.made(Consumer, self._config.reader(group, self._words))

        def ask() -> list[TopicPartition]:
            return client.committed(wanted, timeout=_ANSWER_SECONDS)

        try:
            found = self._asked(lambda: insisted(ask, lambda error: error.code() in _UNCOORDINATED, _ANSWER_SECONDS))
        except LogUnavailable as error:
            if not _is_refused(client):
                raise
            why = f"Kafka at {self.address} does not say how far the group is. "
            raise LogUnavailable(why + self._config.to_grant(f"Read on the group {group}")) from error
        finally:
            client.close()
        ids: dict[str, str] = {}
        with suppress(KafkaException):  # servers that do not tell: then every position counts
            ids = ask_ids(self._admin, {partition.topic for partition in partitions}, _ANSWER_SECONDS / 5)
        return {Partition(raw.topic, raw.partition): to_position(raw, ids.get(raw.topic, "")) for raw in found}

    def _asked(self, question: Callable[[], R]) -> R:
        try:
            return question()
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: KafkaException) -> LogUnavailable:
        self._admin.poll(0)  # lets the client say why
        error.with_traceback(None)  # a frame has the client, whose end may wait, and not where this is caught
        unavailable = self._words.unavailable(error)
        # measured: after an outage this client goes on failing at once, though the servers are back
        self._words = LastErrors(self.address)
        self._admin = self._config.made(AdminClient, self._config.admin(self._words))
        return unavailable

    # --- reading without a group -----------------------------------------------------------

    def _read(self, topic: str, bounds: Bounds) -> Iterator[Message]:
        if not bounds:
            return
        with closing(KafkaTopicReader(self._config, topic, bounds)) as reader:
            heard = runtime.monotonic()
            while not reader.is_at_end:
                batch = reader.poll(_READ_POLL_SECONDS)
                yield from (one for one in batch if one.offset < bounds[one.partition.number][1])
                heard = runtime.monotonic() if batch else heard
                if runtime.monotonic() - heard > _SILENCE_SECONDS:
                    raise LogUnavailable(f"Kafka at {self.address} stopped sending: {reader.words.said}")
