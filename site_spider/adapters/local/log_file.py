"""The SQLite file of the embedded seed log, shared by the processes of one machine, and its members.

Write-ahead logging lets readers and one writer work at the same time. A message's id is its partition's id
and its offset in one number, so that a partition is one stretch of one B-tree.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import re
import sqlite3
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from site_spider import runtime
from site_spider.adapters.files import DatabaseFile, error_code, is_busy, locked
from site_spider.contracts.seed_log import Headers, MessagePlace, Partition, Position, Producer
from site_spider.errors import LogUnavailable, SinkRejected
from site_spider.outage import Outage
from site_spider.seed.topics import partition_of

logger = logging.getLogger(__name__)

FILE_NAME = "seeds.sqlite"
OFFSET_BITS = 40  # a partition holds 10^12 messages, a file 8 million partitions

_VERSION = 1
_PASSING = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,  # others open it again at the same time, as after each error
}
_PASSING_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE}

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS partitions (
        id INTEGER PRIMARY KEY, topic TEXT NOT NULL, number INTEGER NOT NULL,
        next_offset INTEGER NOT NULL DEFAULT 0, UNIQUE (topic, number))""",
    """CREATE TABLE IF NOT EXISTS messages (
        id INTEGER PRIMARY KEY, key BLOB, value BLOB, headers TEXT, timestamp_ms INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS positions (
        consumer_group TEXT NOT NULL, partition_id INTEGER NOT NULL, next_offset INTEGER NOT NULL,
        metadata TEXT NOT NULL, PRIMARY KEY (consumer_group, partition_id)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS members (
        id INTEGER PRIMARY KEY, consumer_group TEXT NOT NULL, topic TEXT NOT NULL,
        process TEXT NOT NULL, seen_at_seconds REAL NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS claims (
        consumer_group TEXT NOT NULL, partition_id INTEGER NOT NULL, member INTEGER NOT NULL,
        PRIMARY KEY (consumer_group, partition_id)) WITHOUT ROWID""",
    f"PRAGMA user_version = {_VERSION}",
)


# between two ids, at most so many; see `message_id`
SELECT_MESSAGES = (
    "SELECT id, key, value, headers, timestamp_ms FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
)

SELECT_FIRST = "SELECT id, timestamp_ms FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT 1"


def message_id(partition_id: int, offset: int) -> int:
    """The id of a message."""
    return partition_id << OFFSET_BITS | offset


def offset_of(identifier: int) -> int:
    """The offset of a message from its id."""
    return identifier & ((1 << OFFSET_BITS) - 1)


def partitions_of(file: LogFile, topic: str) -> list[tuple[int, int, int]]:
    """The id, the number and the next offset of each partition. Raises LogUnavailable."""
    return file.query("SELECT id, number, next_offset FROM partitions WHERE topic = ? ORDER BY number", (topic,))


def may_pass(error: LogUnavailable) -> bool:
    """Whether waiting may help: another process held the file for long, or the disk is full or read-only."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return is_busy(cause) or error_code(cause) in _PASSING
    return isinstance(cause, OSError) and cause.errno in _PASSING_ERRNOS


class LogFile(DatabaseFile):
    """`durable` writes survive a power failure and cost an fsync each; others survive a process's death."""

    _away = LogUnavailable

    def __init__(self, folder: Path, durable: bool = False, busy_seconds: float = 30) -> None:
        super().__init__(folder / FILE_NAME, _SCHEMA, busy_seconds, is_durable=durable)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            super()._prepare(connection)


# --- Forgets messages that every group has completed, some time after they were produced -----------------
# A group has completed what lies below its committed offset, and nothing while it has members and has
# committed none. What is complete beyond it stays until the offset has passed, and so does all that a group
# which was given up once has not read. The freed pages of the file are used again, so that it stops growing.

_MOST_AT_ONCE = 1_000  # messages of a partition, in one transaction: others wait for it to write
_LONGEST_PAUSE_SECONDS = 60.0
_PAUSE_SHARE = 0.1  # of the time that messages are kept

_LOWEST = """SELECT min(next_offset) FROM (
    SELECT next_offset FROM positions WHERE partition_id = ? UNION ALL
    SELECT 0 FROM members WHERE topic = (SELECT topic FROM partitions WHERE id = ?)
        AND consumer_group NOT IN (SELECT consumer_group FROM positions WHERE partition_id = ?))"""
