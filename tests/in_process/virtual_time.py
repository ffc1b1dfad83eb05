"""Virtual time for crawls in this process: nobody waits for a timer while nothing else happens.

Theory of operation. Time is what this process takes of the processor, so a busy machine makes nothing late;
and it jumps, when the event loop has nothing to do and every thread waits too, to the moment at which the
first of them would wake. So a pause of 30 s takes none, and lasts 30 s for whoever looks at a clock. A
thread waits when it is in `time.sleep`, `Thread.join` or `Condition.wait`, of which `Event`, `Queue` and
`Timer` are made; all else, as reading a socket, is work. While the loop can only wait for such work, or has
sockets or processes to look at, time is that of the wall: nothing that waits for the real world is told that
its time is over.

The clocks of `time` and `site_spider.runtime` agree, until the end of the test (`reset`). Threads are those
of the system, not the greenlets of tests/simulation: these crawls write to real files and databases, and
some to sockets, from threads of the libraries, where a greenlet that blocked would stop all others.
This module is imported before all that keeps a clock as a default.
"""

from __future__ import annotations

import asyncio
import queue
import selectors
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any, TypeVar

from site_spider import runtime

T = TypeVar("T")

_LONGEST_LOOK_SECONDS = 0.05  # at threads that work; who begins to wait says so
_real_ns, _cpu_ns, _sleep = time.monotonic_ns, time.process_time_ns, time.sleep
_wait, _start, _join = threading.Condition.wait, threading.Thread.start, threading.Thread.join


class _Waiting:
    """A thread that waits until its lock is released, or until its deadline."""

    def __init__(self, deadline: float | None, lock: Any, waiters: deque[Any] | None) -> None:
        self.deadline, self.lock, self.waiters = deadline, lock, waiters
        self.is_over = False

    def ring(self) -> None:
        """Its deadline has come, unless somebody was faster."""
        with suppress(ValueError, RuntimeError):  # no waiter any more; released by another thread just now
            if self.waiters is not None:
                self.waiters.remove(self.lock)
            self.is_over = True
            self.lock.release()


