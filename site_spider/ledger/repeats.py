"""Completes a repeated seed by what this process already did for it.

Theory of operation. A partition can leave this process and come back to it: an outage of the
broker that outlasts the session takes it away, and the group gives it back. Its next epoch begins
at the offset that was committed, so seeds are polled again that were complete here when no commit
was possible, or whose work still goes on. Both are facts about the seed, not about an epoch:

- An entry that ended (no hold is left) with an outcome, and of which no work was dropped, was
  done. `ended` notes it, whether it was live or fenced by then.
- An entry that was fenced and has not ended is still under way. Its repeat waits until it
  ends, and is done only when the earlier one turned out to be broken: some of its work was dropped.

A message is known again by its place and its mark (time and bytes), so that a topic made anew is
none of our memory. What lies below a committed offset never comes again, and is forgotten.
Nothing here completes a seed or commits: that is the ledger's, in the epoch of the repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from site_spider.contracts.seed_log import Message, Partition
from site_spider.ledger.entry import Entry, Outcome

MOST_KEPT = 100_000  # seeds that are done, of partitions that left; each takes about 300 bytes

Then = Callable[[Outcome | None], None]


class Mark(NamedTuple):
    """What tells a message from another one at the same offset."""

    timestamp_ms: int
    content: int


class _EndedSeeds:
    """Seeds of one partition that ended, by offset."""

    __slots__ = ("by_offset", "offsets")

    def __init__(self) -> None:
        self.by_offset: dict[int, tuple[Mark, Outcome]] = {}
        self.offsets: list[int] = []  # heap

    def add(self, offset: int, mark: Mark, outcome: Outcome) -> None:
        if offset not in self.by_offset:
            heappush(self.offsets, offset)
        self.by_offset[offset] = mark, outcome

    def forget_below(self, offset: int) -> None:
        while self.offsets and self.offsets[0] < offset:
            del self.by_offset[heappop(self.offsets)]


class Repeats:
    """The memory of one process; one thread uses it."""

    def __init__(self) -> None:
        self._marks: dict[Entry, Mark] = {}  # of entries that have not ended
        self._fenced: dict[tuple[Partition, int], Entry] = {}  # of these, those that go on without an epoch
        self._waiting: dict[Entry, Then] = {}
        self._done: dict[Partition, _EndedSeeds] = {}

    def opened(self, entry: Entry, message: Message) -> None:
        """A seed was taken."""
        self._marks[entry] = mark_of(message)

    def fenced(self, entry: Entry) -> None:
        """The partition of a seed was taken away, while its work goes on."""
        if entry in self._marks:
            self._fenced[entry.partition, entry.offset] = entry

    def broken(self, entry: Entry) -> None:
        """Some of a seed's work was dropped, so it is not done, however it ends."""
        if self._marks.pop(entry, None) is not None:
            self._unfence(entry)
            self._tell(entry, None)

    def ended(self, entry: Entry) -> None:
        """No hold is left on a seed."""
        mark = self._marks.pop(entry, None)
        if mark is None:
            return
        self._unfence(entry)
        if entry.outcome is not None:
            self._done.setdefault(entry.partition, _EndedSeeds()).add(entry.offset, mark, entry.outcome)
        self._tell(entry, entry.outcome)

    def committed(self, partition: Partition, offset: int) -> None:
        """What lies below `offset` never comes again."""
        done = self._done.get(partition)
        if done is not None:
            done.forget_below(offset)
            if not done.offsets:
                del self._done[partition]

    def left(self, partition: Partition) -> None:
        """A partition went away; when too much is remembered, what is done of others goes first."""
        if sum(len(done.offsets) for done in self._done.values()) > MOST_KEPT:
            self._done = {partition: done} if (done := self._done.get(partition)) is not None else {}

    def outcome(self, message: Message) -> Outcome | None:
        """How this message ended here before; None when it did not, or nothing is known."""
        done = self._done.get(message.partition)
        known = done.by_offset.get(message.offset) if done is not None else None
        return known[1] if known is not None and known[0] == mark_of(message) else None

    def wait(self, message: Message, then: Then) -> bool:
        """Whether its work still goes on from before; `then` is called with its outcome when it ends.

        The outcome is None when it has to be done after all. It replaces an earlier `then`.
        """
        entry = self._fenced.get((message.partition, message.offset))
        if entry is None or self._marks[entry] != mark_of(message):
            return False
        self._waiting[entry] = then
        return True

    @property
    def is_awaited(self) -> bool:
        """Whether the repeat of a seed waits for work that goes on from before."""
        return bool(self._waiting)

    def _unfence(self, entry: Entry) -> None:
        place = entry.partition, entry.offset
        if self._fenced.get(place) is entry:
            del self._fenced[place]

    def _tell(self, entry: Entry, outcome: Outcome | None) -> None:
        then = self._waiting.pop(entry, None)
        if then is not None:
            then(outcome)


def mark_of(message: Message) -> Mark:
    """What a message is known by."""
    return Mark(message.timestamp_ms, hash((message.key, message.value)))
