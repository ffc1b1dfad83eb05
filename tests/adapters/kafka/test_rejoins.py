"""How often a member may join again."""

from __future__ import annotations

from site_spider.adapters.kafka.consumer import MOST, WINDOW_SECONDS, Rejoins


def test_it_may_a_few_times_within_the_window() -> None:
    """What is refused does not count, so it may again when the first is long ago."""
    rejoins = Rejoins()
    assert [rejoins.may(float(now)) for now in range(MOST + 2)] == [True] * MOST + [False] * 2
    assert [rejoins.may(WINDOW_SECONDS + now) for now in (0.0, 0.5)] == [True, False]
