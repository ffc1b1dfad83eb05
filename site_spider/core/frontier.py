"""The memory queues: one FIFO a level, the lowest level first.

A queue is made when its level gets the first item and reclaimed with its last one.
`push` and `pop` are O(log levels). Level 0 does not exist here: it is the seed queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Frontier(Generic[T]):
    """All items that wait in memory."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[T]] = {}
        self._levels: list[int] = []  # heap of the levels that have a queue
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, level: int, item: T) -> None:
        """Put an item at the end of its level."""
        queue = self._queues.get(level)
        if queue is None:
            queue = self._queues[level] = deque()
            heappush(self._levels, level)
        queue.append(item)
        self._length += 1

    def lowest_level(self) -> int | None:
        """The level that `pop` would serve; None when nothing waits."""
        return self._levels[0] if self._levels else None

    def pop(self) -> T | None:
        """The longest waiting item of the lowest level; None when nothing waits."""
        if not self._levels:
            return None
        level = self._levels[0]
        queue = self._queues[level]
        item = queue.popleft()
        self._length -= 1
        if not queue:
            heappop(self._levels)
            del self._queues[level]
        return item

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Take out every item that `unwanted` picks, in no particular order. O(items)."""
        removed: list[T] = []
        for level, queue in list(self._queues.items()):
            kept: deque[T] = deque()
            for item in queue:
                (removed if unwanted(item) else kept).append(item)
            if kept:
                self._queues[level] = kept
            else:
                del self._queues[level]
        self._levels = list(self._queues)
        heapify(self._levels)
        self._length -= len(removed)
        return removed

    def lengths(self) -> dict[int, int]:
        """How many items wait on each level, lowest first."""
        return {level: len(self._queues[level]) for level in sorted(self._queues)}
