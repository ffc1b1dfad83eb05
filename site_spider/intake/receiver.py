"""The interface through which the intake hands over messages and rebalances."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.errors import SeedError
from site_spider.seed.seed import Seed


class Arrival(NamedTuple):
    """A polled message, and what it says or why it says nothing valid."""

    message: Message
    seed: Seed | SeedError


class Receiver(Protocol):
    """Who takes the seeds; called on the event loop's thread, but for `room`."""

    def room(self) -> int:
        """How many more seeds may be polled now. Called on the intake's thread: reads only."""

    def capacity(self) -> int:
        """What `room` is with nothing in flight. Called on the intake's thread: reads only."""

    def too_wide(self) -> Set[Partition]:
        """Partitions of which no more may be polled for now. Called on the intake's thread: reads only."""

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Messages were polled."""

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in Listener."""

    def revoked(self, partitions: Sequence[Partition]) -> Awaitable[Mapping[Partition, Position]]:
        """As in Listener; may take a while. The assignment that ends is that of the moment of the call."""

    def lost(self, partitions: Sequence[Partition]) -> None:
        """As in Listener."""

    def reached(self, partition: Partition, offset: int) -> None:
        """As in Listener."""

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        """As in Listener."""