_DELETE = (
    "DELETE FROM messages WHERE id IN "
    "(SELECT id FROM messages WHERE id >= ? AND id < ? AND timestamp_ms < ? ORDER BY id LIMIT ?)"
)


class LogRetention:
    """The retention of one consumer, whose thread uses it. With 0 seconds nothing is ever forgotten."""

    def __init__(self, file: LogFile, keep_seconds: float) -> None:
        self._file = file
        self._keep_seconds = keep_seconds
        self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, keep_seconds * _PAUSE_SHARE)
        self._look_at = runtime.monotonic() + self._pause_seconds

    def look(self, partition_ids: Iterable[int]) -> None:
        """Forget some messages of these partitions, when it is time. Raises LogUnavailable."""
        if not self._keep_seconds or runtime.monotonic() < self._look_at:
            return
        deleted = [self._forget(each) for each in partition_ids]
        if max(deleted, default=0) < _MOST_AT_ONCE:
            self._look_at = runtime.monotonic() + self._pause_seconds

    def _forget(self, partition_id: int) -> int:
        [(lowest,)] = self._file.query(_LOWEST, (partition_id,) * 3)
        if not lowest:
            return 0
        before_ms = int((runtime.time() - self._keep_seconds) * 1000)
        bounds = message_id(partition_id, 0), message_id(partition_id, lowest)
        if all(written_ms >= before_ms for _, written_ms in self._file.query(SELECT_FIRST, bounds)):
            return 0
        with self._file.transaction() as connection:
            return connection.execute(_DELETE, (*bounds, before_ms, _MOST_AT_ONCE)).rowcount


# --- Appends to the embedded seed log: one thread writes what many have queued, one transaction a batch --

MESSAGE_LIMIT_BYTES = 16_000_000
_BATCH_MESSAGES = 1_000
_BATCH_BYTES = 8_000_000
_CLOSE_SECONDS = 5.0
_PAUSE_SECONDS = 0.5  # before a write that failed is tried again
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")  # what Kafka accepts


class _UnwrittenMessage(NamedTuple):
    topic: str
    key: bytes | None
    value: bytes | None
    headers: str | None
    timestamp_ms: int
    size_bytes: int
    future: Future[MessagePlace]


