"""What the frontier tells of hosts, and of what is next."""

from __future__ import annotations

from site_spider.frontier.frontier import Frontier
from site_spider.frontier.host_queue import HostPolicy


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
