"""A heap of moments at which something changes for a host or a lane.

An entry stays when its object moves on, and is void then: it carries the object's version at the time.
Void ones are passed over, and removed when they may be most.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, Protocol, TypeVar

_LEAST = 64  # entries, before void ones are looked for


class Versioned(Protocol):
    """What has moved on when its version is another one."""

    version: int


V = TypeVar("V", bound=Versioned)


class Alarms(Generic[V]):
    """Each object has one at most that is not void."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, V]] = []  # moment, number, version, object
        self._most = _LEAST
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, moment: float, what: V) -> None:
        """An object, as it is now, is due at a moment."""
        self._numbers += 1
        heappush(self._heap, (moment, self._numbers, what.version, what))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].version]
            heapify(self._heap)
            self._most = 2 * len(self._heap) + _LEAST

    def due(self, now: float) -> V | None:
        """Take out the next object that is due."""
        while self._heap and self._heap[0][0] <= now:
            _, _, version, what = heappop(self._heap)
            if version == what.version:
                return what
        return None

    def next_at(self) -> float:
        """When the next one is; infinite when none is."""
        while self._heap and self._heap[0][2] != self._heap[0][3].version:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else inf
