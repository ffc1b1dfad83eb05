"""One host: when it may be served, and what waits for it, in a lane for each task; whose turn it is in the frontier.

A producer may give each seed a level of its own, so nothing in a lane looks at all levels for one item:
the lowest level and the oldest item are the first in heaps, whose entries stay when a queue moves on.
Those that are void are passed over, and removed when most are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

# --- Start-time fair queueing: which task is served next, among those of which something may start -------
# Theory of operation. What one task has waiting is a *flow*. Each flow has a virtual time `vt`, and the
# flow of the lowest is served; each service moves it on by cost / weight, so flows advance side by side in
# the ratio of their weights. `now` is the virtual time of the flow served last. A flow of which nothing may
# start leaves the heap, and comes back at max(its vt, now): what it did not use is not saved up.
#
# A service costs 1 at its beginning; `correct` adds the rest when it has ended and its cost is known. Costs
# are at least 1, so virtual times only rise, and an entry of a heap is never above the flow's own. A
# correction moves a flow at most MOST_AHEAD / weight before the others (else many slow downloads that end
# together would shut it out for as long: kubernetes#95986).
#
# A flow of which nothing waits is kept while it is ahead of `now`, else it would come back without its
# debt.

L = TypeVar("L", bound=tuple[Any, ...])

MOST_AHEAD = 32.0  # services of a flow of weight 1
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
_MOST_VOID_FLOWS = 64  # entries of a heap, besides one for each lane
_MOST_IDLE = 10_000  # flows that wait for nothing and are ahead; the least of them are forgotten first


class Flow(Generic[L]):
    """One task's part in the frontier. `ready` and `stands_for` are the frontier's."""

    __slots__ = (
        "is_idle", "is_queued", "is_resting", "key", "lanes", "number", "ready", "stands_for", "vt",
    )  # fmt: skip

    def __init__(self, key: Hashable, number: int, vt: float) -> None:
        self.key = key
        self.number = number  # the order of those that are level
        self.vt = vt
        self.lanes = 0  # hosts of which something waits
        self.ready: list[L] = []  # heap of its lanes that may be served
        self.stands_for: list[tuple[float, int, int, Any]] = []  # heap of hosts: see frontier
        self.is_queued = False  # in the heap of flows
        self.is_resting = False  # something may start, but its rate is reached
        self.is_idle = False  # nothing of it waits

    def enter(self, lane: L) -> None:
        """A lane may be served; `lane` is its entry, with version and lane at the end."""
        heappush(self.ready, lane)
        if len(self.ready) > 2 * self.lanes + _MOST_VOID_FLOWS:
            self.ready = [kept for kept in self.ready if kept[-2] == kept[-1].version]
            heapify(self.ready)

    def stand_for(self, vt: float, number: int, entry: int, host: Any) -> None:
        """The lanes parked at a host are behind this flow, up to a virtual time."""
        if len(self.stands_for) > 2 * self.lanes + _MOST_VOID_FLOWS:
            self.stands_for = [kept for kept in self.stands_for if kept[2] == kept[3].stand_number]
            heapify(self.stands_for)
        heappush(self.stands_for, (vt, number, entry, host))

    def passed(self) -> Iterator[Any]:
        """Take out the hosts at which it is not before what is parked any more."""
        heap = self.stands_for
        while heap and (self.is_resting or heap[0][:2] < (self.vt, self.number)):
            _, _, entry, host = heappop(heap)
            if entry == host.stand_number:
                yield host


class Flows(Generic[L]):
    """All flows of which something waits, or that are ahead."""

    def __init__(self, weight_of: Callable[[Hashable], float] = lambda _key: 1.0) -> None:
        self._weight_of = weight_of
        self.now = 0.0
        self._flows: dict[Hashable, Flow[L]] = {}
        self._heap: list[tuple[float, int, Flow[L]]] = []
        self.resting: list[tuple[float, int, Flow[L]]] = []  # by the moment at which that ends
        self._idle: list[tuple[float, int, Flow[L]]] = []
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._flows)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._flows)

    def flow(self, key: Hashable) -> Flow[L]:
        """The flow of a task, made if need be."""
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(key, self._next_number(), self.now)
        elif not flow.lanes and flow.vt <= self.now:
            flow.number = self._next_number()  # as if it had been forgotten meanwhile
        return flow

    def known(self, flow: Flow[L]) -> Flow[L]:
        """The same flow, should it have been forgotten."""
        return self._flows.setdefault(flow.key, flow)

    def enter(self, flow: Flow[L]) -> None:
        """Something of it may start."""
        if not (flow.is_queued or flow.is_resting):
            flow.is_queued = True
            flow.vt = max(flow.vt, self.now)
            heappush(self._heap, (flow.vt, flow.number, flow))

    def first(self) -> Flow[L] | None:
        """The flow whose turn it is."""
        heap = self._heap
        while heap:
            vt, number, flow = heap[0]
            if (vt, number) == (flow.vt, flow.number):
                return flow
            heapreplace(heap, (flow.vt, flow.number, flow))
        return None

    def leave(self) -> None:
        """Nothing of `first` may start."""
        flow = heappop(self._heap)[2]
        flow.is_queued = False
        self.look(flow)

    def rest(self, until: float) -> None:
        """Nothing of `first` is to start before a moment of the clock."""
        flow = heappop(self._heap)[2]
        flow.is_queued, flow.is_resting = False, True
        heappush(self.resting, (until, flow.number, flow))

    def rested(self, moment: float) -> None:
        """Those whose rest is over may be served again."""
        while self.resting and self.resting[0][0] <= moment:
            flow = heappop(self.resting)[2]
            flow.is_resting = False
            if flow.ready:
                self.enter(flow)
            else:
                self.look(flow)

    def next_rested(self) -> float:
        """When the next rest ends; infinite when none does."""
        return self.resting[0][0] if self.resting else inf

    def level(self, flow: Flow[L]) -> float:
        """The virtual time under which a flow of which something may start competes."""
        if not flow.is_queued and flow.vt < self.now:
            flow.vt = self.now
        return flow.vt

    def serve(self, flow: Flow[L]) -> None:
        """One of it is being served."""
        if flow.vt > self.now:
            self.now = flow.vt
            if self._idle:
                self._forget()

    def charge(self, flow: Flow[L]) -> None:
        """That has not been given up."""
        flow.vt += 1.0 / self._weight(flow.key)
        if not flow.lanes:
            self.look(flow)

    def correct(self, key: Hashable, cost: float) -> Flow[L]:
        """A service has ended, and has cost more than 1."""
        flow, weight = self.flow(key), self._weight(key)
        most = max(flow.vt, self.now + MOST_AHEAD / weight)
        flow.vt = min(max(flow.vt, self.now) + (cost - 1.0) / weight, most)
        self.look(flow)
        return flow

    def look(self, flow: Flow[L]) -> None:
        """Forget a flow in time, if nothing of it waits."""
        if flow.lanes or flow.is_idle:
            return
        flow.is_idle = True
        heappush(self._idle, (flow.vt, flow.number, flow))
        if len(self._idle) > _MOST_IDLE:
            self._drop(heappop(self._idle)[2])

    def _forget(self) -> None:
        """Those that are idle and not ahead any more."""
        while self._idle and self._idle[0][0] <= self.now:
            flow = heappop(self._idle)[2]
            if flow.vt > self.now and not flow.lanes:
                heappush(self._idle, (flow.vt, flow.number, flow))
            else:
                self._drop(flow)

    def _drop(self, flow: Flow[L]) -> None:
        flow.is_idle = False
        if not (flow.lanes or flow.is_queued or flow.is_resting):  # else it is looked at when that ends
            self._flows.pop(flow.key, None)

    def _weight(self, key: Hashable) -> float:
        return min(MOST_WEIGHT, max(LEAST_WEIGHT, self._weight_of(key)))

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers


T = TypeVar("T")

URGENT = -(10**12)  # before every level
_MOST_VOID = 8  # entries of a heap, besides one for each queue

_ties = count(1)


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


class Lane(Generic[T]):
    """The items of one task for one host, by level."""

    __slots__ = ("ages", "flow", "host", "is_parked", "levels", "queues", "urgent_at", "version")

    def __init__(self, host: HostQueue[T], flow: Flow[Any]) -> None:
        self.host = host
        self.flow = flow
        self.is_parked = False  # not in the heap of its flow, though something waits: see frontier
        self.queues: dict[int, deque[Item[T]]] = {}
        self.levels: list[int] = []  # heap of the keys of `queues`, and of void ones
        self.ages: list[tuple[float, int, int]] = []  # heap of since, number and level of their first items
        self.urgent_at = inf  # nothing of it is urgent before
        self.version = 0

    def enter(self, now: float, max_wait_seconds: float) -> tuple[int, float, int, int, Lane[T]]:
        """Its entry in the heap of its flow; earlier ones are void."""
        self.version += 1
        level, rank = self.best(now, max_wait_seconds)
        head = self.queues[level][0]
        return rank, head.since, head.number, self.version, self

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


class HostQueue(Generic[T]):
    """See the theory of operation of the frontier."""

    __slots__ = (
        "closed", "free_since", "is_ready", "lanes", "name", "next_at", "out", "parked", "policy", "reason",
        "stand_in", "stand_number", "version", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, policy: HostPolicy) -> None:
        self.name = name
        self.policy = policy
        self.lanes: dict[Flow[Any], Lane[T]] = {}
        self.parked: list[tuple[float, int, int, Lane[T]]] = []  # heap of those parked, if there are several
        self.stand_in: Flow[Any] | None = None  # whose lane is entered while others are parked
        self.stand_number = 0  # of the valid entry in its `stands_for`
        self.waiting = 0  # items
        self.out = 0
        self.next_at = -inf
        self.free_since = -inf  # when fewer requests were out than may be
        self.reason = "delay"  # why it waits until `next_at`
        self.closed = ""  # why nothing of it starts, whatever the time
        self.is_ready = False  # something of it may start
        self.version = 0

    def lane(self, flow: Flow[Any]) -> Lane[T]:
        """That of one task, made if need be."""
        lane = self.lanes.get(flow)
        if lane is None:
            alone = list(self.lanes.values()) if len(self.lanes) == 1 else []
            lane = self.lanes[flow] = Lane(self, flow)
            flow.lanes += 1
            for other in alone:
                if other.is_parked:
                    self._enter_parked(other)
        return lane

    def remove_lane(self, lane: Lane[T]) -> None:
        """Nothing of it waits any more."""
        lane.version += 1  # its entries are void
        lane.is_parked = False
        flow = lane.flow
        del self.lanes[flow]
        flow.lanes -= 1

    def park(self, lane: Lane[T]) -> None:
        """It is not looked at before the host is ready."""
        lane.version += 1  # its entries are void
        lane.is_parked = True
        if len(self.lanes) > 1:
            self._enter_parked(lane)

    def first_parked(self, flows: Flows[Any]) -> Lane[T] | None:
        """Take out the lane of the lowest virtual time, to be entered."""
        if len(self.lanes) == 1:
            self.parked.clear()
            lane = next(iter(self.lanes.values()))
            was_parked, lane.is_parked = lane.is_parked, False
            return lane if was_parked else None
        while self.parked:
            vt, number, tie, lane = self.parked[0]
            flow = lane.flow
            if not lane.is_parked:
                heappop(self.parked)
            elif (vt, number) < (flows.level(flow), flow.number):
                heapreplace(self.parked, (flow.vt, flow.number, tie, lane))
            else:
                heappop(self.parked)
                lane.is_parked = False
                return lane
        return None

    def _enter_parked(self, lane: Lane[T]) -> None:
        heappush(self.parked, (lane.flow.vt, lane.flow.number, next(_ties), lane))

    def stand(self, flow: Flow[Any]) -> None:
        """This flow is before all that are parked, until its virtual time passes the first of them."""
        self.stand_in = flow
        if self.parked:
            vt, number, _, _ = self.parked[0]
            self.stand_number = next(_ties)
            flow.stand_for(vt, number, self.stand_number, self)

    def stand_down(self) -> None:
        """None is before them any more."""
        self.stand_in, self.stand_number = None, 0

    def view(self, now: float) -> HostView:
        """What others may see of it."""
        is_busy = self.out >= self.policy.concurrency
        reason = self.closed or ("busy" if is_busy else self.reason if self.next_at > now else "ready")
        return HostView(self.name, self.waiting, self.out, self.next_at, reason)


# --- The level of a request, from its priority -----------------------------------------------------------
# A level is the negative of Scrapy's priority: the lowest level is served first. Level 0 is the seeds'
# alone: a new request of priority 0 moves to priority 1, ahead of the seeds, so that begun work is finished
# first; a retry that comes out at 0 (a discovered link, lowered once) moves to -1, behind the seeds, as
# retries do (frontier.scheduler). Far behind the retries is the level of requests that need a proxy.

PROXY_LEVEL = 10_000_000  # behind every retry, whatever its seed's priority; a redirect lowers it a little
_LOWEST_OF_PROXIES = PROXY_LEVEL // 2
_MOST = _LOWEST_OF_PROXIES - 1  # of a priority; beyond it a request would pass for one that needs a proxy


def bounded(priority: int) -> int:
    """The priority of a new request, which DEPTH_PRIORITY or a spider may have made as large as they like."""
    return max(-_MOST, min(_MOST, priority))


def needs_proxy(level: int) -> bool:
    """Whether requests that go through a proxy wait on this level."""
    return level >= _LOWEST_OF_PROXIES


def queue_lengths(by_level: Mapping[int, int]) -> dict[str, int]:
    """Lengths under the names of the queue model; levels without bound become five fields."""
    return {
        "redirected": sum(n for level, n in by_level.items() if level < -1),
        "discovered": by_level.get(-1, 0),
        "seeds": by_level.get(0, 0),
        "retried": sum(n for level, n in by_level.items() if level > 0 and not needs_proxy(level)),
        "proxied": sum(n for level, n in by_level.items() if needs_proxy(level)),
    }
