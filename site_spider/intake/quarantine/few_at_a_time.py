"""Suspected seeds begin a few at a time, each committed before it begins.

So the next death counts for these alone, and few are under suspicion after the third (see
ledger.suspicion). Seeds that were never under way at a death do not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from site_spider.contracts.seed_log import Partition, Position
from site_spider.intake.quarantine.fair_line import CarefulLine
from site_spider.intake.seed_queue import Waiting
from site_spider.ledger.completion import SeedListener
from site_spider.ledger.ledger import Entry, Ledger
from site_spider.page.url import host_of

_FEWEST = 16  # under way while some have been at two deaths: so many would be done one by one
_MOST = 128  # at one death: so many are named in a commit

CommitFirst = Callable[[Mapping[Partition, Position], Callable[[], None]], None]


class Care(SeedListener):
    """The line of those that wait, and who of them is under way. On the event loop's thread."""

    def __init__(self, ledger: Ledger, begin: Callable[[Waiting], None], commit_first: CommitFirst) -> None:
        self._ledger = ledger
        self._begin = begin
        self._commit_first = commit_first
        self._line: CarefulLine[Waiting] = CarefulLine()
        self._under_way: dict[Entry, str] = {}  # and the host
        self._is_committing = False

    @property
    def is_active(self) -> bool:
        """Whether some wait or are under way."""
        return bool(self._line or self._under_way)

    def __len__(self) -> int:
        """How many wait or are under way."""
        return len(self._line) + len(self._under_way)

    def takes(self, waiting: Waiting) -> bool:
        """Whether care is taken with this seed, and it is kept here until its turn."""
        if not self._ledger.is_careful(waiting.entry):
            return False
        self._line.join(host_of(waiting.seed.url), waiting)
        return True

    def proceed(self) -> None:
        """Let begin what may; to be called when seeds came or ended."""
        if self._is_committing or not self._line:
            return
        chosen = self._line.admit(self._most())
        for host, waiting in chosen:
            self._under_way[waiting.entry] = host
            self._ledger.admit(waiting.entry)
        if chosen:
            self._is_committing = True
            partitions = {waiting.entry.partition for _, waiting in chosen}
            positions = self._ledger.positions(partitions)
            self._commit_first(positions, lambda: self._committed([waiting for _, waiting in chosen]))

    def ended(self, entry: Entry) -> None:
        """As in SeedListener."""
        self._left(entry)
        self.proceed()

    def fenced(self, entry: Entry) -> None:
        """As in SeedListener."""
        self._left(entry)

    def _left(self, entry: Entry) -> None:
        host = self._under_way.pop(entry, None)
        if host is not None:
            self._line.left(host)

    def look_again(self) -> None:
        """Drop those whose partition went elsewhere, and let begin those that need no care any more."""
        self._is_committing = False  # nobody says so when the partition has left meanwhile
        for _, waiting in self._line.clear():
            if waiting.entry.live and not self.takes(waiting):
                self._begin(waiting)

    def _committed(self, chosen: list[Waiting]) -> None:
        self._is_committing = False
        for waiting in chosen:
            self._begin(waiting)
        self.proceed()

    def _most(self) -> int:
        suspicions = map(self._ledger.suspicion, self._ledger.partitions())
        return _FEWEST if any(each.twice or each.thrice for each in suspicions) else _MOST
