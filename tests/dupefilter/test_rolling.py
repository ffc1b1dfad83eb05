"""Forgetting by age, by count and by hits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.dupefilter.filters import RollingDone
from site_spider.errors import ConfigError


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def rolling(**limits: Any) -> tuple[RollingDone, Clock]:
    clock = Clock()
    return RollingDone(clock, **limits), clock


@given(
    st.lists(st.tuples(st.sampled_from(["add", "meet", "wait"]), st.integers(0, 3)), min_size=20, max_size=60),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 3),
)
def test_it_agrees_with_a_simple_model(moves: list[tuple[str, int]], seconds: int, count: int, hits: int) -> None:
    """Each way of forgetting alone and together."""
    done, clock = rolling(seconds=seconds, count=count, hits=hits)
    model: dict[bytes, list[float]] = {}  # in the order of their age: since when, hits left
    for move, number in moves:
        page = bytes([number])
        if move == "wait":
            clock.seconds += number / 2
        if seconds:
            model = {p: v for p, v in model.items() if v[0] > clock.seconds - seconds}
        if move == "add":
            model.pop(page, None)
            model[page] = [clock.seconds, hits]
            if count:
                model = dict(list(model.items())[-count:])
            done.add(page)
        if move == "meet":
            assert (page in done) == (page in model)
            if hits and page in model:
                model[page][1] -= 1
                if model[page][1] == 0:
                    del model[page]
    assert not count or len(done) <= count


def test_what_would_grow_without_bound_is_refused() -> None:
    """Hits alone keep every page that is met once."""
    settings = {"SITE_ROLLING_SECONDS": 0, "SITE_ROLLING_COUNT": 0, "SITE_ROLLING_HITS": 3}
    with pytest.raises(ConfigError, match="SITE_ROLLING_COUNT"):
        RollingDone.from_settings(settings, Clock())
