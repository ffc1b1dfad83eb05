"""What the intake's thread commits, and when: the usual way, offsets by themselves.

`tick` and `commit_first` belong to the event loop's thread, the rest to the intake's.

The loop says what is wanted, and may not have heard yet that partitions have left. One of them can be back
by then, and another process may have committed more meanwhile. So both sides count the leaves, and what
the loop wanted is committed only when it had heard of all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from site_spider.contracts.seed_log import Consumer, Partition, Position
from site_spider.errors import LogUnavailable

logger = logging.getLogger(__name__)

_COMMIT_SECONDS = 0.15  # from one to the next, if there is news
_RETRY_SECONDS = 0.5

Tell = Callable[..., None]  # calls on the event loop's thread


class Commits(Protocol):
    """How an intake commits; all of it on the intake's thread."""

    tell: Tell  # set by the intake

    @property
    def is_awaited(self) -> bool:
        """Whether something waits for a commit."""

    def look(self, consumer: Any, mine: Set[Partition]) -> None:
        """Commit what is to be committed, of these partitions."""

    def forget(self, partitions: Sequence[Partition]) -> None:
        """These have left, and the loop is being told."""


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

    def __init__(
        self,
        positions: Callable[[], Mapping[Partition, Position]],
        committed: Callable[[Mapping[Partition, Position]], None],
    ) -> None:
        self.tell: Tell
        self._positions = positions
        self._note = committed
        self._wanted = _Wanted({}, 0)  # replaced as a whole by the loop
        self._leaves = 0  # counted by the intake
        self._committed: dict[Partition, Position] = {}
        self._failed = False
        self._firsts: SimpleQueue[_First] = SimpleQueue()
        self._first: _First | None = None
        self._commit_at = 0.0

    @property
    def is_awaited(self) -> bool:
        """See Commits."""
        return self._first is not None

    def tick(self) -> None:
        """Look what is safe to commit; to be called now and then."""
        self._wanted = _Wanted(self._positions(), self._wanted.leaves)

    def commit_first(self, positions: Mapping[Partition, Position], then: Callable[[], None]) -> None:
        """Commit now, and call `then` when that is done; retried for as long as it takes."""
        # what is wanted never falls behind it: a commit of an older state would undo this one
        self._wanted = self._wanted._replace(positions={**self._wanted.positions, **positions})
        self._firsts.put(_First(frozenset(positions), then))

    def look(self, consumer: Consumer, mine: Set[Partition]) -> None:
        """See Commits."""
        if self._wanted.leaves != self._leaves:
            return
        self._commit_firsts(consumer, mine)
        if time.monotonic() >= self._commit_at:
            self._commit(consumer, mine)
            self._commit_at = time.monotonic() + _COMMIT_SECONDS

    def forget(self, partitions: Sequence[Partition]) -> None:
        """See Commits."""
        for partition in partitions:
            self._committed.pop(partition, None)
        self._leaves += 1
        self.tell(self._heard)

    def _heard(self) -> None:
        self._wanted = _Wanted(self._positions(), self._wanted.leaves + 1)

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
            self.tell(first.then)

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
        self.tell(self._note, positions)

    def _say_failed(self, error: LogUnavailable) -> None:
        if not self._failed:
            logger.warning("Offsets cannot be committed for now, trying again: %s", error)
        self._failed = True
