"""The frontier: its order against a brute-force model, levels, and what it keeps and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from scrapy import Request

from site_spider.frontier.fair_queue import MOST_AHEAD
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.priority_queue import URGENT, HostPolicy, bounded, needs_proxy, place
from tests.growth import assert_grows

HOSTS = ["a", "b", "c", "slow"]
MAX_WAIT = 50.0


def policy(host: str) -> HostPolicy:
    return HostPolicy(1, 3.0) if host == "slow" else HostPolicy(2, 0.0)


hosts = st.sampled_from(HOSTS)
tasks = st.sampled_from(["t", "u", "v", "w", None])


class Piece(NamedTuple):
    number: int
    level: int
    host: str
    task: str | None


class FairModel(RuleBasedStateMachine):
    """Every item in one list, looked through from beginning to end at each step."""

    has_tasks = True

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
        self.closed: set[str] = set()
        self.virtual = 0.0
        self.flows: dict[str | None, tuple[float, int]] = {}  # virtual time, order
        self.uncharged: tuple[str | None] | None = None

    @rule(level=st.integers(-3, 3), host=hosts, task=tasks, wait=st.sampled_from([0.0, 0.0, 0.0, 5.0, 20.0]))
    def push(self, level: int, host: str, task: str | None, wait: float) -> None:
        self.numbers += 1
        item = Piece(self.numbers, level, host, task if self.has_tasks else None)
        self.frontier.push(level, host, item, self.now, self.now + wait, item.task)
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

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def pop(self) -> None:
        found = self._pop()
        if found is not None:
            self._takes_a_turn(found)

    @rule(seconds=st.sampled_from([1.0, 8.0]))
    def pop_and_slow_down(self, seconds: float) -> None:
        found = self._pop()
        if found is not None:
            self._takes_a_turn(found)
            self.frontier.hold(found.host, self.now + seconds, "delay", self.now)
            self.next_at[found.host] = max(self.next_at[found.host], self.now + seconds)

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
            if self.out[item.host] < policy(item.host).concurrency
            and self.next_at[item.host] <= self.now
            and item.host not in self.closed
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

    @rule(host=hosts)
    def close(self, host: str) -> None:
        self.frontier.close(host, "robots", self.now)
        self.closed.add(host)

    @rule(host=hosts)
    def open(self, host: str) -> None:
        self.frontier.open(host, self.now)
        self.closed.discard(host)

    @rule(remainder=st.integers(0, 2))
    def remove(self, remainder: int) -> None:
        slices = self.frontier.remove(lambda item: item.number % 3 == remainder, self.now)
        gone = [item for some in slices for item in some]
        everything = [item for _, item in self.there + self.later]
        assert sorted(i.number for i in gone) == sorted(i.number for i in everything if i.number % 3 == remainder)
        self.there = [pair for pair in self.there if pair[1].number % 3 != remainder]
        self.later = [pair for pair in self.later if pair[1].number % 3 != remainder]

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.frontier) == len(self.there) + len(self.later)
        assert self.frontier.lengths() == Counter(item.level for _, item in self.there + self.later)
        waiting = Counter(item.host for _, item in self.there)
        assert all(self.frontier.waiting(host) == waiting[host] for host in HOSTS)

    @invariant()
    def nothing_becomes_servable_before_it_was_announced(self) -> None:
        moments = [moment for moment, _ in self.later]
        free = {h for h in HOSTS if self.out[h] < policy(h).concurrency and h not in self.closed}
        waiting = {item.host for _, item in self.there} & free
        moments += [self.next_at[host] for host in waiting if self.next_at[host] > self.now]
        if moments:
            assert self.frontier.next_at() <= min(moments)


class ModelWithoutTasks(FairModel):
    """What there is of an order by levels and hosts alone is met more often so."""

    has_tasks = False


for model in (FairModel, ModelWithoutTasks):
    model.TestCase.settings = settings(stateful_step_count=70)
test_the_frontier_is_as_fair_as_a_brute_force_model = FairModel.TestCase
test_the_frontier_agrees_with_a_brute_force_model_without_tasks = ModelWithoutTasks.TestCase


def test_a_host_whose_old_item_was_served_waits_with_the_others_again() -> None:
    frontier: Frontier[str] = Frontier(max_wait_seconds=10)
    frontier.push(5, "a", "old", 0.0)
    frontier.push(0, "a", "new", 8.0)
    frontier.push(-1, "b", "best", 9.0)
    assert frontier.pop(11.0) == "old"
    frontier.release("a", 11.0)
    assert [frontier.pop(11.0), frontier.pop(11.0)] == ["best", "new"]


def test_a_host_says_why_it_waits() -> None:
    frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(1, 2.0))
    frontier.push(0, "h", 1, 0.0)
    frontier.push(0, "h", 2, 0.0)
    assert [view.reason for view in frontier.hosts(0.0)] == ["ready"]
    frontier.pop(0.0)
    assert [view.reason for view in frontier.hosts(0.0)] == ["busy"]
    frontier.close("h", "robots", 0.0)
    assert [view.reason for view in frontier.hosts(0.0)] == ["robots"]
    frontier.open("h", 0.0)
    frontier.release("h", 0.5)
    assert [view.reason for view in frontier.hosts(0.5)] == ["delay"]
    frontier.hold("h", 60.0, "back-off", 0.5)
    (view,) = frontier.hosts(0.5)
    assert (view.reason, view.next_at, view.waiting, view.out) == ("back-off", 60.0, 1, 0)


def entries_kept(frontier: Frontier[int]) -> int:
    """In all heaps, the void ones included."""
    flows = frontier._flows
    heaps = [frontier._later, frontier._waiting.heap, frontier._ageing.heap, flows._heap, flows.resting, flows._idle]
    of_flows = [heap for flow in flows._flows.values() for heap in (flow.ready, flow.stands_for)]
    return sum(map(len, [*heaps, *of_flows]))


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


@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_hosts_that_were_served_once_are_forgotten_when_their_delay_is_over(delay: float) -> None:
    frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(2, delay), max_wait_seconds=600)
    for number in range(1_000):
        frontier.push(0, f"host{number}", number, number / 1_000)
        assert frontier.pop(number / 1_000) == number
        frontier.release(f"host{number}", number / 1_000)
    while frontier.next_at() <= 3.0:
        frontier.pop(3.0)
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


def test_a_policy_that_changes_counts_for_what_waits_already() -> None:
    """The file of a source may change while its host has links for hours."""
    policies = [HostPolicy(8, 0.0)]
    frontier: Frontier[int] = Frontier(lambda _host: policies[-1])
    for number in range(9):
        frontier.push(0, "a", number, 0.0)
    assert frontier.pop(0.0) == 0
    policies.append(HostPolicy(2, 5.0))
    assert [frontier.pop(0.0), frontier.pop(0.0), frontier.pop(6.0)] == [1, None, None]
    frontier.release("a", 6.0)
    assert [frontier.pop(6.0), frontier.pop(6.0)] == [2, None]


LEVELS = 4_000  # each seed has a priority of its own


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
    def serving(levels: int) -> Callable[[], list[int | None]]:
        frontier = one_level_each(levels)
        return lambda: [frontier.pop(now) for _ in range(levels)]

    assert_grows(serving, LEVELS // 4)
    frontier = one_level_each()
    served = [frontier.pop(now) for _ in range(LEVELS)]
    numbers = range(LEVELS)
    assert served == (list(numbers) if now > MAX_WAIT else sorted(numbers, key=lambda n: n * 7919 % LEVELS))
    assert frontier.lengths() == {}


HELD_BACK = 2_000  # retries, hosts within their delay, or links that have waited for long


def due_together(kind: str) -> Frontier[int]:
    """Nothing of it was asked for meanwhile: a sink was away, say. A retry, and a host within its delay, may begin."""
    frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(1, 10.0 * (kind == "delays")), MAX_WAIT)
    for number in range(HELD_BACK):
        frontier.push(0, f"h{number}", number, 0.0, not_before=20.0 if kind == "retries" else -inf)
    for number in range(HELD_BACK if kind == "delays" else 0):
        frontier.push(0, f"h{number}", number, 0.0)
        assert frontier.pop(0.0) is not None
        frontier.release(frontier.last_host, 0.0)
    return frontier


@pytest.mark.parametrize("kind", ["retries", "delays", "ages"])
def test_what_came_due_together_is_woken_some_at_a_time(kind: str) -> None:
    """After an outage all that waits may be: a hundred thousand held up the event loop for a second."""
    frontier, served = due_together(kind), set[int | None]()

    def pop() -> int:
        """How many were woken for it."""
        heaps = {"retries": frontier._later, "delays": frontier._waiting.heap, "ages": frontier._ageing.heap}
        before = len(heaps[kind])
        served.add(frontier.pop(1_000.0))
        return before - len(heaps[kind])

    assert 0 < pop() <= 100
    assert kind == "ages" or frontier.next_at() <= 1_000.0  # so that it is asked again
    assert max(pop() for _ in range(HELD_BACK - 1)) <= 100
    assert served == set(range(HELD_BACK))
    assert frontier.pop(1_000.0) is None
    assert frontier.next_at() > 1_000.0


REDIRECTED = 2  # REDIRECT_PRIORITY_ADJUST
RETRY = -1  # RETRY_PRIORITY_ADJUST

ways = st.lists(st.sampled_from([RETRY, REDIRECTED]), max_size=8)


def made(priority: int, *, is_new: bool = True, **meta: int) -> Request:
    request = Request("http://h.test/", priority=priority, meta=meta)
    place(request, None, is_new=is_new)
    return request


def walk(first: Request, way: list[int]) -> int:
    """The priority at the end; as Scrapy makes the requests: each from the one before, with its priority adjusted."""
    here = first
    for adjusted in way:
        retries = here.meta.get("retry_times", 0) + (adjusted == RETRY)
        meta = {**here.meta, "retry_times": retries}
        after = here.replace(priority=here.priority + adjusted, meta=meta)
        place(after, here, is_new=False)
        here = after
    return here.priority


@pytest.mark.parametrize(
    ("priority", "is_new", "retries", "level"),
    [(0, True, 0, -1), (1, True, 0, -1), (2, True, 0, -2), (-1, False, 1, 1), (0, False, 1, 1),
     (0, False, 0, -1), (-7, True, 0, 7), (0, True, 1, -1)],
)  # fmt: skip
def test_a_request_waits_on_the_level_of_its_priority(priority: int, is_new: bool, retries: int, level: int) -> None:
    """Priority 0 is the seeds' alone: new requests move ahead of them, retries behind."""
    assert -made(priority, is_new=is_new, retry_times=retries).priority == level


