"""Heads that do not end, or end only after very much."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from tests.hostile.attack import crawl
from tests.hostile.raw_site import Answer, raw_site, sends, sends_for_ever, whole

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n"
ENDLESS = {
    "lines": sends_for_ever(OK, b"X: y\r\n"),
    "lines, one without a colon": sends_for_ever(OK + b"no colon\r\n", b"X: y\r\n"),
    "long lines, one without a colon": sends_for_ever(OK + b"no colon\r\n", b"X: " + b"y" * 9_000 + b"\r\n"),
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
    "a head for Scrapy's handler": dripped(OK + b"no colon\r\nX: ", b"y"),
    "a chunk line": dripped(OK + CHUNKS + b"1;", b"x"),
    "a chunk line for Scrapy's handler": dripped(OK + b"no colon\r\n" + CHUNKS + b"1;", b"x"),
    "a trailer": dripped(OK + CHUNKS + b"0\r\nX: ", b"y"),
    "a trailer for Scrapy's handler": dripped(OK + b"no colon\r\n" + CHUNKS + b"0\r\nX: ", b"y"),
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


@pytest.mark.nightly
@pytest.mark.parametrize("name", HEADS)
def test_heads_of_16_connections_hold_up_nothing(name: str, tmp_path: Path) -> None:
    with raw_site({"/bad": HEADS[name]}) as site:
        seeds = [site.url(f"/bad?{number}") for number in range(16)]
        report = crawl(tmp_path, seeds, CONCURRENT_REQUESTS_PER_DOMAIN=16, DOWNLOAD_TIMEOUT=5)
    report.check()
    assert len(report.documents) == 16 + len(report.good)
    assert all(report.descriptions().values())
