"""Which task is served next, among those of which something may start.

Start-time fair queueing. What one task has waiting is a *flow*. Each flow has a virtual time `vt`, and the
flow of the lowest is served; each service moves it on by cost / weight, so flows advance side by side in
the ratio of their weights. `now` is the virtual time of the flow served last. A flow of which nothing may
start leaves the heap, and comes back at max(its vt, now): what it did not use is not saved up.

A service costs 1 at its beginning; `correct` adds the rest when it has ended and its cost is known. Costs
are at least 1, so virtual times only rise, and an entry of a heap is never above the flow's own. A
correction moves a flow at most MOST_AHEAD / weight before the others (else many slow downloads that end
together would shut it out for as long: kubernetes#95986).

An empty flow that has used more than its share is remembered until the others have caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Any

MOST_AHEAD = 32.0  # services of a flow of weight 1
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
_MOST_VOID_FLOWS = 64  # entries of a heap, besides one for each lane
_MOST_IDLE = 10_000  # flows that wait for nothing and are ahead; the least of them are forgotten first


class Flow:
    """One task's part in the frontier. `ready` and `stands_for` are the frontier's."""

    __slots__ = (
        "is_idle", "is_queued", "is_resting", "key", "lanes", "number", "ready", "stands_for", "vt",
    )  # fmt: skip

    def __init__(self, key: Hashable, number: int, vt: float) -> None:
        self.key = key
        self.number = number  # the order of those that are level
        self.vt = vt
        self.lanes = 0  # hosts of which something waits
        self.ready: list[tuple[Any, ...]] = []  # heap of its lanes that may be served
        self.stands_for: list[tuple[float, int, int, Any]] = []  # heap of hosts: see frontier
        self.is_queued = False  # in the heap of flows
        self.is_resting = False  # something may start, but its rate is reached
        self.is_idle = False  # nothing of it waits

    def enter(self, lane: tuple[Any, ...]) -> None:
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


class Flows:
    """All flows of which something waits, or that are ahead."""

    def __init__(self, weight_of: Callable[[Hashable], float] = lambda _key: 1.0) -> None:
        self._weight_of = weight_of
        self.now = 0.0
        self._flows: dict[Hashable, Flow] = {}
        self._heap: list[tuple[float, int, Flow]] = []
        self._most_queued = _MOST_VOID_FLOWS
        self.resting: list[tuple[float, int, Flow]] = []  # by the moment at which that ends
        self._idle: list[tuple[float, int, Flow]] = []
        self._numbers = 0

    def keys(self) -> Collection[Hashable]:
        return self._flows.keys()

    def flow(self, key: Hashable) -> Flow:
        """The flow of a task, made if need be."""
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow(key, self._next_number(), self.now)
        elif not flow.lanes and flow.vt <= self.now:
            flow.number = self._next_number()  # as if it had been forgotten meanwhile
        return flow

    def known(self, flow: Flow) -> Flow:
        """The same flow, should it have been forgotten."""
        return self._flows.setdefault(flow.key, flow)

    def enter(self, flow: Flow) -> None:
        """Something of it may start."""
        if not (flow.is_queued or flow.is_resting):
            flow.is_queued = True
            flow.vt = max(flow.vt, self.now)
            heappush(self._heap, (flow.vt, flow.number, flow))
            if len(self._heap) > self._most_queued:
                self._clear()

    def _clear(self) -> None:
        """Those of which nothing waits leave the heap: where all tasks are new, their turn never comes."""
        queued, self._heap = self._heap, [entry for entry in self._heap if entry[2].lanes]
        heapify(self._heap)
        self._most_queued = 2 * len(self._heap) + _MOST_VOID_FLOWS
        for _, _, flow in queued:
            if not flow.lanes:
                flow.is_queued = False
                self.look(flow)

    def first(self) -> Flow | None:
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

    def level(self, flow: Flow) -> float:
        """The virtual time under which a flow of which something may start competes."""
        if not flow.is_queued and flow.vt < self.now:
            flow.vt = self.now
        return flow.vt

    def serve(self, flow: Flow) -> None:
        """One of it is being served."""
        if flow.vt > self.now:
            self.now = flow.vt
            if self._idle:
                self._forget()

    def charge(self, flow: Flow) -> None:
        """That has not been given up."""
        flow.vt += 1.0 / self._weight(flow.key)
        if not flow.lanes:
            self.look(flow)

    def correct(self, key: Hashable, cost: float) -> Flow:
        """A service has ended, and has cost more than 1."""
        flow, weight = self.flow(key), self._weight(key)
        most = max(flow.vt, self.now + MOST_AHEAD / weight)
        flow.vt = min(max(flow.vt, self.now) + (cost - 1.0) / weight, most)
        self.look(flow)
        return flow

    def look(self, flow: Flow) -> None:
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

    def _drop(self, flow: Flow) -> None:
        flow.is_idle = False
        is_in_use = flow.lanes or flow.is_queued or flow.is_resting  # it is looked at when that ends
        if not is_in_use and self._flows.get(flow.key) is flow:
            del self._flows[flow.key]

    def _weight(self, key: Hashable) -> float:
        return min(MOST_WEIGHT, max(LEAST_WEIGHT, self._weight_of(key)))

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers
