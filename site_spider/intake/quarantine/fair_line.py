"""A line of suspected seeds: few are admitted at a time, and few of one host.

Hosts have their turn one after the other, and the seeds of a host theirs in the order in which they
joined. A host has at most a quarter of those that are admitted, so that a slow one does not
keep the others waiting.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

T = TypeVar("T")
_SHARES = 4  # hosts that together may have all


class CarefulLine(Generic[T]):
    """Items by host, and how many of each host are admitted and have not left."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}
        self._turns: deque[str] = deque()  # the keys of `_waiting`
        self._admitted: Counter[str] = Counter()
        self._length = 0
        self.admitted = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._length

    def join(self, host: str, item: T) -> None:
        """An item waits, behind those of its host."""
        if host not in self._waiting:
            self._waiting[host] = deque()
            self._turns.append(host)
        self._waiting[host].append(item)
        self._length += 1

    def admit(self, most: int) -> list[tuple[str, T]]:
        """Those whose turn it is, with their hosts, so that at most `most` are admitted."""
        most_of_host = max(1, most // _SHARES)
        chosen: list[tuple[str, T]] = []
        passed = 0  # hosts in a row that may have no more
        while self.admitted < most and passed < len(self._turns):
            host = self._turns.popleft()
            if self._admitted[host] < most_of_host:
                chosen.append((host, self._take(host)))
                passed = 0
            else:
                passed += 1
            if host in self._waiting:
                self._turns.append(host)
        return chosen

    def left(self, host: str) -> None:
        """One that was admitted has ended."""
        self.admitted -= 1
        self._admitted[host] -= 1
        if not self._admitted[host]:
            del self._admitted[host]

    def clear(self) -> list[tuple[str, T]]:
        """Take out all that wait."""
        items = [(host, item) for host, queue in self._waiting.items() for item in queue]
        self._waiting.clear()
        self._turns.clear()
        self._length = 0
        return items

    def _take(self, host: str) -> T:
        queue = self._waiting[host]
        item = queue.popleft()
        if not queue:
            del self._waiting[host]
        self._length -= 1
        self.admitted += 1
        self._admitted[host] += 1
        return item
