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
   has taken part in that death (see ledger.metadata). `position` names its owner until it is
   asked for by somebody who is leaving; a process that finds its own name has not died.
10. Conservation: consumed = the sum of all outcomes + in flight, at every moment. Seeds
   handed back are no longer counted as consumed: their next owner consumes them.

Gaps (compacted or aborted offsets) need no care: what was never taken below the position
counts as complete. Illegal moves raise LedgerError and change nothing. Nothing here
knows the time, Kafka or Scrapy; one thread uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from itertools import chain
from typing import Any, TypeAlias

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.errors import LedgerError
from site_spider.ledger import metadata as commit_metadata
from site_spider.ledger.metadata import NO_SUSPICION, Ahead, Run
from site_spider.page.url import host_of
from site_spider.seed.seed import Seed

# --- seed in flight: one seed in flight, and the outcomes of a seed --------------------------------------


class Outcome(Enum):
    """How a seed ended."""

    RESULT = "result"  # its page was fetched and the result acknowledged
    FAILURE = "failure"  # a failure result with a description was acknowledged
    FILTERED = "filtered"  # it had been done before
    DEAD_LETTER = "dead_letter"  # set aside with a reason
    SPILLED = "spilled"  # handed on to the log as other seeds
    CANCELLED = "cancelled"  # it had not begun when its task was cancelled or expired


Then = Callable[[Outcome | None], None]


@dataclass(slots=True, eq=False)
class SeedInFlight:
    """One seed from its poll to its end; whatever waits or works for it holds this object.

    The ledger changes `holds`, `live` and `outcome`; the rest is noted here by the part that it belongs to.
    """

    partition: Partition
    offset: int
    epoch: int
    message: Message = field(init=False)  # as it was polled
    seed: Seed = field(init=False)  # what that says, if it is valid
    url: str = field(init=False)  # of its page: what was asked for first
    holds: int = 1
    live: bool = True  # False once its partition was revoked
    outcome: Outcome | None = None
    is_suspected: bool = False  # something is known of deaths in its partition, perhaps with it
    request: Any = None  # that the spider has made of it
    size_bytes: int = 0  # in memory
    flow: Any = None  # its task in its tier: see frontier.waiter
    # its tree
    began_at: float = 0.0
    pages: int = 1  # that were to be crawled here
    is_overdue: bool = False  # its links are spilled
    is_set_aside: bool = False  # a dead letter is on its way, or there
    anchor_host: str = ""  # where the redirects of the seed ended: links are followed from there
    scope_host: str = ""  # the same, as far as it is believed
    # its end
    is_closing: bool = False  # it has a hold of a listener that goes when all else has ended
    at_last: Callable[[], None] | None = None  # to be called then
    is_broken: bool = False  # some of its work was dropped, so it is not done, however it ends
    then: Then | None = None  # of its repeat, which waits for its end

    def reads(self, seed: Seed, request: Any = None) -> None:
        """It is valid; `request` is what the spider has made of it, if it makes any.

        A link of the same host was spilled because its tree was large or old. Kept in memory, its own tree
        would be repeated by the next death as the first one was: its links leave, too.
        """
        self.seed, self.url, self.request = seed, seed.url, request
        if (spilled := seed.spilled) is not None:
            self.url = seed.url if spilled.is_link else spilled.url
            self.is_overdue = spilled.is_link and spilled.anchor_host == host_of(seed.url)
            self.anchor_host, self.scope_host = spilled.anchor_host, spilled.scope_host

    def found_at(self, host: str) -> None:
        """Its page was found there; what another process found before it was sent here stands."""
        if self.seed.spilled is None or not self.seed.spilled.anchor_host:
            self.anchor_host = self.scope_host = host

    @property
    def is_unproven(self) -> bool:
        """Whether an unsigned message says which page it was that another process began."""
        spilled = self.seed.spilled
        return spilled is not None and not spilled.is_link and not spilled.is_proven

    def __deepcopy__(self, _memo: object) -> SeedInFlight:
        """Itself: it stands in the meta of requests."""
        return self

    @property
    def position(self) -> str:
        """Where it stands in the log, for people."""
        return f"{self.partition.topic}/{self.partition.number}@{self.offset}"

    def __repr__(self) -> str:
        state = "live" if self.live else "fenced"
        return f"<seed {self.position} {state} {self.holds} holds>"


