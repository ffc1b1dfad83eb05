"""A result waits for its batch to fill only while others are on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider.adapters.local.results import LocalSink
from site_spider.contracts.sink import Record, Verdict
from tests.in_process.engine import ANSWERS, crawl, page

ALONE, QUICK, SLOW = "http://a.test/alone", "http://b.test/quick", "http://c.test/slow"
LONG = {"SITE_SINK_FLUSH_SECONDS": 36_000}  # a batch that is not full would wait longer than the test


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The URLs of each write."""
    written: list[list[str]] = []
    write = LocalSink.write

    async def noted(sink: LocalSink, records: Sequence[Record]) -> Sequence[Verdict]:
        written.append([record.document["url"] for record in records])
        return await write(sink, records)

    monkeypatch.setattr(LocalSink, "write", noted)
    return written


def test_a_seed_that_comes_alone_is_stored_at_once(tmp_path: Path, batches: list[list[str]]) -> None:
    crawl(tmp_path, [{"url": ALONE}], timeout_seconds=600, **LONG)
    assert batches == [[ALONE]]


def test_the_last_of_a_tree_sends_all(tmp_path: Path, batches: list[list[str]]) -> None:
    ANSWERS["/alone"] = lambda request: page(request, "<a href=/1>1</a><a href=/2>2</a>")
    crawled = crawl(tmp_path, [{"url": ALONE}], timeout_seconds=600, **LONG)
    assert len(crawled.documents) == 3


def test_what_comes_while_others_are_fetched_waits_for_them(tmp_path: Path, batches: list[list[str]]) -> None:
    is_quick_done = asyncio.Event()

    async def slow(request: Request) -> Response:
        await is_quick_done.wait()
        for _ in range(3):  # long enough for the result of the other to be written, if it did not wait
            await asyncio.sleep(10)
        return page(request)

    def quick(request: Request) -> Response:
        is_quick_done.set()
        return page(request)

    ANSWERS.update({"/quick": quick, "/slow": slow})
    crawl(tmp_path, [{"url": SLOW}, {"url": QUICK}], timeout_seconds=600, **LONG)
    assert [sorted(batch) for batch in batches] == [sorted([QUICK, SLOW])]
