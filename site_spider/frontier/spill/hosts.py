"""Which process owns which host, when seeds are keyed by host (SITE_HOST_OWNERSHIP).

A host belongs to the partition where a seed with its key goes, and to whichever process that
partition is assigned to. With several tiers it has one in each. What is polled from a partition is
crawled here all the same, whatever its key says, so nothing goes to and fro.
"""

from __future__ import annotations

from functools import lru_cache

from site_spider.contracts.seed_log import Partition
from site_spider.intake.seed_queue import TopicPartitions
from site_spider.seed.tiers import partition_of

_number_of = lru_cache(maxsize=10_000)(partition_of)


class Ownership:
    """On the event loop's thread only."""

    def __init__(self, partitions: TopicPartitions) -> None:
        self._partitions = partitions
        self._looked: tuple[tuple[int, ...], frozenset[Partition]] = (partitions.counts(), frozenset())

    def owns(self, host: str, topic: str) -> bool:
        """Whether a request to this host is made here. While the partitions are not known, all are."""
        count = self._partitions.count(topic)
        return not count or self._partitions.owns(Partition(topic, _number_of(host.encode(), count)))

    def look(self) -> bool:
        """True when hosts have changed hands since the last look; to be called now and then."""
        found = self._partitions.counts(), self._partitions.assigned()
        before, self._looked = self._looked, found
        return before != found
