"""The download handler of ours beside Scrapy's: the same outcome for whatever servers answer."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request

from site_spider.download.handler import plan_of
from tests.download.handler_trials import said_by
from tests.download.raw_answers import CASES, ODD, OTHER_WAYS, OVERSIZED, PLAIN

# Where ours does better: nothing is taken back that Scrapy's handler does.
BETTER = {"HEAD without a length": "Scrapy's handler makes up a Content-Length of 0", "HEAD of chunks": "likewise"}

# Answers without a body, behind which a connection rests, and requests that Scrapy's handler sends for ours.
ONE_EACH = {"204", "304", "HEAD", "PUT"}
# Answers behind which more comes: the host gets no kept connections any more, and is told so.
SURPLUS = {"304 with a body", "HEAD with a body", "more than its length"}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What came of all trials: one process, because a reactor cannot be started twice."""
    found, stderr = said_by("handler_trials")
    assert "unclosed transport" not in stderr
    assert "unclosed resource" not in stderr  # as uvloop says it
    return dict(found)


@pytest.mark.parametrize("handler", ["plain", "stock"])
def test_what_came_late_is_no_answer_to_the_next_request(handler: str, found: dict[str, Any]) -> None:
    """A server sends an answer more, late, on a connection that is kept."""
    assert found["late"][handler] == {"bodies": ["first", "second"], "connections": 2}


def test_a_connection_that_is_reset_ends_its_request(found: dict[str, Any]) -> None:
    assert set(found["resets"]["errors"]) <= {"DownloadTimeoutError", "DownloadFailedError"}
    assert found["resets"]["left"] <= 1


@pytest.mark.parametrize("title", CASES)
def test_the_outcome_is_that_of_the_other_handler(title: str, found: dict[str, Any]) -> None:
    """Status, headers, body, flags, or the kind of error that RETRY_EXCEPTIONS goes by."""
    stock, plain = (
        [{k: v for k, v in outcome.items() if k != "message"} for outcome in found["cases"][title][name]["outcomes"]]
        for name in ("stock", "plain")
    )
    if title in BETTER:
        for outcome in stock:
            outcome["headers"] = [line for line in outcome["headers"] if "Content-Length" not in line[0]]
    assert plain == stock


@pytest.mark.parametrize("title", OVERSIZED)
def test_what_no_reader_should_take_is_refused_by_both(title: str, found: dict[str, Any]) -> None:
    """And by each in the same words."""
    (stock,), (plain,) = (found["cases"][title][name]["outcomes"] for name in ("stock", "plain"))
    assert plain["error"] == "DownloadCancelledError"
    if "chunk" not in title:
        assert plain["message"] == stock["message"]


@pytest.mark.parametrize("title", CASES)
def test_the_same_is_sent(title: str, found: dict[str, Any]) -> None:
    """But the secret of a proxy, which Scrapy's handler sends to the site when there is no proxy."""
    stock, plain = ([lines_of(m) for m in found["cases"][title][name]["sent"]] for name in ("stock", "plain"))
    if title == "a Proxy-Authorization header":
        assert "secret" not in str(plain)
        stock = [[line for line in lines if "secret" not in line] for lines in stock]
    if title in ODD:
        stock.append(stock[0])  # once through each handler, and only once
    if title == "a kept connection that is closed at the next request":
        assert len(plain) <= len(stock)
        stock = stock[: len(plain)]
    if title in SURPLUS:
        stock = [stock[0], *([*lines[:3], "Connection: close", *lines[3:]] for lines in stock[1:])]
    assert plain == stock


def lines_of(message: str) -> list[str]:
    first, *lines = message.split("\r\n")
    return [first, *sorted(lines)]


@pytest.mark.parametrize("title", [*PLAIN, *OTHER_WAYS])
def test_connections_are_kept_as_long(title: str, found: dict[str, Any]) -> None:
    """Where one can carry several requests, it does, unless what comes next may be surplus."""
    stock, plain = (found["cases"][title][name] for name in ("stock", "plain"))
    kept = CASES[title].times if title in ONE_EACH else stock["connections"]
    assert plain["connections"] == kept
    assert plain["peers"] == stock["peers"]


def test_a_server_that_refuses_is_told(found: dict[str, Any]) -> None:
    assert {outcome["error"] for outcome in found["refused"].values()} == {"DownloadConnectionRefusedError"}


def test_listeners_may_stop_a_download(found: dict[str, Any]) -> None:
    """Whoever listens gets Scrapy's handler."""
    assert found["stopped"]["plain"] == found["stopped"]["stock"]
    assert found["stopped"]["plain"]["flags"] == ["download_stopped"]


@pytest.mark.parametrize("where", ["private by address", "private by name"])
def test_no_spelling_of_a_private_address_is_reached(where: str, found: dict[str, Any]) -> None:
    """Where sockets are made, and with TWISTED_DNS_RESOLVER before that."""
    results = found[where] if where == "private by address" else found[where]["plain"]
    assert results["connections"] == 0
    errors = {host: outcome.get("error") for host, outcome in results["outcomes"].items()}
    assert errors.pop("nobody") == "CannotResolveHostError"
    assert errors.pop("127.0.0.1.") in ("PrivateHostError", "CannotResolveHostError")
    assert set(errors.values()) == {"PrivateHostError"}
    assert all("SITE_ALLOW_PRIVATE_HOSTS" in results["outcomes"][host]["message"] for host in errors)


def test_what_is_plain_does_not_take_the_long_way(found: dict[str, Any]) -> None:
    """The connection is of our own: Scrapy's handler says it in Twisted's words."""
    said = {name: found["cases"]["nothing"][name]["outcomes"][0]["message"] for name in ("stock", "plain")}
    assert said["plain"].startswith("no answer: ")
    assert "twisted" in said["stock"]


@pytest.mark.parametrize(
    ("url", "place", "first_line"),
    [
        ("http://a.test", ("http", "a.test", 80), b"GET / HTTP/1.1"),
        ("https://A.test:444?x#y", ("https", "a.test", 444), b"GET /?x HTTP/1.1"),
        ("http://[::1]:81/x;y#", ("http", "::1", 81), b"GET /x;y HTTP/1.1"),
    ],
)
def test_what_is_sent_follows_from_the_url(url: str, place: tuple[str, str, int], first_line: bytes) -> None:
    """No fragment, and a path in any case."""
    plan = plan_of(Request(url))
    assert plan is not None
    assert plan.server == place
    assert plan.message.split(b"\r\n")[0] == first_line


@pytest.mark.parametrize(
    "request_",
    [
        Request("http://a/", method="POST"),
        Request("http://a/", method="GET\r\nX: y"),
        Request("http://a/", body=b"x"),
        Request("http://a/", headers={"X": "a\r\nY: b"}),
        Request("http://a/", headers={"X Y": "a"}),
        Request("http://a/", headers={"X\r\nY": "a"}),
        Request("http://a/", headers={"Transfer-Encoding": "chunked"}),
        Request("http://a:99999/", meta={"verbatim_url": True}),
        Request("http://u:p@a/"),
        Request("http://a/", meta={"proxy": "http://b"}),
        Request("http://a/", meta={"bindaddress": "127.0.0.1"}),
        Request("http://a/x y", meta={"verbatim_url": True}),
        Request("http://a/x\r\ny", meta={"verbatim_url": True}),
        Request("http://a/é", meta={"verbatim_url": True}),
        Request("http://a\r\n/", meta={"verbatim_url": True}),
    ],
)
def test_what_is_not_plain_is_left_to_scrapys_handler(request_: Request) -> None:
    """Above all what could pass for more than one request."""
    assert plan_of(request_) is None
