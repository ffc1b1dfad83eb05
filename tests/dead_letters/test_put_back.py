"""What is remembered of replays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from site_spider.contracts.seed_log import Position
from site_spider.dead_letters import PutBack

OFFSETS = st.sets(st.integers(0, 60))


@given(below=st.integers(0, 30), chosen=OFFSETS, more=OFFSETS, up_to=st.integers(0, 60))
def test_it_remembers_exactly_what_was_put_back(
    below: int, chosen: set[int], more: set[int], up_to: int
) -> None:
    """Through commits, too."""
    done = PutBack(below).with_offsets(chosen)
    done = PutBack.of(done.position()).with_offsets(more).up_to(up_to)
    done = PutBack.of(done.position())
    expected = chosen | more | set(range(below)) | set(range(up_to))
    assert {offset for offset in range(100) if offset in done} == expected


def test_nothing_was_put_back_without_a_commit() -> None:
    assert 0 not in PutBack.of(None)
    assert "0" not in PutBack(5)


def test_a_damaged_commit_forgets_what_was_chosen_only() -> None:
    done = PutBack.of(Position(3, "no metadata of ours"))
    assert [offset in done for offset in (2, 3)] == [True, False]
