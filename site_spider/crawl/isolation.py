"""Seeds that have taken part in too many deaths of their process are done one by one.

See core.suspicion for how deaths are counted over restarts. Which seed is done alone is
committed before it begins, so that the next owner knows if it was the last thing that
this process did.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from site_spider.core.ledger import Ledger
from site_spider.core.suspicion import DEATHS_ALONE, DEATHS_TO_ISOLATE
from site_spider.crawl.care import CommitFirst
from site_spider.crawl.seed_queue import Waiting

logger = logging.getLogger(__name__)


class Isolation:
    """The suspects of this process, and the one that is being done alone."""

    def __init__(
        self,
        ledger: Ledger,
        is_idle: Callable[[], bool],
        begin: Callable[[Waiting], None],
        commit_first: CommitFirst,
    ) -> None:
        self._ledger = ledger
        self._is_idle = is_idle  # whether no seed is under way
        self._begin = begin
        self._commit_first = commit_first
        self._suspects: deque[Waiting] = deque()
        self._alone: Waiting | None = None

    @property
    def active(self) -> bool:
        """Whether nothing else may be started. Any thread may ask."""
        return bool(self._suspects) or self._alone is not None

    def lets_begin(self, waiting: Waiting) -> bool:
        """Whether a seed is not in the way of the one that is done alone."""
        return not self.active or waiting is self._alone

    def takes(self, waiting: Waiting) -> bool:
        """Whether this seed is a suspect, and kept here."""
        entry = waiting.entry
        if not self._ledger.suspicion(entry.partition).is_suspect(entry.offset):
            return False
        if not self.active:
            logger.warning(
                "Seeds that took part in %d deaths of their process are done one by one, from %s/%d at %d",
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
        if self._alone is not None:
            if self._alone.entry.live and self._alone.entry.holds > 0:
                return
            self._alone = None
            if not self._suspects:
                logger.info("No more seeds are under suspicion")
        if not self._suspects or not self._is_idle():
            return
        self._alone = waiting = self._suspects.popleft()
        self._ledger.isolate(waiting.entry)
        position = self._ledger.position(waiting.entry.partition)
        assert position is not None
        self._commit_first({waiting.entry.partition: position}, lambda: self._begin(waiting))

    def forget_fenced(self) -> None:
        """Drop those whose partition went elsewhere."""
        self._suspects = deque(waiting for waiting in self._suspects if waiting.entry.live)


def culprit_reason(deaths_alone: int = DEATHS_ALONE) -> str:
    """What the dead letter of a culprit says."""
    return (
        f"the process died {deaths_alone} times while this seed alone was being crawled, after "
        f"{DEATHS_TO_ISOLATE} deaths with others: its page may exhaust memory or crash a library"
    )
