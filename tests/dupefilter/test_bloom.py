"""A Bloom filter that never errs more often than it may."""

from __future__ import annotations

import pytest

from site_spider.dupefilter.filters import BloomDone
from site_spider.errors import ConfigError

RATE = 0.01


def pages(first: int, count: int) -> list[bytes]:
    return [b"page %d" % number for number in range(first, first + count)]


def mistakes(done: BloomDone) -> float:
    """The part of pages that were never added, but seem so."""
    never = pages(10_000_000, 50_000)
    return sum(page in done for page in never) / len(never)


def test_what_was_added_is_in_it_and_others_seldom() -> None:
    """When it is full; mistakes are few and one-sided."""
    done = BloomDone(20_000, RATE)
    for page in pages(0, 20_000):
        done.add(page)
    assert all(page in done for page in pages(0, 20_000))
    assert mistakes(done) <= RATE


def test_beyond_its_capacity_it_forgets_instead_of_erring_more() -> None:
    """The last ones stay, the first ones are fetched again."""
    done = BloomDone(1000, RATE)
    for page in pages(0, 10_500):
        done.add(page)
    assert all(page in done for page in pages(9500, 1000))
    assert mistakes(done) <= RATE
    assert sum(page in done for page in pages(0, 8000)) <= 2 * RATE * 8000


def test_what_is_added_again_takes_no_room() -> None:
    """The capacity counts pages, not additions."""
    done = BloomDone(100, RATE)
    for _ in range(50):
        for page in pages(0, 90):
            done.add(page)
    assert all(page in done for page in pages(0, 90))


@pytest.mark.parametrize("settings", [{"SITE_BLOOM_ERROR_RATE": 0}, {"SITE_BLOOM_CAPACITY": 0}])
def test_limits_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigError, match=next(iter(settings))):
        BloomDone.from_settings({"SITE_BLOOM_CAPACITY": 10, "SITE_BLOOM_ERROR_RATE": 0.1} | settings, lambda: 0.0)
