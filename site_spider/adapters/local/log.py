"""The embedded seed log: topics, partitions and groups in one SQLite file, for the processes of one machine.

Messages are durable before their future ends, over a power failure too. Commits survive the death of
any process; a power failure may take back the last ones, which costs a repeat.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple, Self

from site_spider import runtime
from site_spider.adapters.files import data_folder, settings_to_blame
from site_spider.adapters.local.log_file import (
    FILE_NAME,
    SELECT_FIRST,
    SELECT_MESSAGES,
    STALLED_SECONDS,
    LocalProducer,
    LogFile,
    LogRetention,
    Membership,
    make_topic,
    may_pass,
    message_id,
    offset_of,
    partitions_of,
    without_owner,
)
from site_spider.adapters.local.results import keep_seconds
from site_spider.contracts.seed_log import (
    Consumer,
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
from site_spider.outage import Outage

# --- log consumer: A member of a consumer group of the embedded seed log ---------------------------------

logger = logging.getLogger(__name__)

_BALANCE_SECONDS = 0.2  # between two looks at the group
_WAIT_SECONDS = 0.02  # between two questions whether anybody wrote; 10 µs each
_BUSY_SECONDS = 5.0
_BATCH_BYTES = 16_000_000  # a batch ends with the message that passes this


class LocalConsumer(Consumer):
    """One thread uses it."""

    member_name = ""
    session_seconds = STALLED_SECONDS

    def __init__(
        self, folder: Path, topics: tuple[str, ...], group: str, listener: Listener, keep_seconds: float = 0
    ) -> None:
        self._file = LogFile(folder, busy_seconds=_BUSY_SECONDS)
        self._retention = LogRetention(self._file, keep_seconds)
        self._memberships = {topic: Membership(self._file, group, topic) for topic in topics}
        self._listener = listener
        self._offsets: dict[Partition, int] = {}  # the next one to hand out, of what we own
        self._departing: dict[Partition, Position | None] = {}  # the listener has let go, the file not yet
        self._paused: set[Partition] = set()
        self._announced: dict[Partition, int] = {}  # the end that the listener was told last
        self._turns: deque[Partition] = deque()  # who may fill a batch first
        self._balance_at = 0.0
        self._outage = Outage(logger, "Trying again", "The seed log can be written again")
        self._version: int | None = None

    @property
    def is_member(self) -> bool:
        return any(membership.is_there for membership in self._memberships.values())

    @property
    def is_away(self) -> bool:
        return self._outage.is_on

    def poll(self, timeout_seconds: float, limit: int) -> list[Message]:
        deadline = runtime.monotonic() + timeout_seconds
        while True:
            batch = self._try(limit)
            if batch or runtime.monotonic() >= deadline:
                return batch
            self._wait(deadline)

    def commit(self, positions: Mapping[Partition, Position]) -> None:
        for topic, some in _by_topic(positions).items():
            self._memberships[topic].commit({partition: positions[partition] for partition in some})

    def begin_commit(
        self, positions: Mapping[Partition, Position], answered: Callable[[LogUnavailable | None], None]
    ) -> None:
        try:
            self.commit(positions)
        except LogUnavailable as error:
            answered(error)
        else:
            answered(None)

    def pause(self, partitions: Collection[Partition]) -> None:
        if self._paused.difference(partitions):
            self._version = None  # there may be something to hand out although nobody wrote
        self._paused = set(partitions)

    def close(self, *, for_good: bool = False) -> None:  # noqa: ARG002 - whoever leaves is not waited for
        with ExitStack() as stack:  # each of these whatever becomes of the others
            stack.callback(self._file.close)
            for membership in self._memberships.values():
                stack.callback(membership.leave)
            self._give_up(list(self._offsets))

    # --- messages ----------------------------------------------------------------------------

    def _try(self, limit: int) -> list[Message]:
        try:
            if runtime.monotonic() >= self._balance_at:
                self._balance_at = runtime.monotonic() + _BALANCE_SECONDS  # also if it fails: reading may not
                for membership in self._memberships.values():
                    self._move(membership)
                self._retention.look(
                    identifier for one in self._memberships.values() for identifier in one.owned.values()
                )
                if self._outage.is_on:
                    self._outage.is_over()
            # asked before the messages are, so that nothing written in between is waited for
            self._version = self._data_version()
            return self._fetch(limit)
        except LogUnavailable as error:
            if not may_pass(error):
                raise
            self._outage.goes_on(error)
            self._version = None
            runtime.sleep(_WAIT_SECONDS)
            return []

    def _fetch(self, limit: int) -> list[Message]:
        batch, offsets = list[Message](), dict[Partition, int]()
        size_bytes = 0
        for partition in list(self._turns):
            if partition in self._paused or len(batch) >= limit or size_bytes > _BATCH_BYTES:
                continue
            for message in self._read(partition, limit - len(batch), _BATCH_BYTES - size_bytes):
                batch.append(message)
                size_bytes += len(message.value or b"")
                offsets[partition] = message.offset + 1
        self._offsets |= offsets  # when all could be read: it is not handed out else
        self._turns.rotate(-1)
        return batch

    def _read(self, partition: Partition, limit: int, limit_bytes: int) -> list[Message]:
        identifier = self._memberships[partition.topic].owned[partition]
        bounds = message_id(identifier, self._offsets[partition]), message_id(identifier + 1, 0)
        messages: list[Message] = []
        with closing(self._file.stream(SELECT_MESSAGES, (*bounds, limit))) as rows:
            for row in rows:
                messages.append(to_message(partition, row))
                limit_bytes -= len(messages[-1].value or b"")
                if limit_bytes < 0:
                    break
        if not messages and self._announced.get(partition) != (end := self._offsets[partition]):
            self._announced[partition] = end
            self._listener.reached(partition, end)
        return messages

    def _wait(self, deadline: float) -> None:
        until = min(deadline, self._balance_at)
        while (remaining := until - runtime.monotonic()) > 0 and self._version is not None:
            runtime.sleep(min(_WAIT_SECONDS, remaining))
            try:
                if self._data_version() != self._version:
                    return
            except LogUnavailable:  # the next attempt meets it as well, and says what becomes of it
                return

    def _data_version(self) -> int:
        return int(self._file.query("PRAGMA data_version")[0][0])

    # --- the group -----------------------------------------------------------------------------

    def _move(self, membership: Membership) -> None:
        moves = membership.look()
        for partition in moves.lost:
            self._departing.pop(partition, None)
        lost = [partition for partition in moves.lost if partition in self._offsets]
        if lost:
            self._forget(lost)
            self._listener.lost(lost)
        self._give_up(moves.leaving)
        claims = membership.claim(moves.coming) if moves.coming else {}
        for partition, committed in claims.items():
            self._offsets[partition] = committed.offset if committed else 0
            self._turns.append(partition)
        if claims:
            self._listener.assigned(claims)

    def _give_up(self, partitions: Sequence[Partition]) -> None:
        asked = [partition for partition in partitions if partition in self._offsets]
        if asked:
            positions = self._listener.revoked(asked)
            self._departing.update((partition, positions.get(partition)) for partition in asked)
            self._forget(asked)
        if self._departing:
            self._depart()

    def _depart(self) -> None:
        for topic, some in _by_topic(self._departing).items():
            positions = {one: position for one in some if (position := self._departing[one])}
            try:
                self._memberships[topic].give_up(some, positions)
            except LogUnavailable as error:
                if may_pass(error):
                    raise  # they stay in `_departing` until the next look at the group
                logger.warning("%s The next owner repeats what was not committed.", error)
            for partition in some:
                del self._departing[partition]

    def _forget(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            self._offsets.pop(partition, None)
            self._announced.pop(partition, None)
            self._paused.discard(partition)
        self._turns = deque(partition for partition in self._turns if partition in self._offsets)


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[Partition]]:
    found: dict[str, list[Partition]] = {}
    for partition in partitions:
        found.setdefault(partition.topic, []).append(partition)
    return found


def to_message(partition: Partition, row: Sequence[Any]) -> Message:
    """Our form of a row of the table of messages."""
    identifier, key, value, headers, timestamp_ms = row
    pairs = json.loads(headers) if headers else ()
    return Message(
        partition,
        offset_of(identifier),
        key,
        value,
        tuple((name, text.encode("latin-1")) for name, text in pairs),
        timestamp_ms,
    )


# --- Reads a topic of the embedded seed log from its beginning on, without a group, and follows it -------

_READER_WAIT_SECONDS = 0.05
_READER_PAGE = 200
_COMPACT_EVERY = 5_000  # messages that were read
_KEPT_SECONDS = 60.0  # a reader that is behind, but not so far, sees every record (see tasks.ending)

_TOMBSTONE_SECONDS = 3_600.0  # who stands still for longer may miss that a key was deleted

# of each key the latest; and of one that was deleted nothing, once its tombstone alone is left
_SUPERSEDED = """DELETE FROM messages WHERE id >= ? AND id < ? AND key IS NOT NULL AND timestamp_ms < ?
    AND id NOT IN (SELECT max(id) FROM messages WHERE id >= ? AND id < ? GROUP BY key)"""
_DELETED = """DELETE FROM messages WHERE id >= ? AND id < ? AND value IS NULL AND timestamp_ms < ?
    AND key IN (SELECT key FROM messages WHERE id >= ? AND id < ? GROUP BY key HAVING count(*) = 1)"""


class LocalTopicReader(TopicReader):
    """`compacted`: it removes what is superseded."""

    def __init__(self, folder: Path, topic: str, *, compacted: bool) -> None:
        self._file = LogFile(folder)
        self._topic = topic
        self._compacted = compacted
        self._offsets: dict[int, int] = {}  # of partitions, by their id: the next one to read
        self._since_compaction = 0
        self._ends: dict[int, int] = {}
        self.mark_end()
        if compacted:
            self._compact()

    @property
    def is_at_end(self) -> bool:
        return all(self._offsets.get(identifier, 0) >= end for identifier, end in self._ends.items())

    def mark_end(self) -> None:
        self._ends = {identifier: end for identifier, _, end in partitions_of(self._file, self._topic)}

    def poll(self, timeout_seconds: float) -> list[Message]:
        deadline = runtime.monotonic() + timeout_seconds
        if self._compacted and self._since_compaction >= _COMPACT_EVERY:
            self._compact()  # while nothing is in hand, for it may fail
        while not (found := self._new()):
            if runtime.monotonic() >= deadline:
                return []
            runtime.sleep(_READER_WAIT_SECONDS)
        self._since_compaction += len(found)
        return found

    def close(self) -> None:
        self._file.close()

    def _new(self) -> list[Message]:
        found, offsets = list[Message](), dict[int, int]()
        for identifier, number, end in partitions_of(self._file, self._topic):
            offset = self._offsets.get(identifier, 0)
            if offset > end:  # the file was removed, and made anew
                offset = 0
            if offset < end:
                bounds = message_id(identifier, offset), message_id(identifier, end)
                rows = self._file.query(SELECT_MESSAGES, (*bounds, _READER_PAGE))
                found += [to_message(Partition(self._topic, number), row) for row in rows]
                offsets[identifier] = offset_of(rows[-1][0]) + 1 if len(rows) == _READER_PAGE else end
        self._offsets |= offsets  # as above
        return found

    def _compact(self) -> None:
        self._since_compaction = 0
        now = runtime.time()
        with self._file.transaction() as connection:
            for identifier, _, end in partitions_of(self._file, self._topic):
                bounds = message_id(identifier, 0), message_id(identifier, end)
                for statement, seconds in ((_SUPERSEDED, _KEPT_SECONDS), (_DELETED, _TOMBSTONE_SECONDS)):
                    connection.execute(statement, (*bounds, int((now - seconds) * 1000), *bounds))


PARTITIONS = 4  # of a new topic; as many members of a group find work
_KEEP_BUSY_SECONDS = 5.0  # that a write of others may take; else old messages go next time
_PAGE = 50  # messages read at a time; each may have megabytes


class _Extent(NamedTuple):
    partition: Partition
    partition_id: int
    start: int
    end: int


class LocalSeedLog(SeedLog):
    """Threads and processes may share the folder."""

    has_own_clock = False

    def __init__(self, folder: Path, partitions: int = PARTITIONS, keep_seconds: float = 0.0) -> None:
        self.address = str(folder / FILE_NAME)
        self._folder = folder
        self._partitions = partitions
        self._keep_seconds = keep_seconds  # by consumers, of what is complete; 0: for ever

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        return cls(data_folder(settings), keep_seconds=keep_seconds(settings))

    def check(self, timeout_seconds: float) -> None:
        """Makes the file when it is missing.

        Raises ConfigError where there can be none.
        """
        file = LogFile(self._folder, busy_seconds=timeout_seconds)
        with settings_to_blame(), closing(file), file.transaction():
            pass

    def identity(self) -> str:
        return str(self._folder.resolve())

    def consumer(
        self, topics: tuple[str, ...], group: str, listener: Listener, *, with_results: bool = False
    ) -> LocalConsumer:
        if with_results:
            raise ConfigError("SITE_KAFKA_EXACTLY_ONCE needs SITE_KAFKA_BROKERS; this log has no transactions.")
        return LocalConsumer(self._folder, topics, group, listener, self._keep_seconds)

    def producer(self, purpose: str = "") -> LocalProducer:  # noqa: ARG002
        return LocalProducer(self._folder, self._partitions)

    def keep(self, topic: str, seconds: float) -> None:
        """The first message makes the topic."""
        before_ms = int((runtime.time() - seconds) * 1000)
        with closing(LogFile(self._folder, busy_seconds=_KEEP_BUSY_SECONDS)) as file:
            rows = file.query("SELECT id FROM partitions WHERE topic = ?", (topic,))
            with file.transaction() as connection:
                connection.executemany(
                    "DELETE FROM messages WHERE id >= ? AND id < ? AND timestamp_ms < ?",
                    [(message_id(one, 0), message_id(one + 1, 0), before_ms) for (one,) in rows],
                )

    def progress(self, topic: str, group: str | None) -> list[PartitionProgress]:
        with closing(LogFile(self._folder)) as file:
            rows = file.query(
                "SELECT partition_id, next_offset, metadata FROM positions WHERE consumer_group = ?", (group,)
            )
            committed = {identifier: Position(*position) for identifier, *position in rows}
            return [
                PartitionProgress(partition, start, end, committed.get(identifier))
                for partition, identifier, start, end in _extents(file, topic)
            ]

    def facts(self, topic: str, group: str, offsets: Mapping[Partition, int]) -> LogFacts:
        with closing(LogFile(self._folder)) as file:
            found = {at.partition: at for at in _extents(file, topic)}
            written_at = {
                partition: timestamp_ms / 1000
                for partition, offset in offsets.items()
                if partition in found
                for timestamp_ms in _first_written(file, found[partition], offset)
            }
            [(members,)] = file.query(
                "SELECT count(*) FROM members WHERE consumer_group = ? AND topic = ?", (group, topic)
            )
        return LogFacts(members=int(members), retention_seconds=None, written_at=written_at)

    def unowned(self, topics: tuple[str, ...], group: str) -> frozenset[Partition]:
        with closing(LogFile(self._folder)) as file:
            return frozenset(one for topic in topics for one in without_owner(file, group, topic))

    def granted(self, rights: Sequence[Right]) -> list[Granted]:
        """Whoever may write the folder may do all. Raises ConfigError, LogUnavailable for who may not."""
        with settings_to_blame():
            LogFile(self._folder).check()
        return [Granted(right, (), right.kind == "group" or bool(self.partitions(right.name))) for right in rights]

    def partitions(self, topic: str) -> int:
        with closing(LogFile(self._folder)) as file:
            [(count,)] = file.query("SELECT count(*) FROM partitions WHERE topic = ?", (topic,))
        return int(count)

    def make_topic(self, topic: str, partitions: int, **_how: bool) -> None:
        """Readers compact it, and all messages are dated."""
        with closing(LogFile(self._folder, durable=True)) as file, file.transaction() as connection:
            make_topic(connection, topic, partitions or self._partitions)

    def reader(self, topic: str, *, compacted: bool) -> LocalTopicReader:
        return LocalTopicReader(self._folder, topic, compacted=compacted)

    def read(self, topic: str, start: Mapping[Partition, int] | None = None, since_ms: int = 0) -> Iterator[Message]:
        later = start or {}
        with closing(LogFile(self._folder)) as file:
            extents = [
                extent._replace(start=max(extent.start, later[extent.partition]))
                if extent.partition in later
                else extent._replace(start=_written_since(file, extent, since_ms))
                for extent in _extents(file, topic)
            ]
        return self._read(extents)

    def _read(self, extents: list[_Extent]) -> Iterator[Message]:
        with closing(LogFile(self._folder)) as file:
            for partition, identifier, start, end in extents:
                offset, bound = start, message_id(identifier, end)
                while rows := file.query(SELECT_MESSAGES, (message_id(identifier, offset), bound, _PAGE)):
                    yield from (to_message(partition, row) for row in rows)
                    offset = offset_of(rows[-1][0]) + 1


def _extents(file: LogFile, topic: str) -> list[_Extent]:
    rows = partitions_of(file, topic)
    if not rows:
        raise TopicMissing(f"Topic {topic} does not exist in the seed log {file.path}.")
    return [
        _Extent(Partition(topic, number), one, offset_of(found[0][0]) if found else end, end)
        for one, number, end in rows
        for found in [file.query(SELECT_FIRST, (message_id(one, 0), message_id(one, end)))]
    ]


def _written_since(file: LogFile, extent: _Extent, since_ms: int) -> int:
    """The offset of the first message written then or later. Bisects: there is no index of times."""
    written = lambda offset: next(_first_written(file, extent, offset), since_ms)  # noqa: E731
    return bisect_left(range(extent.end), since_ms, lo=extent.start, key=written) if since_ms else extent.start


def _first_written(file: LogFile, extent: _Extent, offset: int) -> Iterator[int]:
    bounds = message_id(extent.partition_id, offset), message_id(extent.partition_id, extent.end)
    yield from (timestamp_ms for _, timestamp_ms in file.query(SELECT_FIRST, bounds))
