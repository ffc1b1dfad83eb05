"""The queues of all hosts and levels, and which item is next.

Theory of operation. Every host has a queue for each level at which something of it waits. A
host is in one of three states:

- *busy*: as many of its requests are out as it may have at a time; `release` ends that;
- *waiting*: nothing of it may start before a moment (delay between requests, back-off); it
  is in the heap `_waiting` by that moment;
- *closed*: nothing of it may start until `open` (its robots.txt is being fetched);
- *ready*: it is in the heap `_ready`, by the level and the age of the item that it would
  serve. So hosts do not block each other, and `pop` is O(log hosts).

Entries of the heaps stay when a host moves on. Each carries the host's version at the time, and
is void when that is no longer the host's. Void ones are passed over, and removed when most are.

Order: the lowest level first; inside a level by age over all hosts that are ready, and for
each host strictly in the order of `push`. An item that has waited longer than
`max_wait_seconds` comes before every level (nothing starves); a host that is busy or waiting
is not overruled by that. An item may be pushed with a moment before which it does not
count as there (retries that wait).

Time comes in as an argument, in seconds of any clock that does not go backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from site_spider.frontier.host_queue import URGENT, HostPolicy, HostQueue, HostView, Item

T = TypeVar("T")
_SLICE_ITEMS = 2_000  # looked at in one go by `remove`, or those of one host
_Ready = tuple[int, float, int, int, HostQueue[T]]  # level, since, number, version, host
_Alarm = tuple[float, int, int, HostQueue[T]]  # moment, number, version, host


class _Turn(NamedTuple, Generic[T]):
    """What `pop` gave last, and how its host was before."""

    host: HostQueue[T]
    level: int
    item: Item[T]
    next_at: float
    reason: str


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
        self._hosts: dict[str, HostQueue[T]] = {}
        self._ready: list[_Ready[T]] = []
        self._waiting: list[_Alarm[T]] = []
        self._ageing: list[_Alarm[T]] = []  # when it becomes urgent
        self._later: list[tuple[float, int, int, str, T]] = []  # moment, number, level, host, value
        self._lengths: dict[int, int] = {}
        self._turn: _Turn[T] | None = None
        self._numbers = 0
        self._length = 0
        self.delay_seconds = 0.0  # how long what `pop` gave last could have been served already

    def __len__(self) -> int:
        return self._length

    def push(self, level: int, host: str, value: T, now: float, not_before: float = -inf) -> None:
        """Put an item behind those of its level and host; it counts as there from `not_before` on."""
        self._count_in(level)
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

    def forgo(self, now: float) -> None:
        """What `pop` gave last is not sent: it has taken no turn of its host, and needs no `release`."""
        self._give_up_turn(self._last_turn(), now)

    def put_back(self, now: float, *, keeps_turn: bool = False) -> None:
        """What `pop` gave last waits on, before all of its level and host.

        With `keeps_turn` its turn is for something else of the host, until `release`.
        """
        turn = self._last_turn()
        self._count_in(turn.level)
        turn.host.restore(turn.level, turn.item, self._max_wait_seconds)
        if keeps_turn:
            self._place(turn.host, now)
        else:
            self._give_up_turn(turn, now)

    def slow_down(self, seconds: float, now: float) -> None:
        """After what `pop` gave last the host is left alone for at least so long."""
        assert self._turn is not None
        self.hold(self._turn.host.name, now + seconds, "delay", now)

    def close(self, name: str, reason: str, now: float) -> None:
        """Start nothing of this host until `open`."""
        host = self._host(name)
        host.closed = reason
        self._place(host, now)

    def open(self, name: str, now: float) -> None:
        """A host may be served again; no matter if it is forgotten."""
        host = self._hosts.get(name)
        if host is not None:
            host.closed = ""
            self._place(host, now)

    def release(self, name: str, now: float) -> None:
        """A request of this host has come back (or was never sent)."""
        host = self._hosts[name]
        if host.out == host.policy.concurrency:
            host.free_since = now
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

    def remove(self, unwanted: Callable[[T], bool], now: float) -> Iterator[list[T]]:
        """Take out every item that `unwanted` picks, in no particular order.

        Some hosts at a time, as one goes through it; the frontier may change in between.
        """
        removed: list[T] = []
        left = _SLICE_ITEMS
        for host in list(self._hosts.values()):
            left -= 1 + host.waiting()
            if self._remove_from(host, unwanted, removed):
                self._place(host, now)
            if left <= 0:
                yield removed
                removed, left = [], _SLICE_ITEMS
        self._remove_later(unwanted, removed)
        yield removed

    def _remove_later(self, unwanted: Callable[[T], bool], removed: list[T]) -> None:
        kept = []
        for entry in self._later:
            if unwanted(entry[4]):
                self._count_out(entry[2])
                removed.append(entry[4])
            else:
                kept.append(entry)
        self._later = kept
        heapify(self._later)

    def lengths(self) -> dict[int, int]:
        """How many items wait on each level, lowest first; those that are not due yet included."""
        return dict(sorted(self._lengths.items()))

    def waiting(self, name: str) -> int:
        """How many items of this host wait, those that are not due yet not included."""
        host = self._hosts.get(name)
        return 0 if host is None else host.waiting()

    def hosts(self, now: float) -> Iterator[HostView]:
        """Every host of which something waits or is out; the frontier may change between two of them."""
        for host in list(self._hosts.values()):
            yield host.view(now)

    # --- one host -----------------------------------------------------------------------

    def _host(self, name: str) -> HostQueue[T]:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = HostQueue(name, self._policy(name))
        return host

    def _add(self, level: int, name: str, value: T, now: float) -> None:
        host = self._host(name)
        if host.add(level, Item(now, self._next_number(), value), self._max_wait_seconds):
            self._place(host, now)

    def _serve(self, host: HostQueue[T], now: float) -> T:
        level, _ = host.best(now, self._max_wait_seconds)
        item = host.take(level)
        self.delay_seconds = max(0.0, now - max(item.since, host.next_at, host.free_since))
        self._turn = _Turn(host, level, item, host.next_at, host.reason)
        self._count_out(level)
        host.out += 1
        if host.policy.delay_seconds:
            host.next_at, host.reason = now + self._spread(host.policy.delay_seconds), "delay"
        self._place(host, now)
        return item.value

    def _last_turn(self) -> _Turn[T]:
        turn, self._turn = self._turn, None
        assert turn is not None, "nothing was popped since"
        return turn

    def _give_up_turn(self, turn: _Turn[T], now: float) -> None:
        turn.host.out -= 1
        turn.host.next_at, turn.host.reason = turn.next_at, turn.reason
        self._place(turn.host, now)

    def _place(self, host: HostQueue[T], now: float) -> None:
        """Put a host where it belongs now; its older entries in the heaps are void."""
        host.version += 1
        if host.closed:
            return
        if not host.queues:
            if host.out == 0 and host.next_at <= now:
                self._hosts.pop(host.name, None)
            elif host.out == 0:
                self._alarm(self._waiting, host.next_at, host)  # to be forgotten then
        elif host.out >= host.policy.concurrency:
            return
        elif host.next_at > now:
            self._alarm(self._waiting, host.next_at, host)
        else:
            self._make_ready(host, now)

    def _make_ready(self, host: HostQueue[T], now: float) -> None:
        level, rank = host.best(now, self._max_wait_seconds)
        head = host.queues[level][0]
        self._enter(self._ready, (rank, head.since, head.number, host.version, host))
        if host.urgent_at < inf and rank != URGENT:
            self._alarm(self._ageing, host.urgent_at, host)

    def _alarm(self, heap: list[_Alarm[T]], moment: float, host: HostQueue[T]) -> None:
        self._enter(heap, (moment, self._next_number(), host.version, host))

    def _enter(self, heap: list[Any], entry: _Ready[T] | _Alarm[T]) -> None:
        heappush(heap, entry)
        if len(heap) > 2 * len(self._hosts) + 64:  # then most are void: a host has one at most that is not
            heap[:] = [kept for kept in heap if kept[-2] == kept[-1].version]
            heapify(heap)

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

    def _remove_from(self, host: HostQueue[T], unwanted: Callable[[T], bool], removed: list[T]) -> bool:
        before = len(removed)
        for level, value in host.remove(unwanted):
            self._count_out(level)
            removed.append(value)
        return len(removed) > before

    # --- counting -----------------------------------------------------------------------

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _count_in(self, level: int) -> None:
        self._length += 1
        self._lengths[level] = self._lengths.get(level, 0) + 1

    def _count_out(self, level: int) -> None:
        self._length -= 1
        self._lengths[level] -= 1
        if not self._lengths[level]:
            del self._lengths[level]
