"""Guards callbacks: bounded in time, and never ending in CancelledError.

Scrapy catches Exception around callbacks. A CancelledError raised in one (by a library whose
own task was cancelled, say) passes by, and the request never ends; nor does one whose
coroutine waits for ever. Both become ordinary errors here. One that blocks the event loop ends the process: `Watchdog`.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
import types
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from functools import WRAPPER_ASSIGNMENTS, partial, update_wrapper
from typing import Any

from scrapy import Request
from scrapy.core.downloader import Downloader, Slot
from scrapy.crawler import Crawler
from scrapy.exceptions import DownloadFailedError
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK
from scrapy.pipelines import ItemPipelineManager
from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.python import global_object_name
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from site_spider import meta_keys, runtime
from site_spider.bounded import BoundedDict
from site_spider.engine.background import Pulse
from site_spider.engine.scrapy_parts import takes_seeds
from site_spider.errors import SiteSpiderError
from site_spider.page.url import plain_url

Callback = Callable[..., Any]
_GUARD = "_guards_a_callback"
_COPIED = (*WRAPPER_ASSIGNMENTS, "__func__")  # by which Request.to_dict finds a method of the spider
_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)


class CallbackTimeout(SiteSpiderError):
    """A callback took longer than SITE_CALLBACK_TIMEOUT_SECONDS."""


class CallbackBroken(SiteSpiderError):
    """A callback raised what is no Exception, as panics of some libraries: its request would never end."""


class CallbackCancelled(SiteSpiderError):
    """A callback, pipeline or middleware raised CancelledError though nobody cancelled it."""


def guarded(callback: Callback, timeout_seconds: float) -> Callback:
    """The same callback, for functions, generators, coroutines, asynchronous generators and what gives a Deferred."""
    if hasattr(callback, _GUARD):  # of a retried request, whose copy has it already
        return callback

    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            output = callback(*arguments, **keywords)
        except GeneratorExit as error:
            raise _broken(error) from error
        except BaseException as error:
            raise_if_stray(error)
            raise
        if isinstance(output, Deferred):
            output = _result_of(output)
        if inspect.iscoroutine(output):
            return _bounded(output, timeout_seconds)
        if inspect.isasyncgen(output):
            return _bounded_items(output, timeout_seconds)
        if isinstance(output, Iterator):
            return _uncancelled_items(output)
        return output

    return guards(call, callback)


def guards(call: Callback, callback: Callback) -> Callback:
    """Note that `call` stands for `callback`, for us and for who asks for its name or its arguments; returns `call`."""
    setattr(call, _GUARD, callback)
    with suppress(Exception):  # of an object that says something else there
        update_wrapper(call, callback, _COPIED)
    vars(call).pop("__signature__", None)  # of a function that stands for a method: that of the method has no `self`
    return call


def unguarded(callback: Callback | None) -> Callback | None:
    """What `guarded` was given."""
    return getattr(callback, _GUARD, callback)


async def _result_of(deferred: Deferred[Any]) -> Any:
    return await ensure_awaitable(deferred)


async def _bounded(coroutine: Coroutine[Any, Any, Any], timeout_seconds: float) -> Any:
    """There is a timer only when the coroutine waits; the time before that counts."""
    began = runtime.monotonic()
    limit = None
    try:
        waits_for = _step(partial(coroutine.send, None))
        async with runtime.Patience(timeout_seconds - (runtime.monotonic() - began)) as limit:
            return await _go_on(coroutine, waits_for)
    except StopIteration as end:  # only `send` raises it
        return end.value
    except BaseException as error:
        if isinstance(error, TimeoutError) and limit is not None and limit.expired():
            raise _timed_out(timeout_seconds) from error
        raise_if_stray(error)
        raise


@types.coroutine
def _go_on(begun: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """What `await` does, with a coroutine that waits already."""
    while True:
        try:
            sent = yield waits_for
        except GeneratorExit:
            begun.close()
            raise
        except BaseException as error:  # noqa: BLE001 - thrown into this task: the coroutine answers it
            step: Callable[[], Any] = partial(begun.throw, error)
        else:
            step = partial(begun.send, sent)
        try:
            waits_for = _step(step)
        except StopIteration as end:
            return end.value


def _step(step: Callable[[], Any]) -> Any:
    """Of a coroutine, whose own GeneratorExit closes no generator of ours."""
    try:
        return step()
    except GeneratorExit as error:
        raise _broken(error) from error


def _broken(error: BaseException) -> CallbackBroken:
    return CallbackBroken(f"{type(error).__name__}: {error}")


async def _bounded_items(items: Any, timeout_seconds: float) -> AsyncIterator[Any]:
    """Only the time that the callback itself takes counts, not that of what its items go through."""
    left = timeout_seconds
    try:
        while True:
            began = runtime.monotonic()
            try:
                item = await _bounded(anext(items), left)
            except StopAsyncIteration:
                return
            except CallbackTimeout as error:
                raise _timed_out(timeout_seconds) from error
            passed = runtime.monotonic() - began
            left = left - passed if passed < left else left / 2  # beyond its time: the process stood still
            yield item
    finally:
        await items.aclose()


def _uncancelled_items(items: Iterator[Any]) -> Iterator[Any]:
    try:
        while (item := _step(partial(next, items, items))) is not items:
            try:
                yield item
            except BaseException:  # no more is asked for
                getattr(items, "close", tuple)()
                raise
    except BaseException as error:
        raise_if_stray(error)
        raise


async def errors_alone(outputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The same outputs; what ends them is an Exception."""
    try:
        async for output in outputs:
            yield output
    except BaseException as error:
        raise_if_stray(error)
        raise


