"""Dead letters as operators handle them: read with reason and origin, and put back, each once.

Theory: `put_back` says where it is remembered. A batch is sent, waited for until it is durable, and only then
committed: a replay that is cut short sends at most that batch again. Whoever asks what is left looks at
the same commits. Dead letters are never written here: `results/` does.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from heapq import nlargest
from itertools import islice
from typing import Any, Final, NamedTuple

from site_spider import options, runtime
from site_spider.contracts.seed_log import (
    Consumer,
    Listener,
    Message,
    MessagePlace,
    Partition,
    PartitionProgress,
    Position,
    Producer,
    SeedLog,
)
from site_spider.errors import LogUnavailable, SinkRejected, TopicMissing
from site_spider.ledger.metadata import Ahead, Run, decode, encode
from site_spider.seed.seed import FIRST_WRITTEN
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.orders import PutBackTasks
from site_spider.text import cut, shown

# --- put back: which dead letters were put back already, and which are copies of one another -------------
# Theory: a consumer group of its own, `<dead-letter topic>.replay`, remembers them. All below its committed
# offset were put back, and so were the runs in the commit's metadata: those that somebody chose. What does
# not fit into the metadata is left out from the far end, so it may be put back a second time and is never
# forgotten.
#
# A process that dies before its commit leaves its dead letters to be written a second time by the next one.
# They are one dead letter: their message came from the same place of the same topic.

_ORIGIN: Final = ("origin_topic", "origin_partition", "origin_offset", "origin_timestamp")


def group_of(topic: str) -> str:
    """The group that remembers."""
    return f"{topic}.replay"


class PutBack(NamedTuple):
    """Offsets of one partition: all below `below`, and those in `runs`, which are ascending and disjoint."""

    below: int = 0
    runs: tuple[Run, ...] = ()

    @classmethod
    def of(cls, position: Position | None) -> PutBack:
        if position is None:
            return cls()
        return cls(position.offset, decode(position.offset, position.metadata).complete)

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        return offset < self.below or any(first <= offset < end for first, end in self.runs)

    def up_to(self, offset: int) -> PutBack:
        below = max(offset, self.below)
        runs = [(max(first, below), end) for first, end in self.runs if end > below]
        if runs and runs[0][0] == below:
            below = runs.pop(0)[1]
        return PutBack(below, tuple(runs))

    def with_offsets(self, offsets: Iterable[int]) -> PutBack:
        single = [(offset, offset + 1) for offset in offsets if offset >= self.below]
        merged: list[Run] = []
        for first, end in sorted([*self.runs, *single]):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((first, end))
        return PutBack(self.below, tuple(merged)).up_to(self.below)

    def position(self) -> Position:
        return Position(self.below, encode(self.below, Ahead(self.below, self.runs)))


class Copies:
    """Tells dead letters of the same message; those below are told by what was put back."""

    def __init__(self) -> None:
        self._put_back: set[int] = set()
        self._met: set[int | None] = set()

    @classmethod
    def read(cls, log: SeedLog, topic: str, done: Mapping[Partition, PutBack]) -> Copies:
        """Reads what was put back. Raises TopicMissing, LogUnavailable."""
        copies = cls()
        if any(some.below or some.runs for some in done.values()):
            copies.note(log.read(topic), done)
        return copies

    def note(self, messages: Iterable[Message], done: Mapping[Partition, PutBack]) -> None:
        for message in messages:
            some = done.get(message.partition)
            if some is None or message.offset not in some or not _can_be_put_back(message):
                continue
            if (origin := _origin(message)) is not None:
                self._put_back.add(origin)

    def is_put_back(self, origin: int | None) -> bool:
        return origin in self._put_back

    def is_first(self, message: Message) -> bool:
        """Whether no copy was asked about before."""
        origin = _origin(message)
        is_first = origin is None or origin not in self._met
        self._met.add(origin)
        return is_first


def _origin(message: Message) -> int | None:
    """The origin of the message that was set aside; None when nothing tells.

    Where it stood is not enough: a topic that is made anew has the same offsets again.
    """
    headers = dict(message.headers)
    place = tuple(headers.get(name) for name in _ORIGIN)
    return None if None in place[:3] else hash((*place, message.key, message.value))


def _can_be_put_back(message: Message) -> bool:
    """Else a replay says so, and passes it over."""
    headers = dict(message.headers)
    return TRUNCATED not in headers and bool(headers.get("origin_topic"))


def put_back(log: SeedLog, topic: str) -> Mapping[Partition, PutBack]:
    """What was put back, of each partition. Raises TopicMissing, LogUnavailable."""
    return _put_back(log.progress(topic, group_of(topic)))


def _put_back(parts: Iterable[PartitionProgress]) -> Mapping[Partition, PutBack]:
    return {part.partition: PutBack.of(part.committed) for part in parts}


# --- letters: dead letters with their reasons, and whether each was put back -----------------------------

SUFFIX = ".dead-letters"


def topic_of(settings: options.SettingsView, given: str | None = None) -> str:
    """The dead-letter topic, of the settings or of the topic that somebody gave. Raises ConfigError."""
    topics = CrawlTopics.of(settings)
    if given is None or given in topics.tiers:
        return topics.dead_letters
    return given if given.endswith(SUFFIX) or given == topics.dead_letters else f"{given}{SUFFIX}"


class Letter(NamedTuple):
    """A dead letter, its headers as text, and whether it was put back."""

    message: Message
    headers: Mapping[str, str]
    replayed: bool

    @property
    def origin(self) -> str:
        """Where it came from: topic/partition/offset."""
        return "/".join(self.headers.get(f"origin_{part}", "?") for part in ("topic", "partition", "offset"))

    def document(self) -> dict[str, Any]:
        message, headers, replayed = self
        topic, partition = message.partition
        return {
            "topic": topic,
            "partition": partition,
            "offset": message.offset,
            "timestamp": _moment(message.timestamp_ms),
            "error": headers.get("error"),
            **{name: headers.get(name) for name in ("origin_topic", "origin_partition", "origin_offset")},
            "failed_at": headers.get("failed_at"),
            "replayed": replayed,
            **_encoded("key", message.key),
            **_encoded("value", message.value),
            "headers": dict(headers),
        }


def letters(log: SeedLog, topic: str) -> Iterator[Letter]:
    """All of them, each once; none when the topic does not exist. Raises LogUnavailable."""
    try:
        done = put_back(log, topic)
        copies = Copies.read(log, topic, done)
        messages = log.read(topic)
    except TopicMissing:  # nothing was ever set aside
        return
    yield from _with_headers(messages, done, copies)


_KEPT_BYTES = 2_000  # more than is shown of a key, a value or a header
_KEPT_HEADERS = ("error", "failed_at", *_ORIGIN)


def newest(log: SeedLog, topic: str, most: int, wanted: bytes = b"") -> list[Letter]:
    """Of the last `most` of each partition those whose value contains `wanted`, at most so many, the newest first.

    Of each only the beginning is kept, because together they may be larger than the memory. Raises LogUnavailable.
    """
    try:
        parts = log.progress(topic, group_of(topic))
        messages = log.read(topic, {part.partition: max(part.start, part.end - most) for part in parts})
    except TopicMissing:
        return []
    done = _put_back(parts)
    copies = Copies()

    def beginnings() -> Iterator[tuple[int | None, Letter]]:
        for message in messages:
            copies.note([message], done)
            if wanted in (message.value or b""):
                for letter in _with_headers([message], done, copies):
                    yield _origin(message), _beginning_of(letter)

    found = nlargest(most, beginnings(), key=lambda each: (each[1].message.timestamp_ms, each[1].message.offset))
    # a copy that was put back may come later
    return [letter._replace(replayed=letter.replayed or copies.is_put_back(origin)) for origin, letter in found]


def _beginning_of(letter: Letter) -> Letter:
    message, headers, _ = letter
    key, value = (raw and raw[:_KEPT_BYTES] for raw in (message.key, message.value))
    kept = {name: headers[name][:_KEPT_BYTES] for name in _KEPT_HEADERS if name in headers}
    return letter._replace(message=replace(message, key=key, value=value, headers=()), headers=kept)


def _with_headers(messages: Iterable[Message], done: Mapping[Partition, PutBack], copies: Copies) -> Iterator[Letter]:
    for message in filter(copies.is_first, messages):
        headers = {name: value.decode("utf-8", "backslashreplace") for name, value in message.headers}
        is_put_back = message.offset in done.get(message.partition, PutBack()) and _can_be_put_back(message)
        yield Letter(message, headers, is_put_back or copies.is_put_back(_origin(message)))


def beginning(raw: bytes | None, characters: int) -> str | None:
    """What a table shows of a key or value."""
    if raw is None:
        return None
    return cut(raw[: 4 * characters].decode("utf-8", "backslashreplace"), characters)


def _moment(timestamp_ms: int) -> str | None:
    """None beyond the years that there are: producers set it as they like."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None


