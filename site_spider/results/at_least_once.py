"""Commits an offset after every sink has acknowledged the results of its seed.

A crash in between repeats seeds, which leaves the same documents. One object is both halves of
`results.commits`; `is_awaited`, `join`, `look` and `forget` belong to the intake's thread.

The loop says what is wanted, and may not have heard yet that partitions have left. One of them can be back
by then, and another process may have committed more meanwhile. So both sides count the leaves, and what
the loop wanted is committed only when it had heard of all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple

from site_spider.contracts.seed_log import Consumer, Listener, Partition, Position, Producer, SeedLog
from site_spider.contracts.sink import Record
from site_spider.errors import LogUnavailable
from site_spider.ledger.completion import Completion
from site_spider.ledger.lineage import Job
from site_spider.results.commits import Member, Tell, ThreadCommits

logger = logging.getLogger(__name__)

_COMMIT_SECONDS = 0.15  # from one to the next, if there is news
_RETRY_SECONDS = 0.5


class _First(NamedTuple):
    """A commit that something waits for."""

    partitions: frozenset[Partition]
    then: Callable[[], None]
    not_before: float = 0.0  # monotonic


class _Wanted(NamedTuple):
    """Positions that are safe to commit, and how many leaves the loop had heard of."""

    positions: Mapping[Partition, Position]
    leaves: int


class OffsetCommits:
    """Commits what is wanted and differs from what was committed last, some times a second."""

    def __init__(self, completion: Completion, producer: Producer, member: Member, tell: Tell) -> None:
        self._completion = completion
        self._producer = producer
        self._member = member
        self._tell = tell
        self._wanted = _Wanted({}, 0)  # replaced as a whole by the loop
        self._leaves = 0  # counted by the intake
        self._committed: dict[Partition, Position] = {}
        self._failed = False
        self._firsts: SimpleQueue[_First] = SimpleQueue()
        self._first: _First | None = None
        self._commit_at = 0.0

    # --- on the event loop's thread ---------------------------------------------------------------

    @property
    def thread(self) -> ThreadCommits:
        """As in Commits."""
        return self

    def tick(self) -> None:
        """As in Commits."""
        self._wanted = _Wanted(self._completion.positions(), self._wanted.leaves)

    def commit_first(self, positions: Mapping[Partition, Position], then: Callable[[], None]) -> None:
        """As in Commits."""
        # what is wanted never falls behind it: a commit of an older state would undo this one
        self._wanted = self._wanted._replace(positions={**self._wanted.positions, **positions})
        self._firsts.put(_First(frozenset(positions), then))

    def keep(self, job: Job | None, record: Record) -> None:
        """Nothing: it is stored."""

    def spill(
        self,
        job: Job,
        key: bytes | None,
        value: bytes,
        topic: str | None = None,
    ) -> Future[None]:
        """As in Commits: sent at once."""
        return self._producer.send(topic or job.entry.partition.topic, key, value)

    @property
    def stores_records(self) -> bool:
        """As in Commits: sinks do that."""
        return False

    def is_taking(self) -> bool:
        """As in Commits: the sinks say that."""
        return True

    @property
    def is_crowded(self) -> bool:
        """As in Commits: results do not wait for their tree."""
        return False

    async def close(self, timeout_seconds: float) -> int:  # noqa: ARG002
        """As in Commits: the intake commits when it leaves."""
        return 0

    # --- on the intake's thread -------------------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        """As in ThreadCommits."""
        return self._first is not None

    def join(self, log: SeedLog, listener: Listener) -> Consumer:
        """As in ThreadCommits."""
        return log.consumer(self._member.topics, self._member.group, listener)

    def look(self, consumer: Consumer, mine: Set[Partition]) -> None:
        """As in ThreadCommits."""
        if self._wanted.leaves != self._leaves:
            return
        self._commit_firsts(consumer, mine)
        if time.monotonic() >= self._commit_at:
            self._commit(consumer, mine)
            self._commit_at = time.monotonic() + _COMMIT_SECONDS

    def forget(self, partitions: Sequence[Partition]) -> None:
        """As in ThreadCommits."""
        for partition in partitions:
            self._committed.pop(partition, None)
        self._leaves += 1
        self._tell(self._heard)

    def _heard(self) -> None:
        self._wanted = _Wanted(self._completion.positions(), self._wanted.leaves + 1)

    def _commit_firsts(self, consumer: Consumer, mine: Set[Partition]) -> None:
        while self._first is not None or not self._firsts.empty():
            first = self._first = self._first or self._firsts.get_nowait()
            if time.monotonic() < first.not_before:
                return
            wanted = self._wanted.positions
            positions = {p: wanted[p] for p in first.partitions if p in mine and p in wanted}
            try:
                consumer.commit(positions)
            except LogUnavailable as error:
                self._say_failed(error)
                self._first = first._replace(not_before=time.monotonic() + _RETRY_SECONDS)
                return
            self._first = None
            self._note_committed(positions)
            self._tell(first.then)

    def _commit(self, consumer: Consumer, mine: Set[Partition]) -> None:
        wanted = self._wanted.positions
        changed = {p: w for p, w in wanted.items() if p in mine and self._committed.get(p) != w}
        if not changed:
            return
        try:
            consumer.commit(changed)
        except LogUnavailable as error:
            self._say_failed(error)
            return
        self._note_committed(changed)
        if self._failed:
            logger.info("Offsets are committed again")
            self._failed = False

    def _note_committed(self, positions: Mapping[Partition, Position]) -> None:
        self._committed.update(positions)
        self._tell(self._completion.committed, positions)

    def _say_failed(self, error: LogUnavailable) -> None:
        if not self._failed:
            logger.warning("Offsets cannot be committed for now, trying again: %s", error)
        self._failed = True
