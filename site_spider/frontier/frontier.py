"""The queues of all hosts and levels, and which item is next.

Theory of operation. Items belong to a *flow* (a task; all of them to one, where there are no tasks). Every
host has a lane for each flow of which something waits for it, with a queue for each level. A host is
*busy* (as many of its requests are out as it may have at a time; `release` ends that), *waiting* (nothing
of it may start before a moment: delay between requests, back-off), *closed* (until `open`: its robots.txt
is being fetched), or *ready*. So hosts do not block each other; `frontier.hosts` has how they are found.

Order: the flow of the lowest virtual time (see flows). Inside a flow the lowest level first; inside a
level by age over all hosts that are ready, and for each host strictly in the order of `push`. An item
that has waited longer than `max_wait_seconds` comes before every level of its flow; a host that is busy or
waiting is not overruled by that, and between flows their weights keep everything from starving.
An item may be pushed with a moment before which it does not count as there (retries that wait).

Time comes in as an argument, in seconds of any clock that does not go backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from site_spider.frontier.flows import Flow, Flows
from site_spider.frontier.host_queue import HostPolicy, HostQueue, HostView, Item, Lane
from site_spider.frontier.hosts import Hosts, Rates

T = TypeVar("T")
_SLICE_ITEMS = 2_000  # looked at in one go by `remove`, or those of one host


class _Turn(NamedTuple, Generic[T]):
    """What `pop` gave last, and how its host and flow were before."""

    host: HostQueue[T]
    flow: Flow[Any]
    level: int
    item: Item[T]
    next_at: float
    reason: str
    now: float


class Frontier(Generic[T]):
    """All items that wait in memory; see the theory of operation."""

    def __init__(
        self,
        policy: Callable[[str], HostPolicy] = lambda _host: HostPolicy(),
        max_wait_seconds: float = inf,
        spread: Callable[[float], float] = lambda seconds: seconds,
        weight_of: Callable[[Hashable], float] = lambda _flow: 1.0,
        rates: Rates | None = None,
    ) -> None:
        self._spread = spread  # makes a delay vary
        self._max_wait_seconds = max_wait_seconds
        self._hosts: Hosts[T] = Hosts(policy, max_wait_seconds, Flows(weight_of), rates)
        self._later: list[tuple[float, int, int, str, T, Hashable]] = []  # moment, number, level, host, value
        self._lengths: dict[int, int] = {}
        self._turn: _Turn[T] | None = None
        self._uncharged: _Turn[T] | None = None
        self._numbers = 0
        self._length = 0
        self.delay_seconds = 0.0  # how long what `pop` gave last could have been served already

    def __len__(self) -> int:
        return self._length

    def push(
        self, level: int, host: str, value: T, now: float, not_before: float = -inf, flow: Hashable = None
    ) -> None:
        """Put an item behind those of its level, host and flow; it counts as there from `not_before` on."""
        self._count_in(level)
        if not_before > now:
            heappush(self._later, (not_before, self._next_number(), level, host, value, flow))
        else:
            self._add(level, host, value, now, flow)

    def pop(self, now: float) -> T | None:
        """The item whose turn it is; None when nothing may start now.

        Its host has one request more out until `release` is called.
        """
        turn, self._uncharged = self._uncharged, None
        if turn is not None:
            self._hosts.charge(turn.flow, turn.now, now)
        self._wake(now)
        lane = self._hosts.next_lane(now)
        return None if lane is None else self._serve(lane, now)

    def peek(self) -> T | None:
        """What `pop` probably gives next, as far as one look tells. Nothing changes."""
        lane = self._hosts.first_lane()
        return None if lane is None else lane.queues[lane.best(-inf, inf)[0]][0].value

    def forgo(self, now: float) -> None:
        """What `pop` gave last is not sent: it has taken no turn of its host, and needs no `release`."""
        self._give_up_turn(self._last_turn(), now)

    def put_back(self, now: float, *, keeps_turn: bool = False) -> None:
        """What `pop` gave last waits on, before all of its level and host.

        With `keeps_turn` its turn is for something else of the host, until `release`.
        """
        turn = self._last_turn()
        self._count_in(turn.level)
        lane = self._hosts.same_lane(turn.host, turn.flow)
        turn.host.waiting += 1
        lane.restore(turn.level, turn.item, self._max_wait_seconds)
        if keeps_turn:
            self._hosts.place(turn.host, now)
        else:
            self._give_up_turn(turn, now)
        self._hosts.seat(lane, now)

    def slow_down(self, seconds: float, now: float) -> None:
        """After what `pop` gave last the host is left alone for at least so long."""
        assert self._turn is not None
        self.hold(self._turn.host.name, now + seconds, "delay", now)

    def close(self, name: str, reason: str, now: float) -> None:
        """Start nothing of this host until `open`."""
        host = self._hosts.host(name)
        host.closed = reason
        self._hosts.place(host, now)

    def open(self, name: str, now: float) -> None:
        """A host may be served again; no matter if it is forgotten."""
        host = self._hosts.get(name)
        if host is not None:
            host.closed = ""
            self._hosts.place(host, now)

    def release(self, name: str, now: float, flow: Hashable = None, cost: float = 1.0) -> None:
        """A request of this host has come back (or was never sent), and has cost its flow so much."""
        host = self._hosts[name]
        if host.out == host.policy.concurrency:
            host.free_since = now
        host.out -= 1
        self._hosts.place(host, now)
        if cost > 1.0:
            self._hosts.correct(flow, cost, now)

    def hold(self, name: str, until: float, reason: str, now: float) -> None:
        """Start nothing of this host before `until`; an earlier hold that ends later stays."""
        host = self._hosts.host(name)
        if until > host.next_at:
            host.next_at, host.reason = until, reason
            self._hosts.place(host, now)

    def next_at(self) -> float:
        """When `pop` may find something though nothing else happens before; infinite when never."""
        return min(self._hosts.next_at(), self._later[0][0] if self._later else inf)

    def remove(self, unwanted: Callable[[T], bool], now: float) -> Iterator[list[T]]:
        """Take out every item that `unwanted` picks, in no particular order.

        Some hosts at a time, as one goes through it; the frontier may change in between.
        """
        removed: list[T] = []
        left = _SLICE_ITEMS
        for host in list(self._hosts):
            left -= 1 + host.waiting
            self._remove_from(host, unwanted, removed, now)
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

    def has_flow(self, picks: Callable[[Hashable], bool]) -> bool:
        """Whether there is a flow that `picks` picks, also one of which nothing waits at the moment."""
        return any(map(picks, self._hosts.flows()))

    def waiting(self, name: str) -> int:
        """How many items of this host wait, those that are not due yet not included."""
        host = self._hosts.get(name)
        return 0 if host is None else host.waiting

    def hosts(self, now: float) -> Iterator[HostView]:
        """Every host of which something waits or is out; the frontier may change between two of them."""
        for host in list(self._hosts):
            yield host.view(now)

    # --- one item -----------------------------------------------------------------------

    def _add(self, level: int, name: str, value: T, now: float, key: Hashable) -> None:
        lane = self._hosts.lane(name, key)
        host = lane.host
        host.waiting += 1
        if lane.add(level, Item(now, self._next_number(), value), self._max_wait_seconds):
            self._hosts.place(host, now)
            self._hosts.seat(lane, now)

    def _serve(self, lane: Lane[T], now: float) -> T:
        host, flow = lane.host, lane.flow
        level, _ = lane.best(now, self._max_wait_seconds)
        item = lane.take(level)
        self.delay_seconds = max(0.0, now - max(item.since, host.next_at, host.free_since))
        turn = _Turn(host, flow, level, item, host.next_at, host.reason, now)
        self._turn = self._uncharged = turn
        self._count_out(level)
        host.waiting -= 1
        host.out += 1
        if host.policy.delay_seconds:
            host.next_at, host.reason = now + self._spread(host.policy.delay_seconds), "delay"
        if not lane.queues:
            host.remove_lane(lane)
        self._hosts.place(host, now)
        self._hosts.seat(lane, now)
        return item.value

    def _last_turn(self) -> _Turn[T]:
        turn, self._turn = self._turn, None
        assert turn is not None, "nothing was popped since"
        return turn

    def _give_up_turn(self, turn: _Turn[T], now: float) -> None:
        self._uncharged = None
        self._hosts.look(turn.flow)
        turn.host.out -= 1
        turn.host.next_at, turn.host.reason = turn.next_at, turn.reason
        self._hosts.place(turn.host, now)

    def _remove_from(
        self, host: HostQueue[T], unwanted: Callable[[T], bool], removed: list[T], now: float
    ) -> None:
        before = len(removed)
        for lane in list(host.lanes.values()):
            there = len(removed)
            for level, value in lane.remove(unwanted):
                self._count_out(level)
                removed.append(value)
            host.waiting -= len(removed) - there
            if len(removed) > there:
                self._shortened(lane, now)
        if len(removed) > before:
            self._hosts.place(host, now)

    def _shortened(self, lane: Lane[T], now: float) -> None:
        if not lane.queues:
            lane.host.remove_lane(lane)
            self._hosts.look(lane.flow)
        self._hosts.seat(lane, now)

    def _wake(self, now: float) -> None:
        """Move on what only waited for its moment."""
        while self._later and self._later[0][0] <= now:
            _, _, level, name, value, key = heappop(self._later)
            self._add(level, name, value, now, key)
        self._hosts.wake(now)

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
