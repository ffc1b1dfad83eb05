"""The priority queue of one host: when it may be served, and what waits for it by level, in a lane for each task.

A producer may give each seed a level of its own, so nothing in a lane looks at all levels for one item:
the lowest level and the oldest item are the first in heaps, whose entries stay when a queue moves on.
Those that are void are passed over, and removed when most are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from site_spider import meta_keys
from site_spider.frontier.fair_queue import Flow, Flows

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

    def __init__(self, host: HostQueue[T], flow: Flow) -> None:
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
        heappush(self.levels, level)
        if len(self.levels) > 2 * len(self.queues) + _MOST_VOID:
            self.levels = list(self.queues)
            heapify(self.levels)
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
            if kept:
                self.queues[level] = kept
                self._enter_age(level, kept[0])
            else:
                del self.queues[level]

    def _oldest(self) -> tuple[float, int, int]:
        while True:
            _, number, level = self.ages[0]
            if level in self.queues and self.queues[level][0].number == number:
                return self.ages[0]
            heappop(self.ages)

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
        self.lanes: dict[Flow, Lane[T]] = {}
        self.parked: list[tuple[float, int, int, Lane[T]]] = []  # heap of those parked, if there are several
        self.stand_in: Flow | None = None  # whose lane is entered while others are parked
        self.stand_number = 0  # of the valid entry in its `stands_for`
        self.waiting = 0  # items
        self.out = 0
        self.next_at = -inf
        self.free_since = -inf  # when fewer requests were out than may be
        self.reason = "delay"  # why it waits until `next_at`
        self.closed = ""  # why nothing of it starts, whatever the time
        self.is_ready = False  # something of it may start
        self.version = 0

    def lane(self, flow: Flow) -> Lane[T]:
        """That of one task, made if need be."""
        lane = self.lanes.get(flow)
        if lane is None:
            if len(self.lanes) == 1:  # one that is alone is parked without an entry
                (other,) = self.lanes.values()
                if other.is_parked:
                    self._enter_parked(other)
            lane = self.lanes[flow] = Lane(self, flow)
            flow.lanes += 1
        return lane

    def _enter_parked(self, lane: Lane[T]) -> None:
        heappush(self.parked, (lane.flow.vt, lane.flow.number, next(_ties), lane))

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

    def first_parked(self, flows: Flows) -> Lane[T] | None:
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

    def stand(self, flow: Flow) -> None:
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
# retries do. Far behind the retries is the level of requests that need a proxy.

PROXY_LEVEL = 10_000_000  # behind every retry, whatever its seed's priority; a redirect lowers it a little
_LOWEST_OF_PROXIES = PROXY_LEVEL // 2
_MOST = _LOWEST_OF_PROXIES - 1  # of a priority; beyond it a request would pass for one that needs a proxy


def bounded(priority: int) -> int:
    """The priority of a new request, which DEPTH_PRIORITY or a spider may have made as large as they like."""
    return max(-_MOST, min(_MOST, priority))


class Placed(Protocol):
    """As much of a request as its level is made of."""

    priority: int

    @property
    def meta(self) -> dict[str, Any]:
        """As Scrapy's."""


def place(request: Placed, origin: Placed | None, *, is_new: bool) -> None:
    """Give a request the priority of its level, never 0; `origin` is what it is another attempt after.

    A redirect raises the priority. A retry counts from the priority before: so a redirected request that is
    retried waits behind the seeds as well, unless its seed or spider gave it a priority of its own, which it
    keeps.
    """
    unraised = request.meta.pop(meta_keys.UNRAISED_PRIORITY, None)
    if is_new:  # its meta may be copied from a retry
        request.priority = bounded(request.priority) or 1
        return
    retries = request.meta.get("retry_times", 0)
    if origin is None:
        request.priority = request.priority or (-1 if retries else 1)
        return
    before = origin.priority if unraised is None else unraised
    if retries > origin.meta.get("retry_times", 0):
        request.priority = before + request.priority - origin.priority or -1
    else:
        request.priority = request.priority or 1
        request.meta[meta_keys.UNRAISED_PRIORITY] = before


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
