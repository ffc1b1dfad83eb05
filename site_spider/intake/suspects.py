"""Decides which seeds may not begin at once after a death of the process.

In this order: a culprit (see ledger.metadata) is set aside; a suspect is done alone (one_by_one); a
seed that was in flight at a death begins with few others (few_at_a_time); and what is polled first
of a partition begins when a commit has said that this process has it, so that the next owner
knows of a death.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, TypeVar

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.intake.seed_queue import SeedQueue
from site_spider.ledger.completion import Completion, SeedListener
from site_spider.ledger.ledger import Ledger, SeedInFlight
from site_spider.ledger.metadata import DEATHS_ALONE, DEATHS_TO_ISOLATE
from site_spider.page.url import host_of
from site_spider.results.results import DeadLetters

# --- A line of suspected seeds: few are admitted at a time, and few of one host --------------------------
# Hosts have their turn one after the other, and the seeds of a host theirs in the order in which they
# joined. A host has at most a quarter of those that are admitted, so that a slow one does not keep the
# others waiting.

T = TypeVar("T")
_SHARES = 4  # hosts that together may have all


class CarefulLine(Generic[T]):
    """Items by host, and how many of each host are admitted and have not left."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}
        self._turns: deque[str] = deque()  # the keys of `_waiting`
        self._admitted: Counter[str] = Counter()
        self.length = 0  # how many wait
        self.admitted = 0

    def join(self, host: str, item: T) -> None:
        """An item waits, behind those of its host."""
        if host not in self._waiting:
            self._waiting[host] = deque()
            self._turns.append(host)
        self._waiting[host].append(item)
        self.length += 1

    def admit(self, most: int) -> list[tuple[str, T]]:
        """Those whose turn it is, with their hosts, so that at most `most` are admitted."""
        most_of_host = max(1, most // _SHARES)
        chosen: list[tuple[str, T]] = []
        passed = 0  # hosts in a row that may have no more
        while self.admitted < most and passed < len(self._turns):
            host = self._turns.popleft()
            if self._admitted[host] < most_of_host:
                chosen.append((host, self._take(host)))
                passed = 0
            else:
                passed += 1
            if host in self._waiting:
                self._turns.append(host)
        return chosen

    def left(self, host: str) -> None:
        """One that was admitted has ended."""
        self.admitted -= 1
        self._admitted[host] -= 1
        if not self._admitted[host]:
            del self._admitted[host]

    def clear(self) -> list[tuple[str, T]]:
        """Take out all that wait."""
        items = [(host, item) for host, queue in self._waiting.items() for item in queue]
        self._waiting.clear()
        self._turns.clear()
        self.length = 0
        return items

    def _take(self, host: str) -> T:
        queue = self._waiting[host]
        item = queue.popleft()
        if not queue:
            del self._waiting[host]
        self.length -= 1
        self.admitted += 1
        self._admitted[host] += 1
        return item


# --- few at a time: suspected seeds begin a few at a time, each committed before it begins ---------------
# So the next death counts for these alone, and few are under suspicion after the third (see
# ledger.metadata). Seeds that were never under way at a death do not wait for them.

_FEWEST = 16  # under way while some have been at two deaths: so many would be done one by one
_MOST = 128  # at one death: so many are named in a commit

Begin = Callable[[SeedInFlight], None]
CommitFirst = Callable[[Mapping[Partition, Position], Callable[[], None]], None]


class Care(SeedListener):
    """The line of those that wait, and who of them is under way. On the event loop's thread."""

    def __init__(self, ledger: Ledger, begin: Begin, commit_first: CommitFirst) -> None:
        self._ledger = ledger
        self._begin = begin
        self._commit_first = commit_first
        self._line: CarefulLine[SeedInFlight] = CarefulLine()
        self._under_way: dict[SeedInFlight, str] = {}  # and the host
        self._is_committing = False

    @property
    def is_active(self) -> bool:
        """Whether some wait or are under way."""
        return bool(self._under_way or self._line.length)

    def __len__(self) -> int:
        """How many wait or are under way."""
        return self._line.length + len(self._under_way)

    def takes(self, waiting: SeedInFlight) -> bool:
        """Whether care is taken with this seed, and it is kept here until its turn."""
        if not self._ledger.is_careful(waiting):
            return False
        self._line.join(host_of(waiting.seed.url), waiting)
        return True

    def proceed(self) -> None:
        """Let begin what may; to be called when seeds came or ended."""
        if self._is_committing or not self._line.length:
            return
        chosen = self._line.admit(self._most())
        for host, waiting in chosen:
            self._under_way[waiting] = host
            self._ledger.admit(waiting)
        if chosen:
            self._is_committing = True
            partitions = {waiting.partition for _, waiting in chosen}
            positions = self._ledger.positions(partitions)
            self._commit_first(positions, lambda: self._committed([waiting for _, waiting in chosen]))

    def ended(self, entry: SeedInFlight) -> None:
        """As in SeedListener."""
        if entry in self._under_way:
            self._left(entry)
            self.proceed()

    def fenced(self, entry: SeedInFlight) -> None:
        """As in SeedListener."""
        self._left(entry)

    def _left(self, entry: SeedInFlight) -> None:
        host = self._under_way.pop(entry, None)
        if host is not None:
            self._line.left(host)

    def look_again(self) -> None:
        """Drop those whose partition went elsewhere, and let begin those that need no care any more."""
        self._is_committing = False  # nobody says so when the partition has left meanwhile
        for _, waiting in self._line.clear():
            if waiting.live and not self.takes(waiting):
                self._begin(waiting)

    def _committed(self, chosen: list[SeedInFlight]) -> None:
        self._is_committing = False
        for waiting in chosen:
            self._begin(waiting)
        self.proceed()

    def _most(self) -> int:
        suspicions = map(self._ledger.suspicion, self._ledger.partitions())
        return _FEWEST if any(each.twice or each.thrice for each in suspicions) else _MOST


# --- one by one: seeds of three or more deaths are tried one by one, with nothing else under way ---------
# See ledger.metadata for how deaths are counted over restarts. Which seed is done alone is committed
# before it begins, so that the next owner knows if it was the last thing that this process did; and that it
# has ended is committed before anything else begins, which may kill the process in its turn. The same holds
# for a culprit's dead letter.

logger = logging.getLogger(__name__)


class Isolation(SeedListener):
    """The suspects of this process, and the one that is being done alone."""

    def __init__(
        self,
        ledger: Ledger,
        is_idle: Callable[[], bool],
        begin: Begin,
        commit_first: CommitFirst,
        wake: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._is_idle = is_idle  # whether no seed is under way
        self._begin = begin
        self._commit_first = commit_first
        self._wake = wake  # has `proceed` called, and what was kept back begin
        self._suspects: deque[SeedInFlight] = deque()
        self._alone: SeedInFlight | None = None
        self._awaited: list[SeedInFlight] = []  # the one alone, and culprits: their end is to be committed
        self._is_committing = False  # that they have ended
        self.active = False  # nothing else may be started; any thread may ask

    def __len__(self) -> int:
        """How many wait, are under way, or are to be committed."""
        return len(self._suspects) + len(self._awaited)

    def may_begin(self, entry: SeedInFlight) -> bool:
        """Whether a seed is not in the way of the one that is done alone; else it is asked about again."""
        return not self.active or entry is self._alone

    def await_end(self, culprit: SeedInFlight) -> None:
        """It is being set aside, and nothing begins before that is committed."""
        self._awaited.append(culprit)
        self.active = True

    def takes(self, waiting: SeedInFlight) -> bool:
        """Whether this seed is a suspect, and kept here."""
        entry = waiting
        if not self._ledger.suspicion(entry.partition).is_suspect(entry.offset):
            return False
        if not self.active:
            logger.warning(
                "Seeds that took part in %d deaths of their process are crawled one by one, from %s/%d at %d",
                DEATHS_TO_ISOLATE,
                entry.partition.topic,
                entry.partition.number,
                entry.offset,
            )
        self._suspects.append(waiting)
        self.active = True
        return True

    def proceed(self) -> None:
        """Begin the next suspect as soon as nothing else is under way.

        To be called whenever a seed may begin.
        """
        if self._awaited:
            if not self._is_committing and not any(entry.live and entry.holds for entry in self._awaited):
                self._conclude(tuple(self._awaited))
        elif self._suspects and self._is_idle():
            self._isolate(self._suspects.popleft())

    def _isolate(self, waiting: SeedInFlight) -> None:
        self._alone = waiting
        self._awaited.append(waiting)
        self._ledger.isolate(waiting)
        self._commit_first(self._positions([waiting]), lambda: self._begin(waiting))

    def _conclude(self, ended: Collection[SeedInFlight]) -> None:
        self._is_committing = True
        if positions := self._positions(ended):
            self._commit_first(positions, lambda: self._concluded(ended))
        else:  # they are another process's now
            self._concluded(ended)

    def _concluded(self, ended: Collection[SeedInFlight]) -> None:
        self._is_committing = False
        self._alone = None
        self._awaited = [entry for entry in self._awaited if entry not in ended]
        self.active = bool(self._suspects or self._awaited)
        if not self.active:
            logger.info("No seed is suspected any more")
        self._wake()

    def _positions(self, entries: Collection[SeedInFlight]) -> dict[Partition, Position]:
        return self._ledger.positions({entry.partition for entry in entries})

    def forget_fenced(self) -> None:
        """Drop those whose partition went elsewhere."""
        self._suspects = deque(waiting for waiting in self._suspects if waiting.live)
        self.active = bool(self._suspects or self._awaited)
        self._is_committing = False  # nobody says so when the partition has left meanwhile


def culprit_reason(deaths_alone: int = DEATHS_ALONE) -> str:
    """What the dead letter of a culprit says."""
    return (
        f"the process died {deaths_alone} times while this seed alone was being crawled, after "
        f"{DEATHS_TO_ISOLATE} deaths with others: its page may exhaust memory or crash a library"
    )


class Quarantine:
    """On the event loop's thread only, but for `is_closed`."""

    def __init__(
        self,
        completion: Completion,
        queue: SeedQueue,
        dead_letters: DeadLetters,
        commit_first: CommitFirst,
        wake: Callable[[], None],
    ) -> None:
        ledger = completion.ledger
        self.care = Care(ledger, queue.let_begin, commit_first)
        self.isolation = Isolation(ledger, lambda: completion.is_idle, queue.let_begin, commit_first, wake)
        self._completion = completion
        self._queue = queue
        self._dead_letters = dead_letters
        self._commit_first = commit_first
        self._wake = wake
        self._fresh: set[Partition] = set()  # assigned, and nothing committed by us

    @property
    def is_closed(self) -> bool:
        """Whether no more seeds are to be polled. Any thread may ask."""
        return self.isolation.active

    @property
    def suspects(self) -> int:
        """How many seeds in flight were under way at a death, and are begun with care."""
        return len(self.care) + len(self.isolation)

    def is_cautious(self) -> bool:
        """Whether seeds should be through soon: others wait for them, or the next death may not be far."""
        return self.isolation.active or self.care.is_active

    def takes_culprit(self, message: Message, entry: SeedInFlight) -> bool:
        """Whether a seed has killed its process often enough, and is set aside."""
        ledger = self._completion.ledger
        if not ledger.suspicion(entry.partition).is_culprit(entry.offset):
            return False
        self.isolation.await_end(entry)
        self._dead_letters.set_aside(message, culprit_reason(), entry)
        ledger.clear_suspicion(entry.partition)
        self.care.look_again()
        return True

    def let_begin(self, taken: Sequence[SeedInFlight]) -> None:
        """Let these begin, each at its time."""
        fresh: list[SeedInFlight] = []
        for waiting in taken:
            if waiting.is_suspected and (self.isolation.takes(waiting) or self.care.takes(waiting)):
                continue
            if waiting.partition in self._fresh:
                fresh.append(waiting)
            else:
                self._queue.push(waiting)
        if fresh:
            positions = self._completion.positions({waiting.partition for waiting in fresh})
            self._commit_first(positions, lambda: self._committed(fresh))
        self.care.proceed()

    def proceed(self) -> None:
        """Let begin what may; to be called now and then."""
        self.care.proceed()
        if self.isolation.active:
            self._wake()  # the next one may begin when the last is complete, which wakes nobody

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """These have come."""
        self._fresh |= set(partitions)

    def lost(self, partitions: Sequence[Partition]) -> None:
        """These have left; their seeds are fenced."""
        self.isolation.forget_fenced()
        self.care.look_again()
        self._fresh -= set(partitions)

    def _committed(self, fresh: list[SeedInFlight]) -> None:
        for waiting in fresh:
            self._fresh.discard(waiting.partition)
            self._queue.let_begin(waiting)
