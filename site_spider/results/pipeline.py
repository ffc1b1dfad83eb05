"""The pipeline that hands results and items to the sinks, last in line."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, Self

from itemadapter import ItemAdapter
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem, NotConfigured

from site_spider.engine import flow as engine_hooks
from site_spider.engine.callback_guard import Callback, SafeItemProcessor, guarded, guards
from site_spider.engine.scrapy_parts import part_of, takes_seeds
from site_spider.errors import SinkRejected
from site_spider.ledger import completion
from site_spider.ledger.completion import Job, job_of
from site_spider.results.document import Result, item_record, of_page, page_of
from site_spider.results.results import Results, Sinks

_LOOK_SECONDS = 0.02


class PlacedItemProcessor(SafeItemProcessor):
    """Numbers the items of each page in the order in which the spider gives them, before any pipeline."""

    def process_item_async(self, item: Any) -> Coroutine[Any, Any, Any]:
        completion.take_place(is_item=not isinstance(item, Result))
        return super().process_item_async(item)


class ResultPipeline:
    """Takes a Result as the document of its page, and anything else as an item; both go on to feeds."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @cached_property
    def _parts(self) -> tuple[Results, Sinks]:
        results, sinks = part_of(self._crawler, Results), part_of(self._crawler, Sinks)
        assert results is not None, "an item before the spider has opened"
        assert sinks is not None
        return results, sinks

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks; only for spiders that take seeds."""
        if not takes_seeds(crawler):
            raise NotConfigured
        return cls(crawler)

    def process_item(self, item: Any) -> Any:
        """Queue it for every sink and return it at once; its acknowledgement goes to the ledger.

        While the sinks have too much to do, an item is returned later: a page may give any number.
        """
        results, sinks = self._parts
        document = _result_in(item)
        if document is not None:
            job = completion.current_job()
            is_its_page = job is not None and document["url_id"] == job.url_id
            if job is not None and is_its_page:
                job.page = document  # written again when the callback or a pipeline fails later
            if job is None or not (is_its_page and job.error and job.requests):
                results.submit(document, job)
            return item
        self._submit(item, results)
        return item if sinks.have_room else _later(item, sinks)

    def _submit(self, item: Any, results: Results) -> None:
        request, job = completion.current_request(), completion.current_job()
        if not ItemAdapter.is_item(item):
            raise DropItem(f"{type(item).__qualname__} is no item: give a dict, Item, dataclass, attrs or pydantic")
        if request is None:
            raise DropItem("the item belongs to no page; give items in callbacks")
        assert self._crawler.spider is not None
        try:
            record = item_record(item, page_of(request), completion.current_place(), self._crawler.spider.name)
            results.submit_item(record, job)
        except SinkRejected as error:
            reason = of_page(request.url, f"an item cannot be stored: {error}")
            if job is None:
                raise DropItem(reason) from error
            results.refuse(job, reason)


def _result_in(item: Any) -> dict[str, Any] | None:
    """The document of a page; a pipeline may have made a dict of the Result that the spider gave."""
    if isinstance(item, Result):
        return item.document()
    is_result = isinstance(item, dict) and item.get("url_id") and completion.current_job() is not None
    return item if is_result and completion.current_place() == 0 else None


async def _later(item: Any, sinks: Sinks) -> Any:
    # looked at again and again: records end in many places
    while not sinks.have_room:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_SECONDS)
    return item


# --- callbacks -------------------------------------------------------------------------------------------
# The callbacks of a spider as they are called: bounded in time, and followed by the result of their page.
#
# A callback gives items and requests; the result of its page is written besides, unless the callback has
# given it itself. It is prepared here, where a large body can be read in turns, and noted in the job. It is
# written when all that the callback gave has left the pipelines, so a page that went wrong is a failure. A
# generator that is not asynchronous is not begun before the result is prepared: nothing can be awaited at
# its end. The result of a page whose callback raises is prepared as well: it says what is known of the
# page, and the reason.

_GIVES_RESULT = "gives_page_result"
Prepare = Callable[[Any], Awaitable[Any]]


def gives_page_result(callback: Callback) -> Callback:
    """Marks a method of a spider that gives the result of its page itself."""
    setattr(callback, _GIVES_RESULT, True)
    return callback


class Callbacks:
    """Of one spider. Methods of the spider are wrapped once."""

    def __init__(self, spider: Spider, timeout_seconds: float) -> None:
        self._spider = spider
        self._timeout_seconds = timeout_seconds
        default = getattr(spider, "callback_of_pages", None)  # of a spider that takes seeds
        self._default: Callback = default or engine_hooks.default_callback(spider)
        self._failed: Callback | None = getattr(spider, "failed", None)
        self._page_result: Prepare | None = getattr(spider, "page_result", None)
        self._failure_result: Prepare | None = getattr(spider, "failure_result", None)
        self._methods: dict[Callback, Callback] = {}
        failed = None if self._failed is None else self._wrapped(self._failed, self._failure_result)
        self._usual = self._wrapped(self._default, self._page_result), failed

    def complete(self, request: Request) -> None:
        """Give a request of a seed the callback and errback that are called."""
        if request.callback is None and request.errback is None:
            request.callback, request.errback = self._usual
            return
        request.callback = self._wrapped(request.callback or self._default, self._page_result)
        errback = request.errback or self._failed
        request.errback = None if errback is None else self._wrapped(errback, self._failure_result)

    def _wrapped(self, callback: Callback, prepare: Prepare | None) -> Callback:
        if getattr(callback, "__self__", None) is not self._spider:
            return self._new(callback, prepare)
        method = callback.__func__  # type: ignore[attr-defined] # it has a __self__
        if method not in self._methods:
            self._methods[method] = self._new(callback, prepare)
        return self._methods[method]

    def _new(self, callback: Callback, prepare: Prepare | None) -> Callback:
        call = guarded(callback, self._timeout_seconds)
        if call is callback or prepare is None or getattr(callback, _GIVES_RESULT, False):
            return call
        followed = _followed(call, guarded(prepare, self._timeout_seconds))
        return guards(followed, callback)


def _followed(callback: Callback, prepare: Prepare) -> Callback:
    def call(answer: Any, **keywords: Any) -> Any:
        """`answer` is a Response or a Failure, which both know their request."""
        job = job_of(answer.request)
        if job is None:
            return callback(answer, **keywords)
        job.error = job.page = job.answer = None  # of an earlier attempt
        try:
            output = callback(answer, **keywords)
        except Exception as error:  # noqa: BLE001 - raised again when the result is prepared
            output = _raising(error)
        if inspect.isasyncgen(output):
            return _after(output, answer, job, prepare)
        return _beside(output, answer, job, prepare)

    return call


async def _beside(output: Any, answer: Any, job: Job, prepare: Prepare) -> Any:
    if inspect.isawaitable(output):
        try:
            output = await output
        except Exception as error:
            await _prepare_failed(answer, job, prepare, error)
            raise
    if inspect.isasyncgen(output):
        return _after(output, answer, job, prepare)
    if isinstance(output, Iterator) or not _has_result(output):
        await _prepare(answer, job, prepare)
    return output


async def _after(output: Any, answer: Any, job: Job, prepare: Prepare) -> AsyncIterator[Any]:
    has_result = False
    try:
        async for one in output:
            has_result = has_result or isinstance(one, Result)
            yield one
    except Exception as error:
        await _prepare_failed(answer, job, prepare, error)
        raise
    finally:
        await output.aclose()
    if not has_result:
        await _prepare(answer, job, prepare)


async def _prepare(answer: Any, job: Job, prepare: Prepare) -> None:
    job.page = await prepare(answer) or job.NO_DOCUMENT


async def _prepare_failed(answer: Any, job: Job, prepare: Prepare, error: Exception) -> None:
    """The reason is noted when nobody has an answer to the error: see Mishaps."""
    job.error = str(error)  # the page needs a result: see SeedSpider.page_result
    with suppress(Exception):  # what can be told without waiting is told later
        job.answer = await prepare(answer)
    job.error = None


async def _raising(error: Exception) -> None:
    raise error


def _has_result(output: Any) -> bool:
    return isinstance(output, Result) or (
        isinstance(output, list | tuple) and any(isinstance(one, Result) for one in output)
    )
