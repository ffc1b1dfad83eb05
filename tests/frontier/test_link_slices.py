"""A page of many links, and what happens between two of the slices in which they are enqueued."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider.engine.background import Turns
from site_spider.frontier.waiter import LinksInHand
from site_spider.page.links import SLICE_LINKS
from site_spider.service.service import SeedService
from site_spider.tasks import traps
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page


@pytest.fixture(autouse=True)
def _no_traps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages of the site have one text."""
    monkeypatch.setattr(traps, "_PAGES", 10**9)


@pytest.fixture(autouse=True)
def _a_slice_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the machine is."""
    monkeypatch.setattr(Turns, "has_time", lambda _self: False)


LINKS = 2 * SLICE_LINKS
SEED = {"url": "http://h.test/many", "meta": {"url_id": "seed"}}


@pytest.fixture(autouse=True)
def visits() -> list[str]:
    found: list[str] = []

    def leaf(request: Request) -> Response:
        found.append(request.url)
        return page(request)

    engine.ANSWERS["/many"] = lambda r: page(r, "".join(f"<a href=/leaf?{n}>" for n in range(LINKS)))
    engine.ANSWERS["/leaf"] = leaf
    return found


def run(folder: Path, until: Callable[[SeedService], bool] | None = None, *seeds: Any, **more: Any) -> Crawled:
    return crawl(
        folder,
        seeds,
        until=until and (lambda crawler: until(SeedService.of(crawler))),
        DEPTH_LIMIT=1,
        SITE_TREE_MAX_PAGES=2 * LINKS,  # none of them leaves for the topic
        **more,
    )


def is_between_slices(service: SeedService) -> bool:
    enqueued = service._crawler.stats.get_value("scheduler/enqueued", 0)
    return 0 < enqueued < LINKS


def assert_the_next_process_does_it_all(folder: Path) -> None:
    again = run(folder)
    assert (again.lag, len(again.documents)) == (0, LINKS + 1)


def test_all_links_are_followed_in_the_order_of_the_page(tmp_path: Path, visits: list[str]) -> None:
    found = run(tmp_path, None, SEED, CONCURRENT_REQUESTS=1)
    assert visits == [f"http://h.test/leaf?{number}" for number in range(LINKS)]
    assert (found.lag, len(found.documents)) == (0, LINKS + 1)


def test_a_stop_between_two_slices_loses_nothing(tmp_path: Path) -> None:
    found = run(tmp_path, is_between_slices, SEED)
    assert found.lag == 1
    assert found.seeds["completed"] == 0
    assert_the_next_process_does_it_all(tmp_path)


def test_what_is_lost_between_two_slices_completes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    enqueued: list[int] = []

    def lose(service: SeedService) -> bool:
        if not enqueued:
            if is_between_slices(service):
                service.parts.seeds.lost(service.parts.completion.ledger.partitions())
                enqueued.append(service._crawler.stats.get_value("scheduler/enqueued"))
            return False
        return not len(service.parts.room) and not service._crawler.engine._slot.inprogress

    found = run(tmp_path, lose, SEED)
    assert found.stats["scheduler/enqueued"] == enqueued[0]
    assert found.lag == 1
    assert found.seeds["handed_back"] == 1
    assert_the_next_process_does_it_all(tmp_path)


def is_of_the_page(task: asyncio.Task[Any]) -> bool:
    coroutine: Any = task.get_coro()
    if "EngineFlow._run" not in repr(coroutine) or coroutine.cr_frame is None:
        return False
    return bool(coroutine.cr_frame.f_locals["request"].url == SEED["url"])


def test_a_page_that_is_cancelled_between_two_slices_does_not_complete_its_seed(tmp_path: Path) -> None:
    cancelled: list[asyncio.Task[Any]] = []

    def cancel(service: SeedService) -> bool:
        if not cancelled:
            if is_between_slices(service):
                pages = [task for task in asyncio.all_tasks() if is_of_the_page(task)]
                cancelled.extend(pages)
                for task in pages:
                    task.cancel()
            return False
        return not len(service.parts.room) and not service._crawler.engine._slot.inprogress

    found = run(tmp_path, cancel, SEED, CONCURRENT_REQUESTS=1)
    assert any(task.cancelled() for task in cancelled)
    assert found.seeds["completed"] == 0
    assert found.lag == 1
    assert found.documents["seed"]["description"] is None
    assert_the_next_process_does_it_all(tmp_path)


def test_the_error_of_a_download_is_freed_without_the_collector(tmp_path: Path) -> None:
    """Errors hold frames that hold them; a flood of such circles would be freed in one go."""
    errors: list[weakref.ref[Exception]] = []

    class Refused(Exception):
        pass

    def refuse(_request: Request) -> Response:
        error = Refused()
        errors.append(weakref.ref(error))
        raise error from OSError()

    engine.ANSWERS["/many"] = refuse
    alive: list[object] = []

    def is_done(service: SeedService) -> bool:
        if not errors or service.parts.completion.ledger.in_flight:
            return False
        alive.extend(error for error in errors if error() is not None)
        return True

    gc.disable()
    try:
        run(tmp_path, is_done, SEED, RETRY_ENABLED=False)
    finally:
        gc.enable()
    assert len(errors) == 1
    assert not alive


# --- links in hand ------------------------------------------------------------------------------


def request(number: int) -> Request:
    return Request(f"http://h.test/{number}")


def test_large_pages_wait_for_each_other_in_their_order() -> None:
    async def scenario() -> None:
        hand, order = LinksInHand(most=2_000), list[int]()
        requests = [request(number) for number in range(5)]

        async def work(number: int) -> None:
            await hand.begin(requests[number], 32_000)
            order.append(number)

        working = [asyncio.ensure_future(work(number)) for number in range(5)]
        await working[0]
        working[2].cancel()
        for number in (0, 1, 3, 4):
            await working[number]
            await asyncio.sleep(0)
            assert order == [earlier for earlier in (0, 1, 3, 4) if earlier <= number]
            hand.ended(requests[number])

    asyncio.run(scenario())


def test_a_page_counts_with_the_links_that_it_has() -> None:
    async def scenario() -> None:
        hand = LinksInHand(most=2_000)
        first, second, third = request(1), request(2), request(3)
        await hand.begin(first, 10_000_000)
        waiting = asyncio.ensure_future(hand.begin(second, 17_000))
        await asyncio.sleep(0)
        assert not waiting.done()
        hand.found(first, 50)
        await waiting
        await hand.begin(third, 15_999)  # a small page never waits, and does not count
        hand.found(third, 1_000_000)
        hand.ended(third)
        for ended in (first, second, second):
            hand.ended(ended)
        await asyncio.wait_for(hand.begin(third, 10_000_000), 300)

    asyncio.run(scenario())
