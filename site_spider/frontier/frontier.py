"""The queues of all hosts and levels, and which item is next.

Theory of operation. Items belong to a *flow* (a task; all of them to one, where there are no tasks). Every
host has a lane for each flow of which something waits for it, with a queue for each level. A host is
*busy* (as many of its requests are out as it may have at a time; `release` ends that), *waiting* (nothing
of it may start before a moment: delay between requests, back-off), *closed* (until `open`: its robots.txt
is being fetched), or *ready*. So hosts do not block each other. A lane of a ready host is *entered* in the
heap of its flow, or *parked* behind a flow that is entered there and has a lower virtual time; when that flow
has moved past the first of those parked, this one is entered. Lanes of a host that is not ready are parked
when somebody looks at them. So a host that becomes ready enters one lane, not one for each task, and `pop` is
O(log) in flows and hosts.

Order: the flow of the lowest virtual time (see priority_queue). Inside a flow the lowest level first; inside a
level by age over all hosts that are ready, and for each host strictly in the order of `push`. An item
that has waited longer than `max_wait_seconds` comes before every level of its flow; a host that is busy or
waiting is not overruled by that, and between flows their weights keep everything from starving.
An item may be pushed with a moment before which it does not count as there (retries that wait).

Time comes in as an argument, in seconds of any clock that does not go backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from site_spider.frontier.fair_queue import Flow, Flows
from site_spider.frontier.priority_queue import URGENT, HostPolicy, HostQueue, HostView, Item, Lane

# --- alarms: A heap of moments at which something changes for a host or a lane ---------------------------
# An entry stays when its object moves on, and is void then: it carries the object's version at the time.
# Void ones are passed over, and removed when they may be most.

_LEAST = 64  # entries, before void ones are looked for

T = TypeVar("T")
V = TypeVar("V", bound=HostQueue[Any] | Lane[Any])


class Alarms(Generic[V]):
    """Each object has one at most that is not void."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int, V]] = []  # moment, number, version, object
        self._most = _LEAST
        self._numbers = 0

    def set(self, moment: float, what: V) -> None:
        """An object, as it is now, is due at a moment."""
        self._numbers += 1
        heappush(self.heap, (moment, self._numbers, what.version, what))
        if len(self.heap) > self._most:
            self.heap = [entry for entry in self.heap if entry[2] == entry[3].version]
            heapify(self.heap)
            self._most = 2 * len(self.heap) + _LEAST

    def due(self, now: float) -> V | None:
        """Take out the next object that is due."""
        while self.heap and self.heap[0][0] <= now:
            _, _, version, what = heappop(self.heap)
            if version == what.version:
                return what
        return None

    def next_at(self) -> float:
        """When the next one is; infinite when none is."""
        while self.heap and self.heap[0][2] != self.heap[0][3].version:
            heappop(self.heap)
        return self.heap[0][0] if self.heap else inf


class Rates(Protocol):
    """How many items of a task may be served in a second."""

    def free_at(self, key: Hashable, now: float) -> float:
        """When the next one may be; it is asked again then."""

    def spend(self, key: Hashable, now: float) -> None:
        """One was served."""


_SLICE_ITEMS = 2_000  # looked at in one go by `remove`, or those of one host
_MOST_WOKEN = 50  # by one `pop`: after an outage all that waits may be due


