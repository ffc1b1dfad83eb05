"""Answers whose framing costs more than their content."""

from __future__ import annotations

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


def endless(handler: str, name: str) -> Answer:
    begin, again = ENDLESS[name]
    return sends_for_ever(BEGINNINGS[handler] + begin, again)


def crawled(site: RawSite, folder: Path, connections: int = 64, **settings: str) -> Report:
    seeds = [site.url(f"/endless?{number}") for number in range(connections)]
    return crawl(folder, seeds, CONCURRENT_REQUESTS_PER_DOMAIN=64, **settings)


def check_refused(report: Report, connections: int = 64) -> None:
    report.check()
    descriptions = report.descriptions()
    assert len(descriptions) == connections
    assert all(text and text.startswith("DownloadCancelledError") for text in descriptions.values()), set(
        descriptions.values()
    )


@pytest.mark.parametrize(
    ("handler", "name"),
    [
        *(("ours", name) for name in ENDLESS),
        *(
            ("Scrapy's", name)
            for name in ("one-byte chunks", "chunk extensions", "one extension", "trailers")
        ),
    ],
)
def test_endless_framing_of_64_connections_holds_up_nothing(handler: str, name: str, tmp_path: Path) -> None:
    with raw_site({"/endless": endless(handler, name)}) as site:
        report = crawled(site, tmp_path)
    report.check()
    descriptions = report.descriptions()
    assert len(descriptions) == 64
    assert all(descriptions.values())


def test_endless_framing_of_one_connection_ends_long_before_its_time(tmp_path: Path) -> None:
    """The bound on framing ends it, not the timeout."""
    with raw_site({"/endless": endless("ours", "one-byte chunks")}) as site:
        report = crawled(site, tmp_path, 1, DOWNLOAD_TIMEOUT="60")
    check_refused(report, 1)
    assert report.seconds < 30


def test_endless_framing_over_tls(tmp_path: Path) -> None:
    answer = endless("ours", "one-byte chunks")
    with raw_site({"/endless": answer}, tls=certificate(tmp_path)) as site:
        report = crawled(site, tmp_path, DOWNLOAD_VERIFY_CERTIFICATES="false")
    check_refused(report)


def test_pages_of_small_chunks_at_the_bound_share_the_turns(tmp_path: Path) -> None:
    """Well-formed: 64 pages of 200 KB in chunks of 20 bytes, all of them sent at once."""
    page = BEGINNINGS["ours"] + b"14\r\n%s\r\n" % (b"A" * 20) * 10_000 + b"0\r\n\r\n"
    with raw_site({"/endless": sends(page, closes=False)}) as site:
        report = crawled(site, tmp_path)
    report.check()
    pages = [doc for url, doc in report.documents.items() if url not in report.good]
    assert [doc["response_size"] for doc in pages] == [200_000] * 64