# --- The books of one partition: seeds taken, seeds in flight, and the position to commit ----------------

NOTHING: frozenset[int] = frozenset()


class PartitionLedger:
    """One partition during one epoch.

    `besides` names offsets that are open and are to be counted as complete: those whose completion
    is part of what is about to be committed.
    """

    __slots__ = ("admitted", "done_ahead", "epoch", "next", "open", "suspicion")

    def __init__(self, epoch: int, committed: Position | None, owner: str) -> None:
        self.epoch = epoch
        self.next: int | None = None  # no offset below it will be taken any more; None: not known yet
        self.open: dict[int, SeedInFlight] = {}  # in flight, by offset, ascending as they were taken
        self.done_ahead: deque[Run] = deque()  # runs that an earlier owner completed
        self.suspicion = NO_SUSPICION
        self.admitted: set[int] = set()  # of the open ones that care is taken with: these may be under way
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
        for offset in self.open:
            if offset not in besides:
                return offset
        watermark = self.next
        if watermark is not None:
            for start, end in self.done_ahead:  # not handed out again yet, and complete all the same
                watermark = max(watermark, end) if start <= watermark else watermark
        return watermark

    def span(self) -> int:
        """Offsets from the watermark to the position."""
        watermark = self.watermark()
        return 0 if watermark is None or self.next is None else max(0, self.next - watermark)

    @property
    def oldest(self) -> SeedInFlight | None:
        """The seed in flight with the lowest offset."""
        return next(iter(self.open.values()), None)

    def acquit(self) -> None:
        """The culprit was found: the others were there by chance, but for suspects, which are few."""
        self.suspicion = self.suspicion._replace(below=0, twice=())

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

    def is_told_by(self, position: Position, besides: Collection[int] = NOTHING) -> bool:
        """Whether the text of a position had room for all that is complete."""
        told = commit_metadata.decode(*position).complete
        farthest = max((end for _, end in self._complete_runs(besides)), default=0)
        return farthest <= max(position.offset, told[-1][1] if told else 0)

    def _complete_runs(self, besides: Collection[int]) -> Iterator[Run]:
        """What is complete above the watermark, ascending."""
        assert self.next is not None
        after = None
        for offset in self.open:
            if offset not in besides:
                if after is not None and offset > after:
                    yield after, offset
                after = offset + 1
        if after is not None and self.next > after:
            yield after, self.next
        yield from ((max(start, self.next), end) for start, end in self.done_ahead if end > self.next)


_FINAL = (Outcome.DEAD_LETTER, Outcome.CANCELLED)


