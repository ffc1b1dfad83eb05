"""The completion ledger: which seeds are in flight, and which offsets are safe to commit.

Theory of operation. A partition that is assigned to this process has one epoch here.
`take` opens an entry for an offset with one hold on it. Everything that still has to
happen for the seed takes a hold (a request that waits or downloads, a result that is not
acknowledged yet, a dead letter under way) and releases it when it has ended. At zero holds
the seed is complete. The watermark of a partition is its first incomplete offset.

The rules that must stay in sync with this module:

1. Completion: a seed is complete when every hold on it is released, and not before; it
   then has an outcome. Releasing the last hold of a seed without outcome is illegal.
2. Watermark: the offset of `position` never passes an incomplete seed. Complete offsets
   beyond it are in its metadata, and are skipped by `take` after the next `assign`.
3. Epoch: `revoke` fences what is in flight. A fenced entry completes nothing and counts as
   handed back; holding and releasing it stays legal, for its work ends later.
7a. Suspicion: a partition that was not left in order had its owner die; what was under way then
   has taken part in that death (see ledger.suspicion). `position` names its owner until it is
   asked for by somebody who is leaving; a process that finds its own name has not died.
10. Conservation: consumed = the sum of all outcomes + in flight, at every moment. Seeds
   handed back are no longer counted as consumed: their next owner consumes them.

Gaps (compacted or aborted offsets) need no care: what was never taken below the position
counts as complete. Illegal moves raise LedgerError and change nothing. Nothing here
knows the time, Kafka or Scrapy; one thread uses it.
"""

from __future__ import annotations

from collections.abc import Collection

from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import LedgerError
from site_spider.ledger.books import NOTHING, Books
from site_spider.ledger.entry import Entry, Outcome
from site_spider.ledger.suspicion import Suspicion

_FINAL = (Outcome.DEAD_LETTER, Outcome.CANCELLED)


