"""What waits for one host: a queue for each level."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

URGENT = -(10**12)  # before every level


class HostPolicy(NamedTuple):
    """How a host may be visited."""

    concurrency: int = 8  # requests out at a time
    delay_seconds: float = 0.0  # between the starts of two


class Item(NamedTuple, Generic[T]):
    """What waits, and since when."""

    since: float  # pushed, or due
    number: int
    value: T


class HostQueue(Generic[T]):
    """The items of one host by level, and when the host may be served."""

    __slots__ = (
        "closed", "levels", "name", "next_at", "out", "policy", "queues", "reason", "urgent_at", "version",
    )  # fmt: skip

    def __init__(self, name: str, policy: HostPolicy) -> None:
        self.name = name
        self.policy = policy
        self.queues: dict[int, deque[Item[T]]] = {}
        self.levels: list[int] = []  # heap of the keys of `queues`
        self.out = 0
        self.next_at = -inf
        self.reason = "delay"  # why it waits until `next_at`
        self.urgent_at = inf  # nothing of it is urgent before
        self.closed = ""  # why nothing of it starts, whatever the time
        self.version = 0

    def add(self, level: int, item: Item[T], max_wait_seconds: float) -> bool:
        """True when the item is the first of its level."""
        queue = self.queues.get(level)
        if queue is not None:
            queue.append(item)
            return False
        self.queues[level] = deque((item,))
        heappush(self.levels, level)
        self.urgent_at = min(self.urgent_at, item.since + max_wait_seconds)
        return True

    def restore(self, level: int, item: Item[T], max_wait_seconds: float) -> None:
        """Put an item that was taken back where it was."""
        queue = self.queues.get(level)
        if queue is None:
            self.add(level, item, max_wait_seconds)
        else:
            queue.appendleft(item)
            self.urgent_at = min(self.urgent_at, item.since + max_wait_seconds)

    def best(self, now: float, max_wait_seconds: float) -> tuple[int, int]:
        """The level to serve, and the one under which the host competes."""
        if now >= self.urgent_at:
            oldest = min(self.queues, key=lambda level: self.queues[level][0][:2])  # since, number
            self.urgent_at = self.queues[oldest][0].since + max_wait_seconds
            if now >= self.urgent_at:
                return oldest, URGENT
        return self.levels[0], self.levels[0]

    def take(self, level: int) -> Item[T]:
        """The first item of a level."""
        queue = self.queues[level]
        item = queue.popleft()
        if not queue:
            self.drop(level)
        return item

    def drop(self, level: int) -> None:
        """A level has nothing left."""
        del self.queues[level]
        if self.levels[0] == level:
            heappop(self.levels)
        else:
            self.levels.remove(level)
            heapify(self.levels)

    def waiting(self) -> int:
        """How many items wait."""
        return sum(map(len, self.queues.values()))

    def state(self, now: float) -> str:
        """Why it waits: what it is closed for, "busy", the reason of `next_at`; else "ready"."""
        if self.closed:
            return self.closed
        if self.out >= self.policy.concurrency:
            return "busy"
        return self.reason if self.next_at > now else "ready"
