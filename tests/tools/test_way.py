"""The way of a seed is told as it is."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scrapy.crawler import AsyncCrawlerRunner

from tools.measure import way
from tools.site.handle import Site

ROOT = Path(__file__).resolve().parents[2]


def test_each_way_names_the_files_that_it_must_pass() -> None:
    """A plain seed passes 45 files at most, and nothing that moves parked messages; docs/one-seed.md has them all."""
    command = [sys.executable, "-m", "tools.measure.way", "--functions"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=True).stdout
    parts = re.split(r"^(\w+): (\d+) files, (\d+) functions.*$", told, flags=re.MULTILINE)
    ways = {parts[at]: (int(parts[at + 1]), int(parts[at + 2]), parts[at + 3]) for at in range(1, len(parts), 4)}
    assert list(ways) == ["plain", "link", "retry", "pause", "resume"]
    for files, functions, text in ways.values():
        assert len(re.findall(r"^ {2,5}\d+ \S+\.py", text, re.MULTILINE)) == files
        assert len(re.findall(r"^ {9}\S", text, re.MULTILINE)) == functions >= files
    for name, passed in {
        "plain": ("ledger/ledger.py", "results/delivery.py", "intake/intake.py", "Ledger.take"),
        "link": ("frontier/scheduler.py", "PoliteFrontier.put_link"),
        "retry": ("frontier/retry_and_redirect.py",),
        "pause": ("tasks/parking.py",),
        "resume": ("tasks/",),
    }.items():
        assert [word for word in passed if word not in ways[name][2]] == []
    assert ways["plain"][0] <= 45, "its way grows: see docs/decisions/0024-fewer-modules.md"
    document = (ROOT / "docs" / "one-seed.md").read_text(encoding="utf-8")
    passed_files = re.findall(r"^ {2,5}\d+ (\S+\.py)", "".join(text for _, _, text in ways.values()), re.MULTILINE)
    assert [file for file in passed_files if f"`{file}`" not in document] == []
    assert "tasks/parking.py" not in ways["plain"][2] + ways["link"][2] + ways["retry"][2]


def test_the_calls_of_a_page_are_counted_by_owner() -> None:
    """Of a crawl of few pages: what an idle crawl calls meanwhile is taken off, about."""
    command = [sys.executable, "-m", "tools.measure.way", "--calls", "100"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=True).stdout
    counted = re.match(r"(\d+) calls a page: (\d+) ours, by folder\n", told)
    assert counted is not None, told
    assert 100 < int(counted[2]) < 400, told  # some 370: what one more listener or wrapper costs is seen here
    assert int(counted[2]) < int(counted[1]) < 900
    assert "site_spider/engine " in told
    assert len(told.splitlines()) <= 40


def test_a_crawl_that_ends_by_an_error_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(AsyncCrawlerRunner):
        def create_crawler(self, *_arguments: Any) -> Any:
            raise OSError("no crawl today")

    monkeypatch.setattr(way, "AsyncCrawlerRunner", Broken)
    site = Site(tmp_path / "record.jsonl", port=80)  # nobody asks it for anything
    with pytest.raises(OSError, match="no crawl today"):
        asyncio.run(way.called(tmp_path, site, 1))
