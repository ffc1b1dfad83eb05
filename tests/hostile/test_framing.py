"""Answers whose framing costs more than their content."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.download.handler_trials import certificate
from tests.hostile.attack import Report, crawl
from tests.hostile.raw_site import Answer, RawSite, raw_site, sends, sends_for_ever

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
ODD = PLAIN + b"no colon\r\n"  # goes to Scrapy's handler
CODING = b"Transfer-Encoding: chunked\r\n\r\n"
BEGINNINGS = {"ours": PLAIN + CODING, "Scrapy's": ODD + CODING}
ENDLESS = {
    "one-byte chunks": (b"", b"1\r\nA\r\n"),
    "chunk extensions": (b"", b"1;" + b"x=y;" * 200 + b"x\r\nA\r\n"),
    "short extensions": (b"", b"1;x\r\nA\r\n"),
    "one extension": (b"1;", b"x"),
    "leading zeros": (b"", b"0" * 16),
    "trailers": (b"1\r\nA\r\n0\r\n", b"X: y\r\n"),
    "one trailer": (b"1\r\nA\r\n0\r\nX: ", b"y"),
    "content, then extensions": (b"ffff\r\n" + b"A" * 65_535 + b"\r\n", b"1;" + b"x" * 900 + b"\r\nA\r\n"),
}


SMALL_CHUNKS = BEGINNINGS["ours"] + b"14\r\n%s\r\n" % (b"A" * 20) * 10_000 + b"0\r\n\r\n"
CASES = [(handler, name) for handler in BEGINNINGS for name in ENDLESS]


def endless(handler: str, name: str) -> Answer:
    begin, again = ENDLESS[name]
    return sends_for_ever(BEGINNINGS[handler] + begin, again)


def crawled(site: RawSite, folder: Path, paths: Iterable[str], connections: int, **settings: str) -> Report:
    seeds = [site.url(f"{path}?{number}") for path in paths for number in range(connections)]
    report = crawl(folder, seeds, CONCURRENT_REQUESTS_PER_DOMAIN=len(seeds), **settings)
    report.check()
    assert len(report.documents) == len(seeds) + len(report.good)
    return report


def test_endless_framing_holds_up_nothing(tmp_path: Path) -> None:
    """A bound ends it, and not the time-out."""
    answers = {f"/endless/{number}": endless(*case) for number, case in enumerate(CASES)}
    with raw_site(answers) as site:
        report = crawled(site, tmp_path, answers, 2, DOWNLOAD_TIMEOUT="600")
    assert all(report.descriptions().values())


@pytest.mark.nightly
@pytest.mark.parametrize(("handler", "name"), CASES)
def test_endless_framing_of_64_connections_holds_up_nothing(handler: str, name: str, tmp_path: Path) -> None:
    with raw_site({"/endless": endless(handler, name)}) as site:
        report = crawled(site, tmp_path, ["/endless"], 64)
    assert all(report.descriptions().values())


def test_framing_over_tls_holds_up_nothing(tmp_path: Path) -> None:
    """Also well-formed: pages of 200 KB in chunks of 20 bytes, all of them sent at once."""
    answers = {"/endless": endless("ours", "one-byte chunks"), "/small": sends(SMALL_CHUNKS, closes=False)}
    with raw_site(answers, tls=certificate(tmp_path)) as site:
        report = crawled(site, tmp_path, answers, 16, DOWNLOAD_VERIFY_CERTIFICATES="false")
    pages = [doc for url, doc in report.documents.items() if "/small" in url]
    assert [doc["response_size"] for doc in pages] == [200_000] * 16
    refused = [str(text) for url, text in report.descriptions().items() if "/endless" in url]
    assert len(refused) == 16
    assert all(text.startswith("DownloadCancelledError") for text in refused), refused
