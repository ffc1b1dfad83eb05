"""The frontier against a brute-force model, and its order by levels and hosts."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from site_spider.frontier.frontier import Frontier
from site_spider.frontier.host_queue import HostPolicy
from tests.growth import assert_grows

HOSTS = ["a", "b", "c", "slow"]
hosts = st.sampled_from(HOSTS)
MAX_WAIT = 50.0


class Item(NamedTuple):
    number: int
    level: int
    host: str


def policy(host: str) -> HostPolicy:
    return HostPolicy(1, 3.0) if host == "slow" else HostPolicy(2, 0.0)


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


Model.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
test_the_frontier_agrees_with_a_brute_force_model = Model.TestCase


def test_redirects_come_before_links_before_seeds_before_retries() -> None:
    """The order of the levels, whatever the order of arrival."""
    frontier: Frontier[str] = Frontier()
    for level, name in ((1, "retry"), (0, "seed"), (-1, "link"), (-2, "redirect")):
        frontier.push(level, name, name, 0.0)
    assert [frontier.pop(0.0) for _ in range(5)] == ["redirect", "link", "seed", "retry", None]


def test_a_busy_host_does_not_block_the_others() -> None:
    """What waits for it stays in its order; the rest passes."""
    frontier: Frontier[str] = Frontier(lambda _host: HostPolicy(concurrency=1))
    for name in ("slow 1", "slow 2", "fast 1", "fast 2"):
        frontier.push(0, name.split()[0], name, 0.0)
    assert frontier.pop(0.0) == "slow 1"
    assert frontier.pop(0.0) == "fast 1"
    assert frontier.pop(0.0) is None
    frontier.release("fast", 1.0)
    assert frontier.pop(1.0) == "fast 2"
    frontier.release("slow", 2.0)
    assert frontier.pop(2.0) == "slow 2"


def test_what_waited_too_long_is_served_before_every_level() -> None:
    """A retry is not starved by seeds that keep coming."""
    frontier: Frontier[str] = Frontier(max_wait_seconds=10)
    frontier.push(5, "a", "old", 0.0)
    for second in range(20):
        frontier.push(-1, "b", f"new {second}", float(second))
        popped = frontier.pop(float(second))
        if popped == "old":
            break
        frontier.release("b", float(second))
    assert second == 10


def test_a_host_that_is_done_with_is_forgotten() -> None:
    """Memory does not grow with the hosts of the past."""
    frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(delay_seconds=1.0))
    for number in range(1000):
        frontier.push(0, f"h{number}", number, float(number))
        assert frontier.pop(float(number)) == number
        frontier.release(f"h{number}", float(number))
    frontier.pop(2000.0)
    assert list(frontier.hosts(2000.0)) == []


def test_an_item_that_is_put_back_is_the_first_again_and_its_host_waits_until_it_is_opened() -> None:
    """As for a robots.txt that is fetched in its turn: the delay of the host begins with that."""
    frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(1, 2.0))
    for number in (1, 2):
        frontier.push(0, "h", number, 0.0)
    assert frontier.pop(0.0) == 1
    frontier.put_back(0.0, keeps_turn=True)
    frontier.close("h", "robots", 0.0)
    assert frontier.pop(100.0) is None
    assert frontier.next_at() == inf
    (view,) = frontier.hosts(1.0)
    assert (view.reason, view.waiting, view.out, len(frontier)) == ("robots", 2, 1, 2)
    frontier.release("h", 1.0)
    frontier.open("h", 1.0)
    assert frontier.pop(1.0) is None
    assert [frontier.pop(2.0), frontier.pop(2.0)] == [1, None]


def test_what_is_not_sent_takes_no_turn_of_its_host() -> None:
    """A page that robots.txt forbids holds up neither the next one nor a place."""
    frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(1, 60.0))
    for number in (1, 2):
        frontier.push(0, "h", number, 0.0)
    assert frontier.pop(0.0) == 1
    frontier.forgo(0.0)
    assert frontier.pop(0.0) == 2


def test_a_host_says_why_it_waits() -> None:
    """Ready, busy, its delay, or what it is held for."""
    frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(1, 2.0))
    frontier.push(0, "h", 1, 0.0)
    frontier.push(0, "h", 2, 0.0)
    assert [view.reason for view in frontier.hosts(0.0)] == ["ready"]
    frontier.pop(0.0)
    assert [view.reason for view in frontier.hosts(0.0)] == ["busy"]
    frontier.release("h", 0.5)
    assert [view.reason for view in frontier.hosts(0.5)] == ["delay"]
    frontier.hold("h", 60.0, "back-off", 0.5)
    (view,) = frontier.hosts(0.5)
    assert (view.reason, view.next_at, view.waiting, view.out) == ("back-off", 60.0, 1, 0)


def test_what_waits_of_a_host_can_be_counted() -> None:
    frontier = Frontier[str]()
    for level in (0, 0, 1):
        frontier.push(level, "a", "item", 0.0)
    frontier.push(0, "a", "later", 0.0, not_before=5.0)
    assert (frontier.waiting("a"), frontier.waiting("b")) == (3, 0)


def entries_kept(frontier: Frontier[int]) -> int:
    """In all heaps, the void ones included."""
    return sum(len(heap) for heap in vars(frontier).values() if isinstance(heap, list))


def test_what_was_served_leaves_nothing_behind_until_it_would_have_been_urgent() -> None:
    """With 600 s and 1,800 pages a second that was 300 MB."""
    frontier: Frontier[int] = Frontier(policy, max_wait_seconds=600)
    for number in range(3_000):
        host = HOSTS[number % 3]
        frontier.push(number % 2, host, number, number / 1_000)
        frontier.push(0, host, number, number / 1_000)
        for _ in range(2):
            assert frontier.pop(number / 1_000) is not None
            frontier.release(host, number / 1_000)
    assert entries_kept(frontier) < 300


def test_hosts_that_were_served_once_are_forgotten_at_once() -> None:
    frontier: Frontier[int] = Frontier(policy, max_wait_seconds=600)
    for number in range(3_000):
        frontier.push(0, f"host{number}", number, number / 1_000)
        assert frontier.pop(number / 1_000) == number
        frontier.release(f"host{number}", number / 1_000)
    assert not list(frontier.hosts(3.0))
    assert entries_kept(frontier) < 300


def test_what_waits_is_urgent_in_time_however_many_others_were_served_meanwhile() -> None:
    frontier: Frontier[str] = Frontier(policy, max_wait_seconds=600)
    frontier.push(5, "a", "patient", 0.0)
    for number in range(1_000):
        now = number * 0.6
        frontier.push(0, "b", "quick", now)
        assert frontier.pop(now) == "quick"
        frontier.release("b", now)
    frontier.push(0, "b", "quick", 600.0)
    assert frontier.pop(600.0) == "patient"


LEVELS = 20_000  # as many as seeds may be in flight, each with a priority of its own


def one_level_each(levels: int = LEVELS) -> Frontier[int]:
    frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(levels, 0.0), MAX_WAIT)
    for number in range(levels):
        frontier.push(number * 7919 % levels, "a", number, 0.0)  # in no order
    return frontier


def test_a_level_for_each_item_costs_no_more_to_remove() -> None:
    """They are removed when their partition is revoked, on the event loop."""

    def removing(levels: int) -> Callable[[], None]:
        frontier = one_level_each(levels)

        def remove() -> None:
            assert sum(map(len, frontier.remove(lambda number: number % 2 == 0, 1.0))) == levels // 2
            assert sum(map(len, frontier.remove(lambda _number: True, 1.0))) == levels // 2
            assert frontier.lengths() == {}

        return remove

    assert_grows(removing, LEVELS // 4)


@pytest.mark.parametrize("now", [1.0, MAX_WAIT + 1])
def test_a_level_for_each_item_costs_no_more_to_serve(now: float) -> None:
    """By level, and by age when all have waited too long; the levels are gone with their items."""

    def serving(levels: int) -> Callable[[], list[int | None]]:
        frontier = one_level_each(levels)
        return lambda: [frontier.pop(now) for _ in range(levels)]

    assert_grows(serving, LEVELS // 4)
    frontier = one_level_each()
    served = [frontier.pop(now) for _ in range(LEVELS)]
    numbers = range(LEVELS)
    assert served == (list(numbers) if now > MAX_WAIT else sorted(numbers, key=lambda n: n * 7919 % LEVELS))
    assert frontier.lengths() == {}
