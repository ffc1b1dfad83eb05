"""What the suite of seed logs needs: the two logs, and members whose doings are recorded."""

from __future__ import annotations

import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from site_spider.adapters.kafka.member_name import MemberSlot
from site_spider.adapters.kafka.seed_log import KafkaSeedLog
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.contracts.seed_log import Message, Partition, Position, Producer, SeedLog

PARTITIONS = 4
PATIENCE_SECONDS = 300.0

# Members hear of a rebalance with their next heartbeat, and of a new topic with the next metadata.
QUICK_KAFKA = {"heartbeat.interval.ms": 300, "topic.metadata.refresh.interval.ms": 1000}


def wait_until(condition: Callable[[], object], what: str = "", seconds: float = PATIENCE_SECONDS) -> None:
    """Return when the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        time.sleep(0.01)


@dataclass
class Recorder:
    """A listener that remembers; `answer` makes the positions that `revoked` returns."""

    name: str = ""
    events: list[tuple[str, str, Partition]] = field(default_factory=list)  # (member, what, partition)
    owned: dict[Partition, Position | None] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    gone: list[tuple[Partition, int, int]] = field(default_factory=list)  # deleted before it was read
    answer: Callable[[Sequence[Partition]], Mapping[Partition, Position]] = lambda _partitions: {}

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        self.owned.update(positions)
        self._note("assigned", positions)

    def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position]:
        answer = self.answer(partitions)
        self._leave("revoked", partitions)
        return answer

    def lost(self, partitions: Sequence[Partition]) -> None:
        self._leave("lost", partitions)

    def reached(self, partition: Partition, offset: int) -> None:
        assert partition in self.owned
        self.ends[partition] = offset

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        self.gone.append((partition, first, beyond))

    def _leave(self, what: str, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            del self.owned[partition]
        self._note(what, partitions)

    def _note(self, what: str, partitions: Mapping[Partition, object] | Sequence[Partition]) -> None:
        self.events.extend((self.name, what, partition) for partition in partitions)

    def told(self, what: str) -> list[Partition]:
        return [partition for name, event, partition in self.events if (name, event) == (self.name, what)]


class Member:
    """A consumer with its recorder; `taken` is all it was handed out."""

    def __init__(
        self,
        log: SeedLog,
        topic: str | tuple[str, ...],
        group: str,
        events: list[tuple[str, str, Partition]] | None = None,
    ) -> None:
        self.listener = Recorder(uuid.uuid4().hex, events if events is not None else [])
        self.consumer = log.consumer((topic,) if isinstance(topic, str) else topic, group, self.listener)
        self.taken: list[Message] = []

    @property
    def owned(self) -> set[Partition]:
        return set(self.listener.owned)

    @property
    def values(self) -> list[bytes | None]:
        return [message.value for message in self.taken]

    def poll(self, seconds: float = 0.05, limit: int = 500) -> list[Message]:
        batch = self.consumer.poll(seconds, limit)
        assert len(batch) <= limit
        assert {message.partition for message in batch} <= self.owned
        self.taken += batch
        return batch

    def take(self, count: int, limit: int = 500) -> list[Message]:
        """Poll until so many messages have been handed out in all."""
        poll_until([self], lambda: len(self.taken) >= count, f"{count} messages", limit)
        return self.taken

    def own(self, count: int) -> set[Partition]:
        """Poll until so many partitions are assigned."""
        poll_until([self], lambda: len(self.owned) == count, f"{count} partitions")
        return self.owned

    def next_positions(self, partitions: Sequence[Partition] = ()) -> dict[Partition, Position]:
        """Behind the last message handed out, of these partitions or all."""
        ends = {message.partition: Position(message.offset + 1) for message in self.taken}
        return {one: end for one, end in ends.items() if not partitions or one in partitions}

    def took_all_in_order(self) -> bool:
        """Of each partition, from its beginning without gaps."""
        places = [[message.offset for message in part] for part in by_partition(self.taken).values()]
        return all(offsets == list(range(len(offsets))) for offsets in places)

    def commit_when_leaving(self) -> None:
        self.listener.answer = self.next_positions

    def close(self) -> None:
        self.consumer.close()


def by_partition(messages: Sequence[Message]) -> dict[Partition, list[Message]]:
    parts = defaultdict(list)
    for message in messages:
        parts[message.partition].append(message)
    return parts


def poll_until(members: Sequence[Member], condition: Callable[[], object], what: str = "", limit: int = 500) -> None:
    """Poll the members in turn until the condition holds."""

    def turn() -> object:
        for member in members:
            member.poll(limit=limit)
        return condition()

    wait_until(turn, what)


@dataclass
class Case:
    """A seed log, and names nobody used before."""

    name: str
    log: SeedLog
    make_topic: Callable[[str, int], None]
    producer: Producer
    topic: str = field(default_factory=lambda: f"topic-{uuid.uuid4().hex}")
    group: str = field(default_factory=lambda: f"group-{uuid.uuid4().hex}")
    members: list[Member] = field(default_factory=list)

    def member(self, events: list[tuple[str, str, Partition]] | None = None) -> Member:
        """A new member of the group, closed at the end of the test."""
        self.members.append(Member(self.log, self.topic, self.group, events))
        return self.members[-1]

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        member.close()

    def produce(self, count: int, first: int = 0) -> list[bytes]:
        """Messages with values and keys of their own, all durable; makes the topic."""
        values = [b"value-%d" % number for number in range(first, first + count)]
        self.send([(b"key-" + value, value) for value in values])
        return values

    def send(self, pairs: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        self.make_topic(self.topic, PARTITIONS)
        producer = self.producer
        for future in [producer.send(self.topic, key, value) for key, value in pairs]:
            future.result(PATIENCE_SECONDS)

    def new_producer(self) -> Producer:
        """For this case's topic, which exists from then on."""
        self.make_topic(self.topic, PARTITIONS)
        return self.log.producer()

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.log.close()


