"""Answers whose framing costs more than their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.attack import crawl
from tests.hostile.raw_site import raw_site, sends_for_ever

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "one-byte chunks": sends_for_ever(CHUNKED, b"1\r\nA\r\n"),
    "chunk extensions": sends_for_ever(CHUNKED, b"1;" + b"x=y;" * 200 + b"\r\nA\r\n"),
    "one extension": sends_for_ever(CHUNKED + b"1;", b"x"),
    "trailers": sends_for_ever(CHUNKED + b"1\r\nA\r\n0\r\n", b"X: y\r\n"),
    "one trailer": sends_for_ever(CHUNKED + b"1\r\nA\r\n0\r\nX: ", b"y"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_framing_of_64_connections_holds_up_nothing(name: str, tmp_path: Path) -> None:
    with raw_site({"/endless": ENDLESS[name]}) as site:
        seeds = [site.url(f"/endless?{number}") for number in range(64)]
        report = crawl(tmp_path, seeds, CONCURRENT_REQUESTS_PER_DOMAIN=64)
    report.check()
    assert len(report.documents) == 64 + len(report.good)
    assert all(report.descriptions().values())
