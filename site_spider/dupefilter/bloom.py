"""Marks in a Bloom filter: few bytes each, with rare mistakes.

A mistake takes a page for done that was never fetched. A Bloom filter that gets more than it
was made for makes more and more of them. So there are two at most: when the young one is
full, it becomes the old one, and what was in the old one before is forgotten and will be
fetched again. At least the last `capacity` fingerprints are remembered, and the rate of
mistakes never passes what was asked for. The second one takes memory only once it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from rbloom import Bloom

from site_spider.contracts.done_store import bloom_limits
from site_spider.options import SettingsView


class BloomDone:
    """Fulfils dupefilter.seen.Done."""

    def __init__(self, capacity: int, error_rate: float) -> None:
        self._capacity = capacity
        self.error_rate = error_rate
        self._young = self._empty()
        self._old: Bloom | None = None
        self._count = 0  # in the young one

    @classmethod
    def from_settings(cls, settings: SettingsView, _now: Callable[[], float]) -> Self:
        """As SITE_BLOOM_CAPACITY and SITE_BLOOM_ERROR_RATE say. Raises ConfigError."""
        return cls(*bloom_limits(settings))

    def __contains__(self, fingerprint: bytes, /) -> bool:
        """Whether it was added, or seems so."""
        return fingerprint in self._young or (self._old is not None and fingerprint in self._old)

    def add(self, fingerprint: bytes, /) -> None:
        """Keep it."""
        if fingerprint in self._young:
            return
        if self._count == self._capacity:
            self._old, self._young, self._count = self._young, self._empty(), 0
        self._young.add(fingerprint)
        self._count += 1

    @property
    def size_bytes(self) -> int:
        """The memory of both filters."""
        return sum(filter_.size_in_bits for filter_ in (self._young, self._old) if filter_) // 8

    def _empty(self) -> Bloom:
        # Python's own hash of bytes: 64 bits, other ones in each process, and the fastest by far
        return Bloom(self._capacity, self.error_rate / 2)  # each of the two contributes its own errors
