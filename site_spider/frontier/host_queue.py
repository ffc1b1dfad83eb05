"""The queue of one host, by level.

A producer may give each seed a level of its own, so nothing here looks at all levels for one item:
the lowest level and the oldest item are the first in heaps, whose entries stay when a queue moves on.
Those that are void are passed over, and removed when most are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

URGENT = -(10**12)  # before every level
_MOST_VOID = 8  # entries of a heap, besides one for each queue


class HostPolicy(NamedTuple):
    """How a host may be visited."""

    concurrency: int = 8  # requests out at a time
    delay_seconds: float = 0.0  # between the starts of two


class Item(NamedTuple, Generic[T]):
    """What waits, and since when."""

    since: float  # pushed, or due
    number: int
    value: T


class HostView(NamedTuple):
    """One host as others may see it."""

    host: str
    waiting: int  # items, those that are not due yet not included
    out: int
    next_at: float  # when it may be served next; in the past when it is ready or busy
    reason: str  # "ready", "busy", "delay" or why it is held or closed


class HostQueue(Generic[T]):
    """The items of one host by level, and when the host may be served."""

    __slots__ = (
        "ages", "closed", "free_since", "levels", "name", "next_at", "out", "policy", "queues", "reason",
        "urgent_at", "version",
    )  # fmt: skip

    def __init__(self, name: str, policy: HostPolicy) -> None:
        self.name = name
        self.policy = policy
        self.queues: dict[int, deque[Item[T]]] = {}
        self.levels: list[int] = []  # heap of the keys of `queues`, and of void ones
        self.ages: list[tuple[float, int, int]] = []  # heap of since, number and level of their first items
        self.out = 0
        self.next_at = -inf
        self.free_since = -inf  # when fewer requests were out than may be
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
        self._enter_level(level)
        self._enter_age(level, item)
        self.urgent_at = min(self.urgent_at, item.since + max_wait_seconds)
        return True

    def restore(self, level: int, item: Item[T], max_wait_seconds: float) -> None:
        """Put an item that was taken back where it was."""
        queue = self.queues.get(level)
        if queue is None:
            self.add(level, item, max_wait_seconds)
        else:
            queue.appendleft(item)
            self._enter_age(level, item)
            self.urgent_at = min(self.urgent_at, item.since + max_wait_seconds)

    def best(self, now: float, max_wait_seconds: float) -> tuple[int, int]:
        """The level to serve, and the one under which the host competes."""
        if now >= self.urgent_at:
            since, _, level = self._oldest()
            self.urgent_at = since + max_wait_seconds
            if now >= self.urgent_at:
                return level, URGENT
        while self.levels[0] not in self.queues:
            heappop(self.levels)
        return self.levels[0], self.levels[0]

    def take(self, level: int) -> Item[T]:
        """The first item of a level."""
        queue = self.queues[level]
        item = queue.popleft()
        if queue:
            self._enter_age(level, queue[0])
        else:
            del self.queues[level]
        return item

    def remove(self, unwanted: Callable[[T], bool]) -> Iterator[tuple[int, T]]:
        """Take out every item that `unwanted` picks; yields each with its level."""
        for level, queue in list(self.queues.items()):
            kept: deque[Item[T]] = deque()
            for item in queue:
                if unwanted(item.value):
                    yield level, item.value
                else:
                    kept.append(item)
            self._keep(level, kept)

    def _keep(self, level: int, items: deque[Item[T]]) -> None:
        """Of a level only these are left, in their order."""
        if items:
            self.queues[level] = items
            self._enter_age(level, items[0])
        else:
            del self.queues[level]

    def _oldest(self) -> tuple[float, int, int]:
        while True:
            _, number, level = self.ages[0]
            if level in self.queues and self.queues[level][0].number == number:
                return self.ages[0]
            heappop(self.ages)

    def _enter_level(self, level: int) -> None:
        heappush(self.levels, level)
        if len(self.levels) > 2 * len(self.queues) + _MOST_VOID:
            self.levels = list(self.queues)
            heapify(self.levels)

    def _enter_age(self, level: int, first: Item[T]) -> None:
        heappush(self.ages, (first.since, first.number, level))
        if len(self.ages) > 2 * len(self.queues) + _MOST_VOID:
            heads = ((queue[0], level) for level, queue in self.queues.items())
            self.ages = [(head.since, head.number, level) for head, level in heads]
            heapify(self.ages)

    def waiting(self) -> int:
        """How many items wait."""
        return sum(map(len, self.queues.values()))

    def view(self, now: float) -> HostView:
        """What others may see of it."""
        return HostView(self.name, self.waiting(), self.out, self.next_at, self.state(now))

    def state(self, now: float) -> str:
        """Why it waits: what it is closed for, "busy", the reason of `next_at`; else "ready"."""
        if self.closed:
            return self.closed
        if self.out >= self.policy.concurrency:
            return "busy"
        return self.reason if self.next_at > now else "ready"