class Ledger:
    """Seeds in flight over all assigned partitions; see the module's theory of operation."""

    def __init__(self, owner: str = "owner") -> None:
        self._owner = owner  # a token of this process, without ";" and ":"
        self._assigned: dict[Partition, PartitionLedger] = {}
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
        self._assigned[partition] = PartitionLedger(self._epochs, committed, self._owner)
        return self._epochs

    def epoch(self, partition: Partition) -> int | None:
        """The number of its epoch; None when not assigned."""
        return self._assigned[partition].epoch if partition in self._assigned else None

    def revoke(self, partition: Partition) -> list[SeedInFlight]:
        """End the epoch; returns the seeds that were in flight, fenced now.

        Raises LedgerError when the partition is not assigned.
        """
        books = self.of_partition(partition)
        del self._assigned[partition]
        for entry in (fenced := list(books.open.values())):
            entry.live = False
        self.in_flight -= len(fenced)
        self.consumed -= len(fenced)
        self.handed_back += len(fenced)
        return fenced

    def take(self, partition: Partition, offset: int) -> SeedInFlight | None:
        """A seed was polled: open it with one hold. None when it was completed before.

        Raises LedgerError when the partition is not assigned, or the offset lies below one that
        was handed out already.
        """
        books = self.of_partition(partition)
        if books.next is not None and offset < books.next:
            raise LedgerError(f"{partition} offset {offset} lies below the position {books.next}")
        done = bool(books.done_ahead) and books.is_done(offset)
        books.next = offset + 1
        if done:
            return None
        entry = books.open[offset] = SeedInFlight(partition, offset, books.epoch)
        entry.is_suspected = books.suspicion != NO_SUSPICION
        self.in_flight += 1
        self.consumed += 1
        return entry

    def reached(self, partition: Partition, offset: int) -> None:
        """Everything below `offset` was handed out or does not exist.

        Raises LedgerError when not assigned.
        """
        books = self.of_partition(partition)
        if books.next is None or offset > books.next:
            books.next = offset

    def is_asked_for(self, url: str, url_id: str) -> bool:
        """Whether a seed in flight is for this page. Looks at all of them."""
        entries = chain.from_iterable(books.open.values() for books in self._assigned.values())
        valid = (entry for entry in entries if hasattr(entry, "seed"))
        return any(entry.url == url or entry.seed.url_id == url_id for entry in valid)

    def hold(self, entry: SeedInFlight) -> None:
        """One more thing has to end before the seed is complete. Raises LedgerError when it is complete."""
        if entry.holds == 0:
            raise LedgerError(f"{entry!r} is complete, nothing can be held open on it")
        entry.holds += 1

    def decide(self, entry: SeedInFlight, outcome: Outcome) -> None:
        """Say how the seed ends. The strongest outcome wins, whatever the order: dead letter, then cancelled.

        Raises LedgerError when the seed is complete.
        """
        if entry.holds == 0:
            raise LedgerError(f"{entry!r} is complete, its outcome stands")
        if outcome is Outcome.DEAD_LETTER or entry.outcome not in _FINAL:
            entry.outcome = outcome

    def release(self, entry: SeedInFlight) -> bool:
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
        del books.open[entry.offset]
        books.admitted.discard(entry.offset)
        if books.suspicion is not NO_SUSPICION:
            books.suspicion = books.suspicion.without((entry.offset,))
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
        return self.of_partition(partition).position("" if leaving else self._owner, besides)

    def positions(
        self, partitions: Collection[Partition] | None = None, *, leaving: bool = False
    ) -> dict[Partition, Position]:
        """What is safe to commit, of all (or those of these) that are assigned and have an offset."""
        mine = self._assigned if partitions is None else filter(set(partitions).__contains__, self._assigned)
        found = {partition: self.position(partition, leaving=leaving) for partition in mine}
        return {partition: position for partition, position in found.items() if position is not None}

    def unread(self, partition: Partition, first: int, beyond: int) -> int:
        """How many of these offsets, which are not in the log any more, nobody has completed."""
        done = self._assigned[partition].done_ahead if partition in self._assigned else ()
        return beyond - first - sum(max(0, min(end, beyond) - max(start, first)) for start, end in done)

    def next_offset(self, partition: Partition) -> int | None:
        """The lowest offset that can still be taken; None while none is known, or when not assigned."""
        return self._assigned[partition].next if partition in self._assigned else None

    def admit(self, entry: SeedInFlight) -> None:
        """A seed that care is taken with may begin when the position is committed.

        Raises LedgerError when it is not in flight.
        """
        self._in_flight(entry).admitted.add(entry.offset)

    def isolate(self, entry: SeedInFlight) -> None:
        """This seed is about to be done alone. Raises LedgerError when it is not in flight."""
        books = self._in_flight(entry)
        books.suspicion = books.suspicion.isolating(entry.offset)
        books.admitted.add(entry.offset)

    def _in_flight(self, entry: SeedInFlight) -> PartitionLedger:
        if not entry.live or entry.holds == 0:
            raise LedgerError(f"{entry!r} is not in flight, it cannot begin")
        return self._assigned[entry.partition]

    def of_partition(self, partition: Partition) -> PartitionLedger:
        """Of one partition, to be read. Raises LedgerError when it is not assigned."""
        try:
            return self._assigned[partition]
        except KeyError:
            raise LedgerError(f"{partition} is not assigned") from None


