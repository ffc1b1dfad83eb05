"""The life-cycle of a seed, and the listeners that follow it.

    arrived -> may begin -> began -> last hold -> ended (complete, with an outcome) -> committed
                                              or fenced (its partition is another process's)

A feature that follows seeds is one listener, added in the wiring. Listeners are called in the order in
which they were added, on the event loop's thread, and do not raise. Each seed that arrived ends or is
fenced exactly once, and nothing is told of it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

    def written(self, job: Job, document: Mapping[str, Any]) -> None:
        """The document of one of its pages goes to the sinks."""

    def leaves(self, entry: Entry) -> None:
        """A copy of its message goes to a topic, and may come back before it has ended as spilled."""

    def last_hold(self, entry: Entry) -> None:
        """One thing is left that has to end."""

    def ended(self, entry: Entry) -> None:
        """It is complete; `entry.outcome` says how it ended."""

    def fenced(self, entry: Entry) -> None:
        """Its partition has left; whoever has that does the seed again."""

    def committed(self, positions: Mapping[Partition, Position | None]) -> None:
        """The group has committed these, or had when they were assigned; that stays so over a restart."""


_EVENTS = tuple(name for name in vars(SeedListener) if not name.startswith("_"))


class Lifecycle(SeedListener):
    """Tells those listeners that override what is told, which is one or two of ten."""

    def __init__(self) -> None:
        self._told: dict[str, list[Any]] = {event: [] for event in _EVENTS}

    def add(self, *listeners: SeedListener) -> None:
        """From now on these hear of seeds, too."""
        for listener in listeners:
            for event, told in self._told.items():
                if getattr(type(listener), event) is not getattr(SeedListener, event):
                    told.append(getattr(listener, event))

    def arrived(self, entry: Entry, message: Message, seed: Seed | SeedError) -> None:
        """As in SeedListener."""
        for tell in self._told["arrived"]:
            tell(entry, message, seed)

    def may_begin(self, entry: Entry) -> bool:
        """Whether no listener objects."""
        return all(ask(entry) for ask in self._told["may_begin"])

    def began(self, root: Root) -> None:
        """As in SeedListener."""
        for tell in self._told["began"]:
            tell(root)

    def unwritten(self, job: Job) -> None:
        """As in SeedListener."""
        for tell in self._told["unwritten"]:
            tell(job)

    def written(self, job: Job, document: Mapping[str, Any]) -> None:
        """As in SeedListener."""
        for tell in self._told["written"]:
            tell(job, document)

    def leaves(self, entry: Entry) -> None:
        """As in SeedListener."""
        for tell in self._told["leaves"]:
            tell(entry)

    def last_hold(self, entry: Entry) -> None:
        """As in SeedListener."""
        for tell in self._told["last_hold"]:
            tell(entry)

    def ended(self, entry: Entry) -> None:
        """As in SeedListener."""
        for tell in self._told["ended"]:
            tell(entry)

    def fenced(self, entry: Entry) -> None:
        """As in SeedListener."""
        for tell in self._told["fenced"]:
            tell(entry)

    def committed(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in SeedListener."""
        for tell in self._told["committed"]:
            tell(positions)
