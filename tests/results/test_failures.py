"""Each description of a failure has its reason, and its kind: few, whatever pages and middlewares say."""

from __future__ import annotations

import pytest
from scrapy import Request
from scrapy.exceptions import CannotResolveHostError, DownloadConnectionRefusedError

from site_spider.results.failures import REASONS, describe_exception, failure_name, reason_of


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ("DNSLookupError: no address for host x.test", "dns"),
        ("DNSLookupError: no address for host x.test (after 2 retries: 2 x DNSLookupError)", "dns"),
        ("ConnectionRefusedError: x.test refuses connections", "connect"),
        ("DownloadFailedError: OSError: [Errno 113] Connect call failed", "connect"),
        ("CertificateError: the certificate of x.test cannot be verified", "tls"),
        ("DownloadFailedError: SSLError: [SSL: WRONG_VERSION_NUMBER]", "tls"),
        ("TimeoutError: no complete answer within 10 s", "timeout"),
        ("DownloadFailedError: ConnectionResetError: Connection lost", "reset"),
        ("DownloadFailedError: the connection ended before the head did", "reset"),
        ("DownloadFailedError: no answer: the server closed a connection that was kept", "reset"),
        ("ResponseDataLossError", "reset"),
        ("TimeoutError", "timeout"),  # as the retry middleware names them
        ("HTTP 429", "http_status"),
        ("DownloadFailedError: this is not HTTP", "http_protocol"),
        ("HTTP 404 Not Found", "http_status"),
        ("HTTP 503 Service Unavailable (after 2 retries: TimeoutError, HTTP 503)", "http_status"),
        ("HTTP 503", "http_status"),
        ("DownloadCancelledError: 9 bytes or more, over the 8 of DOWNLOAD_MAXSIZE", "too_large"),
        ("Ignored response <200 http://x.test/> because its body (1 B compressed) exceeded", "too_large"),
        ("Forbidden by robots.txt", "robots"),
        ("robots.txt could not be fetched: TimeoutError", "robots"),
        ("ProxyFailed: http://p:1 refuses connections, at attempt 3", "proxy"),
        ("TooManyRedirects: still redirected after 20 redirects", "redirect_loop"),
        ("PrivateHostError: 10.0.0.1 is private", "address_refused"),
        ("ZeroDivisionError in the spider: division by zero", "callback"),
        ("TimeoutError in the spider: of its own", "callback"),
        ("ValueError in an item pipeline: x", "callback"),
        ("the item was dropped: no", "callback"),
        ("CallbackTimeout: parse took longer than 120 s", "callback"),
        ("ended without a result", "other"),
        ("", "other"),
        ("x" * 1_000_000 + " in the spider", "other"),
    ],
)
def test_a_description_belongs_to_a_reason(description: str, reason: str) -> None:
    assert reason in REASONS
    assert reason_of(description) == reason


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


@pytest.mark.parametrize("proxy", ["http://user:secret@p.test:3128", "p.test:3128"])
def test_the_proxy_of_a_spider_is_named_where_it_is_the_proxy_that_cannot_be_reached(proxy: str) -> None:
    """The host of the page was never asked."""
    request = Request("http://h.test/", meta={"proxy": proxy})
    refused = "ConnectionRefusedError: the proxy p.test:3128 refuses connections"
    assert describe_exception(DownloadConnectionRefusedError(), request) == refused
    unknown = "DNSLookupError: no address for the proxy p.test"
    assert describe_exception(CannotResolveHostError(), request) == unknown
    assert (reason_of(refused), reason_of(unknown)) == ("connect", "dns")
    odd = Request("http://h.test:8/", meta={"proxy": "http://["})
    assert describe_exception(DownloadConnectionRefusedError(), odd).endswith(": h.test:8 refuses connections")
