"""The memory queues against a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.core.frontier import Frontier
from site_spider.core.levels import level_of, placed_priority

moves = st.lists(
    st.one_of(st.integers(-6, 6).filter(bool), st.just("pop"), st.just("remove odd")), max_size=200
)


@given(moves)
def test_the_lowest_level_is_served_first_and_each_in_its_order(steps: list[int | str]) -> None:
    """Whatever is pushed, popped and removed, the frontier is a list that is sorted stably by level."""
    frontier: Frontier[int] = Frontier()
    model: list[tuple[int, int]] = []
    for number, step in enumerate(steps):
        if isinstance(step, int):
            frontier.push(step, number)
            model.append((step, number))
            model.sort(key=lambda pair: pair[0])
        elif step == "pop":
            assert frontier.lowest_level() == (model[0][0] if model else None)
            assert frontier.pop() == (model.pop(0)[1] if model else None)
        else:
            odd = [item for _, item in model if item % 2]
            assert sorted(frontier.remove(lambda item: item % 2 == 1)) == sorted(odd)
            model = [pair for pair in model if pair[1] % 2 == 0]
        assert len(frontier) == len(model)
    lengths = {level: sum(1 for other, _ in model if other == level) for level, _ in model}
    assert frontier.lengths() == lengths


def test_an_empty_queue_is_reclaimed() -> None:
    """A level that was served out leaves nothing behind."""
    frontier: Frontier[str] = Frontier()
    frontier.push(-3, "a")
    assert frontier.pop() == "a"
    assert frontier.lengths() == {}
    assert frontier.lowest_level() is None


@pytest.mark.parametrize(
    ("priority", "is_retry", "level"),
    [(0, False, -1), (1, False, -1), (2, False, -2), (-1, True, 1), (0, True, 1), (-7, False, 7)],
)
def test_a_request_waits_on_the_level_of_its_priority(priority: int, is_retry: bool, level: int) -> None:
    """Priority 0 is the seeds' alone: new requests move ahead of them, retries behind."""
    assert level_of(placed_priority(priority, is_retry=is_retry)) == level
