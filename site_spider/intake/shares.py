"""Which partitions have more than their share of the seeds in flight.

Seeds are keyed by host, so a slow host is one partition's. Were seeds polled wherever there
are some, its seeds would fill the memory sooner or later, and the other partitions stand still
at its pace. So once all that may be in flight is taken but for a reserve, a partition with more than
its share is left alone, and the reserve is for the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from site_spider.contracts.seed_log import Partition

_RESERVE_SHARE = 1 / 4  # of what may be in flight
_MOST_RESERVED = 1_000  # seeds
_RESUME_SHARE = 3 / 4  # of either limit: each resume costs a fetch of what was fetched before


def reserve(capacity: int) -> int:
    """How many seeds of what may be in flight are for partitions that have less than their share."""
    return max(1, int(min(capacity * _RESERVE_SHARE, _MOST_RESERVED)))


class Shares:
    """Remembers who is left alone."""

    def __init__(self) -> None:
        self._over: frozenset[Partition] = frozenset()

    def over(self, in_flight: Mapping[Partition, int], capacity: int) -> frozenset[Partition]:
        """The partitions of which no more are to be polled, of all that are assigned."""
        if len(in_flight) < 2:
            self._over = frozenset()
            return self._over
        most = capacity - reserve(capacity)
        share = capacity / len(in_flight)
        total = sum(in_flight.values())
        self._over = frozenset(
            partition
            for partition, count in in_flight.items()
            if _is_over(total, most, was=bool(self._over))
            and _is_over(count, share, was=partition in self._over)
        )
        return self._over


def _is_over(count: int, limit: float, *, was: bool) -> bool:
    return count > (limit * _RESUME_SHARE if was else limit)
