"""Where fingerprints of pages stay for good: dupefilters that forget, or take few bytes of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, Self

from rbloom import Bloom

from site_spider import options
from site_spider.contracts.done_store import bloom_limits
from site_spider.errors import ConfigError
from site_spider.options import SettingsView


class Done(Protocol):
    """Where fingerprints stay for good."""

    def __contains__(self, fingerprint: bytes, /) -> bool:
        """Whether it was added."""

    def add(self, fingerprint: bytes, /) -> None:
        """Keep it."""


# --- Marks in a Bloom filter: few bytes each, with rare mistakes -----------------------------------------
# A mistake takes a page for done that was never fetched. A Bloom filter that gets more than it was made for
# makes more and more of them. So there are two at most: when the young one is full, it becomes the old one,
# and what was in the old one before is forgotten and will be fetched again. At least the last `capacity`
# fingerprints are remembered, and the rate of mistakes never passes what was asked for. The second one
# takes memory only once it is needed.


class BloomDone:
    """Fulfils Done."""

    def __init__(self, capacity: int, error_rate: float) -> None:
        self._capacity = capacity
        self.error_rate = error_rate
        self._young = self._empty()
        self._old: Bloom | None = None
        self._count = 0  # in the young one

    @classmethod
    def from_settings(cls, settings: SettingsView, _now: Callable[[], float]) -> Self:
        return cls(*bloom_limits(settings))

    def __contains__(self, fingerprint: bytes, /) -> bool:
        return fingerprint in self._young or (self._old is not None and fingerprint in self._old)

    def add(self, fingerprint: bytes, /) -> None:
        if fingerprint in self._young:
            return
        if self._count == self._capacity:
            self._old, self._young, self._count = self._young, self._empty(), 0
        self._young.add(fingerprint)
        self._count += 1

    @property
    def size_bytes(self) -> int:
        return sum(filter_.size_in_bits for filter_ in (self._young, self._old) if filter_) // 8

    def _empty(self) -> Bloom:
        # Python's own hash of bytes: 64 bits, other ones in each process, and the fastest by far
        return Bloom(self._capacity, self.error_rate / 2)  # each of the two contributes its own errors


# --- Marks that expire: by age, by count, or by hits -----------------------------------------------------


class RollingDone:
    """Fulfils Done. To ask for a fingerprint is to meet it: it counts as a hit.

    It is forgotten `seconds` after it was done, when `count` others were done after it, and when it was met
    and filtered `hits` times since; 0: never for that reason.
    """

    def __init__(self, now: Callable[[], float], seconds: float = 0, count: int = 0, hits: int = 0) -> None:
        self._now = now
        self._seconds, self._count, self._most_hits = seconds, count, hits
        self._done: OrderedDict[bytes, float] = OrderedDict()  # since when; the oldest first
        self._hits: dict[bytes, int] = {}  # of those that were hit

    @classmethod
    def from_settings(cls, settings: SettingsView, now: Callable[[], float]) -> Self:
        seconds = options.seconds(settings, "SITE_ROLLING_SECONDS")
        count = options.integer(settings, "SITE_ROLLING_COUNT")
        if not seconds and not count:
            raise ConfigError(
                "SITE_ROLLING_SECONDS and SITE_ROLLING_COUNT are both 0, so nothing would bound the memory "
                "of SITE_DUPEFILTER=rolling; set one of them, or use SITE_DUPEFILTER=memory."
            )
        return cls(now, seconds, count, options.integer(settings, "SITE_ROLLING_HITS"))

    def __len__(self) -> int:
        """How many are kept; some of them may be too old."""
        return len(self._done)

    def __contains__(self, fingerprint: bytes, /) -> bool:
        """Whether it was added and is not forgotten; a hit if so."""
        self._forget_old()
        if fingerprint not in self._done:
            return False
        if self._most_hits:
            self._hit(fingerprint)
        return True

    def add(self, fingerprint: bytes, /) -> None:
        self._forget_old()
        self._forget(fingerprint)  # its time begins anew
        self._done[fingerprint] = self._now() if self._seconds else 0.0
        if self._count and len(self._done) > self._count:
            self._forget(next(iter(self._done)))

    def _hit(self, fingerprint: bytes) -> None:
        hits = self._hits.get(fingerprint, 0) + 1
        if hits >= self._most_hits:
            self._forget(fingerprint)
        else:
            self._hits[fingerprint] = hits

    def _forget_old(self) -> None:
        if not self._seconds:
            return
        before = self._now() - self._seconds
        while self._done:
            fingerprint = next(iter(self._done))
            if self._done[fingerprint] > before:
                return
            self._forget(fingerprint)

    def _forget(self, fingerprint: bytes) -> None:
        self._done.pop(fingerprint, None)
        self._hits.pop(fingerprint, None)