@given(is_seed=st.booleans(), way=ways)
def test_every_retry_waits_behind_the_seeds(is_seed: bool, way: list[int]) -> None:
    assert -walk(Request("http://h.test/") if is_seed else made(0), [*way, RETRY]) > 0


@given(own=st.integers(-20, 20).filter(bool), way=ways)
def test_a_retry_lowers_a_priority_of_its_own_by_one_whatever_redirects_there_were(own: int, way: list[int]) -> None:
    """One of the seed's, the spider's, or DEPTH_PRIORITY's; only 0 is passed over."""
    retried = walk(made(own), [*way, RETRY])
    only_retries = [step for step in way if step == RETRY]
    if REDIRECTED not in way or way.index(REDIRECTED) >= len(only_retries):
        assert retried == walk(made(own), [*only_retries, RETRY])
    if not way:
        assert retried == (own - 1 or -1)


@given(first=st.integers(-20, 20), way=ways)
def test_level_0_stays_the_seeds_own(first: int, way: list[int]) -> None:
    assert walk(made(first), way) != 0


@pytest.mark.parametrize("priority", [10**9, -(10**9), 10**400, -(10**400)])
def test_no_priority_of_a_new_request_reaches_the_levels_of_others(priority: int) -> None:
    """Neither those that need a proxy, nor the level before all, of what has waited too long."""
    level = -made(priority).priority
    assert level > URGENT
    assert not needs_proxy(level)
    assert (level < 0) is (priority > 0)
    assert bounded(1_000_000) == 1_000_000
