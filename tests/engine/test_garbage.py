"""What pages leave behind is freed at once.

python -m tests.engine.test_garbage    # says so, as JSON by sort of page
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import uvloop
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider.ledger.completion import Job
from site_spider.ledger.ledger import SeedInFlight
from site_spider.service.service import SeedService
from tests.in_process import engine
from tests.in_process.engine import crawl, page

EACH = 60  # seeds of a sort


def linking(request: Request) -> Response:
    return page(request, "".join(f'<a href="{request.url}/{n}">link</a>' for n in range(3)))


def moved(request: Request) -> Response:
    return page(request, status=301, Location=f"{request.url}/there")


def absent(request: Request) -> Response:
    return page(request, status=404)


def failing(request: Request) -> Response:
    return page(request, status=503)


def unanswered(request: Request) -> Response:
    raise OSError(f"{request.url} does not answer")


SORTS = (page, linking, moved, absent, failing, unanswered)


def alive() -> int:
    return sum(isinstance(one, Job | SeedInFlight | Request) for one in gc.get_objects())


def left_by_pages(folder: Path, sort: str) -> Counter[str]:
    """By type what waits for the collector, and what it cannot take, where nearly every page has one."""
    left: Counter[str] = Counter()

    def until(crawler: Crawler) -> bool:
        ledger = SeedService.of(crawler).parts.completion.ledger
        if gc.isenabled():
            for _ in range(3):  # until what the start of the crawl has left is gone, and the crawl before it
                gc.collect()
            gc.disable()
            left["alive"] = -alive()
        if ledger.consumed < EACH or ledger.in_flight:
            return False
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left.update(type(one).__name__ for one in gc.garbage)
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        left["alive"] += alive()
        return True

    found = crawl(
        folder,
        [{"url": f"http://{n}.test/{sort}/{n}", "meta": {"url_id": f"{n}"}} for n in range(EACH)],
        until=until,
        run=asyncio.run,  # a cancelled timer of the virtual loop keeps its context
        SITE_STATS_TO="",
    )
    assert len(found.documents) >= EACH
    return Counter({name: count for name, count in left.items() if count >= EACH / 2})


def main(folder: Path) -> None:
    """Each sort twice: what the first crawl of a process leaves is not there again."""
    engine.ANSWERS.update({f"/{sort.__name__}/{n}": sort for sort in SORTS for n in range(EACH)})
    found: dict[str, Counter[str]] = {}
    for sort in [one.__name__ for one in SORTS]:
        found[sort] = left_by_pages(folder / sort / "first", sort)
        if found[sort]:
            found[sort] &= left_by_pages(folder / sort / "second", sort)
    json.dump(found, sys.stdout)


@pytest.fixture(scope="module")
def left() -> dict[str, dict[str, int]]:
    command = [sys.executable, "-m", __name__]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, dict[str, int]] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("sort", [one.__name__ for one in SORTS])
def test_no_page_waits_for_the_collector(left: dict[str, dict[str, int]], sort: str) -> None:
    assert left[sort] == {}


if __name__ == "__main__":
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
