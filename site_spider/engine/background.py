"""Owns the tasks, callbacks and threads of a crawl; a failure in one ends the crawl.

An exception in one of these reaches nobody: the event loop logs it, perhaps much later, and the crawl
goes on without its part. So each is started here, and its failure ends the crawl
(EXIT_SOFTWARE, with a traceback). tests/engine/test_background.py lists the few that are not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from typing import Any, ClassVar, ParamSpec, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from scrapy.crawler import Crawler

from site_spider import runtime
from site_spider.engine.scrapy_parts import part_of

Fail = Callable[[BaseException], None]
P = ParamSpec("P")
F = TypeVar("F")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

THREAD_PREFIX = "site-"  # of the names of our threads, those of the adapters included


class Background:
    """Of one crawl. On the event loop's thread only."""

    def __init__(self, fail: Fail) -> None:
        self.fail = fail  # ends the crawl
        self._tasks: set[asyncio.Task[Any]] = set()  # the event loop keeps no strong reference

    @classmethod
    def of(cls, crawler: Crawler) -> Background:
        """The one of a crawl whose spider takes seeds."""
        found = part_of(crawler, cls)
        assert found is not None
        return found

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine as a task."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def guarded(self, call: Callable[P, object]) -> Callable[P, None]:
        """The same for a callback of the event loop."""

        def run(*arguments: P.args, **keywords: P.kwargs) -> None:
            try:
                call(*arguments, **keywords)
            except Exception as error:  # noqa: BLE001 - told to who can act on it
                self.fail(error)

        return run

    def when_done(self, future: Future[F], call: Callable[[Future[F], *Ts], object], *arguments: *Ts) -> None:
        """Call it on the event loop, with the arguments, once another thread has fulfilled the future."""
        loop, guarded = asyncio.get_running_loop(), self.guarded(call)

        def tell(done: Future[F]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(guarded, done, *arguments)

        future.add_done_callback(tell)

    def watch_threads(self) -> Callable[[], None]:
        """An exception that ends one of our threads ends the crawl, until what this returns is called."""
        loop = asyncio.get_running_loop()

        def tell(ended: runtime.ThreadFailure) -> bool:
            error = ended.exc_value
            if error is None or ended.thread is None or not ended.thread.name.startswith(THREAD_PREFIX):
                return False
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(self.fail, error)
            return True

        return runtime.watch_threads(tell)


async def apart(call: Callable[[], T]) -> T:
    """What it returns, from a thread that no stop waits for. Raises what it raises."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # from now on nobody takes it back

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 - of who waits for it
            answer.set_exception(error)

    try:
        runtime.Thread(target=run, name="site-apart", daemon=True).start()
    except RuntimeError:  # for want of threads: some are there
        return await asyncio.to_thread(call)
    return await asyncio.wrap_future(answer)


# --- turns: shares the time of each turn of the event loop among pages and answers that are being read ---
# Theory of operation. A turn runs everything that is ready, one callback after the other, and timers,
# signals and other sockets wait until it is over. One page is read in a few milliseconds; a hundred that
# arrive together would hold up the loop for a second. So a turn has a budget of time. Work that finds it
# spent waits for a later turn, in the order of arrival, and work that takes long asks again after each step
# of some milliseconds.
#
# While the budget lasts nothing waits and nothing is scheduled but one callback a turn. Each turn wakes
# some waiters. The first of them goes on in any case, so none waits for ever; each other one looks whether
# those before it have left time, and else waits on, before all that came later. Used on the event loop's
# thread only.

_BUDGET_SECONDS = 0.02  # a turn in which much is ready ends soon after it
_MOST_WOKEN = 32  # in one turn: what wakes in vain takes some microseconds


class Turns:
    """The turns of one process's event loop. Steps between two questions take 5 ms at the most."""

    _of_processes: ClassVar[WeakKeyDictionary[object, Turns]] = WeakKeyDictionary()

    def __init__(self, budget_seconds: float = _BUDGET_SECONDS, clock: Callable[[], float] | None = None) -> None:
        self._budget_seconds = budget_seconds
        self._clock = clock or runtime.perf_counter
        self._until = 0.0  # when the budget of this turn is spent
        self._is_open = False  # the budget is that of this turn, and ends with it
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._woken_in_vain: deque[asyncio.Future[bool]] = deque()  # in a turn without time; they go before the others

    @classmethod
    def of_running_loop(cls) -> Turns:
        """The one that all work on the running event loop shares."""
        process = runtime.this_process()
        turns = cls._of_processes.get(process)
        if turns is None:
            turns = cls._of_processes[process] = cls()
        return turns

    def has_time(self) -> bool:
        if not self._is_open:
            self._open()
            return True
        return self._clock() < self._until

    def is_free(self) -> bool:
        """Whether this turn has time left, and nobody waits for it."""
        return not self._waiting and self.has_time()

    async def time(self) -> None:
        """Return at once while this turn has time left and nobody waits, else in a later one."""
        if self.is_free() or await self._woken(self._waiting):
            return
        while not self.has_time() and not await self._woken(self._woken_in_vain):
            pass

    async def _woken(self, line: deque[asyncio.Future[bool]]) -> bool:
        """Whether it goes on in any case, as the first of its turn."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        line.append(waiter)
        if not self._is_open:
            self._open()
        return await waiter

    async def run(self, steps: Generator[object, None, T]) -> T:
        """Take steps while a turn has time, then in later ones; returns what they return."""
        while True:
            if not self.has_time():
                await self.time()
            try:
                next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    async def through(self, parts: Iterable[T]) -> AsyncIterator[T]:
        """The parts, each while a turn has time, or in a later one."""
        for part in parts:
            if not self.has_time():
                await self.time()
            yield part

    async def take(self, parts: Iterable[T]) -> list[T]:
        """All of them."""
        return [part async for part in self.through(parts)]

    def _open(self) -> None:
        self._is_open = True
        self._until = self._clock() + self._budget_seconds
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        woken = 0
        while woken < _MOST_WOKEN and (line := self._woken_in_vain or self._waiting):
            waiter = line.popleft()
            if not waiter.done():
                waiter.set_result(woken == 0)
                woken += 1
        if woken:
            self._open()
        else:
            self._is_open = False


def run_through(steps: Generator[object, None, T]) -> T:
    """All steps, in a thread whose time need not be shared."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


# --- pulse: whether the event loop turns, as other threads see it ----------------------------------------

_BEAT_SECONDS = 0.25


class Pulse:
    """Beats on the running event loop. By its own clock: that of uvloop stands still while the loop does."""

    def __init__(self) -> None:
        self._beat_at = runtime.monotonic()
        self._timer: asyncio.Handle | None = None

    def start(self) -> None:
        self._beat_at = runtime.monotonic()
        self._timer = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def silent_seconds(self) -> float:
        """Since the last beat was due. Any thread may ask."""
        return max(0.0, runtime.monotonic() - self._beat_at - _BEAT_SECONDS)
