"""The frontier with tasks against a brute-force model of fair queueing."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from site_spider.frontier.frontier import Frontier
from site_spider.frontier.host_queue import MOST_AHEAD
from tests.frontier.hosts import HOSTS, MAX_WAIT, policy

hosts = st.sampled_from(HOSTS)
tasks = st.sampled_from(["t", "u", "v", "w", None])


class Piece(NamedTuple):
    number: int
    level: int
    host: str
    task: str | None


class FairModel(RuleBasedStateMachine):
    """Every item in one list, looked through from beginning to end at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[object, float] = {"t": 1.0, "u": 1.0, "v": 4.0, "w": 0.5, None: 1.0}
        self.frontier: Frontier[Piece] = Frontier(policy, MAX_WAIT, weight_of=self.weights.__getitem__)
        self.now = 0.0
        self.numbers = self.flow_numbers = 0
        self.there: list[tuple[float, Piece]] = []  # since when, in the order of arrival
        self.later: list[tuple[float, Piece]] = []
        self.out = dict.fromkeys(HOSTS, 0)
        self.next_at = dict.fromkeys(HOSTS, -inf)
        self.virtual = 0.0
        self.flows: dict[str | None, tuple[float, int]] = {}  # virtual time, order
        self.uncharged: tuple[str | None] | None = None

    @rule(level=st.integers(-2, 2), host=hosts, task=tasks, wait=st.sampled_from([0.0, 0.0, 0.0, 5.0]))
    def push(self, level: int, host: str, task: str | None, wait: float) -> None:
        self.numbers += 1
        item = Piece(self.numbers, level, host, task)
        self.frontier.push(level, host, item, self.now, self.now + wait, task)
        if wait:
            self.later.append((self.now + wait, item))
        else:
            self._arrive(item)

    @rule(host=hosts, first=tasks, second=tasks)
    def push_some(self, host: str, first: str | None, second: str | None) -> None:
        for task in (first, second, first):
            self.push(0, host, task, 0.0)

    def _arrive(self, item: Piece) -> None:
        if not any(other.task == item.task for _, other in self.there):
            vt, number = self.flows.get(item.task, (self.virtual, 0))
            if vt <= self.virtual:
                self.flow_numbers += 1
                number = self.flow_numbers
            self.flows[item.task] = vt, number
        self.there.append((self.now, item))

    @rule(seconds=st.sampled_from([0.5, 3.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def pop(self) -> None:
        found = self._pop()
        if found is not None:
            self._takes_a_turn(found)

    @rule()
    def pop_and_forgo(self) -> None:
        found = self._pop()
        if found is not None:
            self.frontier.forgo(self.now)
            self.uncharged = None

    @rule(keeps_turn=st.booleans())
    def pop_and_put_back(self, keeps_turn: bool) -> None:
        there = list(self.there)
        found = self._pop()
        if found is None:
            return
        self.frontier.put_back(self.now, keeps_turn=keeps_turn)
        arrived = self.there
        self.there = [pair for pair in there if pair[1] == found or pair in arrived]
        self.there += [pair for pair in arrived if pair not in self.there]
        if found not in [item for _, item in self.there]:
            self.there.insert(0, self.taken)
        if keeps_turn:
            self._takes_a_turn(found)
        else:
            self.uncharged = None

    def _pop(self) -> Piece | None:
        if self.uncharged is not None:
            task = self.uncharged[0]
            vt, number = self.flows[task]
            self.flows[task] = vt + 1 / self.weights[task], number
            self.uncharged = None
        self._arrivals()
        expected = self._expected()
        found = self.frontier.pop(self.now)
        assert found == expected
        if found is not None:
            self.uncharged = (found.task,)
            self.virtual = max(self.virtual, self.flows[found.task][0])
            self.taken = next(pair for pair in self.there if pair[1] == found)
            self.there.remove(self.taken)
        return found

    def _takes_a_turn(self, item: Piece) -> None:
        self.out[item.host] += 1
        if item.host == "slow":
            self.next_at["slow"] = self.now + 3.0

    def _arrivals(self) -> None:
        due = sorted((pair for pair in self.later if pair[0] <= self.now), key=lambda pair: pair[0])
        self.later = [pair for pair in self.later if pair[0] > self.now]
        for _, item in due:
            self._arrive(item)

    def _expected(self) -> Piece | None:
        free = [
            (since, item)
            for since, item in self.there
            if self.out[item.host] < policy(item.host).concurrency and self.next_at[item.host] <= self.now
        ]
        for task in {item.task for _, item in free}:
            vt, number = self.flows[task]
            self.flows[task] = max(vt, self.virtual), number
        first = min((self.flows[item.task] for _, item in free), default=None)
        free = [pair for pair in free if self.flows[pair[1].task] == first]
        urgent = [pair for pair in free if pair[0] + MAX_WAIT <= self.now]
        if urgent:
            return min(urgent, key=lambda pair: pair[0])[1]
        return min(free, key=lambda pair: pair[1].level, default=(0.0, None))[1]

    @rule(host=hosts, task=tasks, cost=st.sampled_from([1.0, 1.0, 3.0, 100.0]))
    def release(self, host: str, task: str | None, cost: float) -> None:
        if not self.out[host]:
            return
        self.out[host] -= 1
        self.frontier.release(host, self.now, task, cost)
        if cost > 1.0:
            vt, number = self.flows.get(task, (self.virtual, 0))
            if vt <= self.virtual and not any(item.task == task for _, item in self.there):
                self.flow_numbers += 1
                number = self.flow_numbers
            weight = self.weights[task]
            most = max(vt, self.virtual + MOST_AHEAD / weight)
            self.flows[task] = min(max(vt, self.virtual) + (cost - 1) / weight, most), number

    @rule(task=tasks, weight=st.sampled_from([0.25, 1.0, 8.0]))
    def weigh(self, task: str | None, weight: float) -> None:
        self.weights[task] = weight

    @rule(host=hosts, seconds=st.sampled_from([1.0, 30.0]))
    def hold(self, host: str, seconds: float) -> None:
        self.frontier.hold(host, self.now + seconds, "back-off", self.now)
        self.next_at[host] = max(self.next_at[host], self.now + seconds)

    @rule(remainder=st.integers(0, 2))
    def remove(self, remainder: int) -> None:
        slices = self.frontier.remove(lambda item: item.number % 3 == remainder, self.now)
        gone = [item for some in slices for item in some]
        everything = [item for _, item in self.there + self.later]
        assert {item.number for item in gone} == {i.number for i in everything if i.number % 3 == remainder}
        self.there = [pair for pair in self.there if pair[1].number % 3 != remainder]
        self.later = [pair for pair in self.later if pair[1].number % 3 != remainder]

    @invariant()
    def the_length_agrees(self) -> None:
        assert len(self.frontier) == len(self.there) + len(self.later)
        for host in HOSTS:
            assert self.frontier.waiting(host) == sum(item.host == host for _, item in self.there)


FairModel.TestCase.settings = settings(stateful_step_count=60)
test_the_frontier_is_as_fair_as_a_brute_force_model = FairModel.TestCase