class _End:
    """The end of a thread, as a lock that it holds."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def acquire(self, _blocking: bool, timeout: float) -> bool:
        _join(self._thread, None if timeout < 0 else timeout)
        return not self._thread.is_alive()

    def locked(self) -> bool:
        return self._thread.is_alive()

    def release(self) -> None:
        """Nobody can; who joins goes on when the real time is over."""


class _Job:
    """What a thread does for the loop: work until the loop has the answer, but while the thread waits."""

    def __init__(self) -> None:
        self.thread: int | None = None  # while it runs
        self.is_answered = False


class _Clock:
    """What time it is, and who could still do something at this moment."""

    def __init__(self) -> None:
        self._origin = 0, _real_ns  # time is their sum; replaced as one, because all threads read it
        self.loop: VirtualLoop | None = None
        self._starting: set[threading.Thread] = set()
        self._threads: dict[int, threading.Thread] = {}  # that were started while the loop ran
        self._jobs: set[_Job] = set()
        self._waiting: dict[int, _Waiting] = {}
        self._changes = 0

    def begin(self, loop: VirtualLoop) -> None:
        """Threads are watched from here on."""
        self._go_by(_cpu_ns)
        self.loop = loop

    def end(self) -> None:
        """Whatever still runs does so in real time."""
        self.loop = None
        self._go_by(_real_ns)
        self._starting.clear()
        self._threads.clear()
        self._jobs.clear()

    # --- time ---------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """As of `time.monotonic_ns`."""
        base, clock = self._origin
        return base + clock()

    def _go_by(self, clock: Callable[[], int]) -> None:
        self._origin = self.now_ns() - clock(), clock

    def wait_for_the_world(self, wait: Callable[[], T]) -> T:
        """Time is that of the wall meanwhile."""
        self._go_by(_real_ns)
        try:
            return wait()
        finally:
            self._go_by(_cpu_ns)

    def reset(self) -> None:
        """Time is what it is."""
        self._origin = 0, _real_ns

    # --- who works ---------------------------------------------------------------------------------

    def knows(self, thread: int) -> bool:
        """Whether the loop takes account of what this thread does."""
        return thread in self._threads or any(job.thread == thread for job in tuple(self._jobs))

    def is_idle(self) -> bool:
        """Whether all threads wait."""
        before = self._changes
        works = (
            bool(self._starting)
            or any(one.is_alive() and self._works(ident) for ident, one in tuple(self._threads.items()))
            or any(job.thread is None or self._works(job.thread) for job in tuple(self._jobs))
        )
        return not works and self._changes == before

    def _works(self, thread: int) -> bool:
        waiting = self._waiting.get(thread)
        return waiting is None or not waiting.lock.locked()  # released, but it has not gone on yet

    def _changed(self) -> None:
        self._changes += 1
        loop = self.loop
        if loop is not None and loop.is_looking:
            with suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(lambda: None)

    def wait(self, timeout: float | None, lock: Any, waiters: deque[Any] | None = None) -> bool:
        """In a thread that it knows: whether the lock was released before the time was over."""
        seconds = None if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        waiting = _Waiting(None if seconds is None else time.monotonic() + seconds, lock, waiters)
        thread = threading.get_ident()
        self._waiting[thread] = waiting
        self._changed()
        try:
            while not (is_told := lock.acquire(True, -1 if seconds is None else seconds)):
                assert waiting.deadline is not None
                if (seconds := waiting.deadline - time.monotonic()) <= 0:  # of our time, not that of the wall
                    break
            return bool(is_told) and not waiting.is_over
        finally:
            del self._waiting[thread]

    def start(self, thread: threading.Thread) -> None:
        """Start it, and know it until it ends."""
        run = thread.run

        def known() -> None:
            self._threads[threading.get_ident()] = thread  # until it is over: who joins it works then
            self._starting.discard(thread)
            run()

        thread.run = known  # type: ignore[method-assign]
        self._starting.add(thread)
        _start(thread)

    def job(self, call: Callable[..., T], *arguments: Any) -> tuple[_Job, Callable[[], T]]:
        """A job, and what its thread is to do."""
        job = _Job()
        self._jobs.add(job)

        def work() -> T:
            job.thread = threading.get_ident()
            try:
                return call(*arguments)
            finally:
                job.thread = None
                if job.is_answered:  # as one that nobody waits for any more
                    self._jobs.discard(job)

        return job, work

    def answered(self, job: _Job) -> None:
        """The loop has its result, or does not want it."""
        job.is_answered = True
        if job.thread is None:
            self._jobs.discard(job)

    # --- jumps -------------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """Of the threads that wait."""
        deadlines = (one.deadline for one in tuple(self._waiting.values()))
        return min((deadline for deadline in deadlines if deadline is not None), default=inf)

    def jump(self, moment: float) -> None:
        """To this moment; the threads whose time has come go on."""
        base, clock = self._origin
        self._origin = base + max(0, int((moment - time.monotonic()) * 1e9) + 1), clock
        now = time.monotonic()
        for waiting in tuple(self._waiting.values()):
            if waiting.deadline is not None and waiting.deadline <= now:
                waiting.ring()


_clock = _Clock()


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Jumps instead of waiting."""

    loop: VirtualLoop

    def __init__(self) -> None:
        super().__init__()
        self._others: set[int] = set()  # of those registered: where something may come from elsewhere

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        """As in selectors."""
        key = super().register(fileobj, events, data)
        if key.fd != self.loop.pipe and not _listens(key.fd):
            self._others.add(key.fd)
        return key

    def unregister(self, fileobj: Any) -> Any:
        """As in selectors."""
        key = super().unregister(fileobj)
        self._others.discard(key.fd)
        return key

    def select(self, timeout: float | None = None) -> Any:
        """As in selectors."""
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if self._others:
            look = super().select
            return _clock.wait_for_the_world(lambda: look(timeout))
        until = inf if timeout is None else time.monotonic() + timeout
        self.loop.is_looking = True
        try:
            return self._look(until)
        finally:
            self.loop.is_looking = False

    def _look(self, until: float) -> Any:
        look = super().select
        while True:
            is_idle = _clock.is_idle()
            if found := look(0):  # of a thread that has begun to wait behind it
                return found
            if is_idle and (moment := min(until, _clock.next_deadline())) < inf:
                _clock.jump(moment)
            else:
                seconds = min(_LONGEST_LOOK_SECONDS, max(0.0, until - time.monotonic()))
                found = _clock.wait_for_the_world(partial(look, seconds))
            if found or time.monotonic() >= until:
                return found


