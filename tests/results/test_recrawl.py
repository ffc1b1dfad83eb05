"""When a page is asked for again."""

from __future__ import annotations

from typing import Any

import pytest

from site_spider.errors import ConfigError
from site_spider.results.recrawl import Check, CheckRules, check_of
from tools.measure.recrawl import DAY, adaptive, fixed, pages, year

RULES = CheckRules(3600, 864_000, 86_400, 21_600, 10, 3)
KNOWN = {"status": 200, "body_hash": "h", "interval_s": 7200}


def check(known: dict[str, Any], status: int | None, *, is_same: bool = False, is_repeat: bool = False) -> Check:
    return check_of(RULES, known, status, is_same=is_same, is_repeat=is_repeat)


@pytest.mark.parametrize(
    ("known", "is_same", "interval_s"),
    [
        ({}, False, 86_400),
        (KNOWN, False, 3600),
        ({**KNOWN, "interval_s": 3601}, False, 3600),
        (KNOWN, True, 10_800),
        ({**KNOWN, "interval_s": 864_000}, True, 864_000),
        ({**KNOWN, "status": 404}, False, 7200),  # nothing to compare with
        ({"status": 200, "body_hash": "h"}, True, 129_600),
    ],
)
def test_the_interval_halves_with_a_change_and_else_grows(
    known: dict[str, Any], is_same: bool, interval_s: int
) -> None:
    assert check(known, 304 if is_same else 200, is_same=is_same) == Check(interval_s, interval_s)
    before = min(max(known.get("interval_s", 86_400), 3600), 864_000)
    assert check(known, 200, is_same=is_same, is_repeat=True).interval_s == before


def test_failed_checks_in_a_row_are_counted_and_wait_their_own_time() -> None:
    first = check(KNOWN, None)
    assert first == Check(21_600, 7200, 1)
    known = {"status": None, "interval_s": 7200, "failed_checks": 1}
    assert check(known, 500) == Check(21_600, 7200, 2)
    assert check(known, 500, is_repeat=True) == first  # it is that very check
    assert check({**KNOWN, "failed_checks": 5, "gone_checks": 5}, 404) == Check(21_600, 7200, 1, 1)


def test_a_page_is_gone_after_some_answers_in_a_row() -> None:
    known = {"status": 404, "interval_s": 7200, "failed_checks": 4, "gone_checks": 2}
    assert check(known, 410) == Check(21_600, 7200, 5, 3, is_gone=True)
    assert check(known, 503) == Check(21_600, 7200, 5)
    assert check({**known, "status": 503}, 404).gone_checks == 1
    assert check({**known, "gone_checks": 3}, 200).is_gone is False


@pytest.mark.parametrize(("fetched_at", "count"), [("2026-01-01T00:00:00", 3), ("2026-01-01T01:00:00", 1)])
def test_checks_before_a_fetch_that_was_none_are_not_in_a_row(fetched_at: str, count: int) -> None:
    """Such a fetch leaves what the last check has written: it may have been a good answer."""
    times = {"fetched_at": fetched_at, "next_at": "2026-01-01T06:00:00"}
    known = {"status": 404, "failed_checks": 2, "gone_checks": 2, **times}
    assert check(known, 404) == Check(21_600, 86_400, count, count, is_gone=count == 3)


def test_settings_that_contradict_each_other_are_refused() -> None:
    settings = {
        "SITE_RECRAWL_MIN_SECONDS": 60, "SITE_RECRAWL_MAX_SECONDS": 50, "SITE_RECRAWL_FIRST_SECONDS": 60,
        "SITE_RECRAWL_ERROR_SECONDS": 60, "SITE_RECRAWL_MAX_ERRORS": 1, "SITE_GONE_AFTER": 1,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="SITE_RECRAWL_MAX_SECONDS"):
        CheckRules.read(settings)


def test_in_a_year_changes_are_found_sooner_than_by_as_many_requests_at_a_fixed_interval() -> None:
    """The figures of docs/web.md."""
    site = pages(100)
    own = year(site, adaptive())
    alike = year(site, fixed(365 * DAY * 100 // own.requests))
    assert abs(alike.requests - own.requests) < 200
    assert own.requests < year(site, fixed(DAY)).requests / 4
    assert own.behind_hours < alike.behind_hours
