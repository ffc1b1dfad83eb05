"""The seed log: topics of partitions of messages, read by consumer groups.

Kafka is one, the embedded SQLite log another; both are adapters that fulfil the
protocols below, and one contract suite runs over both. All methods here may block:
they are called from threads that are not the event loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self

from site_spider.errors import LogUnavailable

Headers = Sequence[tuple[str, bytes]]


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class MessagePlace(NamedTuple):
    """Where a message is in the log."""

    partition: Partition
    offset: int
    written_ms: int = 0  # Unix time by the clock of the server, where the topic is dated by it


class Position(NamedTuple):
    """What a group has committed for a partition.

    `offset` is the watermark: the next offset that is safe to start from. `metadata`
    is the string that travels with the commit (at most 4,000 bytes).
    """

    offset: int
    metadata: str = ""


class ForeignPosition(Position):
    """One that another client has committed: seeds before it may be neither done nor counted."""


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


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a log knows of a topic and a group besides its progress; None for what it cannot say."""

    members: int | None  # of the group
    retention_seconds: float | None  # after which messages are deleted; None also for never
    written_at: Mapping[Partition, float]  # Unix time, of the first messages from given offsets on


class LogName(NamedTuple):
    """Which log a process uses; `identity` is empty while nobody has answered."""

    identity: str
    address: str

    def is_same(self, other: LogName) -> bool:
        """As far as is known: by address, where one has no identity."""
        if self.identity and other.identity:
            return self.identity == other.identity
        return self.address == other.address


class Right(NamedTuple):
    """What a user of the log may do: `operations` with a topic or a group, in the words of its servers."""

    kind: Literal["topic", "group"]
    name: str
    operations: tuple[str, ...]


class Granted(NamedTuple):
    """What the servers say of a right."""

    right: Right
    missing: tuple[str, ...]  # of its operations
    exists: bool = True  # the topic; one that does not exist yet may lack Create
    is_known: bool = True  # whether the servers say


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

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        """The log has deleted messages from `first` to before `beyond`, which were never handed out."""


class Consumer(Protocol):
    """A member of a consumer group. One thread uses it; any may read what is said of it."""

    @property
    def member_name(self) -> str:
        """The name that a process which takes the place of this one on its machine has again; empty: none."""

    @property
    def is_member(self) -> bool:
        """Whether the group has taken it in; it may have no partition, where there are fewer than members."""

    @property
    def is_away(self) -> bool:
        """Whether the log does not answer at present, as far as is known."""

    session_seconds: float  # without an answer for so long others may own its partitions

    def poll(self, timeout_seconds: float, limit: int) -> list[Message]:
        """At most `limit` messages: as soon as there is one, or none after the timeout.

        Keeps the membership alive and calls the listener; to be called often, also
        while everything is paused. Raises LogUnavailable on a fatal error only: a
        broker that is away for a while yields empty lists and a log line.
        """

    def commit(self, positions: Mapping[Partition, Position]) -> None:
        """Commit and wait for the answer. Raises LogUnavailable when it failed; harmless to repeat."""

    def begin_commit(
        self, positions: Mapping[Partition, Position], answered: Callable[[LogUnavailable | None], None]
    ) -> None:
        """Commit without waiting. `answered` is called once: at once, or in a later `poll` or `close`.

        It is given None, or why it failed: LogSilent when no server has answered. One commit is
        under way at a time.
        """

    def pause(self, partitions: Collection[Partition]) -> None:
        """Hand out nothing more of these until the next call, or until they leave; all others go on.

        They continue where they stopped, nothing is skipped.
        """

    def close(self, *, for_good: bool = False) -> None:
        """Give the partitions up (`listener.revoked` is asked first) and leave.

        A log may keep them some seconds for the return of this member, but not if it leaves for good.
        """


