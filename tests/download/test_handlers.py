"""The download handler of ours beside Scrapy's: the same outcome for whatever servers answer."""

from __future__ import annotations

import logging
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider

from site_spider.download.connection_pool import ProxyPlace
from site_spider.download.handler import plan_of
from tests.download.handler_trials import certificate, download, handling, listening, said_by
from tests.download.raw_answers import CASES, OVERSIZED, WHOLE, Case, RawServer

# Scrapy's handler makes up a Content-Length of 0.
HEADS = {"HEAD without a length", "HEAD of chunks"}
NOT_VOUCHED_FOR = "TLS whose certificate nobody vouches for"  # a CertificateError, which is not retried

# Answers without a body, behind which a connection rests; odd ones; requests that cannot be repeated.
ONE_EACH = {"204", "304", "HEAD", "PUT", "204 with a coding"}
# Answers behind which more comes: the host gets no kept connections any more, and is told so.
SURPLUS = {"304 with a body", "HEAD with a body", "more than its length", "204 with a length and a body"}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What came of all trials: one process, because a reactor cannot be started twice."""
    found, stderr = said_by("handler_trials")
    assert "unclosed transport" not in stderr
    assert "unclosed resource" not in stderr  # as uvloop says it
    return dict(found)


def test_an_error_has_its_kind(found: dict[str, Any]) -> None:
    """A reset of TLS 1.3 is told to nobody, and leaves nothing all the same."""
    assert set(found["resets"]["errors"]) <= {"DownloadTimeoutError", "DownloadFailedError"}
    assert found["resets"]["left"] <= 1
    assert found["cases"][NOT_VOUCHED_FOR]["plain"]["outcomes"][0]["error"] == "CertificateError"
    assert {outcome["error"] for outcome in found["refused"].values()} == {"DownloadConnectionRefusedError"}


@pytest.mark.parametrize("title", [title for title in CASES if title not in {*OVERSIZED, NOT_VOUCHED_FOR}])
def test_the_outcome_is_that_of_the_other_handler(title: str, found: dict[str, Any]) -> None:
    """Status, headers, body, flags, or the kind of error that RETRY_EXCEPTIONS goes by."""
    stock, plain = (
        [{k: v for k, v in outcome.items() if k != "message"} for outcome in found["cases"][title][name]["outcomes"]]
        for name in ("stock", "plain")
    )
    if title in HEADS:
        for outcome in stock:
            outcome["headers"] = [line for line in outcome["headers"] if "Content-Length" not in line[0]]
    assert plain == stock


@pytest.mark.parametrize("title", OVERSIZED)
def test_what_no_reader_should_take_is_refused(title: str, found: dict[str, Any]) -> None:
    (outcome,) = found["cases"][title]["plain"]["outcomes"]
    assert outcome["error"] == "DownloadCancelledError"
    assert "more than" in outcome["message"] or "longer than" in outcome["message"]


@pytest.mark.parametrize("title", CASES)
def test_the_same_is_sent(title: str, found: dict[str, Any]) -> None:
    """But the secret of a proxy, which Scrapy's handler sends to the site when there is no proxy, and lengths."""
    stock, plain = ([lines_of(m) for m in found["cases"][title][name]["sent"]] for name in ("stock", "plain"))
    if title == "a Proxy-Authorization header":
        assert "secret" not in str(plain)
        stock = [[line for line in lines if "secret" not in line] for lines in stock]
    if title == "a length of the request's own":
        stock = [[line for line in lines if "Content-Length" not in line] for lines in stock]
    if title == "a kept connection that is closed at the next request":
        assert len(plain) <= len(stock)
        stock = stock[: len(plain)]
    if title in SURPLUS:
        stock = [stock[0], *([*lines[:3], "Connection: close", *lines[3:]] for lines in stock[1:])]
    assert plain == stock


def lines_of(message: str) -> list[str]:
    first, *lines = message.split("\r\n")
    return [first, *sorted(lines)]


@pytest.mark.parametrize("title", CASES)
def test_connections_are_kept_as_long(title: str, found: dict[str, Any]) -> None:
    """Where one can carry several requests, it does, unless what comes next may be surplus."""
    stock, plain = (found["cases"][title][name] for name in ("stock", "plain"))
    kept = CASES[title].times if title in ONE_EACH | SURPLUS else stock["connections"]
    assert plain["connections"] == kept
    assert plain["peers"] == stock["peers"]


@pytest.mark.parametrize("fails", [False, True])
def test_listeners_may_stop_a_download(fails: bool, found: dict[str, Any]) -> None:
    assert found["stopped"][fails]["plain"] == found["stopped"][fails]["stock"]
    assert [heard[1:] == ["raised"] for heard, *_ in found["stopped"][fails]["plain"]] == [fails] * 2
    assert [body for *_, body in found["stopped"][fails]["plain"]] == ["", "<p>page"]