# --- repeats: completes a repeated seed by what this process already did for it --------------------------
# Theory of operation. A partition can leave this process and come back to it: an outage of the broker that
# outlasts the session takes it away, and the group gives it back. Its next epoch begins at the offset that
# was committed, so seeds are polled again that were complete here when no commit was possible, or whose
# work still goes on. Both are facts about the seed, not about an epoch:
#
# - An entry that ended (no hold is left) with an outcome, and of which no work was dropped, was
#   done. `ended` notes it, whether it was live or fenced by then.
# - An entry that was fenced and has not ended is still under way. Its repeat waits until it
#   ends, and is done only when the earlier one turned out to be broken: some of its work was dropped.
#
# A message is known again by its place and its mark (time and bytes), so that a topic made anew is none of
# our memory. What lies below a committed offset never comes again, and is forgotten. Nothing here completes
# a seed or commits: that is the ledger's, in the epoch of the repeat.

MOST_KEPT = 100_000  # seeds that are done, of partitions that left; each takes about 300 bytes

Mark: TypeAlias = tuple[int, int]  # when and what: tells a message from another one at the same offset


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


# to another message, which whoever had the partition meanwhile may have left to this one
_LEFT_TO_OTHERS = (Outcome.FILTERED, Outcome.SPILLED)


class Repeats:
    """The memory of one process; one thread uses it."""

    def __init__(self) -> None:
        self.under_way: dict[tuple[Partition, int], SeedInFlight] = {}  # fenced seeds that go on
        self._done: dict[Partition, _EndedSeeds] = {}

    def fenced(self, entry: SeedInFlight) -> None:
        """The partition of a seed was taken away, while its work goes on."""
        if not entry.is_broken:
            self.under_way[entry.partition, entry.offset] = entry

    def broken(self, entry: SeedInFlight) -> None:
        """Some of a seed's work was dropped, so it is not done, however it ends."""
        if not entry.is_broken:
            entry.is_broken = True
            self._unfence(entry, None)

    def ended(self, entry: SeedInFlight) -> None:
        """No hold is left on a seed."""
        is_done = not (entry.is_broken or entry.outcome in _LEFT_TO_OTHERS)
        outcome = entry.outcome if is_done else None
        if outcome is not None:
            if (done := self._done.get(entry.partition)) is None:
                done = self._done[entry.partition] = _EndedSeeds()
            done.add(entry.offset, mark_of(entry.message), outcome)
        if self.under_way:
            self._unfence(entry, outcome)

    def committed(self, partition: Partition, offset: int) -> None:
        """What lies below `offset` never comes again."""
        done = self._done.get(partition)
        if done is not None:
            done.forget_below(offset)
            if not done.offsets:
                del self._done[partition]

    def left(self, partitions: Set[Partition]) -> None:
        """They went away, and their repeats; when too much is remembered, what is done of others goes first."""
        for (whose, _), entry in self.under_way.items():
            if whose in partitions:
                entry.then = None
        if sum(len(done.offsets) for done in self._done.values()) > MOST_KEPT:
            self._done = {whose: done for whose, done in self._done.items() if whose in partitions}

    def outcome(self, message: Message) -> Outcome | None:
        """How this message ended here before; None when it did not, or nothing is known."""
        done = self._done.get(message.partition)
        known = done.by_offset.get(message.offset) if done is not None else None
        return known[1] if known is not None and known[0] == mark_of(message) else None

    def wait(self, message: Message, then: Then) -> bool:
        """Whether its work still goes on from before; `then` is called with its outcome when it ends.

        The outcome is None when it has to be done after all. It replaces an earlier `then`.
        """
        entry = self.under_way.get((message.partition, message.offset))
        if entry is None or mark_of(entry.message) != mark_of(message):
            return False
        entry.then = then
        return True

    @property
    def is_awaited(self) -> bool:
        """Whether the repeat of a seed waits for work that goes on from before."""
        return any(entry.then is not None for entry in self.under_way.values())

    def _unfence(self, entry: SeedInFlight, outcome: Outcome | None) -> None:
        """A seed goes on no more, and its repeat is told."""
        place = entry.partition, entry.offset
        if self.under_way.get(place) is entry:
            del self.under_way[place]
        then, entry.then = entry.then, None
        if then is not None:
            then(outcome)


def mark_of(message: Message) -> Mark:
    """What a message is known by."""
    return message.timestamp_ms, hash((message.key, message.value))
