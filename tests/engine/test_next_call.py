"""The engine asks for the next request, and what pages leave behind is freed at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from scrapy.utils.reactor import CallLaterOnce

from site_spider.engine import flow as engine_hooks


def test_the_next_call_of_the_engine_needs_no_timer() -> None:
    """It is made once however often it is asked for, later when a delay is wanted, and can be cancelled."""
    calls: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        next_call = CallLaterOnce(lambda: calls.append(loop.time()))
        engine_hooks.schedule_without_timer(next_call)
        next_call.schedule()
        next_call.schedule()
        await asyncio.sleep(0)
        assert len(calls) == 1
        next_call.schedule()
        next_call.cancel()
        next_call.cancel()
        await asyncio.sleep(0)
        assert len(calls) == 1
        began = loop.time()
        later = CallLaterOnce(lambda: calls.append(loop.time()))
        engine_hooks.schedule_without_timer(later)
        later.schedule(0.01)
        while len(calls) < 2:
            await asyncio.sleep(0.001)
        assert calls[1] >= began + 0.009

    asyncio.run(main())


# --- garbage ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def left() -> dict[str, dict[str, int]]:
    """By sort of page, then by type: how many wait for the collector, where nearly every page has one."""
    command = [sys.executable, "-m", "tests.engine.garbage_trial"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, dict[str, int]] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("sort", ["page", "linking", "moved", "absent", "failing", "unanswered"])
def test_no_page_waits_for_the_collector(left: dict[str, dict[str, int]], sort: str) -> None:
    assert left[sort] == {}
