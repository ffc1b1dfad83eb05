"""The frontier against a brute-force model."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from site_spider.frontier.frontier import Frontier
from tests.frontier.hosts import HOSTS, MAX_WAIT, policy

hosts = st.sampled_from(HOSTS)


class Item(NamedTuple):
    number: int
    level: int
    host: str


class Model(RuleBasedStateMachine):
    """Every item in one list, looked through from beginning to end at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.frontier: Frontier[Item] = Frontier(policy, MAX_WAIT)
        self.now = 0.0
        self.numbers = 0
        self.there: list[tuple[float, Item]] = []  # since when, in the order of arrival
        self.later: list[tuple[float, Item]] = []
        self.out = dict.fromkeys(HOSTS, 0)
        self.next_at = dict.fromkeys(HOSTS, -inf)
        self.closed: set[str] = set()

    @rule(level=st.integers(-3, 3), host=hosts, wait=st.sampled_from([0.0, 0.0, 0.0, 5.0, 20.0]))
    def push(self, level: int, host: str, wait: float) -> None:
        self.numbers += 1
        item = Item(self.numbers, level, host)
        self.frontier.push(level, host, item, self.now, self.now + wait)
        if wait:
            self.later.append((self.now + wait, item))
        else:
            self.there.append((self.now, item))

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def pop(self) -> None:
        found = self._pop()
        if found is not None:
            self.there = [pair for pair in self.there if pair[1] != found]
            self._takes_a_turn(found)

    @rule(seconds=st.sampled_from([1.0, 8.0]))
    def pop_and_slow_down(self, seconds: float) -> None:
        found = self._pop()
        if found is not None:
            self.there = [pair for pair in self.there if pair[1] != found]
            self._takes_a_turn(found)
            self.frontier.slow_down(seconds, self.now)
            self.next_at[found.host] = max(self.next_at[found.host], self.now + seconds)

    @rule()
    def pop_and_forgo(self) -> None:
        found = self._pop()
        if found is not None:
            self.there = [pair for pair in self.there if pair[1] != found]
            self.frontier.forgo(self.now)

    @rule(keeps_turn=st.booleans())
    def pop_and_put_back(self, keeps_turn: bool) -> None:
        found = self._pop()
        if found is not None:
            self.frontier.put_back(self.now, keeps_turn=keeps_turn)
            if keeps_turn:
                self._takes_a_turn(found)

    def _pop(self) -> Item | None:
        self._arrivals()
        found = self.frontier.pop(self.now)
        assert found == self._expected()
        return found

    def _takes_a_turn(self, item: Item) -> None:
        self.out[item.host] += 1
        if item.host == "slow":
            self.next_at["slow"] = self.now + 3.0

    @rule(host=hosts)
    def close(self, host: str) -> None:
        self.frontier.close(host, "robots", self.now)
        self.closed.add(host)

    @rule(host=hosts)
    def open(self, host: str) -> None:
        self.frontier.open(host, self.now)
        self.closed.discard(host)

    def _arrivals(self) -> None:
        due = sorted((pair for pair in self.later if pair[0] <= self.now), key=lambda pair: pair[0])
        self.later = [pair for pair in self.later if pair[0] > self.now]
        self.there += [(self.now, item) for _, item in due]

    def _expected(self) -> Item | None:
        free = [
            (since, item)
            for since, item in self.there
            if self.out[item.host] < policy(item.host).concurrency
            and self.next_at[item.host] <= self.now
            and item.host not in self.closed
        ]
        urgent = [pair for pair in free if pair[0] + MAX_WAIT <= self.now]
        if urgent:
            return min(urgent, key=lambda pair: pair[0])[1]
        return min(free, key=lambda pair: pair[1].level, default=(0.0, None))[1]

    @rule(host=hosts)
    def release(self, host: str) -> None:
        if self.out[host]:
            self.out[host] -= 1
            self.frontier.release(host, self.now)

    @rule(host=hosts, seconds=st.sampled_from([1.0, 30.0]))
    def hold(self, host: str, seconds: float) -> None:
        self.frontier.hold(host, self.now + seconds, "back-off", self.now)
        self.next_at[host] = max(self.next_at[host], self.now + seconds)

    @rule(remainder=st.integers(0, 2))
    def remove(self, remainder: int) -> None:
        slices = self.frontier.remove(lambda item: item.number % 3 == remainder, self.now)
        gone = [item for some in slices for item in some]
        all_items = [item for _, item in self.there + self.later]
        assert sorted(gone) == sorted(item for item in all_items if item.number % 3 == remainder)
        self.there = [pair for pair in self.there if pair[1].number % 3 != remainder]
        self.later = [pair for pair in self.later if pair[1].number % 3 != remainder]

    @invariant()
    def counts_agree(self) -> None:
        items = [item for _, item in self.there + self.later]
        assert len(self.frontier) == len(items)
        levels = {item.level for item in items}
        assert self.frontier.lengths() == {
            level: sum(item.level == level for item in items) for level in sorted(levels)
        }

    @invariant()
    def nothing_becomes_servable_before_it_was_announced(self) -> None:
        moments = [moment for moment, _ in self.later]
        free = {h for h in HOSTS if self.out[h] < policy(h).concurrency and h not in self.closed}
        waiting = {item.host for _, item in self.there} & free
        moments += [self.next_at[host] for host in waiting if self.next_at[host] > self.now]
        if moments:
            assert self.frontier.next_at() <= min(moments)


Model.TestCase.settings = settings(stateful_step_count=60)
test_the_frontier_agrees_with_a_brute_force_model = Model.TestCase