class LocalProducer(Producer):
    """Makes topics of `partitions` partitions."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self._file = LogFile(folder, durable=True)
        self._partitions = partitions
        self._turns = itertools.count()  # messages without a key go round
        self._waiting: deque[_UnwrittenMessage] = deque()
        self._unfinished = 0
        self._closed = False
        self._change = runtime.Condition()
        self._outage = Outage(logger, "Trying again", "Messages can be written again")
        self._thread = runtime.Thread(target=self._serve, name="site-local-producer", daemon=True)
        self._thread.start()

    def send(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Future[MessagePlace]:
        future: Future[MessagePlace] = Future()
        future.set_running_or_notify_cancel()  # from here on nobody can take it back
        text = json.dumps([(name, data.decode("latin-1")) for name, data in headers]) if headers else None
        size_bytes = len(key or b"") + len(value or b"") + len(text or "")
        refusal = _refusal(topic, size_bytes)
        now_ms = runtime.time_ns() // 1_000_000
        outgoing = _UnwrittenMessage(topic, key, value, text, now_ms, size_bytes, future)
        with self._change:
            if self._closed:
                refusal = LogUnavailable("The producer is closed.")
            if refusal is None:
                self._unfinished += 1
                self._waiting.append(outgoing)
                self._change.notify_all()
        if refusal is not None:
            future.set_exception(refusal)
        return future

    def flush(self, timeout_seconds: float) -> int:
        with self._change:
            self._change.wait_for(lambda: not self._unfinished, timeout_seconds)
            return self._unfinished

    def close(self) -> None:
        """After 5 s what is left fails with LogUnavailable."""
        left = self.flush(_CLOSE_SECONDS)
        if left:
            logger.warning("%d messages were not written to %s.", left, self._file.path)
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    # --- the thread ------------------------------------------------------------------------

    def _serve(self) -> None:
        while batch := self._next_batch():
            try:
                places = self._write_patiently(batch)
            except LogUnavailable as error:
                self._finish(batch, error)
            except Exception as error:  # noqa: BLE001 - a dead thread would leave every future open
                self._finish(batch, LogUnavailable(f"The seed log cannot write: {error!r}."))
            else:
                for outgoing, place in zip(batch, places, strict=True):
                    outgoing.future.set_result(place)
                self._finish(batch, None)
        self._file.close()

    def _next_batch(self) -> list[_UnwrittenMessage]:
        """What is waiting, up to the limits; nothing once closed."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._closed)
            batch: list[_UnwrittenMessage] = []
            size_bytes = 0
            while self._waiting and len(batch) < _BATCH_MESSAGES and size_bytes < _BATCH_BYTES:
                batch.append(self._waiting.popleft())
                size_bytes += batch[-1].size_bytes
            return batch

    def _write_patiently(self, batch: Sequence[_UnwrittenMessage]) -> list[MessagePlace]:
        while True:
            try:
                places = self._write(batch)
            except LogUnavailable as error:
                if not may_pass(error) or self._closed:
                    raise
                self._outage.goes_on(error)
            else:
                if self._outage.is_on:
                    self._outage.is_over()
                return places
            with self._change:
                self._change.wait_for(lambda: self._closed, _PAUSE_SECONDS)

    def _finish(self, batch: Sequence[_UnwrittenMessage], error: LogUnavailable | None) -> None:
        for outgoing in batch:
            if error is not None:
                outgoing.future.set_exception(error)
        with self._change:
            self._unfinished -= len(batch)
            self._change.notify_all()

    # --- the tables --------------------------------------------------------------------------

    def _write(self, batch: Sequence[_UnwrittenMessage]) -> list[MessagePlace]:
        with self._file.transaction() as connection:
            topics = {topic: make_topic(connection, topic, self._partitions) for topic in {one.topic for one in batch}}
            places = [self._place(one.topic, topics[one.topic], one.key) for one in batch]
            rows = [
                (message_id(topics[place.partition.topic][place.partition.number][0], place.offset), *one[1:5])
                for place, one in zip(places, batch, strict=True)
            ]
            connection.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?)", rows)
            ends = [(end, identifier) for places in topics.values() for identifier, end in places]
            connection.executemany("UPDATE partitions SET next_offset = ? WHERE id = ?", ends)
        return places

    def _place(self, topic: str, partitions: list[list[int]], key: bytes | None) -> MessagePlace:
        """Of the next message with this key; counts it."""
        count = len(partitions)
        number = next(self._turns) % count if key is None else partition_of(key, count)
        offset = partitions[number][1]
        partitions[number][1] += 1
        return MessagePlace(Partition(topic, number), offset)


def make_topic(connection: sqlite3.Connection, topic: str, partitions: int) -> list[list[int]]:
    """The id and the next offset of each partition, in order; makes the topic when it is missing."""
    select = "SELECT id, next_offset FROM partitions WHERE topic = ? ORDER BY number"
    rows = connection.execute(select, (topic,)).fetchall()
    if not rows:
        connection.executemany(
            "INSERT INTO partitions (topic, number) VALUES (?, ?)", [(topic, number) for number in range(partitions)]
        )
        rows = connection.execute(select, (topic,)).fetchall()
    return [list(row) for row in rows]


def _refusal(topic: str, size_bytes: int) -> SinkRejected | LogUnavailable | None:
    if size_bytes > MESSAGE_LIMIT_BYTES:
        return SinkRejected(f"The message has {size_bytes} bytes; {MESSAGE_LIMIT_BYTES} are allowed.")
    if not _TOPIC.fullmatch(topic):
        return SinkRejected(f"{topic!r} is no name for a topic: letters, digits, '.', '_' and '-', up to 249.")
    return None


# --- Members of a group: which are alive, and which partitions each has claimed --------------------------
# Theory of operation. All members read the same tables and compute the same fair share, so there is no
# leader. An owner gives a partition up before another claims it: a claim is only ever inserted where there
# is none. A member that is dead loses its claims to the first who notices: at once when its process has
# ended, which has released a lock then, and after STALLED_SECONDS when it runs but does not poll. Times are
# CLOCK_MONOTONIC, which all processes of a machine share.

# --- Computes who should own which partition: evenly, and with as few moves as possible ------------------


