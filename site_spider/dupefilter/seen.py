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
"""

from __future__ import annotations

from collections.abc import Hashable, Sized
from typing import Protocol

from site_spider.bounded_dict import BoundedDict

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
        self._seeds: dict[bytes, Hashable] = {}
        self._met_for: dict[Hashable, list[bytes]] = {}
        # the oldest first; with the seed while that is not complete, and may have to spill it again
        self._spilled: BoundedDict[bytes, Hashable | None] = BoundedDict(SPILLED_LIMIT)

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

    def knows(self, fingerprint: bytes) -> bool:
        """Whether `begin` would be False; it counts as met, but nothing is remembered."""
        return fingerprint in self._seeds or fingerprint in self._spilled or fingerprint in self.done

    def begin(self, fingerprint: bytes, seed: Hashable | None) -> bool:
        """True when it is met for the first time; it is then in flight for `seed`.

        Without a seed (a request that belongs to no seed) it is done at once.
        """
        if self.knows(fingerprint):
            return False
        if seed is None:
            self.done.add(fingerprint)
        else:
            self._seeds[fingerprint] = seed
            self._met_for.setdefault(seed, []).append(fingerprint)
        return True

    def spill(self, fingerprint: bytes, seed: Hashable) -> None:
        """What is in flight for `seed` goes to the seed topic; nothing happens to what is not."""
        if self._seeds.get(fingerprint) == seed:
            del self._seeds[fingerprint]
            self._spilled[fingerprint] = seed

    def arrive(self, fingerprint: bytes) -> None:
        """It comes from the seed topic, or could not be sent there: it does not count as spilled any more."""
        self._spilled.pop(fingerprint, None)

    def complete(self, seed: Hashable) -> None:
        """It has ended well: what was met for it, and was not spilled, is done for good."""
        for fingerprint in self._met_for.pop(seed, ()):
            if self._seeds.get(fingerprint) == seed:
                del self._seeds[fingerprint]
                self.done.add(fingerprint)
            elif self._spilled.get(fingerprint) == seed:
                self._spilled[fingerprint] = None

    def forget(self, seed: Hashable) -> None:
        """It goes to another process: its pages count as never met, and as never spilled."""
        for fingerprint in self._met_for.pop(seed, ()):
            if self._seeds.get(fingerprint) == seed:
                del self._seeds[fingerprint]
            elif self._spilled.get(fingerprint) == seed:
                del self._spilled[fingerprint]
