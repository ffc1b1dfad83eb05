"""Which requests were met before: done for good, or in flight on behalf of a seed.

Rule 5, seen means done: a fingerprint is kept for good only when the seed on whose behalf
it was met is complete. Until then it is in flight, in memory only, and forgotten together
with its seed when that is handed to another process, which will meet it anew. Were it
kept at the end of its own request, a replayed seed would skip a page whose links were
still queued when the seed was handed over, and lose them.

A page that was sent to the seed topic is *sent*: a seed of its own, durable there or about to
be, that some process will do. So it is neither in flight nor done here, and yet not sent twice,
as long as there is room to remember it. When that seed arrives, here or anywhere, it is
compared with what is in flight and done, and not with what was sent: it would be a duplicate
of itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from site_spider.bounded_dict import BoundedDict

SENT_LIMIT = 200_000  # pages that were sent; what is forgotten may be sent, and compared, once more


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
        self._owners: dict[bytes, Hashable] = {}
        self._owned: dict[Hashable, list[bytes]] = {}
        # the oldest first; with the owner while that is not complete, and may have to send it again
        self._sent: BoundedDict[bytes, Hashable | None] = BoundedDict(SENT_LIMIT)

    def knows(self, fingerprint: bytes) -> bool:
        """Whether `begin` would be False; it counts as met, but nothing is remembered."""
        return fingerprint in self._owners or fingerprint in self._sent or fingerprint in self.done

    def begin(self, fingerprint: bytes, owner: Hashable | None) -> bool:
        """True when it is met for the first time; it is then in flight for `owner`.

        Without an owner (a request that belongs to no seed) it is done at once.
        """
        if self.knows(fingerprint):
            return False
        if owner is None:
            self.done.add(fingerprint)
        else:
            self._owners[fingerprint] = owner
            self._owned.setdefault(owner, []).append(fingerprint)
        return True

    def send(self, fingerprint: bytes, owner: Hashable) -> None:
        """What is in flight for `owner` goes to the seed topic; nothing happens to what is not."""
        if self._owners.get(fingerprint) == owner:
            del self._owners[fingerprint]
            self._sent[fingerprint] = owner

    def arrive(self, fingerprint: bytes) -> None:
        """It comes from the seed topic, or could not be sent there: it does not count as sent any more."""
        self._sent.pop(fingerprint, None)

    def complete(self, owner: Hashable) -> None:
        """The owner's work has ended well: what it met, and did not send away, is done for good."""
        for fingerprint in self._owned.pop(owner, ()):
            if self._owners.get(fingerprint) == owner:
                del self._owners[fingerprint]
                self.done.add(fingerprint)
            elif self._sent.get(fingerprint) == owner:
                self._sent[fingerprint] = None

    def forget(self, owner: Hashable) -> None:
        """The owner's work goes elsewhere: what it met counts as never met, and what it sent as not sent."""
        for fingerprint in self._owned.pop(owner, ()):
            if self._owners.get(fingerprint) == owner:
                del self._owners[fingerprint]
            elif self._sent.get(fingerprint) == owner:
                del self._sent[fingerprint]
