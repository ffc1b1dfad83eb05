"""Answers that end late or never, cost more than their content, or have bytes behind them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import uvloop

from tests.download.handler_trials import certificate
from tests.download.surplus_trials import SurplusServer, crawled, page
from tests.download.test_many_servers import serving
from tests.hostile.attack import Report, crawl
from tests.hostile.raw_site import Answer, RawSite, raw_site, sends, sends_for_ever, whole
from tests.in_process import engine

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
ODD = OK + b"no colon\r\n"  # goes to Scrapy's handler
HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n"
ENDLESS = {
    "lines": sends_for_ever(OK, b"X: y\r\n"),
    "lines, one without a colon": sends_for_ever(ODD, b"X: y\r\n"),
    "long lines, one without a colon": sends_for_ever(ODD, b"X: " + b"y" * 9_000 + b"\r\n"),
    "lines without a colon": sends_for_ever(OK, b"X\r\n"),
    "lines that end in LF": sends_for_ever(OK, b"X: y\n"),
    "one line": sends_for_ever(OK + b"X: ", b"y"),
    "a folded line": sends_for_ever(OK + b"X: y\r\n", b" y\r\n"),
    "a status line": sends_for_ever(b"HTTP/1.1 200 ", b"y"),
    "interim answers": sends_for_ever(b"", HINTS),
    "interim answers, one odd": sends_for_ever(b"HTTP/1.1 100 C\r\nno colon\r\n\r\n", HINTS),
    "nothing that is HTTP": sends_for_ever(b"", b"\0"),
    "empty lines": sends_for_ever(b"", b"\r\n"),
}


def dripped(begin: bytes, again: bytes, seconds: float = 4) -> Answer:
    """Byte by byte, each in a packet of its own."""

    def answer(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(begin)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.sendall(again)

    return answer


CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
DRIPPED = {
    "a head": dripped(OK + b"X: ", b"y"),
    "an odd head": dripped(ODD + b"X: ", b"y"),
    "a chunk line": dripped(OK + CHUNKS + b"1;", b"x"),
    "a chunk line behind an odd head": dripped(ODD + CHUNKS + b"1;", b"x"),
    "a trailer": dripped(OK + CHUNKS + b"0\r\nX: ", b"y"),
    "a trailer behind an odd head": dripped(ODD + CHUNKS + b"0\r\nX: ", b"y"),
}

INTERIM = {
    "/few": sends(HINTS * 50 + whole(b"<p>good")),
    "/many": sends(HINTS * 500 + whole(b"<p>good")),
    "/one-by-one": sends(*[HINTS] * 50, whole(b"<p>good")),
}
HEADS = {**ENDLESS, **DRIPPED}


def test_heads_of_every_kind_hold_up_nothing(tmp_path: Path) -> None:
    """Few interim answers are passed over, many are a failure that says so."""
    bad = {f"/bad/{number}": answer for number, answer in enumerate(HEADS.values())}
    with raw_site(bad | INTERIM) as site:
        patient = {"NotExtract": True, "download_timeout": 300}
        seeds = [*map(site.url, bad), *({"url": site.url(path), "meta": patient} for path in INTERIM)]
        report = crawl(tmp_path, seeds, CONCURRENT_REQUESTS_PER_DOMAIN=len(seeds), DOWNLOAD_TIMEOUT=5)
    report.check()
    assert len(report.documents) == len(seeds) + len(report.good)
    assert all(text for url, text in report.descriptions().items() if "/bad/" in url)
    few, many, one_by_one = (report.documents[site.url(path)] for path in INTERIM)
    assert few["status"] == one_by_one["status"] == 200
    assert many["description"] == "DownloadCancelledError: more than 100 interim answers (1xx) came first"


# --- bytes behind a message ------------------------------------------------------------------------------

PLAIN = "site_spider.download.handler.PlainDownloadHandler"


def later(behind: str, late_seconds: float = 0.02) -> SurplusServer:
    """Behind an answer without a body, which is not the first of its connection."""
    return SurplusServer(lambda number: number > 2, late_seconds, lambda: 0.03, behind=behind)


@pytest.mark.parametrize(
    ("server", "at_a_time", "is_tls"),
    [
        pytest.param(SurplusServer(lambda _: True, 0.0, lambda: 0.03), 8, False, id="at once"),
        pytest.param(SurplusServer(lambda _: True, 0.02, lambda: 0.03, True), 8, False, id="with the next request"),
        pytest.param(SurplusServer(lambda _: True, 0.02, lambda: 0.0), 8, True, id="later, over TLS"),
        pytest.param(later("204", 0.0), 8, False, id="behind 204"),
        pytest.param(later("304"), 8, True, id="behind 304, over TLS"),
        pytest.param(later("HEAD"), 8, False, id="behind HEAD"),
        pytest.param(SurplusServer(lambda n: n == 9, takes_seconds=lambda: 0.06), 4, False, id="late in a good one"),
    ],
)
def test_surplus_is_no_page(server: SurplusServer, at_a_time: int, is_tls: bool, tmp_path: Path) -> None:
    """A server is known by its first answers, or its usual time; what comes too soon is no page."""
    pages = 480 // at_a_time
    found = uvloop.run(crawled(server, pages, at_a_time, certificate(tmp_path) if is_tls else None))
    assert (found.wrong, found.pages) == (0, pages)


def test_each_document_has_the_body_of_its_own_page(tmp_path: Path) -> None:
    server = SurplusServer(takes_seconds=lambda: 0.03)
    with serving(server.serve, tls=certificate(tmp_path)) as (port,):
        url = f"https://127.0.0.1:{port}"
        found = engine.crawl(
            tmp_path / "data",
            [{"url": f"{url}/{number}", "meta": {"url_id": f"/{number}"}} for number in range(120)],
            DOWNLOAD_HANDLERS={"http": PLAIN, "https": PLAIN},
            SITE_ALLOW_PRIVATE_HOSTS=True,
            DOWNLOAD_VERIFY_CERTIFICATES=False,
            CONCURRENT_REQUESTS_PER_DOMAIN=8,
            RETRY_TIMES=0,
        )
    assert {path: document["body"] for path, document in found.documents.items()} == {
        f"/{number}": page(f"/{number}").partition(b"\r\n\r\n")[2].decode() for number in range(120)
    }


# --- how long a message is -------------------------------------------------------------------------------

BEGINNINGS = {"plain": OK + CHUNKS, "odd": ODD + CHUNKS}
COSTLY = {
    "one-byte chunks": (b"", b"1\r\nA\r\n"),
    "chunk extensions": (b"", b"1;" + b"x=y;" * 200 + b"x\r\nA\r\n"),
    "short extensions": (b"", b"1;x\r\nA\r\n"),
    "one extension": (b"1;", b"x"),
    "leading zeros": (b"", b"0" * 16),
    "trailers": (b"1\r\nA\r\n0\r\n", b"X: y\r\n"),
    "one trailer": (b"1\r\nA\r\n0\r\nX: ", b"y"),
    "content, then extensions": (b"ffff\r\n" + b"A" * 65_535 + b"\r\n", b"1;" + b"x" * 900 + b"\r\nA\r\n"),
}

SMALL_CHUNKS = BEGINNINGS["plain"] + b"14\r\n%s\r\n" % (b"A" * 20) * 10_000 + b"0\r\n\r\n"
CASES = [(head, name) for head in BEGINNINGS for name in COSTLY]


def endless(head: str, name: str) -> Answer:
    begin, again = COSTLY[name]
    return sends_for_ever(BEGINNINGS[head] + begin, again)


def attacked(site: RawSite, folder: Path, paths: Iterable[str], connections: int, **settings: str) -> Report:
    seeds = [site.url(f"{path}?{number}") for path in paths for number in range(connections)]
    report = crawl(folder, seeds, CONCURRENT_REQUESTS_PER_DOMAIN=len(seeds), **settings)
    report.check()
    assert len(report.documents) == len(seeds) + len(report.good)
    return report


def test_endless_framing_holds_up_nothing(tmp_path: Path) -> None:
    """A bound ends it, and not the time-out."""
    answers = {f"/endless/{number}": endless(*case) for number, case in enumerate(CASES)}
    with raw_site(answers) as site:
        report = attacked(site, tmp_path, answers, 2, DOWNLOAD_TIMEOUT="600")
    assert all(report.descriptions().values())


def test_framing_over_tls_holds_up_nothing(tmp_path: Path) -> None:
    """Also well-formed: pages of 200 KB in chunks of 20 bytes, all of them sent at once."""
    answers = {"/endless": endless("plain", "one-byte chunks"), "/small": sends(SMALL_CHUNKS, closes=False)}
    with raw_site(answers, tls=certificate(tmp_path)) as site:
        report = attacked(site, tmp_path, answers, 16, DOWNLOAD_VERIFY_CERTIFICATES="false")
    pages = [doc for url, doc in report.documents.items() if "/small" in url]
    assert [doc["response_size"] for doc in pages] == [200_000] * 16
    refused = [str(text) for url, text in report.descriptions().items() if "/endless" in url]
    assert len(refused) == 16
    assert all(text.startswith("DownloadCancelledError") for text in refused), refused
