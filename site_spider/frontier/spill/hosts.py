"""Which process owns which host, when seeds are keyed by host (SITE_HOST_OWNERSHIP).

A host belongs to the partition where a seed with its key goes, and to whichever process that
partition is assigned to. What is polled from a partition is crawled here all the same,
whatever its key says, so nothing goes to and fro.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache

from site_spider.contracts.seed_log import Partition
from site_spider.engine.background import Background
from site_spider.errors import SiteSpiderError
from site_spider.ledger.ledger import Ledger
from site_spider.seed.partitions import partition_of

logger = logging.getLogger(__name__)

_ASK_SECONDS = 30.0  # between two questions how many partitions there are


class Ownership:
    """Asks the ledger what is assigned. On the event loop's thread only."""

    def __init__(
        self, topic: str, ledger: Ledger, count_partitions: Callable[[str], int], background: Background
    ) -> None:
        self._background = background
        self._topic = topic
        self._ledger = ledger
        self._count_partitions = count_partitions  # may block
        self._number_of = lru_cache(maxsize=10_000)(self._partition_of)
        self._partitions = 0
        self._looked: tuple[int, frozenset[Partition]] = (0, frozenset())
        self._ask_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    def owns(self, host: str) -> bool:
        """Whether a request to this host is made here. While the partitions are not known, all are."""
        if not self._partitions:
            return True
        return Partition(self._topic, self._number_of(host)) in self._ledger.partitions()

    def look(self) -> bool:
        """True when hosts have changed hands since the last look; to be called now and then."""
        now = asyncio.get_running_loop().time()
        if now >= self._ask_at and (self._asking is None or self._asking.done()):
            self._ask_at = now + _ASK_SECONDS
            self._asking = self._background.start(self.ask(), "count of partitions")
        mine = frozenset(self._ledger.partitions())
        before, self._looked = self._looked, (self._partitions, mine)
        return before != self._looked

    async def ask(self) -> None:
        """Find out how many partitions there are; an outage leaves that as it was."""
        try:
            count = await asyncio.to_thread(self._count_partitions, self._topic)
        except SiteSpiderError as error:
            logger.debug("The partitions of %s are not known now: %s", self._topic, error)
            return
        if count != self._partitions:
            self._partitions = count
            self._number_of.cache_clear()

    def _partition_of(self, host: str) -> int:
        return partition_of(host.encode(), self._partitions)
