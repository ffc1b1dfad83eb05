"""How many partitions each seed topic has, and this process' share of them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from site_spider.contracts.seed_log import Partition
from site_spider.engine.background import Background
from site_spider.errors import SiteSpiderError
from site_spider.ledger.ledger import Ledger

logger = logging.getLogger(__name__)

_ASK_SECONDS = 30.0  # between two questions how many partitions there are


class TopicPartitions:
    """Asks the ledger what is assigned. On the event loop's thread only."""

    def __init__(
        self,
        topics: Sequence[str],
        ledger: Ledger,
        count_partitions: Callable[[str], int],
        background: Background,
    ) -> None:
        self._background = background
        self._ledger = ledger
        self._count_partitions = count_partitions  # may block
        self._counts = dict.fromkeys(topics, 0)
        self._owned: Counter[str] = Counter()
        self._ask_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    def count(self, topic: str) -> int:
        """How many a topic has; 0 while that is not known."""
        return self._counts.get(topic, 0)

    def counts(self) -> tuple[int, ...]:
        """Of all topics."""
        return tuple(self._counts.values())

    def assigned(self) -> frozenset[Partition]:
        """Those of this process."""
        return frozenset(self._ledger.partitions())

    def owns(self, partition: Partition) -> bool:
        """Whether it is assigned to this process."""
        return self._ledger.epoch(partition) is not None

    def share(self, topic: str) -> float:
        """Of the partitions of a topic, as of the last look; 1 while their number is not known.

        What has not ended when its last partition leaves goes on as if there were one.
        """
        count = self._counts.get(topic, 0)
        return min(1.0, max(1, self._owned[topic]) / count) if count else 1.0

    def look(self) -> None:
        """To be called now and then."""
        self._owned = Counter(partition.topic for partition in self._ledger.partitions())
        now = asyncio.get_running_loop().time()
        if now >= self._ask_at and (self._asking is None or self._asking.done()):
            self._ask_at = now + _ASK_SECONDS
            self._asking = self._background.start(self.ask(), "count of partitions")

    async def ask(self) -> None:
        """Find out how many partitions there are; an outage leaves that as it was."""
        for topic in self._counts:
            try:
                self._counts[topic] = await asyncio.to_thread(self._count_partitions, topic)
            except SiteSpiderError as error:
                logger.debug("The partitions of %s are not known now: %s", topic, error)
