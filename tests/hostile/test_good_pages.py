"""The bounds of the other tests, where nothing is hostile."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.attack import crawl


def test_good_pages_alone_keep_within_the_bounds(tmp_path: Path) -> None:
    report = crawl(tmp_path, [], good_pages=300)
    report.check()
    assert len(report.documents) == 300
