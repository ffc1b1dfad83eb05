"""Pages whose links cost more than their bytes."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.attack import crawl
from tests.hostile.raw_site import raw_site, sends, whole


def page(*links: str) -> bytes:
    return "".join(f'<a href="{link}">x</a>' for link in links).encode()


def test_a_page_of_10_000_links_is_enqueued_in_slices(tmp_path: Path) -> None:
    links = page(*(f"/leaf?{number}" for number in range(10_000)))
    with raw_site({"/many": sends(whole(links), closes=False)}) as site:
        report = crawl(tmp_path, [{"url": site.url("/many")}], DEPTH_LIMIT=1)
    report.check()
    assert len(report.documents) == 10_001 + len(report.good)
