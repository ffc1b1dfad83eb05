"""Hooks into Scrapy's engine: a request has ended, a drain begins, the engine is woken.

Scrapy has no signal, nor set of signals, that says that a request has ended: a request
dropped by a downloader middleware emits nothing, a 404 without an errback ends at
`response_received`. `_Slot.remove_request` fires exactly once for each request given out,
after all its children were enqueued and all its items left the pipelines. It is private:
requirements.txt pins Scrapy, and tests/engine/test_endings.py tests the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from math import inf
from typing import Any

from scrapy import Request, Spider
from scrapy.core.engine import ExecutionEngine
from scrapy.utils.reactor import CallLaterOnce

from site_spider.engine.flow import EngineFlow, Start, Told


def on_request_ended(engine: ExecutionEngine, call: Callable[[Request], None]) -> None:
    """Have `call` called with every request that has ended; to be set up in the scheduler's open()."""
    slot = engine._slot
    assert slot is not None
    remove_request = slot.remove_request

    def remove_and_tell(request: Request) -> None:
        # told first: the engine may close as soon as the last request is removed
        try:
            call(request)
        finally:
            remove_request(request)

    slot.remove_request = remove_and_tell  # type: ignore[method-assign]


def on_downloaded(engine: ExecutionEngine, call: Callable[[Request], None]) -> None:
    """Have `call` called with every request that has left a downloader of ours, on Scrapy's own way."""
    if hasattr(engine.downloader, "came_back"):
        engine.downloader.came_back = call


def shorten(engine: ExecutionEngine, came_back: Told, broken_off: Told, start: Start) -> None:
    """Have requests go the short way, see engine.flow; to be set up in the scheduler's open().

    Not with a downloader that is not ours, nor with AutoThrottle.
    """
    if getattr(engine.downloader, "goes_short_way", False):
        flow = EngineFlow(engine, came_back, broken_off, start)
        engine._start_scheduled_request = flow.start_request  # type: ignore[method-assign]
        assert engine._slot is not None
        schedule_without_timer(engine._slot.nextcall)


def schedule_without_timer(next_call: CallLaterOnce[None]) -> None:
    """Scrapy's `schedule` finds out each time which event loop there is, and asks that for a timer of 0 s."""
    call_soon, with_timer = asyncio.get_running_loop().call_soon, next_call.schedule

    def schedule(delay: float = 0) -> None:
        if delay:
            with_timer(delay)
        elif next_call._call is None:
            next_call._call = call_soon(next_call)  # type: ignore[assignment] # can be cancelled, too

    next_call.schedule = schedule  # type: ignore[method-assign]


Drain = Callable[[], Awaitable[None]]


def on_drain(engine: ExecutionEngine, call: Callable[[Drain], Awaitable[None]]) -> None:
    """Have `call` called when the engine begins to close, with what waits for all requests to end.

    The engine goes on closing when `call` returns. To be set up in the scheduler's open().
    """
    slot = engine._slot
    assert slot is not None
    close = slot.close

    async def drain() -> None:
        await call(close)

    slot.close = drain  # type: ignore[method-assign]


def requests_in_progress(engine: ExecutionEngine) -> Collection[Request]:
    """The requests that were given out and have not ended."""
    return () if engine._slot is None else engine._slot.inprogress


def free_places(engine: ExecutionEngine) -> float:
    """How many downloads more CONCURRENT_REQUESTS lets begin now."""
    downloader = engine.downloader
    return (downloader.total_concurrency or inf) - len(downloader.active)


def throttled_delay(engine: ExecutionEngine, host: str) -> float:
    """The delay that AutoThrottle found right for a host, or begins with; in seconds."""
    slot = engine.downloader.slots.get(host)
    return engine.downloader._delay if slot is None else slot.delay


def default_callback(spider: Spider) -> Callable[..., Any]:
    """What gets the response to a request without a callback."""
    has_own = type(spider)._parse is not Spider._parse  # CrawlSpider, say
    return spider._parse if has_own else spider.parse


def wake(engine: ExecutionEngine) -> None:
    """Let the engine ask the scheduler at once. On the event loop's thread only."""
    if engine._slot is not None and engine._slot.closing is None:
        engine._slot.nextcall.schedule()


def is_being_scraped(engine: ExecutionEngine, request: Request) -> bool:
    """Whether the response to `request` is with the spider now (and not with the downloader)."""
    slot = engine.scraper.slot
    return slot is not None and request in slot.active