class TransactionalConsumer(Consumer, Protocol):
    """A member of a group whose every commit, `commit` included, is a transaction."""

    def commit_with(self, items: Sequence[Any], positions: Mapping[Partition, Position]) -> Mapping[int, str]:
        """Store `items` (of `results.transaction_queue`) and commit the positions: both, or neither.

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

    def send(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Future[MessagePlace]:
        """Queue one message and return at once; the future ends with its place when it is durable.

        The partition follows from the key (murmur2 as in Kafka's Java client; without
        a key any). The future fails with LogUnavailable, or with SinkRejected
        when the log refuses this very message (too large, say).
        """

    def flush(self, timeout_seconds: float) -> int:
        """Wait until all is durable; returns how many are still under way at the timeout."""

    def close(self) -> None:
        """Flush for a short while and release everything."""


class TopicReader(Protocol):
    """Reads a topic from its beginning on, without a group, and follows it. One thread uses it."""

    @property
    def is_at_end(self) -> bool:
        """Whether everything was handed out that was there when it was made, or since `mark_end`."""

    def mark_end(self) -> None:
        """From now on `is_at_end` is about what is there now. Raises LogUnavailable."""

    def poll(self, timeout_seconds: float) -> list[Message]:
        """What has come, or none after the timeout, also while there is no such topic.

        Raises LogUnavailable.
        """

    def close(self) -> None:
        """Release everything."""


class SeedLog(Protocol):
    """The way into a log: makes consumers and producers, tells about topics and groups."""

    address: str  # what a person would recognise: brokers, or the file's path
    has_own_clock: bool  # it is on other machines, whose clocks may differ from that of this one

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """Build from Scrapy settings (get, getint, getdict …). Raises ConfigError."""

    def check(self, timeout_seconds: float) -> None:
        """Raise LogUnavailable, naming the setting and the address, unless the log answers in time."""

    def identity(self) -> str:
        """The same for all who use this very log, under whatever address. Raises LogUnavailable."""

    def consumer(
        self, topics: tuple[str, ...], group: str, listener: Listener, *, with_results: bool = False
    ) -> Consumer:
        """A new member of `group`; new groups start at the beginning of each topic.

        A topic that does not exist yet is read as soon as it does. `with_results`: a TransactionalConsumer, which
        stores them with positions. Raises ConfigError in a log without that.
        """

    def producer(self, purpose: str = "") -> Producer:
        """A new producer. With a purpose it is one besides another: it warns of no outage."""

    def keep(self, topic: str, seconds: float) -> None:
        """Make a topic whose messages are kept so long; to be called now and then, for old ones to go.

        A topic that is there keeps its own retention where the log has one. Raises LogUnavailable.
        """

    def progress(self, topic: str, group: str | None) -> list[PartitionProgress]:
        """Every partition, in order, and what the group has committed of it. Raises LogUnavailable, TopicMissing."""

    def make_topic(self, topic: str, partitions: int, *, compacted: bool, dated: bool = False) -> None:
        """Make a topic that keeps the latest of each key (`compacted`) or everything, unless it exists.

        0 partitions: as many as usual. `dated`: messages have the time of the server. Raises LogUnavailable.
        """

    def reader(self, topic: str, *, compacted: bool) -> TopicReader:
        """A new reader. Raises LogUnavailable."""

    def facts(self, topic: str, group: str, offsets: Mapping[Partition, int]) -> LogFacts:
        """About topic and group, and when the messages at these offsets were written.

        Raises LogUnavailable, TopicMissing."""

    def unowned(self, topics: tuple[str, ...], group: str) -> frozenset[Partition] | None:
        """Partitions that no member of the group has; all of them when it has no member.

        None when the log cannot tell, as while members share the partitions out. Raises LogUnavailable.
        """

    def granted(self, rights: Sequence[Right]) -> list[Granted]:
        """Which of these rights this process has; nothing is changed."""

    def topic_id(self, topic: str) -> str:  # noqa: ARG002 - a log that deletes no topics
        """Another one for a topic that was deleted and made again; empty where that cannot be told."""
        return ""

    def partitions(self, topic: str) -> int:
        """How many the topic has, 0 while it does not exist. Raises LogUnavailable."""

    def fault_of(self, topic: str) -> str:  # noqa: ARG002 - a log without rights makes each topic
        """Why nothing can be sent to a topic, with the remedy; empty if something can, or nobody answers.

        Servers that make topics by themselves make it.
        """
        return ""

    def read(self, topic: str, start: Mapping[Partition, int] | None = None, since_ms: int = 0) -> Iterator[Message]:
        """All messages up to the present end, without a group; of a partition in order.

        A partition is read from its offset in `start`, or else from the first message that was written at
        `since_ms` (a Unix time) or later. Raises LogUnavailable, TopicMissing."""

    def close(self) -> None:
        """Release what this object holds; nothing, as a rule: consumers and producers are closed one by one."""
        return


def name_of(log: SeedLog) -> LogName:
    """Ask which log it is; one that is away has no identity."""
    try:
        return LogName(log.identity(), log.address)
    except LogUnavailable:
        return LogName("", log.address)
