"""The frontier: what waits in memory, by level and by host, and whose turn it is.

Theory of operation. Every host has a queue for each level at which something of it waits. A
host is in one of three states:

- *busy*: as many of its requests are out as it may have at a time; `release` ends that;
- *waiting*: nothing of it may start before a moment (delay between requests, back-off); it
  is in the heap `_waiting` by that moment;
- *ready*: it is in the heap `_ready`, by the level and the age of the item that it would
  serve. So hosts do not block each other, and `pop` is O(log hosts).

Entries of the heaps are not removed when a host moves on; each carries the host's version
at the time, and is passed over when that is no longer the host's.

Order: the lowest level first; inside a level by age over all hosts that are ready, and for
each host strictly in the order of `push`. An item that has waited longer than
`max_wait_seconds` comes before every level (nothing starves); a host that is busy or waiting
is not overruled by that. An item may be pushed with a moment before which it does not
count as there (retries that wait).

Time comes in as an argument, in seconds of any clock that does not go backwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

_URGENT = -(10**12)  # before every level


class HostPolicy(NamedTuple):
    """How a host may be visited."""

    concurrency: int = 8  # requests out at a time
    delay_seconds: float = 0.0  # between the starts of two


class HostView(NamedTuple):
    """One host as others may see it."""

    host: str
    waiting: int  # items, those that are not due yet not included
    out: int
    next_at: float  # when it may be served next; in the past when it is ready or busy
    reason: str  # "ready", "busy", "delay" or what `hold` was given


class _Item(NamedTuple, Generic[T]):
    since: float  # pushed, or due
    number: int
    value: T


class _Host(Generic[T]):
    __slots__ = ("levels", "name", "next_at", "out", "policy", "queues", "reason", "urgent_at", "version")

    def __init__(self, name: str, policy: HostPolicy) -> None:
        self.name = name
        self.policy = policy
        self.queues: dict[int, deque[_Item[T]]] = {}
        self.levels: list[int] = []  # heap of the keys of `queues`
        self.out = 0
        self.next_at = -inf
        self.reason = "delay"  # why it waits until `next_at`
        self.urgent_at = inf  # nothing of it is urgent before
        self.version = 0

    def add(self, level: int, item: _Item[T], max_wait_seconds: float) -> bool:
        """True when the item is the first of its level."""
        queue = self.queues.get(level)
        if queue is not None:
            queue.append(item)
            return False
        self.queues[level] = deque((item,))
        heappush(self.levels, level)
        self.urgent_at = min(self.urgent_at, item.since + max_wait_seconds)
        return True

    def best(self, now: float, max_wait_seconds: float) -> tuple[int, int]:
        """The level to serve, and the one under which the host competes."""
        if now >= self.urgent_at:
            oldest = min(self.queues, key=lambda level: self.queues[level][0].since)
            self.urgent_at = self.queues[oldest][0].since + max_wait_seconds
            if now >= self.urgent_at:
                return oldest, _URGENT
        return self.levels[0], self.levels[0]

    def take(self, level: int) -> T:
        queue = self.queues[level]
        value = queue.popleft().value
        if not queue:
            self.drop(level)
        return value

    def drop(self, level: int) -> None:
        del self.queues[level]
        if self.levels[0] == level:
            heappop(self.levels)
        else:
            self.levels.remove(level)
            heapify(self.levels)

    def waiting(self) -> int:
        return sum(map(len, self.queues.values()))


class Frontier(Generic[T]):
    """All items that wait in memory; see the theory of operation."""

    def __init__(
        self,
        policy: Callable[[str], HostPolicy] = lambda _host: HostPolicy(),
        max_wait_seconds: float = inf,
        spread: Callable[[float], float] = lambda seconds: seconds,
    ) -> None:
        self._policy = policy
        self._spread = spread  # makes a delay vary
        self._max_wait_seconds = max_wait_seconds
        self._hosts: dict[str, _Host[T]] = {}
        self._ready: list[tuple[int, float, int, int, _Host[T]]] = []  # level, since, number, version, host
        self._waiting: list[tuple[float, int, int, _Host[T]]] = []  # moment, number, version, host
        self._ageing: list[tuple[float, int, int, _Host[T]]] = []  # likewise: when it becomes urgent
        self._later: list[tuple[float, int, int, str, T]] = []  # moment, number, level, host, value
        self._lengths: dict[int, int] = {}
        self._numbers = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, level: int, host: str, value: T, now: float, not_before: float = -inf) -> None:
        """Put an item behind those of its level and host; it counts as there from `not_before` on."""
        self._length += 1
        self._lengths[level] = self._lengths.get(level, 0) + 1
        if not_before > now:
            heappush(self._later, (not_before, self._next_number(), level, host, value))
        else:
            self._add(level, host, value, now)

    def pop(self, now: float) -> T | None:
        """The item whose turn it is; None when nothing may start now.

        Its host has one request more out until `release` is called.
        """
        self._wake(now)
        while self._ready:
            _, _, _, version, host = heappop(self._ready)
            if version == host.version:
                return self._serve(host, now)
        return None

    def release(self, name: str, now: float) -> None:
        """A request of this host has come back (or was never sent)."""
        host = self._hosts[name]
        host.out -= 1
        self._place(host, now)

    def hold(self, name: str, until: float, reason: str, now: float) -> None:
        """Start nothing of this host before `until`; an earlier hold that ends later stays."""
        host = self._host(name)
        if until > host.next_at:
            host.next_at, host.reason = until, reason
            self._place(host, now)

    def next_at(self) -> float:
        """When `pop` may find something though nothing else happens before; infinite when never."""
        while self._waiting and self._waiting[0][2] != self._waiting[0][3].version:
            heappop(self._waiting)
        moments = [heap[0][0] for heap in (self._waiting, self._later) if heap]
        return min(moments, default=inf)

    def remove(self, unwanted: Callable[[T], bool], now: float) -> list[T]:
        """Take out every item that `unwanted` picks, in no particular order. O(items)."""
        removed: list[T] = []
        for host in list(self._hosts.values()):
            if self._remove_from(host, unwanted, removed):
                self._place(host, now)
        kept = []
        for entry in self._later:
            if unwanted(entry[4]):
                self._count_out(entry[2])
                removed.append(entry[4])
            else:
                kept.append(entry)
        self._later = kept
        heapify(self._later)
        return removed

    def lengths(self) -> dict[int, int]:
        """How many items wait on each level, lowest first; those that are not due yet included."""
        return dict(sorted(self._lengths.items()))

    def hosts(self, now: float) -> Iterator[HostView]:
        """Every host of which something waits or is out; the frontier may change between two of them."""
        for host in list(self._hosts.values()):
            if host.out >= host.policy.concurrency:
                reason = "busy"
            else:
                reason = host.reason if host.next_at > now else "ready"
            yield HostView(host.name, host.waiting(), host.out, host.next_at, reason)

    # --- one host -----------------------------------------------------------------------

    def _host(self, name: str) -> _Host[T]:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = _Host(name, self._policy(name))
        return host

    def _add(self, level: int, name: str, value: T, now: float) -> None:
        host = self._host(name)
        if host.add(level, _Item(now, self._next_number(), value), self._max_wait_seconds):
            self._place(host, now)

    def _serve(self, host: _Host[T], now: float) -> T:
        level, _ = host.best(now, self._max_wait_seconds)
        value = host.take(level)
        self._count_out(level)
        host.out += 1
        if host.policy.delay_seconds:
            host.next_at, host.reason = now + self._spread(host.policy.delay_seconds), "delay"
        self._place(host, now)
        return value

    def _place(self, host: _Host[T], now: float) -> None:
        """Put a host where it belongs now; its older entries in the heaps are void."""
        host.version += 1
        if not host.queues:
            if host.out == 0 and host.next_at <= now:
                self._hosts.pop(host.name, None)
            elif host.out == 0:
                self._enter(self._waiting, host.next_at, host)  # to be forgotten then
        elif host.out >= host.policy.concurrency:
            return
        elif host.next_at > now:
            self._enter(self._waiting, host.next_at, host)
        else:
            self._make_ready(host, now)

    def _make_ready(self, host: _Host[T], now: float) -> None:
        level, rank = host.best(now, self._max_wait_seconds)
        head = host.queues[level][0]
        heappush(self._ready, (rank, head.since, head.number, host.version, host))
        if host.urgent_at < inf and rank != _URGENT:
            self._enter(self._ageing, host.urgent_at, host)

    def _enter(self, heap: list[tuple[float, int, int, _Host[T]]], moment: float, host: _Host[T]) -> None:
        heappush(heap, (moment, self._next_number(), host.version, host))

    def _wake(self, now: float) -> None:
        """Move on what only waited for its moment."""
        while self._later and self._later[0][0] <= now:
            _, _, level, name, value = heappop(self._later)
            self._add(level, name, value, now)
        for heap in (self._waiting, self._ageing):
            while heap and heap[0][0] <= now:
                _, _, version, host = heappop(heap)
                if version == host.version:
                    self._place(host, now)

    def _remove_from(self, host: _Host[T], unwanted: Callable[[T], bool], removed: list[T]) -> bool:
        before = len(removed)
        for level, queue in list(host.queues.items()):
            kept: deque[_Item[T]] = deque()
            for item in queue:
                if unwanted(item.value):
                    removed.append(item.value)
                    self._count_out(level)
                else:
                    kept.append(item)
            if kept:
                host.queues[level] = kept
            else:
                host.drop(level)
        return len(removed) > before

    # --- counting -----------------------------------------------------------------------

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _count_out(self, level: int) -> None:
        self._length -= 1
        self._lengths[level] -= 1
        if not self._lengths[level]:
            del self._lengths[level]
