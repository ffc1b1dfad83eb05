"""A member of a consumer group of the embedded seed log."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from site_spider import runtime
from site_spider.adapters.local.log_file import (
    SELECT_MESSAGES,
    Forgetting,
    LogFile,
    may_pass,
    message_id,
    offset_of,
)
from site_spider.adapters.local.members import STALLED_SECONDS, Membership
from site_spider.contracts.seed_log import Consumer, Listener, Message, Partition, Position
from site_spider.errors import LogUnavailable
from site_spider.outage import Outage

logger = logging.getLogger(__name__)

_BALANCE_SECONDS = 0.2  # between two looks at the group
_WAIT_SECONDS = 0.02  # between two questions whether anybody wrote; 10 µs each
_BUSY_SECONDS = 5.0
_BATCH_BYTES = 16_000_000  # a batch ends with the message that passes this


class LocalConsumer(Consumer):
    """One thread uses it."""

    session_seconds = STALLED_SECONDS

    def __init__(
        self, folder: Path, topics: Sequence[str], group: str, listener: Listener, keep_seconds: float = 0
    ) -> None:
        self._file = LogFile(folder, busy_seconds=_BUSY_SECONDS)
        self._forgetting = Forgetting(self._file, keep_seconds)
        self._memberships = {topic: Membership(self._file, group, topic) for topic in topics}
        self._listener = listener
        self._offsets: dict[Partition, int] = {}  # the next one to hand out, of what we own
        self._ids: dict[Partition, int] = {}
        self._departing: dict[Partition, Position | None] = {}  # the listener has let go, the file not yet
        self._paused: set[Partition] = set()
        self._announced: dict[Partition, int] = {}  # the end that the listener was told last
        self._turns: deque[Partition] = deque()  # who may fill a batch first
        self._balance_at = 0.0
        self._outage = Outage(logger, "Trying again", "The seed log can be written again")
        self._version: int | None = None

    @property
    def member_name(self) -> str:
        """Members of this log have no lasting names."""
        return ""

    @property
    def is_member(self) -> bool:
        return any(membership.is_there for membership in self._memberships.values())

    @property
    def is_away(self) -> bool:
        return bool(self._outage)

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
        """Answered at once."""
        try:
            self.commit(positions)
        except LogUnavailable as error:
            answered(error)
        else:
            answered(None)

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Partitions that were revoked meanwhile are ignored."""
        self._paused.update(partition for partition in partitions if partition in self._offsets)

    def resume(self, partitions: Sequence[Partition]) -> None:
        self._paused.difference_update(partitions)
        self._version = None  # there may be something to hand out although nobody wrote

    def close(self, *, for_good: bool = False) -> None:  # noqa: ARG002 - whoever leaves is not waited for
        try:
            self._give_up(list(self._offsets))
            for membership in self._memberships.values():
                membership.leave()
        finally:
            self._file.close()

    # --- messages ----------------------------------------------------------------------------

    def _try(self, limit: int) -> list[Message]:
        try:
            if runtime.monotonic() >= self._balance_at:
                self._balance_at = runtime.monotonic() + _BALANCE_SECONDS  # also if it fails: reading may not
                for membership in self._memberships.values():
                    self._move(membership)
                self._forgetting.look(self._ids.values())
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
        batch: list[Message] = []
        size_bytes = 0
        for partition in list(self._turns):
            if partition in self._paused or len(batch) >= limit or size_bytes > _BATCH_BYTES:
                continue
            for message in self._read(partition, limit - len(batch), _BATCH_BYTES - size_bytes):
                batch.append(message)
                size_bytes += len(message.value or b"")
        self._turns.rotate(-1)
        return batch

    def _read(self, partition: Partition, limit: int, limit_bytes: int) -> list[Message]:
        first, beyond = self._ids[partition], self._ids[partition] + 1
        start = message_id(first, self._offsets[partition])
        messages: list[Message] = []
        with closing(self._file.stream(SELECT_MESSAGES, (start, message_id(beyond, 0), limit))) as rows:
            for row in rows:
                messages.append(to_message(partition, row))
                limit_bytes -= len(messages[-1].value or b"")
                if limit_bytes < 0:
                    break
        if messages:
            self._offsets[partition] = messages[-1].offset + 1
        elif self._announced.get(partition) != (end := self._offsets[partition]):
            self._announced[partition] = end
            self._listener.reached(partition, end)
        return messages

    def _wait(self, deadline: float) -> None:
        until = min(deadline, self._balance_at)
        while (remaining := until - runtime.monotonic()) > 0 and self._version is not None:
            runtime.sleep(min(_WAIT_SECONDS, remaining))
            if self._data_version() != self._version:
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
        claims = membership.claim(moves.coming) if moves.coming else []
        for partition, identifier, committed in claims:
            self._ids[partition] = identifier
            self._offsets[partition] = committed.offset if committed else 0
            self._turns.append(partition)
        if claims:
            self._listener.assigned({claim.partition: claim.committed for claim in claims})

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
            self._ids.pop(partition, None)
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
