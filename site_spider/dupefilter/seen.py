"""Which pages were met: done, or in flight for a seed."""

from __future__ import annotations

from collections.abc import Hashable, Sized

from site_spider.bounded import BoundedDict
from site_spider.dupefilter.filters import Done
from site_spider.ledger.completion import SeedListener
from site_spider.ledger.ledger import Outcome, SeedInFlight

# Theory of operation.
# Rule 5, seen means done: a fingerprint is kept for good only when the seed on whose behalf
# it was met is complete. Until then it is in flight, in memory only, and forgotten together
# with its seed when that is handed to another process, which will meet it anew. Were it
# kept at the end of its own request, a repeated seed would skip a page whose links were
# still queued when the seed was handed over, and lose them.
#
# A page that was sent back to the seed topic is *spilled*: a seed of its own, durable there or about to
# be, that some process will do. So it is neither in flight nor done here, and yet not spilled twice,
# as long as there is room to remember it. When that seed arrives, here or anywhere, it is
# compared with what is in flight and done, and not with what was spilled: it would be a duplicate
# of itself. It may end as the duplicate of a page in flight elsewhere, whose seed then goes to this
# process: so what was spilled is forgotten when partitions come.
#
# Where tasks share what is done, each says its name: what is in flight, or spilled, for one of them may
# never be fetched (it is cancelled, say), and counts as met for that task alone.

_Page = bytes | tuple[str, bytes]  # its fingerprint, with its task where that shares what is done
_FINGERPRINT_BYTES = 97  # in a set, as measured
SPILLED_LIMIT = 200_000  # pages that were spilled; what is forgotten may be spilled, and compared, once more


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
        known = len(self._seeds) + len(self._spilled) if self.known is None else self.known
        return known * _FINGERPRINT_BYTES + int(getattr(self.done, "size_bytes", 0))

    def knows(self, fingerprint: bytes, task: str | None = None) -> bool:
        """Whether `begin` would be False; it counts as met, but nothing is remembered."""
        page = fingerprint if task is None else (task, fingerprint)
        return page in self._seeds or page in self._spilled or fingerprint in self.done

    def is_met_for(self, fingerprint: bytes, seed: Hashable, task: str | None = None) -> bool:
        """Whether it is in flight for `seed`, or was spilled from there."""
        page = fingerprint if task is None else (task, fingerprint)
        return seed in (self._seeds.get(page), self._spilled.get(page))

    def begin(self, fingerprint: bytes, seed: Hashable, task: str | None = None) -> bool:
        """True when it is met for the first time; it is then in flight for `seed`."""
        page = fingerprint if task is None else (task, fingerprint)
        if page in self._seeds or page in self._spilled or fingerprint in self.done:
            return False
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

    def partitions_came(self) -> None:
        """What was spilled may be wanted again; else it is compared where it arrives, once more."""
        self._spilled.clear()

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


class SeenMarks(SeedListener):
    """Keeps what a seed met for good when that ends with a result (rule 5)."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def assigned(self) -> None:
        self._seen.partitions_came()

    def ended(self, entry: SeedInFlight) -> None:
        if entry.outcome is Outcome.RESULT:
            self._seen.complete(entry)
        else:
            self._seen.forget(entry)  # what did not end well may be sent, or put back, and is wanted then

    def fenced(self, entry: SeedInFlight) -> None:
        self._seen.forget(entry)

    leaves = fenced  # what comes back is no duplicate of it
