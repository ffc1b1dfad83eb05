"""Kinds of failures: few, whatever pages and middlewares say."""

from __future__ import annotations

import pytest

from site_spider.results.failures import failure_name


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ("HTTP 404 Not Found", "HTTP 404"),
        ("HTTP 599", "HTTP 599"),
        ("HTTP 503 Service Unavailable (after 2 retries: ConnectionRefusedError, HTTP 503)", "HTTP 503"),
        ("HTTP 302 Found, not followed: url: no host", "HTTP 302"),
        ("DNSLookupError: no address for host x.test", "DNSLookupError"),
        ("TimeoutError: no complete answer within 180 s (after 2 retries: 2 x TimeoutError)", "TimeoutError"),
        ("ResponseFailed (after 1 retry: ResponseFailed)", "ResponseFailed"),
        ("ValueError in the spider: price of http://x.test/1 is 7", "ValueError in the spider"),
        ("KeyError in an item pipeline: 'x'", "KeyError in an item pipeline"),
        ("Forbidden by robots.txt", "Forbidden by robots.txt"),
        ("robots.txt could not be fetched: HTTP 503", "robots.txt could not be fetched"),
        ("the item was dropped: no price", "the item was dropped"),
        ("ended without a result", "ended without a result"),
        ("not extracted: 3 items of rule 2", "not extracted"),
        ("TooManyRedirects: still redirected after 20 redirects", "TooManyRedirects"),
        ("Filtered offsite request to 'x.test'", "Filtered offsite request to"),
        ("<GET http://x.test/> is larger than 77 bytes", "is larger than bytes"),
        ("evil robots.txt.example.com seen", "evil seen"),
        ("http://x.test/", "other"),
        ("TimeoutError:", "TimeoutError"),
        ("", "other"),
        ("12", "other"),
        ("a b " * 1_000, ("a b " * 20).strip()),
    ],
)
def test_the_kind_has_neither_host_nor_count(description: str, reason: str) -> None:
    assert failure_name(description) == reason


def test_a_description_of_any_length_takes_no_time() -> None:
    """It may be a middleware's own."""
    assert len(failure_name("." * 10_000_000)) < 100