def fair_share(members: Sequence[int], partitions: Sequence[int], owners: Mapping[int, int]) -> dict[int, int]:
    """The member for each partition, given who owns what now.

    Every member computes the same from the same view, so no leader is needed. Members keep
    what they own up to their share; those who own most get the larger shares.
    """
    if not members:
        return {}
    held = {member: [one for one in partitions if owners.get(one) == member] for member in members}
    order = sorted(members, key=lambda member: (-len(held[member]), member))
    least, larger = divmod(len(partitions), len(members))
    shares = {member: least + (rank < larger) for rank, member in enumerate(order)}
    target = {one: member for member in order for one in held[member][: shares[member]]}
    spare = iter([one for one in partitions if one not in target])
    for member in order:
        missing = max(shares[member] - len(held[member]), 0)
        target.update(dict.fromkeys(islice(spare, missing), member))
    return target


STALLED_SECONDS = 60.0
BEAT_SECONDS = 2.0

_UPSERT_POSITION = "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)"
_NOBODY = "- - - -"  # the column `process`: for earlier releases one that cannot be seen
_DELETE_CLAIM = "DELETE FROM claims WHERE consumer_group = ? AND partition_id = ? AND member = ?"


class Moves(NamedTuple):
    """What has to be done: `lost` are gone, `leaving` should be given up, `coming` can be claimed."""

    lost: list[Partition]
    leaving: list[Partition]
    coming: list[Partition]