def _listens(file: int) -> bool:
    """Whether it is a server: its clients are threads of ours, or have a connection already."""
    try:
        connection = socket.socket(fileno=file)
    except OSError:
        return False
    try:
        return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    finally:
        connection.detach()


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's own, with time that jumps."""

    _ssock: socket.socket
    _thread_id: int | None

    @property
    def pipe(self) -> int:
        """What call_soon_threadsafe wakes it with."""
        return self._ssock.fileno()

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.is_looking = False
        super().__init__(selector)

    def is_own_thread(self) -> bool:
        """Whether the caller runs on it."""
        return self._thread_id == threading.get_ident()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """As in asyncio."""
        job, work = _clock.job(func, *args)
        future = super().run_in_executor(executor, work)
        future.add_done_callback(lambda _: _clock.answered(job))
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, in virtual time."""
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, VirtualLoop)
            _clock.begin(loop)
            return runner.run(main)
    finally:
        _clock.end()


def skip(seconds: float) -> None:
    """As if the event loop, which calls it, had stood still for so long."""
    _clock.jump(time.monotonic() + seconds)


def reset() -> None:
    """Time is what it is."""
    _clock.reset()


# --- what all modules call -------------------------------------------------------------------------


def _replace(name: str) -> None:
    beyond_ns = getattr(time, f"{name}_ns")() - _real_ns()
    setattr(time, name, lambda: (_clock.now_ns() + beyond_ns) * 1e-9)
    setattr(time, f"{name}_ns", lambda: _clock.now_ns() + beyond_ns)


def _is_known() -> bool:
    return _clock.loop is not None and _clock.knows(threading.get_ident())


def _in_real_time(wait: Callable[[], T]) -> T:
    is_loop = (
        _clock.loop is not None and _clock.loop.is_own_thread()
    )  # which waits for a thread, and stands still
    return _clock.wait_for_the_world(wait) if is_loop else wait()


def _virtual_sleep(seconds: float) -> None:
    if seconds > 0 and _is_known():
        lock = threading.Lock()
        lock.acquire()
        _clock.wait(seconds, lock)
    else:
        _in_real_time(lambda: _sleep(seconds))


def _virtual_wait(self: Any, timeout: float | None = None) -> bool:
    if not _is_known():
        return _in_real_time(lambda: _wait(self, timeout))
    if not self._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    lock = threading.Lock()
    lock.acquire()
    self._waiters.append(lock)
    saved = self._release_save()
    is_told = False
    try:
        is_told = _clock.wait(timeout, lock, self._waiters)
        return is_told
    finally:
        self._acquire_restore(saved)
        if not is_told:
            with suppress(ValueError):
                self._waiters.remove(lock)


def _virtual_start(self: threading.Thread) -> None:
    made_in = getattr(getattr(self, "_target", None), "__module__", None)
    if _clock.loop is None or made_in == "concurrent.futures.thread":  # whose jobs are counted instead
        _start(self)
    else:
        _clock.start(self)


def _virtual_join(self: threading.Thread, timeout: float | None = None) -> None:
    if self.ident is not None and _is_known():
        _clock.wait(timeout, _End(self))
    else:
        _join(self, timeout)


for _name in ("monotonic", "time", "perf_counter"):
    _replace(_name)
threading._time = queue.time = time.monotonic  # type: ignore[attr-defined]
subprocess.time = SimpleNamespace(sleep=_sleep)  # type: ignore[attr-defined]  # processes take their time
time.sleep = _virtual_sleep
for _name in ("monotonic", "time", "time_ns", "perf_counter", "sleep"):
    setattr(runtime, _name, getattr(time, _name))
runtime.now = lambda tz=None: datetime.fromtimestamp(time.time(), tz)  # type: ignore[assignment]
threading.Condition.wait = _virtual_wait  # type: ignore[method-assign]
threading.Thread.start = _virtual_start  # type: ignore[method-assign]
threading.Thread.join = _virtual_join  # type: ignore[method-assign]
