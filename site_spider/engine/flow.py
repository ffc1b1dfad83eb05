"""The short way of a request through Scrapy's engine: one task for each request.

Theory of operation. Scrapy's own way makes five Deferreds, eight tasks and about sixty
coroutines a page, most of them without need: slots that never queue, signals without receivers,
pipelines that never wait. Here a request is one task, which does the same in the same order:

    next_request > downloader middlewares > download handler > downloader middlewares
    > spider middlewares > callback > spider middlewares > scheduler and pipelines > remove_request

Scrapy's own code handles everything unusual, so that it behaves as in Scrapy: an exception, a
callback that gives no list, a spider middleware or a pipeline that is asynchronous, an errback.
Rules that must stay in sync with Scrapy:

- `_Slot.add_request` and `Downloader.active` before the next request is asked for;
- `_Slot.remove_request` exactly once at the end, after all children were enqueued and all items
  have left the pipelines;
- `Scraper.slot` knows the request as active while the spider has it, with its size;
- signals, statistics and log lines come in Scrapy's order, where there is somebody to hear.

docs/scrapy-internals.md lists the private parts of Scrapy that are used here.

A page decides how much it gives, so pages share the turns of the event loop: one begins, and
goes on from one output to the next, only while the turn has time. Its request has not ended
before the last output is taken, so what happens between two turns completes nothing.
tests/engine/test_endings.py and tests/engine/test_flow.py run both ways side by side.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from math import inf
from types import CoroutineType, MethodType
from typing import Any

from pydispatch import dispatcher
from scrapy import Request, Spider, signals
from scrapy.core.engine import ExecutionEngine, _Slot
from scrapy.core.scraper import Scraper
from scrapy.crawler import Crawler
from scrapy.exceptions import DownloadFailedError, _InvalidOutput
from scrapy.http import Response
from scrapy.middleware import MiddlewareManager
from scrapy.signalmanager import SignalManager
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware
from scrapy.spidermiddlewares.depth import DepthMiddleware
from scrapy.spidermiddlewares.httperror import HttpErrorMiddleware
from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.decorators import _warn_spider_arg
from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.log import logformatter_adapter
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.python import global_object_name
from scrapy.utils.reactor import CallLaterOnce
from scrapy.utils.spider import iterate_spider_output
from twisted.python.failure import Failure

from site_spider import meta_keys
from site_spider.engine.background import Turns
from site_spider.engine.callback_guard import errors_alone, exception_of, is_stray, note_same_page, raise_if_stray
from site_spider.engine.scrapy_parts import QuickCoreStats, forget_frames

# --- signals: Scrapy's signals at no cost when nobody listens --------------------------------------------

logger = logging.getLogger(__name__)

_ANY_SENDER = id(dispatcher.Any)


def is_heard(sender: Any, *wanted: Any) -> bool:
    """Whether there may be a receiver of one of these signals."""
    for connected in map(dispatcher.connections.get, (id(sender), _ANY_SENDER)):
        if connected and (dispatcher.Any in connected or not connected.keys().isdisjoint(wanted)):
            return True
    return False


def receivers(crawler: Crawler, signal: Any) -> list[str]:
    """The names of who hears this signal of the crawl."""
    found = dispatcher.liveReceivers(dispatcher.getReceivers(crawler.signals.sender, signal))
    return sorted(
        f"{one.__module__}.{one.__qualname__}" if hasattr(one, "__qualname__") else repr(one) for one in found
    )


class QuickSignals(SignalManager):
    """Scrapy's signals of one crawl: the same receivers, whoever they were connected through.

    What QuickCoreStats would only count is counted here, without a call.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        assert crawler.stats is not None
        self._count = crawler.stats.inc_value
        counter = crawler.get_extension(QuickCoreStats)
        self._counted = {} if counter is None else counter.hand_over(crawler.signals)

    def send_catch_log(self, signal: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        if signal in self._counted:
            self._count(self._counted[signal])
        for sender in (id(self.sender), _ANY_SENDER):  # as is_heard, which would be a call for each signal
            connected = dispatcher.connections.get(sender)
            if connected and (signal in connected or dispatcher.Any in connected):
                return super().send_catch_log(signal, **kwargs)
        return []

    async def send_catch_log_async(self, signal: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        if signal in self._counted:
            self._count(self._counted[signal])
        return await super().send_catch_log_async(signal, **kwargs) if is_heard(self.sender, signal) else []


# --- unchecked: methods of Scrapy without their check for a `spider` argument ----------------------------

# Scrapy wraps most methods of its middlewares in a function that warns of the argument: 15 calls a page
_CHECK = _warn_spider_arg(lambda: None).__code__  # the same for all that it wraps


def unchecked(method: Callable[..., Any]) -> Callable[..., Any]:
    """What is behind the check; any other method as it is. To be called without a `spider` argument."""
    function = getattr(method, "__func__", None)
    if getattr(function, "__code__", None) is not _CHECK:
        return method
    return MethodType(function.__wrapped__, method.__self__)  # type: ignore[union-attr, attr-defined]


# --- steps: the methods of the middlewares that a request passes on the short way ------------------------

Step = tuple[Callable[..., Any], dict[str, Any]]


def _with_spider(engine: ExecutionEngine, manager: MiddlewareManager, method: Callable[..., Any]) -> dict[str, Any]:
    return {"spider": engine.spider} if method in manager._mw_methods_requiring_spider else {}


def steps(engine: ExecutionEngine, manager: MiddlewareManager, name: str) -> list[Step]:
    """The methods of middlewares of one kind, and what they want besides."""
    methods = [method for method in manager.methods[name] if method]
    return [(unchecked(method), _with_spider(engine, manager, method)) for method in methods]


def checked(method: Callable[..., Any], result: Any) -> Response | Request:
    """What a downloader middleware gave. Raises as Scrapy does for anything else."""
    if not isinstance(result, Response | Request):
        raise _InvalidOutput(
            f"Middleware {method.__qualname__} must return a Response or a Request, got {type(result)}"
        )
    return result


# Scrapy's own ways: they change requests alone, if the response has its depth
_OF_REQUESTS = {BaseSpiderMiddleware.process_spider_output, DepthMiddleware.process_spider_output}


def _is_of_requests(middleware: Any) -> bool:
    kind = type(middleware)
    return (
        getattr(kind, "process_spider_output", None) in _OF_REQUESTS
        and kind._get_processed is BaseSpiderMiddleware._get_processed
        and kind.get_processed_item is BaseSpiderMiddleware.get_processed_item
    )


def output_steps(engine: ExecutionEngine) -> list[tuple[Callable[..., Any], bool]] | None:
    """What spider middlewares do with output, and whether to requests alone.

    None when one of them, or a pipeline, may wait; also when one has something to say to errors, but for
    Scrapy's own that deals with HttpError.
    """
    manager = engine.scraper.spidermw
    if any(inspect.iscoroutinefunction(method) for method in engine.scraper.itemproc.methods["process_item"]):
        return None
    found: list[tuple[Callable[..., Any], bool]] = []
    for middleware in reversed(manager.middlewares):
        if hasattr(middleware, "process_spider_exception") and type(middleware) is not HttpErrorMiddleware:
            return None
        method = getattr(middleware, "process_spider_output", None)
        if method is None:
            continue
        if not inspect.isgeneratorfunction(inspect.unwrap(method)) or _with_spider(engine, manager, method):
            return None
        found.append((unchecked(method), _is_of_requests(middleware)))
    return found


Start = Callable[[Coroutine[Any, Any, None], str], object]
Told = Callable[[Request], None]

_MOST_LATE = 16  # pages that wait for a turn; downloads begin below it, else pages would pile up


class EngineFlow:
    """Takes the place of `ExecutionEngine._start_scheduled_request`.

    `came_back` is called with every request that has left the downloader, `broken_off` with one
    that is cancelled on its way; `start` runs a task.
    """

    def __init__(self, engine: ExecutionEngine, came_back: Told, broken_off: Told, start: Start) -> None:
        self._start = start
        self._engine = engine
        self._came_back = came_back
        self._broken_off = broken_off
        self._signals = engine.signals = engine.scraper.signals = QuickSignals(engine.crawler)
        downloading = engine.downloader.middleware
        self._before = steps(engine, downloading, "process_request")
        self._after = steps(engine, downloading, "process_response")
        self._inputs = steps(engine, engine.scraper.spidermw, "process_spider_input")
        self._outputs = output_steps(engine)
        self._turns = Turns.of_running_loop()
        self._late = 0  # pages that wait for a turn with time for them

    def start_request(self) -> bool:
        """Begin with the request whose turn it is; False when there is none."""
        engine = self._engine
        slot = engine._slot
        assert slot is not None
        if self._late >= _MOST_LATE:
            return False  # each that ends has the engine ask again
        request = slot.scheduler.next_request()
        if request is None:
            self._signals.send_catch_log(signals.scheduler_empty)
            return False
        slot.add_request(request)
        engine.downloader.active.add(request)  # now: the engine counts these before it asks for more
        self._start(self._run(request), "request")
        return True

    async def _run(self, request: Request) -> None:
        engine = self._engine
        slot = engine._slot
        assert slot is not None
        result = None
        try:
            result = await self._download(request)
            if engine._slot is None or ((end := engine.scraper.slot.closing) and end.called):  # type: ignore[union-attr]
                self._broken_off(request)  # the crawl has ended without it, or ends: its seed is repeated
            elif isinstance(result, Request):
                note_same_page(result, request)
                engine.crawl(result)
            else:
                await self._to_spider(result, request)
        except BaseException as error:
            if not (isinstance(error, Exception) or is_stray(error)):
                self._broken_off(request)
                raise
            logger.exception("A request failed in the engine: %r", request, extra={"spider": engine.spider})
        finally:
            slot.remove_request(request)
            slot.nextcall.schedule()
            if isinstance(result, Failure):
                forget_frames(result.value)
                result = None  # from Python 3.13 on, the frames that it holds hold this one

    # --- downloading ----------------------------------------------------------------------------

    async def _download(self, request: Request) -> Response | Request | Failure:
        try:
            try:
                result = await self._requested(request)
            except Exception as error:  # noqa: BLE001 - a middleware may have an answer to it
                middleware = self._engine.downloader.middleware
                result = await middleware._process_exception(error, request)
            for method, keywords in self._after:
                if isinstance(result, Request):
                    break
                result = method(request=request, response=result, **keywords)
                if not isinstance(result, Response):
                    result = checked(method, await ensure_awaitable(result))
        except Exception:  # noqa: BLE001 - every one is the answer to the request
            return Failure()  # type: ignore[no-untyped-call]
        except BaseException as error:
            if not is_stray(error):
                raise
            stray = DownloadFailedError(f"a downloader middleware raised {error!r}")
            return Failure(stray)  # type: ignore[no-untyped-call]
        finally:
            self._engine.downloader.active.remove(request)
            self._came_back(request)
            if (slot := self._engine._slot) is not None:
                slot.nextcall.schedule()
        if isinstance(result, Response) and slot is not None:
            self._tell_received(result, request)
        return result

    async def _requested(self, request: Request) -> Response | Request:
        for method, keywords in self._before:
            result = method(request=request, **keywords)
            if result is None:
                continue
            if not isinstance(result, Response | Request):
                result = await ensure_awaitable(result)
                if result is None:
                    continue
            return checked(method, result)
        engine, tell = self._engine, self._signals.send_catch_log
        spider, downloader = engine.spider, engine.downloader
        request.meta[meta_keys.DOWNLOAD_SLOT] = downloader.get_slot_key(request)
        tell(signals.request_reached_downloader, spider=spider, request=request)
        try:
            response = await self._handler_for(request)(request)
            tell(signals.response_downloaded, spider=spider, request=request, response=response)
        except BaseException as error:
            if not is_stray(error):
                raise
            raise DownloadFailedError(f"the download handler raised {type(error).__name__}") from error
        finally:
            tell(signals.request_left_downloader, spider=spider, request=request)
        return response

    def _handler_for(self, request: Request) -> Callable[[Request], Awaitable[Response]]:
        handlers = self._engine.downloader.handlers
        scheme = request.url.partition(":")[0]
        handler = handlers._handlers.get(scheme)
        if handler is None or scheme in handlers._old_style_handlers:
            return handlers.download_request_async  # makes the handler
        return handler.download_request

    def _tell_received(self, response: Response, request: Request) -> None:
        engine = self._engine
        if response.request is None:
            response.request = request
        elif response.request is not request:
            note_same_page(response, request)
        assert engine.spider is not None
        line = engine.logformatter.crawled(response.request, response, engine.spider)
        if line is not None:
            logger.log(*logformatter_adapter(line), extra={"spider": engine.spider})
        self._signals.send_catch_log(
            signals.response_received, spider=engine.spider, response=response, request=response.request
        )

    # --- scraping -------------------------------------------------------------------------------

    async def _to_spider(self, result: Response | Failure, request: Request) -> None:
        scraper = self._engine.scraper
        slot = scraper.slot
        assert slot is not None
        size = slot.MIN_RESPONSE_SIZE
        if isinstance(result, Response):
            size = max(size, len(result.body))
        slot.active.add(request)  # as add_response_request, but that nothing waits in the queue
        slot.active_size += size
        try:
            if not self._turns.is_free():
                await self._late_turn()
            if isinstance(result, Failure) or self._outputs is None or request.callback is None:
                await scraper._scrape(result, request)
            else:
                await self._scrape_response(result, request)
        finally:
            slot.active.remove(request)  # as finish_response
            slot.active_size -= size
            if slot.closing is not None:
                scraper._check_if_closing()

    async def _late_turn(self) -> None:
        self._late += 1
        try:
            await self._turns.time()
        finally:
            self._late -= 1

    async def _scrape_response(self, response: Response, request: Request) -> None:
        scraper = self._engine.scraper
        try:
            outputs = await self._output_of(response, request)
            if not isinstance(outputs, list | tuple):
                outputs = await scraper.spidermw._process_callback_output(response, aiter(outputs))
        except BaseException as error:  # noqa: BLE001 - a spider middleware may have an answer to it
            await self._scrape_exception(exception_of(error), response, request)
            return
        if isinstance(outputs, list | tuple):
            await self._take_all(outputs, response, request)
        else:
            await scraper.handle_spider_output_async(self._in_turns(outputs), request, response)

    async def _in_turns(self, outputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for output in outputs:
            if not self._turns.has_time():
                await self._turns.time()
            yield output

    async def _output_of(self, response: Response, request: Request) -> Any:
        """A list, or an asynchronous iterator."""
        if (failure := self._refusal(response)) is not None:
            failure.response = response  # type: ignore[attr-defined] # for the result of the page
            output = await self._engine.scraper.call_spider_async(failure, request)
        else:
            assert response.request is not None
            assert response.request.callback is not None
            output = response.request.callback(response, **response.request.cb_kwargs)
            if isinstance(output, CoroutineType):
                output = await output
        if isinstance(output, list | tuple):
            return output
        output = await ensure_awaitable(iterate_spider_output(output))
        return output if hasattr(output, "__aiter__") else as_async_generator(output)

    def _refusal(self, response: Response) -> Failure | None:
        """Of a spider middleware that does not want it. Raises as Scrapy does for a wrong answer."""
        for method, keywords in self._inputs:
            try:
                result = method(response=response, **keywords)
            except Exception:  # noqa: BLE001 - the errback's
                return Failure()  # type: ignore[no-untyped-call]
            if result is not None:
                name = global_object_name(method)
                raise _InvalidOutput(f"{name} must return None or raise an exception, got {type(result)}")
        return None

    async def _scrape_exception(self, error: Exception, response: Response, request: Request) -> None:
        scraper = self._engine.scraper
        try:
            outputs: Any = scraper.spidermw._process_spider_exception(response, error)
        except Exception:  # noqa: BLE001 - as it came, or a new one
            scraper.handle_spider_error(Failure(), request, response)  # type: ignore[no-untyped-call]
        else:
            await scraper.handle_spider_output_async(outputs, request, response)

    async def _take_all(self, outputs: Any, response: Response, request: Request) -> None:
        """Through the spider middlewares, one by one, and to scheduler and pipelines."""
        scraper = self._engine.scraper
        has_requests = "depth" not in request.meta
        for output in outputs:
            has_requests = has_requests or isinstance(output, Request)
        for process, is_of_requests in self._outputs or ():
            if has_requests or not is_of_requests:
                outputs, has_requests = process(response, outputs), True
        try:
            for output in outputs:
                if not self._turns.has_time():
                    await self._turns.time()
                if isinstance(output, Request):
                    self._engine.crawl(output)
                elif output is not None:
                    await scraper.start_itemproc_async(output, response=response)
        except Exception as error:  # noqa: BLE001 - likewise
            await self._scrape_exception(error, response, request)


# --- Hooks into Scrapy's engine: a request has ended, a drain begins, the engine is woken ----------------
# Scrapy has no signal, nor set of signals, that says that a request has ended: a request dropped by a
# downloader middleware emits nothing, a 404 without an errback ends at `response_received`.
# `_Slot.remove_request` fires exactly once for each request given out, after all its children were enqueued
# and all its items left the pipelines. It is private: requirements.txt pins Scrapy, and
# tests/engine/test_endings.py tests the contract.


def construct(crawler: Crawler, arguments: Mapping[str, str]) -> None:
    """Have Scrapy build what it builds at a start; nothing is opened, and no signal sent. Needs asyncio's loop."""
    # a folder of JOBDIR would be made; and Scrapy's handlers without a reactor come before those of an add-on
    handlers = crawler.settings.getdict("DOWNLOAD_HANDLERS")
    changed = {"TWISTED_REACTOR_ENABLED": False, "JOBDIR": None, "DOWNLOAD_HANDLERS": handlers}
    crawler.settings.setdict(changed, priority="cmdline")
    crawler.spider = crawler._create_spider(**arguments)
    crawler._apply_settings()
    crawler.engine = engine = crawler._create_engine()
    scheduler = build_from_crawler(engine.scheduler_cls, crawler)
    engine._slot = _Slot(True, CallLaterOnce(lambda: None), scheduler)


def on_request_ended(engine: ExecutionEngine, *calls: Callable[[Request], None]) -> None:
    """Have these called with every request that has ended, in this order, whatever one of them raises.

    To be set up in the scheduler's open().
    """
    slot = engine._slot
    assert slot is not None
    remove_request = slot.remove_request

    def remove_and_tell(request: Request) -> None:
        # told first: the engine may close as soon as the last request is removed
        failure: Exception | None = None
        try:
            for call in calls:
                try:
                    call(request)
                except Exception as error:  # noqa: BLE001 - raised below
                    failure = failure or error
        finally:
            remove_request(request)
        if failure is not None:
            raise failure

    slot.remove_request = remove_and_tell  # type: ignore[method-assign]


def shorten(engine: ExecutionEngine, came_back: Told, broken_off: Told, start: Start) -> None:
    """Have requests go the short way; to be set up in the scheduler's open().

    Not with a downloader that is not ours, nor with AutoThrottle; `came_back` is called there, too.
    """
    guard_spider_middlewares(engine.scraper)
    copy_what_is_under_way(engine)
    if hasattr(engine.downloader, "came_back"):
        engine.downloader.came_back = came_back
    if getattr(engine.downloader, "goes_short_way", False):
        flow = EngineFlow(engine, came_back, broken_off, start)
        engine._start_scheduled_request = flow.start_request  # type: ignore[method-assign]
        assert engine._slot is not None
        schedule_without_timer(engine._slot.nextcall)


def copy_what_is_under_way(engine: ExecutionEngine) -> None:
    """Before a callback downloads its own request again: the end of that download would be the end of the page."""
    download = engine.download_async

    def download_async(request: Request) -> Coroutine[Any, Any, Response]:
        return download(request.copy() if request in requests_in_progress(engine) else request)

    engine.download_async = download_async  # type: ignore[method-assign]


def guard_spider_middlewares(scraper: Scraper) -> None:
    """What they raise is an Exception; with anything else a request would never end."""
    scrape, take = scraper.spidermw.scrape_response_async, scraper.handle_spider_output_async

    async def guarded_scrape(*arguments: Any) -> Any:
        try:
            return await scrape(*arguments)
        except BaseException as error:
            raise_if_stray(error)
            raise

    async def guarded_take(outputs: Any, request: Request, response: Response | Failure) -> None:
        await take(errors_alone(outputs) if isinstance(outputs, AsyncIterator) else outputs, request, response)

    scraper.spidermw.scrape_response_async = guarded_scrape  # type: ignore[method-assign, assignment]
    scraper.handle_spider_output_async = guarded_take  # type: ignore[method-assign, assignment]


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


def on_drain(engine: ExecutionEngine, call: Callable[[Drain, str], Coroutine[Any, Any, None]]) -> None:
    """Have `call` called when the engine begins to close, with what waits for all requests to end, and the reason.

    The engine goes on closing when `call` returns. To be set up in the scheduler's open().
    """
    slot, close = engine._slot, engine.close_spider_async
    assert slot is not None
    drain = slot.close

    async def closing(*, reason: str = "cancelled") -> None:
        slot.close = lambda: call(drain, reason)  # type: ignore[method-assign]
        await close(reason=reason)

    engine.close_spider_async = closing  # type: ignore[method-assign]


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
