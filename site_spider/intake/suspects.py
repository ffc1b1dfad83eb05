"""Decides which seeds may not begin at once after a death of the process.

In this order: a culprit (see ledger.metadata) is set aside; a suspect is done alone; a seed that was in
flight at a death begins with few others (SuspectQueue); and the first seeds of a new partition wait for one commit
that names this process: if it dies, the next owner sees who had them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from site_spider.contracts.seed_log import Partition, Position
from site_spider.intake.seed_queue import SeedQueue
from site_spider.ledger.completion import Completion, SeedListener
from site_spider.ledger.ledger import Ledger, SeedInFlight
from site_spider.ledger.metadata import DEATHS_ALONE, DEATHS_TO_ISOLATE
from site_spider.page.url import host_of
from site_spider.results.dead_letters import DeadLetters

# --- suspect queue: seeds of one or two deaths begin a few at a time, each committed before it begins ---
# So the next death counts for these alone, and few are under suspicion after the third (see
# ledger.metadata). Seeds that were never under way at a death do not wait for them.
#
# Hosts have their turn one after the other, and the seeds of a host theirs in the order in which they came. A
# host has at most a quarter of those that are under way, so that a slow one does not keep the others waiting.

_FEWEST = 16  # under way while some have been at two deaths: so many would be done one by one
_MOST = 128  # at one death: so many are named in a commit
_SHARES = 4  # hosts that together may have all

CommitFirst = Callable[[Mapping[Partition, Position], Callable[[], None]], None]


class SuspectQueue(SeedListener):
    """Those that wait, and who of them is under way. On the event loop's thread."""

    def __init__(self, ledger: Ledger, begin: Callable[[SeedInFlight], None], commit_first: CommitFirst) -> None:
        self._ledger = ledger
        self._begin = begin
        self._commit_first = commit_first
        self.waiting: dict[str, deque[SeedInFlight]] = {}  # by host, the one whose turn is next first
        self.under_way: dict[SeedInFlight, str] = {}  # and the host
        self._is_committing = False

    def __len__(self) -> int:
        """How many wait or are under way."""
        return sum(map(len, self.waiting.values())) + len(self.under_way)

    def takes(self, waiting: SeedInFlight) -> bool:
        """Whether care is taken with this seed, and it is kept here until its turn."""
        if not self._ledger.of_partition(waiting.partition).suspicion.is_careful(waiting.offset):
            return False
        self.waiting.setdefault(host_of(waiting.seed.url), deque()).append(waiting)
        return True

    def proceed(self) -> None:
        """Let begin what may; to be called when seeds came or ended."""
        if self._is_committing or not self.waiting:
            return
        if chosen := self._chosen():
            self._is_committing = True
            positions = self._ledger.positions({waiting.partition for waiting in chosen})
            self._commit_first(positions, lambda: self._committed(chosen))

    def _chosen(self) -> list[SeedInFlight]:
        suspicions = [self._ledger.of_partition(each).suspicion for each in self._ledger.partitions()]
        most = _FEWEST if any(each.twice or each.thrice for each in suspicions) else _MOST
        of_host, chosen = Counter(self.under_way.values()), list[SeedInFlight]()
        while len(self.under_way) < most:
            host = next((host for host in self.waiting if of_host[host] < most // _SHARES), None)
            if host is None:
                break
            line = self.waiting.pop(host)
            chosen.append(waiting := line.popleft())
            if line:
                self.waiting[host] = line  # behind the others
            of_host[host] += 1
            self.under_way[waiting] = host
            self._ledger.admit(waiting)
        return chosen

    def ended(self, entry: SeedInFlight) -> None:
        if self.under_way.pop(entry, None) is not None:
            self.proceed()

    def fenced(self, entry: SeedInFlight) -> None:
        self.under_way.pop(entry, None)

    def look_again(self) -> None:
        """Drop those whose partition went elsewhere, and let begin those that need no care any more."""
        self._is_committing = False  # nobody says so when the partition has left meanwhile
        lines, self.waiting = self.waiting, {}
        for line in lines.values():
            for waiting in line:
                if waiting.live and not self.takes(waiting):
                    self._begin(waiting)

    def _committed(self, chosen: Sequence[SeedInFlight]) -> None:
        self._is_committing = False
        for waiting in chosen:
            self._begin(waiting)
        self.proceed()


# --- quarantine: who waits for what; suspects are done one by one, with nothing else under way -----------
# See ledger.metadata for how deaths are counted over restarts. Which suspect is done alone is committed
# before it begins, so that the next owner knows if it was the last thing that this process did; and that it
# has ended is committed before anything else begins, which may kill the process in its turn. The same holds
# for a culprit's dead letter.

logger = logging.getLogger(__name__)

CULPRIT: Final = (
    f"the process died {DEATHS_ALONE} times while this seed alone was being crawled, after "
    f"{DEATHS_TO_ISOLATE} deaths with others: its page may exhaust memory or crash a library"
)


@dataclass(eq=False)
class Quarantine:
    """On the event loop's thread only, but for `is_closed`."""

    _completion: Completion
    _queue: SeedQueue
    _dead_letters: DeadLetters
    _commit_first: CommitFirst
    _wake: Callable[[], None]  # has `proceed_alone` called, and what was kept back begin
    _fresh: set[Partition] = field(default_factory=set)  # assigned, and nothing committed by us
    _suspects: deque[SeedInFlight] = field(default_factory=deque)
    _alone: SeedInFlight | None = None  # a suspect that is being done
    _awaited: list[SeedInFlight] = field(default_factory=list)  # the one alone, culprits: their end is to be committed
    _is_committing: bool = False  # that they have ended
    is_closed: bool = False  # nothing else may begin, nor be polled; any thread may ask

    def __post_init__(self) -> None:
        self._ledger = self._completion.ledger
        self.suspect_queue = SuspectQueue(self._ledger, self._queue.let_begin, self._commit_first)

    @property
    def suspects(self) -> int:
        """How many seeds in flight were under way at a death, and are begun with care."""
        return len(self.suspect_queue) + len(self._suspects) + len(self._awaited)

    def is_cautious(self) -> bool:
        """Whether seeds should be through soon: others wait for them, or the next death may not be far."""
        return self.is_closed or bool(self.suspect_queue.waiting or self.suspect_queue.under_way)

    def may_begin(self, entry: SeedInFlight) -> bool:
        """Whether a seed is not in the way of the one that is done alone; else it is asked about again."""
        return not self.is_closed or entry is self._alone

    def takes_culprit(self, entry: SeedInFlight) -> bool:
        """Whether a seed has killed its process often enough, and is set aside."""
        if not self._ledger.of_partition(entry.partition).suspicion.is_culprit(entry.offset):
            return False
        self._awaited.append(entry)  # nothing begins before that is committed
        self.is_closed = True
        self._dead_letters.set_aside(entry, CULPRIT)
        self._ledger.of_partition(entry.partition).acquit()
        self.suspect_queue.look_again()
        return True

    def let_begin(self, taken: Sequence[SeedInFlight]) -> None:
        """Let these begin, each at its time."""
        fresh: list[SeedInFlight] = []
        for waiting in taken:
            if waiting.is_suspected and (self._takes_suspect(waiting) or self.suspect_queue.takes(waiting)):
                continue
            if waiting.partition in self._fresh:
                fresh.append(waiting)
            else:
                self._queue.push(waiting)
        if fresh:
            self._commit_first(self._positions(fresh), lambda: self._committed(fresh))
        self.suspect_queue.proceed()

    def proceed(self) -> None:
        """To be called now and then."""
        self.suspect_queue.proceed()
        if self.is_closed:
            self._wake()  # the next one may begin when the last is complete, which wakes nobody

    def assigned(self, partitions: Sequence[Partition]) -> None:
        self._fresh |= set(partitions)

    def lost(self, partitions: Sequence[Partition]) -> None:
        """These have left; their seeds are fenced."""
        self._suspects = deque(waiting for waiting in self._suspects if waiting.live)
        self.is_closed = bool(self._suspects or self._awaited)
        self._is_committing = False  # nobody says so when the partition has left meanwhile
        self.suspect_queue.look_again()
        self._fresh -= set(partitions)

    def _committed(self, fresh: list[SeedInFlight]) -> None:
        for waiting in fresh:
            if waiting.live:  # else its partition may be back, with nothing committed since
                self._fresh.discard(waiting.partition)
                self._queue.let_begin(waiting)

    def _takes_suspect(self, waiting: SeedInFlight) -> bool:
        if not self._ledger.of_partition(waiting.partition).suspicion.is_suspect(waiting.offset):
            return False
        if not self.is_closed:
            logger.warning(
                "Seeds that took part in %d deaths of their process are crawled one by one, from %s/%d at %d",
                DEATHS_TO_ISOLATE,
                *waiting.partition,
                waiting.offset,
            )
        self._suspects.append(waiting)
        self.is_closed = True
        return True

    def proceed_alone(self) -> None:
        """Begin the next suspect as soon as nothing else is under way.

        To be called whenever a seed may begin.
        """
        if self._awaited:
            if not self._is_committing and not any(entry.live and entry.holds for entry in self._awaited):
                self._conclude(tuple(self._awaited))
        elif self._suspects and self._completion.is_idle:
            waiting = self._alone = self._suspects.popleft()
            self._awaited.append(waiting)
            self._ledger.isolate(waiting)
            self._commit_first(self._positions([waiting]), lambda: self._queue.let_begin(waiting))

    def _conclude(self, ended: Sequence[SeedInFlight]) -> None:
        self._is_committing = True
        if positions := self._positions(ended):
            self._commit_first(positions, lambda: self._concluded(ended))
        else:  # they are another process's now
            self._concluded(ended)

    def _concluded(self, ended: Sequence[SeedInFlight]) -> None:
        self._is_committing = False
        self._alone = None if self._alone in ended else self._alone  # asked for twice, it may be another one by now
        self._awaited = [entry for entry in self._awaited if entry not in ended]
        self.is_closed = bool(self._suspects or self._awaited)
        if not self.is_closed:
            logger.info("No seed is suspected any more")
        self._wake()

    def _positions(self, entries: Sequence[SeedInFlight]) -> dict[Partition, Position]:
        return self._ledger.positions({entry.partition for entry in entries})
