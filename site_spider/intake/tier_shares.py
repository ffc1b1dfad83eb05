"""How many seeds of each tier may be in flight.

Seeds are in flight long after they were polled, and cannot be given back. Were they polled wherever there are
some, the tier with the largest backlog would take all that may be in flight, and the others wait for it.
So each tier has a share by its weight, of those of which this process has partitions. Half of what a tier
leaves unused is lent to the others; the other half stays free, so that it can begin at once.
"""

from __future__ import annotations

from collections.abc import Mapping

_LENT_SHARE = 1 / 2
_RESUME_SHARE = 1 / 4  # of its own share free again, before a tier goes on
LEAST = 8  # seeds of a tier, also when memory is full or all that may be in flight is taken


class TierShares:
    """Remembers who has too many."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._over: frozenset[str] = frozenset()

    def room(self, in_flight: Mapping[str, int], most: int) -> dict[str, int]:
        """How many more of each tier may be polled; 0 of those that have too many.

        `in_flight` names the tiers of which partitions are assigned.
        """
        own = self._own(in_flight, most)
        unused = {tier: max(0.0, own[tier] - count) for tier, count in in_flight.items()}
        borrowed = sum(max(0.0, count - own[tier]) for tier, count in in_flight.items())
        lent = _LENT_SHARE * sum(unused.values())
        room = {
            tier: int(free + max(0.0, lent - _LENT_SHARE * free - borrowed)) for tier, free in unused.items()
        }
        self._over = frozenset(
            tier
            for tier, free in room.items()
            if free < (max(1.0, _RESUME_SHARE * own[tier]) if tier in self._over else 1.0)
        )
        return {tier: 0 if tier in self._over else free for tier, free in room.items()}

    def least(self, in_flight: Mapping[str, int], most: int) -> dict[str, int]:
        """How many more of each may be polled where there is no room any more."""
        own = self._own(in_flight, most)
        return {tier: max(0, min(LEAST, int(own[tier])) - count) for tier, count in in_flight.items()}

    def _own(self, tiers: Mapping[str, int], most: int) -> dict[str, float]:
        whole = sum(self._weights[tier] for tier in tiers)
        return {tier: max(1.0, most * self._weights[tier] / whole) for tier in tiers}
