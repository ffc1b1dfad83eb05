"""Histograms of fixed buckets."""

from __future__ import annotations

import random
import statistics

import pytest

from site_spider.histogram import SECONDS, Histogram, difference


def test_values_are_counted_up_to_each_bound() -> None:
    """A value that equals a bound belongs to it, as in Prometheus."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.document()["buckets"] == [[1.0, 2], [2.0, 2], [None, 1]]
    assert (histogram.count, histogram.sum, histogram.largest) == (5, 104.0, 99.0)


def test_quantiles_are_near_those_of_the_values() -> None:
    chance = random.Random(7)
    values = [chance.expovariate(2) for _ in range(10_000)]
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    cuts = statistics.quantiles(values, n=100)
    found = histogram.document()
    for name, true in (("p50", cuts[49]), ("p90", cuts[89]), ("p99", cuts[98])):
        assert true * 0.7 < found[name] < true * 1.3
    assert found["max"] == pytest.approx(max(values), abs=1e-6)


def test_two_states_subtract() -> None:
    """What an interval added, whatever was before."""
    histogram = Histogram((1.0, 10.0))
    for _ in range(100):
        histogram.observe(0.1)
    before = histogram.document()
    for _ in range(10):
        histogram.observe(5.0)
    added = difference(histogram.document(), before)
    assert (added["count"], added["sum"]) == (10, 50.0)
    assert 1.0 < added["p50"] < 10.0
    assert difference(before, None)["count"] == 100
    assert difference(before, before)["p50"] is None


def test_the_latest_exemplar_of_each_bucket_is_kept() -> None:
    histogram = Histogram((1.0,))
    for value, exemplar in ((0.1, "a"), (0.2, "b"), (5.0, "c"), (6.0, None)):
        histogram.observe(value, exemplar)
    assert histogram.exemplars == [("b", 0.2), ("c", 5.0)]
