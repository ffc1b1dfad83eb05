"""The frontier against a brute-force model, and its order by levels and hosts."""

from __future__ import annotations

from math import inf

from site_spider.frontier.frontier import Frontier
from site_spider.frontier.host_queue import HostPolicy


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


def test_a_host_whose_old_item_was_served_waits_with_the_others_again() -> None:
    frontier: Frontier[str] = Frontier(max_wait_seconds=10)
    frontier.push(5, "a", "old", 0.0)
    frontier.push(0, "a", "new", 8.0)
    frontier.push(-1, "b", "best", 9.0)
    assert frontier.pop(11.0) == "old"
    frontier.release("a", 11.0)
    assert [frontier.pop(11.0), frontier.pop(11.0)] == ["best", "new"]


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
