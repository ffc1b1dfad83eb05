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


def test_links_to_many_hosts_that_refuse_keep_within_the_bounds(tmp_path: Path) -> None:
    answers = {}
    for number in range(16):
        links = (f"http://127.1.{number}.{other % 250}:1/{other}" for other in range(500))
        answers[f"/many/{number}"] = sends(whole(page(*links)), closes=False)
    with raw_site(answers) as site:
        seeds = [{"url": site.url(path)} for path in answers]
        report = crawl(tmp_path, seeds, DEPTH_LIMIT=1, SITE_LINK_SCOPE="any")
    print(report.longest_turn_seconds, report.peak_mb, report.seconds, len(report.documents))
    report.check()
    assert len(report.documents) == 16 * 501 + len(report.good)