class _Turn(NamedTuple, Generic[T]):
    """What `pop` gave last, and how its host and flow were before."""

    host: HostQueue[T]
    flow: Flow
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
        self._policy = policy
        self._spread = spread  # makes a delay vary
        self._max_wait_seconds = max_wait_seconds
        self._rates = rates
        self._flows: Flows = Flows(weight_of)
        self._hosts: dict[str, HostQueue[T]] = {}  # those of which something waits or is out
        self._waiting: Alarms[HostQueue[T]] = Alarms()
        self._ageing: Alarms[Lane[T]] = Alarms()  # when it becomes urgent
        self._later: list[tuple[float, int, int, str, T, Hashable]] = []  # moment, number, level, host, value
        self._lengths: dict[int, int] = {}
        self._turn: _Turn[T] | None = None
        self._uncharged: _Turn[T] | None = None
        self._numbers = count(1)
        self._length = 0
        self.delay_seconds = 0.0  # how long what `pop` gave last could have been served already
        self.last_host = ""  # of what `pop` gave last
        self.last_flow: Hashable = None

    def __len__(self) -> int:
        return self._length

    def push(
        self, level: int, host: str, value: T, now: float, not_before: float = -inf, flow: Hashable = None
    ) -> None:
        """Put an item behind those of its level, host and flow; it counts as there from `not_before` on."""
        self._length += 1
        self._lengths[level] = self._lengths.get(level, 0) + 1
        if not_before > now:
            heappush(self._later, (not_before, next(self._numbers), level, host, value, flow))
        else:
            self._add(level, host, value, now, flow)

    def pop(self, now: float) -> T | None:
        """The item whose turn it is; None when nothing may start now, or before more is woken: see `next_at`.

        Its host has one request more out until `release` is called.
        """
        turn, self._uncharged = self._uncharged, None
        if turn is not None:
            self._flows.charge(turn.flow)
            if self._rates is not None:
                self._rates.spend(turn.flow.key, turn.now)
            if turn.flow.stands_for:
                self._let_others_pass(turn.flow, now)
        self._wake(now)
        lane = self._next_lane(now)
        return None if lane is None else self._serve(lane, now)

    def forgo(self, now: float) -> None:
        """What `pop` gave last is not sent: it has taken no turn of its host, and needs no `release`."""
        self._give_up_turn(self._last_turn(), now)

    def put_back(self, now: float, *, keeps_turn: bool = False) -> None:
        """What `pop` gave last waits on, before all of its level and host.

        With `keeps_turn` its turn is for something else of the host, until `release`.
        """
        turn = self._last_turn()
        self._length += 1
        self._lengths[turn.level] = self._lengths.get(turn.level, 0) + 1
        lane = turn.host.lane(self._flows.known(turn.flow))
        turn.host.waiting += 1
        lane.restore(turn.level, turn.item, self._max_wait_seconds)
        if keeps_turn:
            self._place(turn.host, now)
        else:
            self._give_up_turn(turn, now)
        self._seat(lane, now)

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

    def release(self, name: str, now: float, flow: Hashable = None, cost: float = 1.0) -> None:
        """A request of this host has come back (or was never sent), and has cost its flow so much."""
        host = self._hosts[name]
        if host.out == host.policy.concurrency:
            host.free_since = now
        host.out -= 1
        self._place(host, now)
        if cost > 1.0:
            self._let_others_pass(self._flows.correct(flow, cost), now)

    def hold(self, name: str, until: float, reason: str, now: float) -> None:
        """Start nothing of this host before `until`; an earlier hold that ends later stays."""
        host = self._host(name)
        if until > host.next_at:
            host.next_at, host.reason = until, reason
            self._place(host, now)

    def next_at(self) -> float:
        """When `pop` may find something though nothing else happens before; infinite when never."""
        later = self._later[0][0] if self._later else inf
        return min(self._waiting.next_at(), self._flows.next_rested(), later)

    def remove(self, unwanted: Callable[[T], bool], now: float) -> Iterator[list[T]]:
        """Take out every item that `unwanted` picks, in no particular order.

        Some hosts at a time, as one goes through it; the frontier may change in between.
        """
        removed: list[T] = []
        left = _SLICE_ITEMS
        for host in list(self._hosts.values()):
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

    @property
    def flows(self) -> Collection[Hashable]:
        """Also those of which nothing waits at the moment."""
        return self._flows.keys()

    def waiting(self, name: str) -> int:
        """How many items of this host wait, those that are not due yet not included."""
        host = self._hosts.get(name)
        return 0 if host is None else host.waiting

    def hosts(self, now: float) -> Iterator[HostView]:
        """Every host of which something waits or is out; the frontier may change between two of them."""
        for host in list(self._hosts.values()):
            yield host.view(now)

    # --- one item -----------------------------------------------------------------------

    def _add(self, level: int, name: str, value: T, now: float, key: Hashable) -> None:
        host = self._hosts.get(name) or self._host(name)
        lane = host.lane(self._flows.flow(key))
        host.waiting += 1
        if lane.add(level, Item(now, next(self._numbers), value), self._max_wait_seconds):
            self._place(host, now)
            self._seat(lane, now)

    def _serve(self, lane: Lane[T], now: float) -> T:
        host, flow = lane.host, lane.flow
        self.last_host, self.last_flow = host.name, flow.key
        level, _ = lane.best(now, self._max_wait_seconds)
        item = lane.take(level)
        self.delay_seconds = max(0.0, now - max(item.since, host.next_at, host.free_since))
        turn = _Turn(host, flow, level, item, host.next_at, host.reason, now)
        self._turn = self._uncharged = turn
        self._count_out(level)
        host.waiting -= 1
        host.out += 1
        host.policy = self._policy(host.name)  # it may have changed
        if host.policy.delay_seconds:
            host.next_at, host.reason = now + self._spread(host.policy.delay_seconds), "delay"
        if not lane.queues:
            host.remove_lane(lane)
        self._place(host, now)
        self._seat(lane, now)
        return item.value

    def _last_turn(self) -> _Turn[T]:
        turn, self._turn = self._turn, None
        assert turn is not None, "nothing was popped since"
        return turn

    def _give_up_turn(self, turn: _Turn[T], now: float) -> None:
        self._uncharged = None
        self._flows.look(turn.flow)
        turn.host.out -= 1
        turn.host.next_at, turn.host.reason = turn.next_at, turn.reason
        self._place(turn.host, now)

    def _remove_from(self, host: HostQueue[T], unwanted: Callable[[T], bool], removed: list[T], now: float) -> None:
        before = len(removed)
        for lane in list(host.lanes.values()):
            there = len(removed)
            for level, value in lane.remove(unwanted):
                self._count_out(level)
                removed.append(value)
            host.waiting -= len(removed) - there
            if not lane.queues:
                host.remove_lane(lane)
                self._flows.look(lane.flow)
            if len(removed) > there:
                self._seat(lane, now)
        if len(removed) > before:
            self._place(host, now)

    def _wake(self, now: float) -> None:
        """Move on some of what only waited for its moment."""
        left = _MOST_WOKEN
        while left and self._later and self._later[0][0] <= now:
            left -= 1
            _, _, level, name, value, key = heappop(self._later)
            self._add(level, name, value, now, key)
        waiting, ageing = self._waiting.heap, self._ageing.heap  # looked at here: it is asked at each `pop`
        while left and waiting and waiting[0][0] <= now and (host := self._waiting.due(now)) is not None:
            left -= 1
            self._place(host, now)
            waiting = self._waiting.heap
        while left and ageing and ageing[0][0] <= now and (lane := self._ageing.due(now)) is not None:
            left -= 1
            self._enter_lane(lane, now)
            ageing = self._ageing.heap
        if self._flows.resting:
            self._flows.rested(now)

    # --- the turns of flows -------------------------------------------------------------

    def _next_lane(self, now: float) -> Lane[T] | None:
        """Take out the lane whose turn it is; None when nothing may start."""
        while (flow := self._flows.first()) is not None:
            if self._rates is not None and (until := self._rates.free_at(flow.key, now)) > now:
                self._flows.rest(until)
                self._let_others_pass(flow, now)
            elif (lane := self._first_lane(flow)) is not None:
                self._flows.serve(flow)
                return lane
            else:
                self._flows.leave()
        return None

    # --- one host -----------------------------------------------------------------------

    def _host(self, name: str) -> HostQueue[T]:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = HostQueue(name, self._policy(name))
        return host

    def _place(self, host: HostQueue[T], now: float) -> None:
        """See whether a host may be served now; its older alarms are void."""
        host.version += 1
        is_halted = bool(host.closed) or host.out >= host.policy.concurrency
        if is_halted or host.next_at > now:
            host.is_ready = False
            host.stand_down()
            if not is_halted and (host.lanes or host.out == 0):  # else nothing waits, not even to be forgotten
                self._waiting.set(host.next_at, host)
        elif host.lanes or host.out:
            if not host.is_ready:
                host.is_ready = True
                self._unpark(host, now)
        else:
            self._hosts.pop(host.name, None)

    # --- lanes: entered in the heap of their flow, or parked at their host -------------------

    def _seat(self, lane: Lane[T], now: float) -> None:
        """The first item of a lane is another one."""
        host = lane.host
        if not lane.queues:
            if host.is_ready and host.stand_in is lane.flow:
                self._unpark(host, now)
        elif host.is_ready and not lane.is_parked:
            self._enter_lane(lane, now)
        elif not lane.is_parked:
            host.park(lane)

    def _enter_lane(self, lane: Lane[T], now: float) -> None:
        flow = lane.flow
        entry = lane.enter(now, self._max_wait_seconds)
        flow.enter(entry)
        if not flow.is_queued:
            self._flows.enter(flow)
        if lane.urgent_at < inf and entry[0] != URGENT:
            self._ageing.set(lane.urgent_at, lane)

    def _unpark(self, host: HostQueue[T], now: float) -> None:
        """Enter the first of those parked: the others are behind it."""
        host.stand_down()
        while (lane := host.first_parked(self._flows)) is not None:
            self._enter_lane(lane, now)
            if not lane.flow.is_resting:
                host.stand(lane.flow)
                return

    def _let_others_pass(self, flow: Flow, now: float) -> None:
        """A flow has moved on: where it is not before those parked any more, the next is entered."""
        for host in flow.passed():
            self._unpark(host, now)

    def _first_lane(self, flow: Flow) -> Lane[T] | None:
        """Take out the lane of a flow that is to be served; those of hosts that are not ready are parked."""
        while flow.ready:
            lane: Lane[T]
            _, _, _, version, lane = heappop(flow.ready)
            if version != lane.version:
                continue
            if lane.host.is_ready:
                return lane
            lane.host.park(lane)
        return None

    # --- counting -----------------------------------------------------------------------

    def _count_out(self, level: int) -> None:
        self._length -= 1
        self._lengths[level] -= 1
        if not self._lengths[level]:
            del self._lengths[level]
