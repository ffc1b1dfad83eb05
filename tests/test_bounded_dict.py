"""A dict that forgets, against a list of what was set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from site_spider.bounded_dict import BoundedDict


@given(st.lists(st.tuples(st.integers(0, 9), st.integers())), st.integers(1, 5))
def test_what_was_set_last_is_kept(settings: list[tuple[int, int]], most: int) -> None:
    bounded: BoundedDict[int, int] = BoundedDict(most)
    kept: list[tuple[int, int]] = []  # the one set longest ago first
    for key, value in settings:
        bounded[key] = value
        kept = [*((other, its) for other, its in kept if other != key), (key, value)][-most:]
        assert list(bounded.items()) == kept
