"""The soft limit of memory: intake pauses above it, says so once, and goes on below it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider.intake import room
from site_spider.intake.room import SoftLimit
from tests.in_process import engine
from tests.in_process.engine import crawl, page


class Used:
    def __init__(self) -> None:
        self.bytes: int | None = 0
        self.in_flight = 1

    def limit(self, limit_bytes: int = 1000) -> SoftLimit:
        return SoftLimit(limit_bytes, lambda: self.bytes, lambda: self.in_flight)


def test_it_keeps_intake_above_the_limit_and_lets_go_well_below_it(caplog: pytest.LogCaptureFixture) -> None:
    used = Used()
    limit = used.limit()
    kept = []
    with caplog.at_level(logging.INFO, room.logger.name):
        for used.bytes in (900, 1000, 1001, 1500, 999, 951, 949, 999):
            limit.look()
            kept.append(limit.keeps_intake)
    assert kept == [False, False, True, True, True, True, False, False]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0] == "Memory is above SITE_MEMORY_SOFT_BYTES=1000, no seeds are polled: 1001 bytes are used"
    assert lines[1].startswith("Memory is below SITE_MEMORY_SOFT_BYTES=1000 again after ")


def test_with_nothing_in_flight_it_does_not_keep_intake_for_ever() -> None:
    used = Used()
    limit = used.limit()
    used.bytes, used.in_flight = 2000, 0
    limit.look()
    assert not limit.keeps_intake


@pytest.mark.parametrize(("limit_bytes", "used_bytes"), [(0, 10**12), (1000, None)])
def test_without_a_limit_or_a_measure_nothing_is_kept(limit_bytes: int, used_bytes: int | None) -> None:
    used = Used()
    limit = used.limit(limit_bytes)
    used.bytes = used_bytes
    limit.look()
    assert not limit.keeps_intake


def test_a_crawl_above_its_limit_says_so_once_counts_the_pause_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The process is above one byte all the time: seeds are polled only while none is in flight."""

    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.5)
        return page(request)

    engine.ANSWERS["/slow"] = slow
    seeds = [{"url": f"http://h{number}.test/slow"} for number in range(3)]
    with caplog.at_level(logging.INFO):
        found = crawl(tmp_path, seeds, SITE_MEMORY_SOFT_BYTES=1)
    assert found.lag == 0
    assert len(found.documents) == 3
    assert caplog.text.count("Memory is above SITE_MEMORY_SOFT_BYTES=1, no seeds are polled") == 1
