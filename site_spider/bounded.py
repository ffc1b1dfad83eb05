"""What stays bounded whatever hosts and pages do: a histogram, counts by name, a dict that forgets, lines of a log."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, TypeVar

from site_spider import runtime

# --- Counts of durations and sizes in fixed buckets, cheap enough for every page -------------------------
# The buckets never change and nothing is ever removed, so two states subtract, and processes add up.

SECONDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 3600.0,
)  # fmt: skip

_SHARES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


class Histogram:
    """Values up to each bound; a last bucket takes what lies beyond. One thread observes, any may read."""

    __slots__ = ("bounds", "counts", "exemplars", "largest", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # in each bucket alone, not summed up
        self.exemplars: list[tuple[Any, float] | None] = [None] * len(self.counts)
        self.sum = 0.0
        self.largest = 0.0

    def observe(self, value: float, exemplar: Any = None) -> None:
        """Count a value. `exemplar` is kept as the latest of its bucket, with the value."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += 1
        self.sum += value
        if value > self.largest:  # noqa: PLR1730 - half the time of max()
            self.largest = value
        if exemplar is not None:
            self.exemplars[index] = exemplar, value

    def document(self) -> dict[str, Any]:
        """As JSON: count, sum, quantiles, and each bucket's bound (None: beyond all) with its count."""
        counts = list(self.counts)
        return {
            **_summary(self.bounds, counts, self.sum, self.largest),
            "max": round(self.largest, 6),
            "buckets": [list(pair) for pair in zip((*self.bounds, None), counts, strict=True)],
        }


def difference(found: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Count, sum and quantiles of the values between two documents of one histogram."""
    bounds = [bound for bound, _ in found["buckets"][:-1]]
    earlier = [count for _, count in before["buckets"]] if before else [0] * len(found["buckets"])
    counts = [count - less for (_, count), less in zip(found["buckets"], earlier, strict=True)]
    return _summary(bounds, counts, found["sum"] - (before["sum"] if before else 0), found["max"])


def _summary(bounds: Sequence[float], counts: Sequence[int], total: float, largest: float) -> dict[str, Any]:
    summary: dict[str, Any] = {"count": sum(counts), "sum": round(total, 6)}
    for name, share in _SHARES:
        value = _quantile(bounds, counts, largest, share)
        summary[name] = None if value is None else round(value, 6)
    return summary


def _quantile(bounds: Sequence[float], counts: Sequence[int], largest: float, share: float) -> float | None:
    rank, below, lower = share * sum(counts), 0, 0.0
    for bound, count in zip((*bounds, largest), counts, strict=True):
        if count and below + count >= rank:
            upper = max(lower, min(bound, largest))
            return lower + (upper - lower) * (rank - below) / count
        below, lower = below + count, bound
    return None


# --- name counts: counts names that come from outside, with a bound on how many --------------------------

_MOST_NAMES = 100  # distinct ones: each becomes a field of the index
_LONGEST_NAME = 80  # characters
_OTHER = "other"


class NameCounts:
    """Counts by names that come from outside: bounded in number and length, fit to be field names."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str) -> None:
        """Count one; names beyond the bound count as `other`."""
        name = name.strip()[:_LONGEST_NAME].replace(".", "_") or _OTHER
        if name not in self.counts and len(self.counts) >= _MOST_NAMES - (_OTHER not in self.counts):
            name = _OTHER
        self.counts[name] += 1


# --- A dict that forgets, so that what hosts and pages make it remember is bounded -----------------------

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """Holds at most `most` entries; the one that was set longest ago goes first.

    Any thread may write. Who goes through it while others write takes a copy first.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._lock = runtime.RLock()  # pop calls __delitem__

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            super().__setitem__(key, value)
            self.move_to_end(key)
            if len(self) > self._most:
                super().__delitem__(next(iter(self)))

    def __delitem__(self, key: K) -> None:
        with self._lock:
            super().__delitem__(key)

    def pop(self, key: K, *default: Any) -> Any:
        """As a dict's."""
        with self._lock:
            return super().pop(key, *default)


# --- log limit: bounds how many similar lines are logged in a minute -------------------------------------


class LogLimit:
    """Lets `count` lines pass in each period of `period_seconds` and counts the rest."""

    def __init__(self, count: int, period_seconds: float) -> None:
        self._count = count
        self._period_seconds = period_seconds
        self._began_at = -inf
        self._passed = 0
        self._held_back = 0

    def admit(self, now: float) -> bool:
        """Whether the event at `now` may have its line."""
        if now >= self._began_at + self._period_seconds:
            self._began_at = now
            self._passed = 0
        if self._passed >= self._count:
            self._held_back += 1
            return False
        self._passed += 1
        return True

    def take_held_back(self) -> int:
        """How many events had no line since this was last asked."""
        held_back, self._held_back = self._held_back, 0
        return held_back
