"""The life-cycle of a seed, and the listeners that follow it.

    arrived -> may begin -> began -> last hold -> ended (complete, with an outcome) -> committed
                                              or fenced (its partition is another process's)

A feature that follows seeds is one listener, added in the wiring. Listeners are called in the order in
which they were added, on the event loop's thread, and do not raise. Each seed that arrived ends or is
fenced exactly once, and nothing is told of it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.errors import SeedError
from site_spider.ledger.entry import Entry
from site_spider.ledger.lineage import Job, Root
from site_spider.seed.seed import Seed


class SeedListener:
    """Hears of seeds; what it does not override does nothing."""

    def arrived(self, entry: Entry, message: Message, seed: Seed | SeedError) -> None:
        """The ledger has opened an entry for a polled message, whether it is a valid seed or not."""

    def may_begin(self, entry: Entry) -> bool:  # noqa: ARG002 - for those that override it
        """Whether a seed may begin now; one that may not is asked about again later."""
        return True

    def began(self, root: Root) -> None:
        """Its first request is given out."""

    def unwritten(self, job: Job) -> None:
        """All requests of one of its jobs have ended without a result. The seed is held meanwhile."""

    def last_hold(self, entry: Entry) -> None:
        """One thing is left that has to end."""

    def ended(self, entry: Entry) -> None:
        """It is complete; `entry.outcome` says how it ended."""

    def fenced(self, entry: Entry) -> None:
        """Its partition has left; whoever has that does the seed again."""

    def committed(self, positions: Mapping[Partition, Position | None]) -> None:
        """The group has committed these; what is complete stays so over a restart."""


class Lifecycle(SeedListener):
    """Tells all listeners."""

    def __init__(self) -> None:
        self._listeners: list[SeedListener] = []

    def add(self, *listeners: SeedListener) -> None:
        """From now on these hear of seeds, too."""
        self._listeners += listeners

    def arrived(self, entry: Entry, message: Message, seed: Seed | SeedError) -> None:
        """As in SeedListener."""
        for listener in self._listeners:
            listener.arrived(entry, message, seed)

    def may_begin(self, entry: Entry) -> bool:
        """Whether no listener objects."""
        return all(listener.may_begin(entry) for listener in self._listeners)

    def began(self, root: Root) -> None:
        """As in SeedListener."""
        for listener in self._listeners:
            listener.began(root)

    def unwritten(self, job: Job) -> None:
        """As in SeedListener."""
        for listener in self._listeners:
            listener.unwritten(job)

    def last_hold(self, entry: Entry) -> None:
        """As in SeedListener."""
        for listener in self._listeners:
            listener.last_hold(entry)

    def ended(self, entry: Entry) -> None:
        """As in SeedListener."""
        for listener in self._listeners:
            listener.ended(entry)

    def fenced(self, entry: Entry) -> None:
        """As in SeedListener."""
        for listener in self._listeners:
            listener.fenced(entry)

    def committed(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in SeedListener."""
        for listener in self._listeners:
            listener.committed(positions)
