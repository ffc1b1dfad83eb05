"""Which pages were met: done, or in flight for a seed.

Rule 5, seen means done: a fingerprint is kept for good only when the seed on whose behalf
it was met is complete. Until then it is in flight, in memory only, and forgotten together
with its seed when that is handed to another process, which will meet it anew. Were it
kept at the end of its own request, a repeated seed would skip a page whose links were
still queued when the seed was handed over, and lose them.

A page that was sent back to the seed topic is *spilled*: a seed of its own, durable there or about to
be, that some process will do. So it is neither in flight nor done here, and yet not spilled twice,
as long as there is room to remember it. When that seed arrives, here or anywhere, it is
compared with what is in flight and done, and not with what was spilled: it would be a duplicate
of itself.

Where tasks share what is done, each says its name: what is in flight, or spilled, for one of them may
never be fetched (it is cancelled, say), and counts as met for that task alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sized
from typing import Protocol, Self

from rbloom import Bloom

from site_spider import options
from site_spider.bounded import BoundedDict
from site_spider.contracts.done_store import bloom_limits
from site_spider.errors import ConfigError
from site_spider.options import SettingsView

_Page = bytes | tuple[str, bytes]  # its fingerprint, with its task where that shares what is done
_FINGERPRINT_BYTES = 97  # in a set, as measured
SPILLED_LIMIT = 200_000  # pages that were spilled; what is forgotten may be spilled, and compared, once more


class Done(Protocol):
    """Where fingerprints stay for good."""

    def __contains__(self, fingerprint: bytes, /) -> bool:
        """Whether it was added."""

    def add(self, fingerprint: bytes, /) -> None:
        """Keep it."""


class Seen:
    """Fingerprints in flight in front of a store of those that are done."""

    def __init__(self, done: Done | None = None) -> None:
        self.done: Done = set() if done is None else done
        self._seeds: dict[_Page, Hashable] = {}
        self._met_for: dict[Hashable, list[_Page]] = {}
        # the oldest first; with the seed while that is not complete, and may have to spill it again
        self._spilled: BoundedDict[_Page, Hashable | None] = BoundedDict(SPILLED_LIMIT)

    @property
    def known(self) -> int | None:
        """How many fingerprints it has in this process; None where the kind of store cannot count them."""
        if not isinstance(self.done, Sized):
            return None
        return len(self._seeds) + len(self._spilled) + len(self.done)

    @property
    def size_bytes(self) -> int:
        """The memory of it, as estimated; what is kept outside the process does not count."""
        kept = len(self.done) if isinstance(self.done, Sized) else 0
        known = len(self._seeds) + len(self._spilled) + kept
        return known * _FINGERPRINT_BYTES + int(getattr(self.done, "size_bytes", 0))

    def knows(self, fingerprint: bytes, task: str | None = None) -> bool:
        """Whether `begin` would be False; it counts as met, but nothing is remembered."""
        page = fingerprint if task is None else (task, fingerprint)
        return page in self._seeds or page in self._spilled or fingerprint in self.done

    def begin(self, fingerprint: bytes, seed: Hashable | None, task: str | None = None) -> bool:
        """True when it is met for the first time; it is then in flight for `seed`.

        Without a seed (a request that belongs to no seed) it is done at once.
        """
        page = fingerprint if task is None else (task, fingerprint)
        if page in self._seeds or page in self._spilled or fingerprint in self.done:
            return False
        if seed is None:
            self.done.add(fingerprint)
        else:
            self._seeds[page] = seed
            self._met_for.setdefault(seed, []).append(page)
        return True

    def spill(self, fingerprint: bytes, seed: Hashable, task: str | None = None) -> None:
        """What is in flight for `seed` goes to the seed topic; nothing happens to what is not."""
        page = fingerprint if task is None else (task, fingerprint)
        if self._seeds.get(page) == seed:
            del self._seeds[page]
            self._spilled[page] = seed

    def drop(self, fingerprint: bytes, seed: Hashable, task: str | None = None) -> None:
        """What is in flight for `seed` ends without being fetched: it counts as never met."""
        page = fingerprint if task is None else (task, fingerprint)
        if self._seeds.get(page) == seed:
            del self._seeds[page]

    def arrive(self, fingerprint: bytes, task: str | None = None) -> None:
        """It comes from the seed topic, or could not be sent there: it does not count as spilled any more."""
        if self._spilled:
            self._spilled.pop(fingerprint if task is None else (task, fingerprint), None)

    def complete(self, seed: Hashable) -> None:
        """It has ended well: what was met for it, and was not spilled, is done for good."""
        for page in self._met_for.pop(seed, ()):
            if self._seeds.get(page) == seed:
                del self._seeds[page]
                self.done.add(page if isinstance(page, bytes) else page[1])
            elif self._spilled.get(page) == seed:
                self._spilled[page] = None

    def forget(self, seed: Hashable) -> None:
        """It goes to another process: its pages count as never met, and as never spilled."""
        for page in self._met_for.pop(seed, ()):
            if self._seeds.get(page) == seed:
                del self._seeds[page]
            elif self._spilled.get(page) == seed:
                del self._spilled[page]


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
