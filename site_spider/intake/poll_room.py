"""How many more seeds may be polled, and which partitions are paused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from math import inf

from site_spider.contracts.seed_log import Partition
from site_spider.intake.load import Load
from site_spider.intake.poll_limit import PollLimit
from site_spider.intake.shares import Shares, reserve
from site_spider.intake.tier_shares import TierShares
from site_spider.ledger.ledger import Ledger

logger = logging.getLogger(__name__)

_FULL_SHARE = 0.9
_NEARLY_FULL = 500  # seeds below the limit


@dataclass(frozen=True, slots=True)
class SeedLimits:
    """How much may be in flight."""

    seeds: int
    span_offsets: int  # from the watermark of a partition to what is polled next


class PollRoom:
    """`now`, `capacity` and `closed` are read by any thread, the rest belongs to the event loop's."""

    def __init__(
        self,
        ledger: Ledger,
        load: Load,
        limits: SeedLimits,
        may_poll: Callable[[], bool],
        weights: Mapping[str, float] | None = None,  # by tier, where there are several
        has_tasks: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ledger = ledger
        self._load = load
        self._limits = limits
        self._may_poll = may_poll
        self._has_tasks = has_tasks  # that share what is polled
        self._poll_limit = PollLimit(limits.seeds)
        # of one partition: it is seen to have its share before the others' reserve is gone
        self._most_at_once = max(1, reserve(limits.seeds) // 2)
        self._too_wide: Set[Partition] = frozenset()
        self._closed: Set[Partition] = frozenset()
        self._shares = Shares()
        self._tiers = TierShares(weights or {})
        self._tier_room: float = inf  # of the tier with the least, of those that go on
        self._least = 0  # that may be polled though there is no room

    def now(self) -> int:
        """How many seeds may be polled now."""
        if not self._may_poll():
            return 0
        room = min(self._poll_limit.now - self._ledger.in_flight, self._load.seed_room())
        return int(min(max(room, self._least), self._most_at_once, self._tier_room))

    def capacity(self) -> int:
        """How many seeds may be polled while none is in flight."""
        capacity = min(self._poll_limit.now, self._load.seed_capacity(), self._most_at_once)
        return int(min(self._least or capacity, capacity, self._tier_room))

    def closed(self) -> Set[Partition]:
        """Partitions whose slowest seed is too far behind, or that have more than their share."""
        return self._closed

    def is_full(self) -> bool:
        """Whether about all that may be in flight is taken."""
        return self._ledger.in_flight >= _FULL_SHARE * (self._limits.seeds - reserve(self._limits.seeds))

    def starved(self) -> None:
        """Nothing of what waits can be downloaded now: seeds for other hosts may lie behind."""
        self._poll_limit.starved(self._ledger.in_flight)

    def look(self) -> None:
        """See how far the partitions have come; to be called now and then."""
        ledger, limit = self._ledger, self._limits.span_offsets
        mine = ledger.partitions()
        self._poll_limit.look(ledger.in_flight)
        if ledger.in_flight > self._poll_limit.now - _NEARLY_FULL and self._has_tasks():
            self._poll_limit.starved(ledger.in_flight)
        wide = frozenset(partition for partition in mine if ledger.span(partition) >= limit)
        for partition in wide - self._too_wide:
            logger.warning(
                "%s/%d: %d offsets are not committed behind a seed that takes long; no more are polled there "
                "until it ends (SITE_MAX_SPAN_OFFSETS)",
                *partition,
                ledger.span(partition),
            )
        self._too_wide = wide
        in_flight = {partition: ledger.open_count(partition) for partition in mine}
        self._closed = wide | self._shares.over(in_flight, self._limits.seeds) | self._over_tiers(in_flight)

    def _over_tiers(self, in_flight: Mapping[Partition, int]) -> Set[Partition]:
        """The partitions of tiers that have their share; of all but the least of tiers, where all is full."""
        by_tier: Counter[str] = Counter()
        for partition, count in in_flight.items():
            by_tier[partition.topic] += count
        if len(by_tier) < 2:
            self._tier_room, self._least = inf, 0
            return frozenset()
        most = self._poll_limit.now
        is_full = self._load.seed_room() <= 0 or self._ledger.in_flight >= most
        room = self._tiers.room(by_tier, most)
        if is_full:
            room = self._tiers.least(by_tier, most)
        open_rooms = [count for count in room.values() if count]
        self._tier_room = min(open_rooms, default=inf)
        self._least = min(open_rooms, default=0) if is_full else 0
        return frozenset(partition for partition in in_flight if not room[partition.topic])