@pytest.mark.parametrize(
    ("url", "place", "first_line"),
    [
        ("http://a.test", ("http", "a.test", 80), b"GET / HTTP/1.1"),
        ("https://A.test:444?x#y", ("https", "a.test", 444), b"GET /?x HTTP/1.1"),
        ("http://[::1]:81/x;y#", ("http", "::1", 81), b"GET /x;y HTTP/1.1"),
    ],
)
def test_what_is_sent_follows_from_the_url(url: str, place: tuple[str, str, int], first_line: bytes) -> None:
    plan = plan_of(Request(url))
    assert plan.server[:3] == place
    assert plan.head.split(b"\r\n")[0] == first_line


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_is_told_the_name_and_the_password_of_its_url(scheme: str) -> None:
    """As spiders of Scrapy give them; its middleware for proxies is off. The site is not told."""
    plan = plan_of(Request(f"{scheme}://site.test/", meta={"proxy": "http://me:p%40ss@proxy.test:81"}))
    told = b"Proxy-Authorization: Basic " + b64encode(b"me:p@ss") + b"\r\n"
    assert plan.server.proxy == ProxyPlace("proxy.test", 81, told if scheme == "https" else b"")
    assert plan.for_proxy == (b"" if scheme == "https" else told)
    assert b"Proxy-Authorization" not in plan.head


@pytest.mark.parametrize(
    "request_",
    [
        Request("http://a/", method="GET\r\nX: y"),
        Request("http://a/", method="GÉT"),
        Request("http://a/", headers={"X Y": "a"}),
        Request("http://a/", headers={"X\r\nY": "a"}),
        Request("http://a:99999/", meta={"verbatim_url": True}),
        Request("http://u:p@a/"),
        Request("http://a@b/"),
        Request("http://a/x y", meta={"verbatim_url": True}),
        Request("http://a/x\r\ny", meta={"verbatim_url": True}),
        Request("http://a/é", meta={"verbatim_url": True}),
        Request("http://a\r\n/", meta={"verbatim_url": True}),
    ],
)
def test_what_could_pass_for_another_request_is_not_sent(request_: Request) -> None:
    with pytest.raises(ValueError, match=r"cannot be asked for|is no |^b'X"):
        plan_of(request_)


def test_no_header_of_a_request_says_where_it_ends() -> None:
    headers = {"X": "a\r\nY: b\0", "Content-Length": "9", "Transfer-Encoding": "chunked"}
    plan = plan_of(Request("http://a/", method="PATCH", headers=headers, body=b"ab"))
    assert plan.head == b"PATCH / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nX: a Y: b \r\n\r\n"
    assert (plan.body, plan.may_repeat) == (b"ab", False)


async def outcomes_of(server: RawServer, *requests: Request) -> list[Any]:
    async with listening(server.serve) as port, handling("plain") as handler:
        urls = [one.url.replace("http://a/", f"http://127.0.0.1:{port}/") for one in requests]
        return [await download(handler, one.replace(url=url)) for one, url in zip(requests, urls, strict=True)]


async def test_what_cannot_be_repeated_is_sent_once_and_on_a_new_connection() -> None:
    """Though the server closes it without an answer; the others are sent again."""
    get, post = Request("http://a/"), Request("http://a/", method="POST")
    server = RawServer(Case(closes=False, answers=1))
    outcomes = await outcomes_of(server, get, get, post)
    assert [outcome.get("status") for outcome in outcomes] == [200, 200, 200]
    assert server.connections == 3
    server = RawServer(Case(b"", answers=0))
    assert [outcome["error"] for outcome in await outcomes_of(server, post)] == ["DownloadFailedError"]
    assert len(server.received) == 1


async def test_an_odd_answer_on_a_kept_connection_is_asked_for_again() -> None:
    """It might be surplus of the one before; and the host gets a connection for each request from then on."""
    server = RawServer(Case(closes=False))
    server.says = iter([WHOLE, *[WHOLE.replace(b"\r\n\r\n", b"\r\nno colon\r\n\r\n")] * 2, WHOLE])
    outcomes = await outcomes_of(server, *[Request("http://a/")] * 3)
    assert [outcome["body"] for outcome in outcomes] == ["<p>page"] * 3
    assert server.connections == 3
    assert [b"Connection: close" in sent for sent in server.received] == [False, False, True, True]


async def test_the_limit_of_a_spider_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy has a setting for it now, and still reads the attribute."""
    monkeypatch.setattr(Spider, "download_maxsize", 6, raising=False)
    (outcome,) = await outcomes_of(RawServer(Case()), Request("http://a/"))
    assert outcome["error"] == "DownloadCancelledError"


async def test_what_tls_agreed_on_is_logged_where_it_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"DOWNLOADER_CLIENT_TLS_VERBOSE_LOGGING": True, "DOWNLOAD_VERIFY_CERTIFICATES": False}
    caplog.set_level(logging.DEBUG, "scrapy.utils.ssl")
    async with listening(RawServer(Case()).serve, certificate(tmp_path)) as port, handling("plain", **settings) as made:
        await made.download_request(Request(f"https://127.0.0.1:{port}/"))
    assert "SSL connection to 127.0.0.1 using protocol TLSv1.2" in caplog.text