def _timed_out(timeout_seconds: float) -> CallbackTimeout:
    return CallbackTimeout(f"the callback did not finish within SITE_CALLBACK_TIMEOUT_SECONDS={timeout_seconds:g}")


def exception_of(error: BaseException) -> Exception:
    """The same, or one in the place of a stray one. Raises what is neither."""
    if isinstance(error, Exception):
        return error
    if not is_stray(error):
        raise error
    if isinstance(error, asyncio.CancelledError):
        said = f"CancelledError was raised where nothing was cancelled {error}"
        found: Exception = CallbackCancelled(said.strip())
    else:
        found = _broken(error)
    found.__cause__ = error
    return found


def raise_if_stray(error: BaseException) -> None:
    """Raise an Exception in its place."""
    if is_stray(error):
        raise exception_of(error)


def is_stray(error: BaseException) -> bool:
    """Whether it is no Exception, though nobody ends the task that runs now, a generator or the process."""
    if isinstance(error, (Exception, *_ENDS)):
        return False
    task = asyncio.current_task()
    return task is None or not task.cancelling()


# --- watchdog: ends a process whose event loop is blocked, and one whose stop takes too long -------------
# Nothing else can end such code. The process is started again by crawl_spider.sh, the seed is repeated, and
# isolated when it does this each time (see intake.suspects).


