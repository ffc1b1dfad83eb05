"""Where requests wait: new ones, retries and redirects, with priorities of their own or without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request

from site_spider.frontier.host_queue import URGENT, bounded, needs_proxy
from site_spider.frontier.scheduler import place

REDIRECTED = 2  # REDIRECT_PRIORITY_ADJUST
RETRY = -1  # RETRY_PRIORITY_ADJUST

ways = st.lists(st.sampled_from([RETRY, REDIRECTED]), max_size=8)


def made(priority: int, *, is_new: bool = True, **meta: int) -> Request:
    request = Request("http://h.test/", priority=priority, meta=meta)
    place(request, None, is_new=is_new)
    return request


def walk(first: Request, way: list[int]) -> int:
    """The priority at the end; as Scrapy makes the requests: each from the one before, with its priority
    adjusted.
    """
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


def first_of(kind: str) -> Request:
    return made(0) if kind == "link" else Request("http://h.test/")


@pytest.mark.parametrize("kind", ["seed", "link"])
def test_a_redirect_waits_below_the_links(kind: str) -> None:
    """As in the table of levels."""
    assert -walk(first_of(kind), [REDIRECTED]) < -1


@given(kind=st.sampled_from(["seed", "link"]), way=ways)
def test_every_retry_waits_behind_the_seeds(kind: str, way: list[int]) -> None:
    """However often it was redirected or retried before."""
    assert -walk(first_of(kind), [*way, RETRY]) > 0


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
    """Whatever is done to a request."""
    assert walk(made(first), way) != 0


@given(first=st.integers(-20, 20), depths=st.lists(st.integers(1, 5), min_size=2, max_size=2))
def test_depth_priority_orders_links_by_depth(first: int, depths: list[int]) -> None:
    """Deeper ones never come earlier with a positive DEPTH_PRIORITY, as Scrapy lowers them."""
    shallow, deep = sorted(depths)
    assert made(first - shallow).priority >= made(first - deep).priority


@pytest.mark.parametrize("priority", [10**9, -(10**9), 10**400, -(10**400)])
def test_no_priority_of_a_new_request_reaches_the_levels_of_others(priority: int) -> None:
    """Neither those that need a proxy, nor the level before all, of what has waited too long."""
    level = -made(priority).priority
    assert level > URGENT
    assert not needs_proxy(level)
    assert (level < 0) is (priority > 0)
    assert bounded(1_000_000) == 1_000_000
