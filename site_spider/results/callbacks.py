"""The callbacks of a spider as they are called: bounded in time, and followed by the result of their page.

A callback gives items and requests; the result of its page is written besides, unless the callback has given
it itself. It is prepared here, where a large body can be read in turns, and noted in the job. It is written
when all that the callback gave has left the pipelines, so a page that went wrong is a failure. A generator
that is not asynchronous is not begun before the result is prepared: nothing can be awaited at its end. The
result of a page whose callback raises is prepared as well: it says what is known of the page, and the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

from scrapy import Request, Spider

from site_spider.engine import hooks as engine_hooks
from site_spider.engine.guard import Callback, guarded, guards
from site_spider.ledger.completion import Job, job_of
from site_spider.results.result import Result

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

    def complete(self, request: Request) -> None:
        """Give a request of a seed the callback and errback that are called."""
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
