"""Where requests wait: new ones, retries and redirects, with priorities of their own or without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.frontier.host_queue import URGENT, Place, Step, bounded, needs_proxy, place

REDIRECTED = 2  # REDIRECT_PRIORITY_ADJUST
RETRIED = -1  # RETRY_PRIORITY_ADJUST

ways = st.lists(st.sampled_from([Step.RETRY, Step.REDIRECT]), max_size=8)


def walk(first: Place, way: list[Step]) -> Place:
    """As Scrapy makes the requests: each from the one before, with its priority adjusted."""
    here = first
    for step in way:
        adjusted = here.priority + (RETRIED if step is Step.RETRY else REDIRECTED)
        here = place(adjusted, step, here)
    return here


@pytest.mark.parametrize(
    ("priority", "step", "level"),
    [(0, Step.NEW, -1), (1, Step.NEW, -1), (2, Step.NEW, -2), (-1, Step.RETRY, 1), (0, Step.RETRY, 1),
     (-7, Step.NEW, 7)],
)  # fmt: skip
def test_a_request_waits_on_the_level_of_its_priority(priority: int, step: Step, level: int) -> None:
    """Priority 0 is the seeds' alone: new requests move ahead of them, retries behind."""
    assert -place(priority, step).priority == level


SEED, LINK = Place(0), place(0, Step.NEW)


@pytest.mark.parametrize("first", [SEED, LINK])
def test_a_redirect_waits_below_the_links(first: Place) -> None:
    """As in the table of levels."""
    assert -walk(first, [Step.REDIRECT]).priority < -1


@given(first=st.sampled_from([SEED, LINK]), way=ways)
def test_every_retry_waits_behind_the_seeds(first: Place, way: list[Step]) -> None:
    """However often it was redirected or retried before."""
    assert -walk(first, [*way, Step.RETRY]).priority > 0


@given(own=st.integers(-20, 20).filter(bool), way=ways)
def test_a_retry_lowers_a_priority_of_its_own_by_one_whatever_redirects_there_were(
    own: int, way: list[Step]
) -> None:
    """One of the seed's, the spider's, or DEPTH_PRIORITY's; only 0 is passed over."""
    retries = walk(place(own, Step.NEW), [*way, Step.RETRY])
    only_retries = [step for step in way if step is Step.RETRY]
    if Step.REDIRECT not in way or way.index(Step.REDIRECT) >= len(only_retries):
        assert retries == walk(place(own, Step.NEW), [*only_retries, Step.RETRY])
    if not way:
        assert retries.priority == (own - 1 or -1)


@given(first=st.integers(-20, 20), way=ways)
def test_level_0_stays_the_seeds_own(first: int, way: list[Step]) -> None:
    """Whatever is done to a request."""
    assert walk(place(first, Step.NEW), way).priority != 0


@given(first=st.integers(-20, 20), depths=st.lists(st.integers(1, 5), min_size=2, max_size=2))
def test_depth_priority_orders_links_by_depth(first: int, depths: list[int]) -> None:
    """Deeper ones never come earlier with a positive DEPTH_PRIORITY, as Scrapy lowers them."""
    shallow, deep = sorted(depths)
    levels = [-place(first - depth, Step.NEW).priority for depth in (shallow, deep)]
    assert levels[0] <= levels[1]


@pytest.mark.parametrize("priority", [10**9, -(10**9), 10**400, -(10**400)])
def test_no_priority_of_a_new_request_reaches_the_levels_of_others(priority: int) -> None:
    """Neither those that need a proxy, nor the level before all, of what has waited too long."""
    level = -place(bounded(priority), Step.NEW).priority
    assert level > URGENT
    assert not needs_proxy(level)
    assert (level < 0) is (priority > 0)
    assert bounded(1_000_000) == 1_000_000
