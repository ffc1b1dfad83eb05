"""Hosts and flows: whose turn it is.

Theory of operation. A lane of a ready host is *entered* in the heap of its flow, or *parked* behind a flow
that is entered there and has a lower virtual time; when that flow has moved past the first of those
parked, this one is entered.
Lanes of a host that is not ready are parked when somebody looks at them. So a host that becomes
ready enters one lane, not one for each task, and `pop` is O(log) in flows and hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from heapq import heappop
from math import inf
from typing import Any, Generic, Protocol, TypeVar, cast

from site_spider.frontier.alarms import Alarms
from site_spider.frontier.flows import Flow, Flows
from site_spider.frontier.host_queue import URGENT, HostPolicy, HostQueue, Lane

T = TypeVar("T")


class Rates(Protocol):
    """How many items of a task may be served in a second."""

    def free_at(self, key: Hashable, now: float) -> float:
        """When the next one may be; it is asked again then."""

    def spend(self, key: Hashable, now: float) -> None:
        """One was served."""


class Hosts(Generic[T]):
    """Those of which something waits or is out, and the flows of what waits."""

    def __init__(
        self,
        policy: Callable[[str], HostPolicy],
        max_wait_seconds: float,
        flows: Flows[Any],
        rates: Rates | None,
    ) -> None:
        self._policy = policy
        self._max_wait_seconds = max_wait_seconds
        self._flows = flows
        self._rates = rates
        self._hosts: dict[str, HostQueue[T]] = {}
        self._waiting: Alarms[HostQueue[T]] = Alarms()
        self._ageing: Alarms[Lane[T]] = Alarms()  # when it becomes urgent

    def __iter__(self) -> Iterator[HostQueue[T]]:
        return iter(self._hosts.values())

    def get(self, name: str) -> HostQueue[T] | None:
        """None when nothing of it waits or is out."""
        return self._hosts.get(name)

    def __getitem__(self, name: str) -> HostQueue[T]:
        return self._hosts[name]

    def host(self, name: str) -> HostQueue[T]:
        """That of this name, made if need be."""
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = HostQueue(name, self._policy(name))
        return host

    def lane(self, name: str, key: Hashable) -> Lane[T]:
        """That of a flow at a host, made if need be."""
        return self.host(name).lane(self._flows.flow(key))

    def same_lane(self, host: HostQueue[T], flow: Flow[Any]) -> Lane[T]:
        """The same for those of the last turn."""
        return host.lane(self._flows.known(flow))

    def flows(self) -> Iterator[Hashable]:
        """The keys of those of which something waits, or that are ahead."""
        return iter(self._flows)

    def look(self, flow: Flow[Any]) -> None:
        """Nothing of it may wait any more."""
        self._flows.look(flow)

    # --- the turns of flows -------------------------------------------------------------

    def next_lane(self, now: float) -> Lane[T] | None:
        """Take out the lane whose turn it is; None when nothing may start."""
        while (flow := self._flows.first()) is not None:
            if self._is_too_fast(flow, now):
                continue
            lane = self._first_lane(flow)
            if lane is not None:
                self._flows.serve(flow)
                return lane
            self._flows.leave()
        return None

    def first_lane(self) -> Lane[T] | None:
        """The one at the top of the first flow; None when that cannot be served."""
        flow = self._flows.first()
        if flow is None or not flow.ready:
            return None
        version, lane = flow.ready[0][-2:]
        return cast("Lane[T]", lane) if version == lane.version and lane.host.is_ready else None

    def charge(self, flow: Flow[Any], then: float, now: float) -> None:
        """One of a flow was served at the time `then`."""
        self._flows.charge(flow)
        if self._rates is not None:
            self._rates.spend(flow.key, then)
        self._let_others_pass(flow, now)

    def correct(self, key: Hashable, cost: float, now: float) -> None:
        """What was served has ended, and has cost more than 1."""
        self._let_others_pass(self._flows.correct(key, cost), now)

    def _is_too_fast(self, flow: Flow[Any], now: float) -> bool:
        """Whether the flow whose turn it is rests instead."""
        if self._rates is None or (until := self._rates.free_at(flow.key, now)) <= now:
            return False
        self._flows.rest(until)
        self._let_others_pass(flow, now)
        return True

    def next_at(self) -> float:
        """When something may start though nothing else happens before."""
        return min(self._waiting.next_at(), self._flows.next_rested())

    def wake(self, now: float) -> None:
        """Move on what only waited for its moment."""
        while (host := self._waiting.due(now)) is not None:
            self.place(host, now)
        while (lane := self._ageing.due(now)) is not None:
            self._enter_lane(lane, now)
        self._flows.rested(now)

    # --- one host -----------------------------------------------------------------------

    def place(self, host: HostQueue[T], now: float) -> None:
        """See whether a host may be served now; its older alarms are void."""
        host.version += 1
        if host.closed or host.out >= host.policy.concurrency:
            self._halt(host)
        elif host.next_at > now:
            self._halt(host)
            if host.lanes or host.out == 0:  # else nothing waits for it, not even to be forgotten
                self._waiting.set(host.next_at, host)
        elif host.lanes or host.out:
            if not host.is_ready:
                host.is_ready = True
                self._unpark(host, now)
        else:
            self._hosts.pop(host.name, None)

    def _halt(self, host: HostQueue[T]) -> None:
        host.is_ready = False
        host.stand_down()

    # --- lanes: entered in the heap of their flow, or parked at their host -------------------

    def seat(self, lane: Lane[T], now: float) -> None:
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
        self._flows.enter(flow)
        if lane.urgent_at < inf and entry[0] != URGENT:
            self._ageing.set(lane.urgent_at, lane)

    def _unpark(self, host: HostQueue[T], now: float) -> None:
        """Enter the first of those parked: the others are behind it."""
        host.stand_down()
        while (lane := host.first_parked(self._flows)) is not None:
            lane.unpark()
            self._enter_lane(lane, now)
            if not lane.flow.is_resting:
                host.stand(lane.flow)
                return

    def _let_others_pass(self, flow: Flow[Any], now: float) -> None:
        """A flow has moved on: where it is not before those parked any more, the next is entered."""
        for host in flow.passed():
            self._unpark(host, now)

    def _first_lane(self, flow: Flow[Any]) -> Lane[T] | None:
        """Take out the lane of a flow that is to be served; those of hosts that are not ready are parked."""
        while flow.ready:
            _, _, _, version, lane = heappop(flow.ready)
            if version != lane.version:
                continue
            if lane.host.is_ready:
                return cast("Lane[T]", lane)
            lane.host.park(lane)
        return None
