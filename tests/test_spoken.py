"""Durations in sentences."""

from __future__ import annotations

from math import inf

from site_spider.text import up_to


def test_no_bound_is_not_said() -> None:
    assert f"Waiting{up_to(30)}: x" == "Waiting up to 30 s: x"
    assert f"Waiting{up_to(inf)}: x" == "Waiting: x"
