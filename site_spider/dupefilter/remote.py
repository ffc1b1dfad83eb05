"""What this process knows of a store of marks outside it.

Theory of operation. Scrapy asks for one request at a time and cannot wait. So questions and
answers go round it: before requests are handed to the scheduler, `unknown` picks those that
nothing is known of here, somebody asks the store, and `learn` takes in what it knows. From
then on `in` answers at once. What the store does not know needs no note: it counts as new.

Marks (`add`) wait here until somebody has carried them off: `take` hands out a batch, and
`written` says that the store has it. At any moment a mark is pending, under way, or known.

Both sides are bounded. What falls out is asked for again, or fetched again: never lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from site_spider.bounded_dict import BoundedDict


class RemoteDone:
    """The near side of a store that is elsewhere; fulfils dupefilter.seen.Done.

    `known_limit` and `pending_limit` count fingerprints; what the store said counts for
    `known_seconds` of the clock `now`.
    """

    def __init__(
        self, known_limit: int, pending_limit: int, known_seconds: float, now: Callable[[], float]
    ) -> None:
        self._pending_limit = pending_limit
        self._known_seconds = known_seconds
        self._now = now
        self._known: BoundedDict[bytes, float] = BoundedDict(known_limit)  # until when
        self._pending: OrderedDict[bytes, None] = OrderedDict()
        self._under_way: dict[bytes, None] = {}
        self._dropped = 0  # marks that found no room

    @property
    def waiting(self) -> int:
        """How many marks the store does not have yet."""
        return len(self._pending) + len(self._under_way)

    def __contains__(self, fingerprint: bytes, /) -> bool:
        """Whether it is known here to be done."""
        until = self._known.get(fingerprint)
        if until is not None and until > self._now():
            return True
        return fingerprint in self._pending or fingerprint in self._under_way

    def add(self, fingerprint: bytes, /) -> None:
        """It is done: a mark for the store."""
        self._pending[fingerprint] = None
        if len(self._pending) > self._pending_limit:
            self._pending.popitem(last=False)
            self._dropped += 1

    def unknown(self, fingerprints: Iterable[bytes]) -> list[bytes]:
        """Those of them that the store has to be asked for, each once."""
        return [fingerprint for fingerprint in dict.fromkeys(fingerprints) if fingerprint not in self]

    def learn(self, fingerprints: Iterable[bytes]) -> None:
        """The store has these."""
        until = self._now() + self._known_seconds
        for fingerprint in fingerprints:
            self._known[fingerprint] = until

    def take_dropped(self) -> int:
        """How many marks found no room since this was asked the last time."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def take(self, limit: int) -> list[bytes]:
        """The next marks for the store, at most `limit`; the same ones until they are written."""
        while self._pending and len(self._under_way) < limit:
            fingerprint, _ = self._pending.popitem(last=False)
            self._under_way[fingerprint] = None
        return list(self._under_way)

    def written(self) -> None:
        """The store has what `take` handed out."""
        self.learn(self._under_way)
        self._under_way = {}