def _encoded(name: str, raw: bytes | None) -> dict[str, str | None]:
    """Bytes as text, or as base64, which a field of its own says, when they are not UTF-8."""
    if raw is None:
        return {name: None}
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(raw).decode(), f"{name}_encoding": "base64"}


# --- replay ----------------------------------------------------------------------------------------------
# Sends dead letters to the topics they came from, byte by byte as they were: all of them, or chosen ones.

TRUNCATED = "truncated_from_bytes"  # the header of a dead letter that does not hold the whole message

_BATCH = 500
_POLL_SECONDS = 0.5
_JOIN_SECONDS = 20.0  # until the partitions of chosen ones are ours; another replay may hold them
_COMMIT_TRIES = 10  # a rebalance may get into some

Chosen = Mapping[Partition, Set[int]]


class Replay(Listener):
    """One replay. `complain(message, reason)` hears of what cannot be put back, which stays where it is.

    Of the crawl of these `topics`. Only what came from one of its seed topics, or from the one that `topic` is named
    after, is put back, wherever a dead letter says it came from. What came from other topics waits for a replay of
    the crawl that reads them.
    """

    def __init__(self, log: SeedLog, topic: str, complain: Callable[[Message, str], None], topics: CrawlTopics) -> None:
        self._topics = topics
        self._origins = {topic.removesuffix(SUFFIX), *topics.tiers}
        self.replayed = 0
        self.skipped = 0
        self._log = log
        self._topic = topic
        self._complain = complain
        self._done: dict[Partition, PutBack] = {}  # of the partitions we own: durable, perhaps not committed
        self._changed: set[Partition] = set()
        self._ends: dict[Partition, int] = {}  # up to which all are replayed
        self._others: dict[Partition, int] = {}  # the first offset of what waits for another crawl's replay
        self._passed: dict[Partition, int] = {}  # up to which all has been looked at
        self._copies = Copies()
        self._failed_commits = 0

    def run(self, chosen: Chosen | None = None) -> None:
        """Put back all up to the present end, or these offsets, but for what was put back before.

        Raises LogUnavailable.
        """
        try:
            parts = self._log.progress(self._topic, group_of(self._topic))
        except TopicMissing:  # nothing was ever set aside
            return
        done = _put_back(parts)
        ends = {part.partition: part.end for part in parts}
        if chosen is None:
            self._ends = {part.partition: part.end for part in parts if part.end > part.start}
        left = _left(chosen or {}, done)
        if not (left or self._not_reached(done)):
            return
        with (
            closing(self._log.producer()) as producer,
            closing(self._log.consumer((self._topic,), group_of(self._topic), self)) as consumer,
        ):
            tasks = PutBackTasks(self._log, producer, self._topics)
            try:
                if chosen is not None:
                    self._join(consumer, left)
                self._copies = Copies.read(self._log, self._topic, {**done, **self._done})
                batches = self._polled(consumer)
                if chosen is not None:
                    batches = self._read(consumer, _left(left, self._done), ends)
                for messages in batches:
                    mine = self._send(producer, tasks, messages)
                    for message in messages:
                        self._note(message.partition, message.offset + 1)
                    self._note_offsets(mine)  # behind the first of another crawl
                    self._commit(consumer)
            finally:  # also of what is put back in part: a task would wait for the rest without end
                tasks.end()

    def _polled(self, consumer: Consumer) -> Iterator[list[Message]]:
        """Of our partitions, until all that the group has are at their ends."""
        while True:
            polled = consumer.poll(_POLL_SECONDS, _BATCH)
            # what comes later may be what was put back just now: a crawl that runs sets it aside again
            messages = [message for message in polled if message.offset < self._ends.get(message.partition, 0)]
            yield messages
            if (not polled or len(messages) < len(polled)) and self._is_done():
                return

    def _read(
        self, consumer: Consumer, left: Mapping[Partition, Set[int]], ends: Mapping[Partition, int]
    ) -> Iterator[list[Message]]:
        """The chosen ones; `left` does not have what another replay was quicker with."""
        start = {**ends, **{partition: min(offsets) for partition, offsets in left.items()}}
        messages = self._log.read(self._topic, start)
        found = (message for message in messages if message.offset in left.get(message.partition, ()))
        yield list(islice(found, sum(map(len, left.values()))))
        while self._changed:  # a rebalance got into it
            consumer.poll(_POLL_SECONDS, 1)
            yield []

    def _join(self, consumer: Consumer, chosen: Chosen) -> None:
        deadline = runtime.monotonic() + _JOIN_SECONDS
        while not chosen.keys() <= self._done.keys():
            if runtime.monotonic() > deadline:
                raise LogUnavailable(
                    f"{self._topic} could not be taken within {_JOIN_SECONDS:g} s: another replay is going "
                    "on. Nothing was put back; try again when it has ended."
                )
            consumer.poll(_POLL_SECONDS, 1)  # what it hands out is read again

    def _is_done(self) -> bool:
        """Whether the group is at the ends, but for what waits for another crawl.

        Others may be replaying as well. What one of them has left comes to this process when that has died.
        """
        reached = put_back(self._log, self._topic)
        left = self._not_reached(reached)
        if not left:
            return True
        if self._changed or any(self._passed.get(one, 0) < self._ends[one] for one in left & self._done.keys()):
            return False
        return not self._holds_ours({one: reached.get(one, PutBack()) for one in left - self._done.keys()})

    def _not_reached(self, reached: Mapping[Partition, PutBack]) -> set[Partition]:
        return {one for one, end in self._ends.items() if reached.get(one, PutBack()).below < end}

    def _holds_ours(self, elsewhere: Mapping[Partition, PutBack]) -> bool:
        """Whether something of this crawl is left in these partitions, which other processes have."""
        start = {**self._ends, **{one: done.below for one, done in elsewhere.items()}}
        return bool(elsewhere) and any(
            message.offset < self._ends[message.partition]
            and message.offset not in elsewhere[message.partition]
            and not self._is_foreign(message)
            for message in self._log.read(self._topic, start)
            if message.partition in elsewhere
        )

    def _is_foreign(self, message: Message) -> bool:
        origin = _topic_of_origin(message)
        return bool(origin) and origin not in self._origins

    def _send(self, producer: Producer, tasks: PutBackTasks, messages: Sequence[Message]) -> list[Message]:
        """Send what was not put back before, and wait until it is durable. Raises LogUnavailable.

        Returns the messages without those of another crawl.
        """
        mine = [message for message in messages if not self._is_left_to_others(message)]
        under_way: list[tuple[Message, str | None, Future[MessagePlace]]] = []
        for message in mine:
            if self._is_before(message) or not self._copies.is_first(message):
                continue
            headers = dict(message.headers)
            if not (origin := _topic_of_origin(message)):
                self._skip(message, "it has no header origin_topic")
            elif TRUNCATED in headers:
                self._skip(message, "it holds the beginning of its message only; the whole is where it came from")
            else:
                task_id = tasks.before(origin, message.value)
                # what its first attempt stored is not taken for an earlier version of its page
                first = headers.get(FIRST_WRITTEN, headers.get("origin_timestamp"))
                moved = () if first is None else ((FIRST_WRITTEN, first),)
                under_way.append((message, task_id, producer.send(origin, message.key, message.value, moved)))
        for message, task_id, future in under_way:
            try:
                place = future.result()
            except SinkRejected as error:
                self._skip(message, str(error))
                continue
            self.replayed += 1
            tasks.sent(task_id, place)
        return mine

    def _is_before(self, message: Message) -> bool:
        is_known = message.offset in self._done.get(message.partition, PutBack())
        return is_known or self._copies.is_put_back(_origin(message))

    def _is_left_to_others(self, message: Message) -> bool:
        """It waits for the replay of the crawl that it came from, which is said once."""
        if not self._is_foreign(message) or self._is_before(message):
            return False
        self._others.setdefault(message.partition, message.offset)
        if self._copies.is_first(message):
            origin = _topic_of_origin(message)
            self._skip(message, f"its header origin_topic is {shown(origin)}, which is no seed topic of this crawl")
        return True

    def _skip(self, message: Message, reason: str) -> None:
        self.skipped += 1
        self._complain(message, reason)

    def _note(self, partition: Partition, offset: int) -> None:
        below = self._passed[partition] = min(offset, self._ends.get(partition, 0))
        below = min(below, self._others.get(partition, below))
        self._done[partition] = self._done.get(partition, PutBack()).up_to(below)
        self._changed.add(partition)

    def _note_offsets(self, messages: Iterable[Message]) -> None:
        offsets: dict[Partition, list[int]] = {}
        for message in messages:
            offsets.setdefault(message.partition, []).append(message.offset)
        for partition, some in offsets.items():
            self._done[partition] = self._done[partition].with_offsets(some)
            self._changed.add(partition)

    def _commit(self, consumer: Consumer) -> None:
        if not self._changed:
            return
        try:
            consumer.commit({partition: self._done[partition].position() for partition in self._changed})
        except LogUnavailable:
            self._failed_commits += 1
            if self._failed_commits >= _COMMIT_TRIES:
                raise
            return  # with the next batch
        self._failed_commits = 0
        self._changed.clear()

    # --- Listener: called from within poll and close, when all that was polled before is durable ----------

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        self._done.update({partition: PutBack.of(position) for partition, position in positions.items()})

    def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position]:
        changed = self._changed.intersection(partitions)
        positions = {partition: self._done[partition].position() for partition in changed}
        self.lost(partitions)
        return positions

    def lost(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            for known in (self._done, self._others, self._passed):
                known.pop(partition, None)
        self._changed.difference_update(partitions)

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        """As in Listener: dead letters whose retention is over."""

    def reached(self, partition: Partition, offset: int) -> None:
        """As in Listener: the last offsets may hold no messages, so the end counts too."""
        self._note(partition, offset)


def _topic_of_origin(message: Message) -> str:
    return dict(message.headers).get("origin_topic", b"").decode("utf-8", "replace")


def _left(chosen: Chosen, done: Mapping[Partition, PutBack]) -> dict[Partition, set[int]]:
    """Those of partitions that there are, without what was put back."""
    left = {one: {at for at in offsets if at not in done[one]} for one, offsets in chosen.items() if one in done}
    return {partition: offsets for partition, offsets in left.items() if offsets}