class Ledger:
    """Seeds in flight over all assigned partitions; see the module's theory of operation."""

    def __init__(self, owner: str = "owner") -> None:
        self._owner = owner  # a token of this process, without ";" and ":"
        self._assigned: dict[Partition, Books] = {}
        self._epochs = 0
        self.in_flight = 0
        self.consumed = 0  # seeds taken, less those handed back
        self.handed_back = 0
        self.outcomes = dict.fromkeys(Outcome, 0)

    def partitions(self) -> list[Partition]:
        """What is assigned now."""
        return list(self._assigned)

    def assign(self, partition: Partition, committed: Position | None) -> int:
        """Begin an epoch; returns its number. What `committed` says is complete will be skipped.

        Raises LedgerError when the partition is assigned already.
        """
        if partition in self._assigned:
            raise LedgerError(f"{partition} is assigned already")
        self._epochs += 1
        self._assigned[partition] = Books(self._epochs, committed, self._owner)
        return self._epochs

    def epoch(self, partition: Partition) -> int | None:
        """The number of its epoch; None when not assigned."""
        return self._assigned[partition].epoch if partition in self._assigned else None

    def revoke(self, partition: Partition) -> list[Entry]:
        """End the epoch; returns the seeds that were in flight, fenced now.

        Raises LedgerError when the partition is not assigned.
        """
        books = self._books(partition)
        del self._assigned[partition]
        for entry in (fenced := list(books.open.values())):
            entry.live = False
        self.in_flight -= len(fenced)
        self.consumed -= len(fenced)
        self.handed_back += len(fenced)
        return fenced

    def take(self, partition: Partition, offset: int) -> Entry | None:
        """A seed was polled: open it with one hold. None when it was completed before.

        Raises LedgerError when the partition is not assigned, or the offset lies below one that
        was handed out already.
        """
        books = self._books(partition)
        if books.next is not None and offset < books.next:
            raise LedgerError(f"{partition} offset {offset} lies below the position {books.next}")
        done = books.is_done(offset)
        books.next = offset + 1
        if done:
            return None
        entry = books.open[offset] = Entry(partition, offset, books.epoch)
        books.order.append(offset)
        self.in_flight += 1
        self.consumed += 1
        return entry

    def reached(self, partition: Partition, offset: int) -> None:
        """Everything below `offset` was handed out or does not exist.

        Raises LedgerError when not assigned.
        """
        books = self._books(partition)
        if books.next is None or offset > books.next:
            books.next = offset

    def hold(self, entry: Entry) -> None:
        """One more thing has to end before the seed is complete. Raises LedgerError when it is complete."""
        if entry.holds == 0:
            raise LedgerError(f"{entry!r} is complete, nothing can be held open on it")
        entry.holds += 1

    def decide(self, entry: Entry, outcome: Outcome) -> None:
        """Say how the seed ends; a dead letter outweighs what was said before or comes later, and after it
        that it is cancelled.

        Raises LedgerError when the seed is complete.
        """
        if entry.holds == 0:
            raise LedgerError(f"{entry!r} is complete, its outcome stands")
        if outcome is Outcome.DEAD_LETTER or entry.outcome not in _FINAL:
            entry.outcome = outcome

    def release(self, entry: Entry) -> bool:
        """One thing has ended; True when that made the seed complete (never for a fenced one).

        Raises LedgerError when nothing is held, or when the last hold of a live seed without
        outcome would go.
        """
        if entry.holds > 1:
            entry.holds -= 1
            return False
        if entry.holds == 0:
            raise LedgerError(f"{entry!r} is complete, nothing is held")
        if not entry.live:
            entry.holds = 0
            return False
        if entry.outcome is None:
            raise LedgerError(f"{entry!r} cannot complete without an outcome")
        entry.holds = 0
        books = self._assigned[entry.partition]
        books.ended(entry.offset)
        self.in_flight -= 1
        self.outcomes[entry.outcome] += 1
        return True

    def position(
        self, partition: Partition, *, leaving: bool = False, besides: Collection[int] = NOTHING
    ) -> Position | None:
        """What is safe to commit; None while no offset is known.

        With `leaving`, the next owner takes the partition as left in good order. `besides` names
        offsets that are complete together with the commit. Raises LedgerError when not assigned.
        """
        return self._books(partition).position("" if leaving else self._owner, besides)

    def positions(
        self, partitions: Collection[Partition], *, leaving: bool = False
    ) -> dict[Partition, Position]:
        """What is safe to commit, of those among the partitions that are assigned and have an offset."""
        mine = [partition for partition in self._assigned if partition in partitions]
        found = {partition: self.position(partition, leaving=leaving) for partition in mine}
        return {partition: position for partition, position in found.items() if position is not None}

    def is_told_by(
        self, partition: Partition, position: Position, besides: Collection[int] = NOTHING
    ) -> bool:
        """Whether all that is complete stands in a position. Raises LedgerError when not assigned."""
        return self._books(partition).is_told_by(position, besides)

    def unread(self, partition: Partition, first: int, beyond: int) -> int:
        """How many of these offsets, which are not in the log any more, nobody has completed."""
        done = self._assigned[partition].done_ahead if partition in self._assigned else ()
        return beyond - first - sum(max(0, min(end, beyond) - max(start, first)) for start, end in done)

    def next_offset(self, partition: Partition) -> int | None:
        """The lowest offset that can still be taken; None while none is known, or when not assigned."""
        return self._assigned[partition].next if partition in self._assigned else None

    def span(self, partition: Partition) -> int:
        """Offsets from the watermark to the position. Raises LedgerError when not assigned."""
        books = self._books(partition)
        watermark = books.watermark()
        return 0 if watermark is None or books.next is None else max(0, books.next - watermark)

    def is_careful(self, entry: Entry) -> bool:
        """Whether a live seed is to be admitted, and that committed, before it begins."""
        return self._assigned[entry.partition].suspicion.is_careful(entry.offset)

    def admit(self, entry: Entry) -> None:
        """A seed that care is taken with may begin when the position is committed.

        Raises LedgerError when it is not in flight.
        """
        self._in_flight(entry).admitted.add(entry.offset)

    def suspicion(self, partition: Partition) -> Suspicion:
        """What is known of deaths of its owners. Raises LedgerError when not assigned."""
        return self._books(partition).suspicion

    def clear_suspicion(self, partition: Partition) -> None:
        """The culprit was found. Raises LedgerError when not assigned."""
        books = self._books(partition)
        books.suspicion = books.suspicion.acquitted()

    def isolate(self, entry: Entry) -> None:
        """This seed is about to be done alone. Raises LedgerError when it is not in flight."""
        books = self._in_flight(entry)
        books.suspicion = books.suspicion.isolating(entry.offset)
        books.admitted.add(entry.offset)

    def open_count(self, partition: Partition) -> int:
        """How many seeds of one partition are in flight. Raises LedgerError when not assigned."""
        return len(self._books(partition).open)

    def _in_flight(self, entry: Entry) -> Books:
        if not entry.live or entry.holds == 0:
            raise LedgerError(f"{entry!r} is not in flight, it cannot begin")
        return self._assigned[entry.partition]

    def oldest(self, partition: Partition) -> Entry | None:
        """The seed in flight with the lowest offset. Raises LedgerError when not assigned."""
        return next(iter(self._books(partition).open.values()), None)

    def open_entries(self, partition: Partition) -> list[Entry]:
        """The seeds in flight of one partition, by offset. Raises LedgerError when not assigned."""
        return list(self._books(partition).open.values())

    def _books(self, partition: Partition) -> Books:
        try:
            return self._assigned[partition]
        except KeyError:
            raise LedgerError(f"{partition} is not assigned") from None
