"""When to try again, and how often."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request

from site_spider.errors import ConfigError
from site_spider.frontier.retry_and_redirect import (
    PatientRetryMiddleware,
    pause_seconds,
    read_limits,
    retry_after_seconds,
)

EXCEPTIONS = ("TimeoutError", "DNSLookupError")


@given(attempt=st.integers(1, 200), jitter=st.floats(0, 1))
def test_a_pause_doubles_up_to_the_longest_plus_half(attempt: int, jitter: float) -> None:
    """Whatever the attempt."""
    base = min(120.0, 2.0 * 2.0 ** (attempt - 1))
    assert base <= pause_seconds(attempt, 2.0, 120.0, jitter) <= 1.5 * base


@given(jitters=st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_two_retries_outlast_five_seconds(jitters: list[float]) -> None:
    """With the defaults of the settings, whatever chance says."""
    assert sum(pause_seconds(n, 2.0, 120.0, jitter) for n, jitter in enumerate(jitters, 1)) > 5


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7), (" 7 ", 7), ("99999999999999999999", 120), ("0", 0), ("-1", None), ("soon", None), ("", None),
     (format_datetime(datetime.fromtimestamp(NOW + 9, UTC), usegmt=True), 9),
     (format_datetime(datetime.fromtimestamp(NOW - 9, UTC), usegmt=True), 0),
     (format_datetime(datetime.fromtimestamp(NOW + 9_000, UTC), usegmt=True), 120)],
)  # fmt: skip
def test_retry_after_is_read_in_both_forms_and_capped(value: str, seconds: float | None) -> None:
    """Seconds, or a date; None when it is neither."""
    assert retry_after_seconds(value, NOW, 120.0) == seconds


def retries(failures: list[str], limits: dict[str, int], usual: int = 2) -> int:
    """How many of these failures in a row are retried."""
    middleware = PatientRetryMiddleware.__new__(PatientRetryMiddleware)
    middleware.max_retry_times, middleware.limits = usual, limits
    for count, reason in enumerate(failures):
        request = Request("http://h.test/", meta={"retry_times": count})
        if not middleware._may_retry(request, reason, tuple(failures[:count])):
            return count
    return len(failures)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        (["HTTP 500"] * 9, 2),  # RETRY_TIMES
        (["HTTP 503"] * 9, 5),
        (["TimeoutError"] * 9, 1),
        (["HTTP 404"] * 9, 0),
        (["HTTP 503", "HTTP 503", "TimeoutError", "HTTP 503", "HTTP 503", "HTTP 503", "HTTP 503"], 6),
        (["TimeoutError", "HTTP 500", "HTTP 500"], 2),  # without a limit of its own, all of them count
    ],
)
def test_each_reason_has_its_own_limit(failures: list[str], expected: int) -> None:
    """Those without one share RETRY_TIMES."""
    limits = {"HTTP 503": 5, "TimeoutError": 1, "HTTP 404": 0}
    assert retries(failures, limits) == expected


def test_limits_are_read_from_json() -> None:
    """Statuses as numbers in quotes, exceptions by name."""
    given_text = {"X": '{"404": 0, "503": 5, "TimeoutError": 1}'}
    assert read_limits(given_text, "X", EXCEPTIONS) == {"HTTP 404": 0, "HTTP 503": 5, "TimeoutError": 1}


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"503": -1}, "-1 for 503"),
        ({"503": "5"}, "'5' for 503"),
        ({"503": True}, "True for 503"),
        ({"503": 1.5}, "1.5 for 503"),
        ({"503": 101}, "from 0 to 100"),
        ({"99": 1}, "'99'"),
        ({"PrivateHostError": 1}, "one of: DNSLookupError, TimeoutError"),
        ({"": 1}, "''"),
        ("[1]", "JSON object"),
        ("{", "JSON object"),
    ],
)
def test_wrong_limits_are_refused_by_name(value: Any, part: str) -> None:
    """With the setting, the value and the remedy."""
    with pytest.raises(ConfigError, match="SITE_RETRY_TIMES_BY_REASON") as caught:
        read_limits({"SITE_RETRY_TIMES_BY_REASON": value}, "SITE_RETRY_TIMES_BY_REASON", EXCEPTIONS)
    assert part in str(caught.value)
