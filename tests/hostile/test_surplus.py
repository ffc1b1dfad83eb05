"""Servers that send bytes behind their answers: no page has the body of another one."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from tests.download.handler_trials import certificate
from tests.download.surplus_trials import SurplusServer, crawled, page
from tests.download.test_many_servers import serving
from tests.in_process.engine import crawl

PLAIN = "site_spider.download.handler.PlainDownloadHandler"


@pytest.mark.parametrize(
    ("late_seconds", "takes_seconds", "waits", "is_tls"),
    [(0.0, 0.03, False, False), (0.02, 0.03, True, False), (0.02, 0.0, False, True)],
)
def test_surplus_is_no_page(
    late_seconds: float, takes_seconds: float, waits: bool, is_tls: bool, tmp_path: Path
) -> None:
    """At once, or later, when the next request is under way; a server is known by its first answers."""
    server = SurplusServer(lambda _: True, late_seconds, lambda: takes_seconds, waits)
    found = uvloop.run(crawled(server, 60, tls=certificate(tmp_path) if is_tls else None))
    assert (found.wrong, found.pages) == (0, 60)


@pytest.mark.parametrize(
    ("late_seconds", "behind", "is_tls"), [(0.0, "204", False), (0.02, "304", True), (0.02, "HEAD", False)]
)
def test_a_body_behind_an_answer_that_has_none_is_no_page(
    late_seconds: float, behind: str, is_tls: bool, tmp_path: Path
) -> None:
    """Also when it is not the first answer of its connection."""
    server = SurplusServer(lambda number: number > 2, late_seconds, lambda: 0.03, behind=behind)
    found = uvloop.run(crawled(server, 60, tls=certificate(tmp_path) if is_tls else None))
    assert (found.wrong, found.pages) == (0, 60)


def test_an_answer_that_comes_too_soon_is_no_page() -> None:
    """On a connection that was fine so far, and whose usual time is known."""
    server = SurplusServer(lambda number: number == 9, takes_seconds=lambda: 0.06)
    found = uvloop.run(crawled(server, 120, 4))
    assert (found.wrong, found.pages) == (0, 120)


def test_each_document_has_the_body_of_its_own_page(tmp_path: Path) -> None:
    server = SurplusServer(takes_seconds=lambda: 0.03)
    with serving(server.serve, tls=certificate(tmp_path)) as (port,):
        url = f"https://127.0.0.1:{port}"
        found = crawl(
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