@contextmanager
def local_case(folder: Path) -> Iterator[Case]:
    log = LocalSeedLog(folder, PARTITIONS)
    producer = log.producer()
    # topics come into being with their first message
    made = Case("local", log, lambda _topic, _partitions: None, producer)
    yield made
    made.close()
    producer.close()


@contextmanager
def kafka_case(producer: Producer, brokers: str) -> Iterator[Case]:
    """Its sessions last PATIENCE_SECONDS: none ends because members, or the servers, stand still."""
    options = QUICK_KAFKA | {"session.timeout.ms": 300_000}
    log = KafkaSeedLog.from_settings({"SITE_KAFKA_BROKERS": brokers, "SITE_KAFKA_OPTIONS": options})
    made = Case("kafka", log, partial(make_kafka_topic, brokers), producer)
    yield made
    made.close()


@pytest.fixture(scope="session")
def kafka_producer(kafka_brokers: str) -> Iterator[Producer]:
    """One for all tests: its first message takes half a second."""
    producer = KafkaSeedLog.from_settings({"SITE_KAFKA_BROKERS": kafka_brokers}).producer()
    yield producer
    producer.close()


def make_kafka_topic(brokers: str, topic: str, partitions: int, **config: str) -> None:
    """Make the topic unless it is there; a broker lists a new one only after a while."""
    admin = AdminClient({"bootstrap.servers": brokers, "allow.auto.create.topics": "false"})
    if is_listed(admin, topic):
        return
    try:
        admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(PATIENCE_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    wait_until(lambda: is_listed(admin, topic))


def is_listed(admin: AdminClient, topic: str) -> bool:
    return admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].error is None


SIMULATION = "tests.simulation.contracts"  # a plugin; it replaces the clock, so the other logs cannot run beside it
LOGS = ["simulated"] if SIMULATION in sys.modules else ["local", pytest.param("kafka", marks=pytest.mark.servers)]


@pytest.fixture
def one_name(case: Case, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on all members have the same name, as one has twice that the servers took for dead."""

    def name() -> None:
        if case.name == "simulated":
            monkeypatch.setattr(sys.modules[SIMULATION].PROCESS.get(), "member_name", "one")
        else:
            slot = MemberSlot.claim(case.group)
            monkeypatch.setattr(MemberSlot, "claim", lambda _group, place="": slot)

    return name


@pytest.fixture(params=LOGS)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # for lock files: this test's members alone
    if request.param == "simulated":
        context = sys.modules[SIMULATION].simulated_case()
    elif request.param == "local":
        context = local_case(tmp_path / "data")
    else:
        context = kafka_case(request.getfixturevalue("kafka_producer"), request.getfixturevalue("kafka_brokers"))
    with context as made:
        yield made
