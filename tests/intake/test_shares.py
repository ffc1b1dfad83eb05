"""Which partitions have more than their share."""

from __future__ import annotations

from site_spider.contracts.seed_log import Partition
from site_spider.intake.room import Shares, reserve


def counts(*numbers: int) -> dict[Partition, int]:
    return {Partition("seeds", number): count for number, count in enumerate(numbers)}


def over(shares: Shares, *numbers: int, capacity: int = 100) -> set[int]:
    return {partition.number for partition in shares.over(counts(*numbers), capacity)}


def test_a_greedy_partition_is_left_alone_once_three_quarters_are_taken() -> None:
    """The others go on; below that, everybody does."""
    assert over(Shares(), 75, 0, 0, 0) == set()
    assert over(Shares(), 76, 0, 0, 0) == {0}
    assert over(Shares(), 50, 5, 26, 9) == {0, 2}
    assert over(Shares(), 25, 25, 25, 25) == set()


def test_it_goes_on_with_some_room() -> None:
    """Three quarters of its share, or of the limit."""
    shares = Shares()
    assert over(shares, 60, 10, 10, 10) == {0}
    assert over(shares, 20, 30, 10, 10) == {0, 1}
    assert over(shares, 18, 30, 10, 10) == {1}
    assert over(shares, 0, 30, 0, 0) == set()
    assert over(shares, 70, 0, 0, 0) == set()


def test_a_partition_alone_may_have_everything() -> None:
    """There is nobody to leave room for."""
    assert over(Shares(), 100) == set()
    assert Shares().over({}, 100) == frozenset()


def test_what_is_reserved_is_a_quarter_and_no_more_than_a_thousand() -> None:
    """Of what may be in flight."""
    assert [reserve(capacity) for capacity in (1, 4, 100, 4_000, 20_000)] == [1, 1, 25, 1_000, 1_000]
