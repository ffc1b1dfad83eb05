"""How many seeds may be in flight."""

from __future__ import annotations

from site_spider.intake.room import STEP, PollLimit


def test_it_begins_with_a_step_or_with_what_the_setting_allows() -> None:
    """Whichever is less."""
    assert PollLimit(20_000).now == STEP
    assert PollLimit(16).now == 16


def test_it_goes_up_a_step_whenever_nothing_can_be_served() -> None:
    """From what is in flight then, and as far as the setting allows."""
    limit = PollLimit(2 * STEP + 1)
    limit.starved(10)
    assert limit.now == STEP + 10
    limit.starved(STEP + 10)
    assert limit.now == 2 * STEP + 1
    limit.starved(10)
    assert limit.now == 2 * STEP + 1


def test_it_comes_down_as_seeds_complete() -> None:
    """A step above what is in flight, and never below the first."""
    limit = PollLimit(20_000)
    limit.starved(5 * STEP)
    limit.look(5 * STEP)
    assert limit.now == 6 * STEP
    limit.look(3 * STEP)
    assert limit.now == 4 * STEP
    limit.look(0)
    assert limit.now == STEP
