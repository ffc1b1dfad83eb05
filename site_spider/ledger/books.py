"""The books of one partition: seeds taken, seeds in flight, and the position to commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from site_spider.contracts.seed_log import Position
from site_spider.ledger import metadata as commit_metadata
from site_spider.ledger.entry import Entry
from site_spider.ledger.metadata import Ahead, Run
from site_spider.ledger.suspicion import NO_SUSPICION

NOTHING: frozenset[int] = frozenset()


class Books:
    """One partition during one epoch.

    `besides` names offsets that are open and are to be counted as complete: those whose completion
    is part of what is about to be committed.
    """

    __slots__ = ("admitted", "done_ahead", "epoch", "next", "open", "order", "suspicion")

    def __init__(self, epoch: int, committed: Position | None, owner: str) -> None:
        self.epoch = epoch
        self.next: int | None = None  # no offset below it will be taken any more; None: not known yet
        self.open: dict[int, Entry] = {}
        self.order: deque[int] = deque()  # offsets as taken, ascending; complete ones leave lazily
        self.done_ahead: deque[Run] = deque()  # runs that an earlier owner completed
        self.suspicion = NO_SUSPICION
        self.admitted: set[int] = (
            set()
        )  # of the open ones that care is taken with: those that may be under way
        if committed is not None:
            self._restore(committed.offset, commit_metadata.decode(*committed), owner)

    def _restore(self, watermark: int, ahead: Ahead, owner: str) -> None:
        self.next = watermark
        self.done_ahead.extend(ahead.complete)
        self.suspicion = ahead.suspicion
        if ahead.owner and ahead.owner != owner:
            self.suspicion = ahead.suspicion.after_death(ahead.position, ahead.admitted)

    def watermark(self, besides: Collection[int] = NOTHING) -> int | None:
        """The first incomplete offset; None while none is known."""
        while self.order and self.order[0] not in self.open:
            self.order.popleft()
        first = next(self._incomplete(besides), None)
        if first is not None or self.next is None:
            return first
        watermark = self.next
        for start, end in self.done_ahead:  # not handed out again yet, and complete all the same
            watermark = max(watermark, end) if start <= watermark else watermark
        return watermark

    def is_done(self, offset: int) -> bool:
        """Whether an earlier owner completed it; to be asked in ascending order."""
        while self.done_ahead and self.done_ahead[0][1] <= offset:
            self.done_ahead.popleft()
        return bool(self.done_ahead) and self.done_ahead[0][0] <= offset

    def position(self, owner: str, besides: Collection[int] = NOTHING) -> Position | None:
        """What is safe to commit; `owner` is empty when the partition is left in good order."""
        watermark = self.watermark(besides)
        if watermark is None or self.next is None:
            return None
        runs = tuple(run for run in self._complete_runs(besides) if run[1] > watermark)
        suspicion = self.suspicion.without(besides) if besides else self.suspicion
        admitted = tuple(sorted(self.admitted.difference(besides))) if owner else ()
        ahead = Ahead(max(self.next, watermark), runs, owner, suspicion, admitted)
        return Position(watermark, commit_metadata.encode(watermark, ahead))

    def ended(self, offset: int) -> None:
        """A seed is complete."""
        del self.open[offset]
        self.admitted.discard(offset)
        if self.suspicion is not NO_SUSPICION:
            self.suspicion = self.suspicion.without((offset,))

    def is_told_by(self, position: Position, besides: Collection[int] = NOTHING) -> bool:
        """Whether the text of a position had room for all that is complete."""
        told = commit_metadata.decode(*position).complete
        farthest = max((end for _, end in self._complete_runs(besides)), default=0)
        return farthest <= max(position.offset, told[-1][1] if told else 0)

    def _incomplete(self, besides: Collection[int]) -> Iterator[int]:
        return (offset for offset in self.order if offset in self.open and offset not in besides)

    def _complete_runs(self, besides: Collection[int]) -> Iterator[Run]:
        """What is complete above the watermark, ascending."""
        assert self.next is not None
        after = None
        for offset in self._incomplete(besides):
            if after is not None and offset > after:
                yield after, offset
            after = offset + 1
        if after is not None and self.next > after:
            yield after, self.next
        yield from ((max(start, self.next), end) for start, end in self.done_ahead if end > self.next)
