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
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

from scrapy import Request, signals
from scrapy.core.engine import ExecutionEngine
from scrapy.exceptions import DownloadFailedError
from scrapy.http import Response
from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.log import logformatter_adapter
from scrapy.utils.spider import iterate_spider_output
from twisted.python.failure import Failure

from site_spider import meta_keys
from site_spider.engine.frames import forget_frames
from site_spider.engine.guard import is_being_cancelled
from site_spider.engine.signals import QuickSignals
from site_spider.engine.steps import checked, output_steps, steps
from site_spider.engine.turns import Turns

logger = logging.getLogger(__name__)

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
        self._before = steps(engine, "process_request")
        self._after = steps(engine, "process_response")
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
            if engine._slot is None:  # the crawl has ended without it: its seed is repeated
                self._broken_off(request)
            elif isinstance(result, Request):
                engine.crawl(result)
            else:
                await self._to_spider(result, request)
        except asyncio.CancelledError:
            self._broken_off(request)
            raise
        except Exception:
            logger.exception("A request failed in the engine: %r", request, extra={"spider": engine.spider})
        finally:
            slot.remove_request(request)
            slot.nextcall.schedule()
            if isinstance(result, Failure):
                forget_frames(result.value)

    # --- downloading ----------------------------------------------------------------------------

    async def _download(self, request: Request) -> Response | Request | Failure:
        try:
            result = await self._through_middlewares(request)
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            error = DownloadFailedError("a downloader middleware raised CancelledError")
            return Failure(error)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - every one is the answer to the request
            return Failure()  # type: ignore[no-untyped-call]
        finally:
            self._engine.downloader.active.remove(request)
            self._came_back(request)
            if (slot := self._engine._slot) is not None:
                slot.nextcall.schedule()
        if isinstance(result, Response) and slot is not None:
            self._tell_received(result, request)
        return result

    async def _through_middlewares(self, request: Request) -> Response | Request:
        try:
            result = await self._requested(request)
        except Exception as error:  # noqa: BLE001 - a middleware may have an answer to it
            middleware = self._engine.downloader.middleware
            result = await middleware._process_exception(error, request)
        if isinstance(result, Request):
            return result
        for method, keywords in self._after:
            result = method(request=request, response=result, **keywords)
            if not isinstance(result, Response):
                result = checked(method, await ensure_awaitable(result))
                if isinstance(result, Request):
                    break
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
        return await self._fetch(request)

    async def _fetch(self, request: Request) -> Response:
        engine = self._engine
        downloader = engine.downloader
        request.meta[meta_keys.DOWNLOAD_SLOT] = downloader.get_slot_key(request)
        self._tell(signals.request_reached_downloader, request=request)
        try:
            response = await self._answer_to(request)
            self._tell(signals.response_downloaded, request=request, response=response)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise DownloadFailedError("the download handler raised CancelledError") from error
        finally:
            self._tell(signals.request_left_downloader, request=request)
        return response

    async def _answer_to(self, request: Request) -> Response:
        handlers = self._engine.downloader.handlers
        scheme = request.url.partition(":")[0]
        handler = handlers._handlers.get(scheme)
        if handler is None or scheme in handlers._old_style_handlers:
            return await handlers.download_request_async(request)  # makes the handler
        return await handler.download_request(request)

    def _tell_received(self, response: Response, request: Request) -> None:
        engine = self._engine
        if response.request is None:
            response.request = request
        assert engine.spider is not None
        line = engine.logformatter.crawled(response.request, response, engine.spider)
        if line is not None:
            logger.log(*logformatter_adapter(line), extra={"spider": engine.spider})
        self._tell(signals.response_received, response=response, request=response.request)

    def _tell(self, signal: object, **arguments: Any) -> None:
        self._signals.send_catch_log(signal, spider=self._engine.spider, **arguments)

    # --- scraping -------------------------------------------------------------------------------

    async def _to_spider(self, result: Response | Failure, request: Request) -> None:
        scraper = self._engine.scraper
        slot = scraper.slot
        assert slot is not None
        slot.add_response_request(result, request)
        slot.queue.pop()  # nothing waits: it is being scraped from here on
        slot.active.add(request)
        try:
            if not self._turns.is_free():
                await self._late_turn()
            if isinstance(result, Failure) or self._outputs is None or request.callback is None:
                await scraper._scrape(result, request)
            else:
                await self._scrape_response(result, request)
        finally:
            slot.finish_response(result, request)
            scraper._check_if_closing()

    async def _late_turn(self) -> None:
        self._late += 1
        try:
            await self._turns.time()
        finally:
            self._late -= 1

    async def _scrape_response(self, response: Response, request: Request) -> None:
        scraper = self._engine.scraper
        spidermw = scraper.spidermw
        try:
            call_back = partial(self._call_back, response)
            outputs: Any = await spidermw._process_spider_input(call_back, response, request)
            if not isinstance(outputs, list | tuple):
                outputs = await spidermw._process_callback_output(response, aiter(outputs))
        except Exception as error:  # noqa: BLE001 - a spider middleware may have an answer to it
            await self._scrape_exception(error, response, request)
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

    async def _call_back(self, response: Response, result: Response | Failure, request: Request) -> Any:
        """A list, or an asynchronous iterator."""
        if isinstance(result, Failure):  # a spider middleware refuses the response
            result.response = response  # type: ignore[attr-defined] # for the result of the page
            output = await self._engine.scraper.call_spider_async(result, request)
        else:
            assert result.request is not None
            assert result.request.callback is not None
            output = result.request.callback(result, **result.request.cb_kwargs)
            if inspect.iscoroutine(output):
                output = await output
        if isinstance(output, list | tuple):
            return output
        output = await ensure_awaitable(iterate_spider_output(output))
        return output if hasattr(output, "__aiter__") else as_async_generator(output)

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
        for process in self._outputs or ():
            outputs = process(response, outputs)
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