class Watchdog:
    """Watches the running event loop from a thread, which lasts as long as the process."""

    def __init__(self, limit_seconds: float, bite: Callable[[], None], look_at_stop: Callable[[], None]) -> None:
        self._limit_seconds = limit_seconds
        self._bite = bite
        self._look_at_stop = look_at_stop
        self._interval_seconds = min(1.0, limit_seconds / 4)
        self._pulse = Pulse()
        self._pulse.start()
        self._looked_at, self._cpu_seconds, self._blocked_seconds = runtime.monotonic(), runtime.process_time(), 0.0
        self._done = runtime.Event()
        self._watched = runtime.get_ident()
        runtime.Thread(target=self._watch, name="site-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._done.set()
        self._pulse.stop()

    def _show(self) -> None:
        sys.stderr.write(
            f"The event loop was blocked for more than SITE_CALLBACK_TIMEOUT_SECONDS="
            f"{self._limit_seconds:g}; the process ends here, this is what it was doing:\n"
        )
        frame = sys._current_frames().get(self._watched)
        sys.stderr.write("".join(traceback.format_stack(frame)) if frame else "")
        sys.stderr.flush()

    def _watch(self) -> None:
        while True:
            runtime.sleep(self._interval_seconds)
            self._look_at_stop()
            if self._blocked() > self._limit_seconds and not self._done.is_set():
                try:
                    self._show()
                finally:  # nobody may read stderr any more
                    self._bite()
                return

    def _blocked(self) -> float:
        """How many seconds, without those in which the whole process stood still, as in a container that is paused.

        Then no look was in time, and nothing was computed: code that lets no other thread run takes CPU.
        """
        now, cpu_seconds = runtime.monotonic(), runtime.process_time()
        most = max(2 * self._interval_seconds, cpu_seconds - self._cpu_seconds)
        passed = min(most, now - self._looked_at)
        self._looked_at, self._cpu_seconds = now, cpu_seconds
        self._blocked_seconds = min(self._pulse.silent_seconds(), self._blocked_seconds + passed)
        return self._blocked_seconds


# --- Scrapy's downloader and item processor, with a stray CancelledError turned into an ordinary failure -
# Raised by a pipeline, it makes the items that follow vanish; raised by a download handler or a downloader
# middleware, the request never ends. So does what is no Exception.

_NO_LIMIT = 1_000_000  # downloads of a host at a time: the frontier has the say


class _Passage(Slot):
    """A slot in which nothing waits."""

    def download_delay(self) -> float:
        return 0.0


class _Waiting(deque[tuple[Request, Deferred[Response]]]):
    """What leaves it counts for the limit at once: Scrapy begins all that comes in one turn of the loop.

    While it waits it takes none of the places of CONCURRENT_REQUESTS: pages of other hosts go on.
    """

    def __init__(self, transferring: set[Request], active: set[Request]) -> None:
        super().__init__()
        self._transferring, self._active = transferring, active

    def append(self, one: tuple[Request, Deferred[Response]]) -> None:
        super().append(one)
        self._active.discard(one[0])

    def popleft(self) -> tuple[Request, Deferred[Response]]:
        request, answer = super().popleft()
        while answer.called and self:  # its callback has timed out, say
            request, answer = super().popleft()
        self._transferring.add(request)
        if not answer.called:  # else fetch() has taken it away already
            self._active.add(request)
        return request, answer


class _Apart(Slot):
    """Of what comes past the frontier, beside a host's passage, whose delay it has."""

    def __init__(self, concurrency: int, passage: Slot, active: set[Request]) -> None:
        super().__init__(concurrency, passage.delay, passage.jitter)
        self.queue = _Waiting(self.transferring, active)
        self.keep_to(passage)

    def keep_to(self, passage: Slot) -> None:
        """To the present one, which Scrapy does not throw away while this has requests."""
        self.passage, self.active = passage, passage.active

    def download_delay(self) -> float:
        self.delay, self.passage.lastseen = self.passage.delay, max(self.passage.lastseen, self.lastseen)
        return super().download_delay()


class SafeDownloader(Downloader):
    """Every download ends in a response, a request or an Exception.

    Where seeds are taken, politeness is decided in the frontier: what comes from there is downloaded
    at once, and its host is told when it is through. A slot's delay is only a number, which
    AutoThrottle changes and the frontier keeps to. What a pipeline or callback downloads by itself, as
    FilesPipeline does, has slots of its own with the limits that Scrapy's
    settings give its host, not those of sources or robots.txt; a robots.txt itself has none.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._takes_seeds = takes_seeds(crawler)
        self.came_back: Callable[[Request], None] | None = None  # told of what is through, see engine.flow
        # AutoThrottle needs Scrapy's own way, where each host has a slot
        self.goes_short_way = self._takes_seeds and not crawler.settings.getbool("AUTOTHROTTLE_ENABLED")

    def fetch(self, request: Request, *arguments: Any) -> Deferred[Response | Request]:
        fetched: Deferred[Response | Request] = super().fetch(request, *arguments)
        fetched.addErrback(_convert)
        return fetched if self.came_back is None else fetched.addBoth(self._through, request, self.came_back)

    def _through(self, result: Any, request: Request, came_back: Callable[[Request], None]) -> Any:
        came_back(request)
        if isinstance(result, Request | Response):
            note_same_page(result, request)
        return result

    def get_slot_key(self, request: Request) -> str:
        plain = None if self.ip_concurrency or self.DOWNLOAD_SLOT in request.meta else plain_url(request.url)
        return super().get_slot_key(request) if plain is None else plain.host

    def _get_slot(self, request: Request, *arguments: Any) -> tuple[str, Slot]:
        key, slot = super()._get_slot(request, *arguments)
        if self._takes_seeds and not isinstance(slot, _Passage):
            slot = self.slots[key] = _Passage(_NO_LIMIT, float(slot.delay), slot.jitter)
        is_page = not self.goes_short_way and meta_keys.JOB in request.meta  # on the short way none comes here
        if not self._takes_seeds or is_page or meta_keys.FOR_ROBOTS in request.meta:
            return key, slot
        name = f"{key} apart"  # no name of a host
        apart = self.slots.get(name)
        if isinstance(apart, _Apart):
            apart.keep_to(slot)
        else:
            usual = self.ip_concurrency or self.domain_concurrency
            most = int(self.per_slot_settings.get(key, {}).get("concurrency", usual))
            apart = self.slots[name] = _Apart(most, slot, self.active)
        return key, apart

    async def _enqueue_request(self, request: Request) -> Response:
        try:
            return await super()._enqueue_request(request)
        finally:
            self.active.add(request)  # one that was cancelled while it waited, too: fetch() takes it away

    async def _download(self, slot: Slot, request: Request) -> Response:
        try:
            return await super()._download(slot, request)
        except BaseException as error:
            if not is_stray(error):
                raise
            raise DownloadFailedError(f"the download handler raised {type(error).__name__}") from error


def note_same_page(given: Request | Response, request: Request) -> None:
    """What a downloader middleware gives for a request is another attempt, also with a meta of its own.

    Or the answer to a request of its own, of which nobody else would say who gets it.
    """
    if isinstance(given, Response):
        if given.request is None or given.request.callback in (None, NO_CALLBACK):
            given.request = request
        given = given.request
    if meta_keys.JOB in request.meta:
        given.meta.setdefault(meta_keys.JOB, request.meta[meta_keys.JOB])


def _convert(failure: Failure) -> Failure:
    if failure.check(asyncio.CancelledError):  # type: ignore[no-untyped-call]
        error = DownloadFailedError("a downloader middleware raised CancelledError")
        return Failure(error)  # type: ignore[no-untyped-call]
    return failure


_MOST_FILES = 50_000  # about 35 MB


class LastFiles(BoundedDict[bytes, Any]):
    """What a pipeline of files knows of those that it has downloaded last; Scrapy's remembers all of a crawl."""

    def __contains__(self, fingerprint: Any) -> bool:
        is_known = super().__contains__(fingerprint)
        if is_known and not isinstance(self[fingerprint], Failure):  # that is tried again by and by, if often asked for
            self.move_to_end(fingerprint)  # the pipeline takes it a turn later
        return is_known


class SafeItemProcessor(ItemPipelineManager):
    """Every item leaves the pipelines, or ends in an Exception.

    A pipeline that returns its item is not awaited: that takes two coroutines and the pipeline's name.
    """

    async def open_spider_async(self) -> None:
        await super().open_spider_async()
        infos: Iterator[Any] = (getattr(pipeline, "spiderinfo", None) for pipeline in self.middlewares)
        for info in infos:
            if type(getattr(info, "downloaded", None)) is dict:  # nobody's own
                info.downloaded = LastFiles(_MOST_FILES)

    async def process_item_async(self, item: Any) -> Any:
        try:
            for method in self.methods["process_item"]:
                assert method is not None
                arguments = (self._spider,) if method in self._mw_methods_requiring_spider else ()
                result = method(item, *arguments)
                if result is not item or hasattr(result, "__await__"):
                    result = await ensure_awaitable(result, _warn=global_object_name(method))
                item = result
        except BaseException as error:
            raise_if_stray(error)
            raise
        return item
