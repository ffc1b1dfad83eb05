"""Seeds of three or more deaths are tried one by one, with nothing else under way.

See ledger.suspicion for how deaths are counted over restarts. Which seed is done alone is
committed before it begins, so that the next owner knows if it was the last thing that
this process did; and that it has ended is committed before anything else begins, which may kill
the process in its turn. The same holds for a culprit's dead letter.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection

from site_spider.contracts.seed_log import Partition, Position
from site_spider.intake.quarantine.few_at_a_time import CommitFirst
from site_spider.intake.seed_queue import Waiting
from site_spider.ledger.completion import SeedListener
from site_spider.ledger.ledger import Entry, Ledger
from site_spider.ledger.metadata import DEATHS_ALONE, DEATHS_TO_ISOLATE

logger = logging.getLogger(__name__)


class Isolation(SeedListener):
    """The suspects of this process, and the one that is being done alone."""

    def __init__(
        self,
        ledger: Ledger,
        is_idle: Callable[[], bool],
        begin: Callable[[Waiting], None],
        commit_first: CommitFirst,
        wake: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._is_idle = is_idle  # whether no seed is under way
        self._begin = begin
        self._commit_first = commit_first
        self._wake = wake  # has `proceed` called, and what was kept back begin
        self._suspects: deque[Waiting] = deque()
        self._alone: Waiting | None = None
        self._awaited: list[Entry] = []  # the one alone, and culprits: to end, and that to be committed
        self._is_committing = False  # that they have ended

    @property
    def active(self) -> bool:
        """Whether nothing else may be started. Any thread may ask."""
        return bool(self._suspects or self._awaited)

    def __len__(self) -> int:
        """How many wait, are under way, or are to be committed."""
        return len(self._suspects) + len(self._awaited)

    def may_begin(self, entry: Entry) -> bool:
        """As in SeedListener: not in the way of the one that is done alone."""
        return not self.active or (self._alone is not None and entry is self._alone.entry)

    def await_end(self, culprit: Entry) -> None:
        """It is being set aside, and nothing begins before that is committed."""
        self._awaited.append(culprit)

    def takes(self, waiting: Waiting) -> bool:
        """Whether this seed is a suspect, and kept here."""
        entry = waiting.entry
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

    def _isolate(self, waiting: Waiting) -> None:
        self._alone = waiting
        self._awaited.append(waiting.entry)
        self._ledger.isolate(waiting.entry)
        self._commit_first(self._positions([waiting.entry]), lambda: self._begin(waiting))

    def _conclude(self, ended: Collection[Entry]) -> None:
        self._is_committing = True
        if positions := self._positions(ended):
            self._commit_first(positions, lambda: self._concluded(ended))
        else:  # they are another process's now
            self._concluded(ended)

    def _concluded(self, ended: Collection[Entry]) -> None:
        self._is_committing = False
        self._alone = None
        self._awaited = [entry for entry in self._awaited if entry not in ended]
        if not self.active:
            logger.info("No seed is suspected any more")
        self._wake()

    def _positions(self, entries: Collection[Entry]) -> dict[Partition, Position]:
        return self._ledger.positions({entry.partition for entry in entries})

    def forget_fenced(self) -> None:
        """Drop those whose partition went elsewhere."""
        self._suspects = deque(waiting for waiting in self._suspects if waiting.entry.live)
        self._is_committing = False  # nobody says so when the partition has left meanwhile


def culprit_reason(deaths_alone: int = DEATHS_ALONE) -> str:
    """What the dead letter of a culprit says."""
    return (
        f"the process died {deaths_alone} times while this seed alone was being crawled, after "
        f"{DEATHS_TO_ISOLATE} deaths with others: its page may exhaust memory or crash a library"
    )
