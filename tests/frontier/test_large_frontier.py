"""What the frontier keeps of what was served, and what many levels cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from site_spider.frontier.frontier import Frontier
from site_spider.frontier.host_queue import HostPolicy
from tests.frontier.hosts import HOSTS, MAX_WAIT, policy
from tests.growth import assert_grows


def entries_kept(frontier: Frontier[int]) -> int:
    """In all heaps, the void ones included."""
    flows = frontier._flows
    heaps = [frontier._later, frontier._waiting, frontier._ageing, flows._heap, flows.resting, flows._idle]
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
