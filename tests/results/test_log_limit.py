"""The limit on like log lines."""

from __future__ import annotations

from site_spider.results.delivery import LogLimit


def test_a_period_has_so_many_lines_and_the_rest_is_counted() -> None:
    """Two in ten seconds; what was held back is told once."""
    limit = LogLimit(count=2, period_seconds=10)
    assert [limit.admit(now) for now in (0, 1, 2, 9.9)] == [True, True, False, False]
    assert limit.admit(10)
    assert limit.take_held_back() == 2
    assert limit.take_held_back() == 0