class Membership:
    """One member of `group`, reading `topic`."""

    def __init__(self, file: LogFile, group: str, topic: str) -> None:
        self._file = file
        self._group = group
        self._topic = topic
        self._member = 0  # nobody's: ids are positive
        self._lock: int | None = None
        self._beat_at = 0.0
        self.owned: dict[Partition, int] = {}  # with their ids

    def look(self) -> Moves:
        """Say that we are alive, bury the dead, and see what has to be done. Raises LogUnavailable."""
        members = self._beat()
        partitions, owners = self._view()
        lost = [one for one, identifier in self.owned.items() if owners.get(identifier) != self._member]
        for partition in lost:
            del self.owned[partition]
        target = fair_share(members, sorted(partitions.values()), owners)
        leaving = [one for one, identifier in self.owned.items() if target.get(identifier) != self._member]
        coming = [
            one
            for one, identifier in partitions.items()
            if target.get(identifier) == self._member and identifier not in owners
        ]
        return Moves(lost, leaving, coming)

    @property
    def is_there(self) -> bool:
        """Whether the group knows this member. Any thread may ask."""
        return self._member != 0

    def claim(self, partitions: Iterable[Partition]) -> dict[Partition, Position | None]:
        """Take those that are still free; returns what the group has committed there. Raises LogUnavailable."""
        with self._file.transaction() as connection:
            if not connection.execute("SELECT 1 FROM members WHERE id = ?", (self._member,)).fetchone():
                return {}
            claims = {one: claim for one in partitions if (claim := self._claim(connection, one))}
        self.owned.update((one, identifier) for one, (identifier, _) in claims.items())
        return {one: committed for one, (_, committed) in claims.items()}

    def commit(self, positions: Mapping[Partition, Position]) -> None:
        """Raises LogUnavailable, and commits nothing, unless we own all of these."""
        with self._file.transaction() as connection:
            self._commit(connection, positions)

    def give_up(self, partitions: Iterable[Partition], positions: Mapping[Partition, Position]) -> None:
        """Commit and free the partitions, both or nothing. Raises LogUnavailable."""
        rows = [(self._group, self.owned[partition], self._member) for partition in partitions]
        with self._file.transaction() as connection:
            self._commit(connection, positions)
            connection.executemany(_DELETE_CLAIM, rows)
        for partition in partitions:
            self.owned.pop(partition, None)

    def leave(self) -> None:
        try:
            with self._file.transaction() as connection:
                self._bury(connection, self._member)
        finally:  # at the worst others find its lock free, and bury it
            self._member = 0
            self._unlock()
            self.owned.clear()

    # --- being alive ---------------------------------------------------------------------

    def _beat(self) -> list[int]:
        """The members that are alive, this one included."""
        rows = self._file.query(
            "SELECT id, process, seen_at_seconds FROM members WHERE consumer_group = ? AND topic = ?",
            (self._group, self._topic),
        )
        dead = {one for one, *life in rows if one != self._member and _is_dead(self._file, one, *life)}
        alive = {one for one, *_ in rows} - dead
        if dead or self._member not in alive or runtime.monotonic() >= self._beat_at + BEAT_SECONDS:
            self._write_beat(dead)
        return sorted({*alive, self._member})

    def _write_beat(self, dead: Iterable[int]) -> None:
        """Show that the member is there; as another one, which owns nothing, if the others took it for dead."""
        member = self._member
        try:
            with self._file.transaction() as connection:
                for one in dead:
                    self._bury(connection, one)
                now = runtime.monotonic()
                update = "UPDATE members SET seen_at_seconds = ? WHERE id = ?"
                if not connection.execute(update, (now, member)).rowcount:
                    # random, because a counter begins anew in a file that replaces a removed one
                    member = 1 + runtime.randbelow(2**62)
                    self._unlock()
                    self._lock = locked(_lock_of(self._file, member), os.O_CREAT)
                    values = (member, self._group, self._topic, _NOBODY, now)
                    connection.execute("INSERT INTO members VALUES (?, ?, ?, ?, ?)", values)
            self._member, self._beat_at = member, now
        finally:
            if member != self._member:  # which could not join, on a full disk, say
                with suppress(OSError):
                    _lock_of(self._file, member).unlink()

    def _unlock(self) -> None:
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    # --- the tables ------------------------------------------------------------------------

    def _bury(self, connection: sqlite3.Connection, member: int) -> None:
        connection.execute("DELETE FROM claims WHERE member = ?", (member,))
        connection.execute("DELETE FROM members WHERE id = ?", (member,))
        _lock_of(self._file, member).unlink(missing_ok=True)

    def _view(self) -> tuple[dict[Partition, int], dict[int, int]]:
        """Partitions of the topic with their ids, and the member that owns each id."""
        rows = self._file.query(
            "SELECT id, number, member FROM partitions LEFT JOIN claims ON partition_id = id"
            " AND consumer_group = ? WHERE topic = ? ORDER BY number",
            (self._group, self._topic),
        )
        partitions = {Partition(self._topic, number): identifier for identifier, number, _ in rows}
        owners = {identifier: member for identifier, _, member in rows if member is not None}
        return partitions, owners

    def _claim(self, connection: sqlite3.Connection, partition: Partition) -> tuple[int, Position | None] | None:
        found = connection.execute("SELECT id FROM partitions WHERE topic = ? AND number = ?", partition).fetchone()
        if found is None:
            return None
        values = (self._group, found[0])
        claimed = connection.execute("INSERT OR IGNORE INTO claims VALUES (?, ?, ?)", (*values, self._member))
        if not claimed.rowcount:
            return None
        row = connection.execute(
            "SELECT next_offset, metadata FROM positions WHERE consumer_group = ? AND partition_id = ?", values
        ).fetchone()
        return found[0], Position(*row) if row else None

    def _commit(self, connection: sqlite3.Connection, positions: Mapping[Partition, Position]) -> None:
        rows = connection.execute(
            "SELECT partition_id FROM claims WHERE consumer_group = ? AND member = ?", (self._group, self._member)
        )
        claimed = {identifier for (identifier,) in rows}
        for partition, position in positions.items():
            identifier = self.owned.get(partition)
            if identifier not in claimed:
                raise LogUnavailable(
                    f"Group {self._group} cannot commit {partition.topic}/{partition.number} here:"
                    " not assigned (any more)."
                )
            connection.execute(_UPSERT_POSITION, (self._group, identifier, *position))


def without_owner(file: LogFile, group: str, topic: str) -> list[Partition]:
    """Partitions that no member has claimed that is alive. Raises LogUnavailable."""
    rows = file.query(
        "SELECT number, members.id, process, seen_at_seconds FROM partitions"
        " LEFT JOIN claims ON partition_id = partitions.id AND claims.consumer_group = ?"
        " LEFT JOIN members ON members.id = claims.member WHERE partitions.topic = ? ORDER BY number",
        (group, topic),
    )
    return [Partition(topic, number) for number, *life in rows if life[0] is None or _is_dead(file, *life)]


def _is_dead(file: LogFile, member: int, process: str, seen_at_seconds: float) -> bool:
    silence = runtime.monotonic() - seen_at_seconds
    if silence > STALLED_SECONDS:
        return True
    try:
        descriptor = locked(_lock_of(file, member))
    except OSError as error:  # of too many open files, say
        # members of earlier releases have no lock; before the last boot the clock said more than now
        return isinstance(error, FileNotFoundError) and (process == _NOBODY or silence < 0)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _lock_of(file: LogFile, member: int) -> Path:
    return file.path.with_name(f"member-{member}.lock")
