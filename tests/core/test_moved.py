"""What a message says of a request that another process sent on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.core.moved import KEY, Moved
from site_spider.core.seed import parse_seed
from site_spider.core.seed_fields import MAX_PRIORITY
from site_spider.errors import SeedError

words = st.lists(st.text(max_size=5), max_size=3).map(tuple)
numbers = st.integers(0, 1_000_000)
moved = st.builds(
    Moved,
    url=st.sampled_from(["", "http://h.test/a"]),
    method=st.sampled_from(["GET", "POST"]),
    anchor_host=st.sampled_from(["", "h.test"]),
    retry_times=numbers,
    retry_reasons=words,
    redirect_times=numbers,
    redirect_ttl=st.none() | numbers,
    redirect_urls=words,
    redirect_reasons=st.lists(st.text(max_size=5) | st.integers(), max_size=3).map(tuple),
    unraised_priority=st.none() | st.integers(-MAX_PRIORITY, MAX_PRIORITY),
)


@given(moved)
def test_it_comes_out_as_it_went_in(said: Moved) -> None:
    """Over JSON, in a seed."""
    message = json.dumps({"url": "http://h.test/b", "meta": {KEY: said.fields()}}).encode()
    seed = parse_seed(message)
    assert seed.moved == said
    assert seed.extra == {}


def test_a_seed_of_a_producer_has_none() -> None:
    """An empty object says that a process sent a link, nothing that nobody did."""
    assert parse_seed(b'{"url": "http://h.test/"}').moved is None
    assert parse_seed(b'{"url": "http://h.test/", "meta": {"site_moved": null}}').moved is None
    link = parse_seed(b'{"url": "http://h.test/", "meta": {"site_moved": {}}}').moved
    assert link is not None
    assert link.is_link


@pytest.mark.parametrize(
    "value",
    [
        1,
        [],
        {"proxy": "http://p.test"},
        {"url": "file:///etc/hostname"},
        {"url": 1},
        {"method": "CONNECT"},
        {"anchor_host": 1},
        {"anchor_host": "h" * 300},
        {"retry_times": -1},
        {"retry_times": True},
        {"redirect_ttl": "many"},
        {"redirect_urls": "http://h.test/"},
        {"redirect_urls": [1]},
        {"retry_reasons": ["x"] * 201},
        {"redirect_reasons": [True]},
        {"redirect_reasons": [None]},
        {"unraised_priority": "high"},
        {"unraised_priority": MAX_PRIORITY + 1},
    ],
)
def test_what_no_process_writes_is_refused(value: Any) -> None:
    """The message becomes a dead letter, with the reason."""
    with pytest.raises(SeedError):
        parse_seed(json.dumps({"url": "http://h.test/", "meta": {KEY: value}}).encode())
