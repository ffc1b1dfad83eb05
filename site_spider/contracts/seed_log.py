"""The seed log: topics of partitions of messages, read by consumer groups.

Kafka is one, the embedded SQLite log another; both are adapters that fulfil the
protocols below, and one contract suite runs over both. All methods here may block:
they are called from threads that are not the event loop's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

Headers = Sequence[tuple[str, bytes]]
Topics = str | Sequence[str]  # one, or several that a member reads


def each_topic(topics: Topics) -> tuple[str, ...]:
    """Their names."""
    return (topics,) if isinstance(topics, str) else tuple(topics)


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int


class Position(NamedTuple):
    """What a group has committed for a partition.

    `offset` is the watermark: the next offset that is safe to start from. `metadata`
    is the string that travels with the commit (at most 4,000 bytes).
    """

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One record of the log; `value` is None for a tombstone."""

    partition: Partition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far a group is in one partition.

    `start` and `end` are the first and the next offset of the partition; `committed`
    is None while the group has committed nothing there.
    """

    partition: Partition
    start: int
    end: int
    committed: Position | None


class Listener(Protocol):
    """Told of changes of the assignment, on the polling thread, from within `poll` and `close`."""

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """These partitions are ours now, with what the group has committed for each."""

    def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position]:
        """These are about to leave; what is returned is committed before they do."""

    def lost(self, partitions: Sequence[Partition]) -> None:
        """These have gone already: others may own them, so nothing can be committed."""

    def reached(self, partition: Partition, offset: int) -> None:
        """Every message below `offset` has been handed out (there may be gaps before it)."""


class Consumer(Protocol):
    """A member of a consumer group. One thread uses it."""

    def poll(self, timeout_seconds: float, limit: int) -> list[Message]:
        """At most `limit` messages: as soon as there is one, or none after the timeout.

        Keeps the membership alive and calls the listener; to be called often, also
        while everything is paused. Raises LogUnavailable on a fatal error only: a
        broker that is away for a while yields empty lists and a log line.
        """

    def commit(self, positions: Mapping[Partition, Position]) -> None:
        """Commit and wait for the answer. Raises LogUnavailable when it failed; harmless to repeat."""

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Hand out nothing more of these (assigned) partitions until resumed."""

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Undo `pause`; continues where it stopped, nothing is skipped."""

    def close(self) -> None:
        """Give the partitions up (`listener.revoked` is asked first) and leave."""


class TransactionalConsumer(Consumer, Protocol):
    """A member of a group whose every commit, `commit` included, is a transaction."""

    def commit_with(self, items: Sequence[Any], positions: Mapping[Partition, Position]) -> Mapping[int, str]:
        """Store `items` (of `results.exactly_once.held`) and commit the positions: both, or neither.

        Returns the items that the servers refuse, by number, with the reason; then nothing is
        stored. Raises LogUnavailable when nothing is stored, and CommitInDoubt when that is not known:
        then `was_committed` has to be asked before anything else can be committed.
        """

    def was_committed(self, positions: Mapping[Partition, Position]) -> bool:
        """After CommitInDoubt: whether these positions, of the transaction in doubt, are committed.

        What was open is ended. Raises LogUnavailable while there is no answer; then ask again.
        """


class Producer(Protocol):
    """Appends messages. Threads may share it."""

    def send(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Future[None]:
        """Queue one message and return at once; the future ends when it is durable.

        The partition follows from the key (murmur2 as in Kafka's Java client; without
        a key any). The future fails with LogUnavailable, or with SinkRejected
        when the log refuses this very message (too large, say).
        """

    def flush(self, timeout_seconds: float) -> int:
        """Wait until all is durable; returns how many are still under way at the timeout."""

    def close(self) -> None:
        """Flush for a short while and release everything."""


class SeedLog(Protocol):
    """The way into a log: makes consumers and producers, tells about topics and groups."""

    address: str  # what a person would recognise: brokers, or the file's path

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """Build from Scrapy settings (get, getint, getdict …). Raises ConfigError."""

    def check(self, timeout_seconds: float) -> None:
        """Raise LogUnavailable, naming the setting and the address, unless the log answers in time."""

    def consumer(self, topics: Topics, group: str, listener: Listener) -> Consumer:
        """A new member of `group`; new groups start at the beginning of each topic.

        A topic that does not exist yet is read as soon as it does.
        """

    def producer(self) -> Producer:
        """A new producer."""

    def transactional_consumer(self, topics: Topics, group: str, listener: Listener) -> TransactionalConsumer:
        """A new member that stores results with positions. Raises ConfigError in a log without that."""

    def progress(self, topic: str, group: str) -> list[PartitionProgress]:
        """Every partition of the topic, in order. Raises LogUnavailable, TopicMissing."""

    def partitions(self, topic: str) -> int:
        """How many the topic has, 0 while it does not exist. Raises LogUnavailable."""

    def read(self, topic: str) -> Iterator[Message]:
        """All messages from the beginning up to the present end, without a group.

        Raises LogUnavailable, TopicMissing."""

    def close(self) -> None:
        """Release what this object holds."""
