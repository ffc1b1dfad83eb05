"""Two tasks in one crawl."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.http import Response

from tests.in_process import engine
from tests.in_process.engine import crawl, page

SLOTS = 8


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    engine.ANSWERS.clear()
    yield
    engine.ANSWERS.clear()


def test_a_small_task_does_not_wait_for_a_large_one_that_came_first(tmp_path: Path) -> None:
    """On one topic and one host: from its first page on, every second one is its."""
    order: list[str] = []

    async def answer(request: Request) -> Response:
        order.append(request.url.split("/")[3])
        await asyncio.sleep(0.01)
        return page(request)

    seeds = []
    for task, count in (("large", 900), ("small", 10)):
        for number in range(count):
            path = f"/{task}/{number}"
            engine.ANSWERS[path] = answer
            meta = {"url_id": path, "task_id": task, "NotExtract": True}
            seeds.append({"url": f"http://host.test{path}", "meta": meta})
    found = crawl(tmp_path, seeds, CONCURRENT_REQUESTS=SLOTS, CONCURRENT_REQUESTS_PER_DOMAIN=SLOTS)
    assert len(found.documents) == 910
    first = order.index("small")
    last = len(order) - 1 - order[::-1].index("small")
    assert last - first < 2 * 10 + SLOTS
    assert last < 700, "it was polled with the rest, and waited"
