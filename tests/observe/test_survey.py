"""What may be seen of a frontier from outside."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from site_spider.frontier.frontier import Frontier, HostPolicy, HostView
from site_spider.observe.progress import MOST_HOSTS, Survey

views = st.lists(
    st.builds(
        HostView,
        host=st.text(max_size=5),
        waiting=st.integers(0, 5),
        out=st.integers(0, 3),
        next_at=st.floats(-10, 10),
        reason=st.sampled_from(["ready", "busy", "delay", "back-off"]),
    )
)


@given(views, st.integers(0, 5))
def test_the_counts_are_of_all_hosts_and_the_list_of_the_largest(views: list[HostView], most: int) -> None:
    """Against the whole list, sorted."""
    survey = Survey(most)
    for half in (views[::2], views[1::2]):
        survey.add(half)
    waiting = [view for view in views if view.waiting]
    counts = survey.counts()
    assert counts.pop("waiting") == len(waiting)
    assert sum(counts.values()) == len(waiting)
    assert counts.get("delay", 0) == sum(view.reason == "delay" for view in waiting)
    assert survey.items == sum(view.waiting for view in views)
    assert survey.out == sum(view.out for view in views)
    largest = [host["waiting"] for host in survey.largest(0.0)]
    assert largest == sorted((view.waiting for view in waiting), reverse=True)[:most]


def test_a_host_says_why_it_waits_and_for_how_long() -> None:
    """Only what waits for a moment has one."""
    frontier: Frontier[int] = Frontier(lambda host: HostPolicy(1, 2.0 if host == "slow" else 0.0))
    for number in range(3):
        frontier.push(0, "slow", number, 0.0)
        frontier.push(0, "busy", number, 0.0)
        frontier.push(0, "held", number, 0.0)
    frontier.push(0, "later", 0, 0.0, not_before=9.0)
    assert {frontier.pop(0.0) for _ in range(3)} == {0}
    frontier.release("slow", 0.5)
    frontier.release("held", 0.5)
    frontier.hold("held", 30.0, "back-off", 0.5)
    survey = Survey(10)
    survey.add(frontier.hosts(0.5))
    said = {host["host"]: (host["reason"], host["next_in_seconds"]) for host in survey.largest(0.5)}
    assert said == {"slow": ("delay", 1.5), "busy": ("busy", None), "held": ("back-off", 29.5)}
    assert survey.counts() == {"waiting": 3, "back-off": 1, "busy": 1, "delay": 1}
    assert len(frontier) - survey.items == 1


def test_the_frontier_may_change_while_it_is_looked_at() -> None:
    """A look in slices goes on over whatever happens between them."""
    frontier: Frontier[int] = Frontier()
    for number in range(100):
        frontier.push(0, f"host{number}", number, 0.0)
    seen = []
    for number, view in enumerate(frontier.hosts(0.0)):
        seen.append(view.host)
        frontier.push(0, f"new{number}", number, 0.0)
        frontier.pop(0.0)
    assert seen == [f"host{number}" for number in range(100)]


def test_what_is_shown_is_bounded() -> None:
    """Whatever is asked for, however names come."""
    survey = Survey(10**9)
    survey.add(HostView("x" * 10_000, 1, 0, 0.0, f"reason {number}") for number in range(5000))
    assert len(survey.largest(0.0)) == MOST_HOSTS
    assert len(survey.largest(0.0)[0]["host"]) == 253
    assert len(survey.counts()) <= 22
    assert survey.counts()["waiting"] == 5000
