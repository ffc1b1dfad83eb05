"""Virtual time for crawls in this process: nobody waits for a timer while nothing else happens.

Theory of operation. Time is what this process takes of the processor, so a busy machine makes nothing late;
and it jumps, when the event loop has nothing to do and every thread waits too, to the moment at which the
first of them would wake. So a pause of 30 s takes none, and lasts 30 s for whoever looks at a clock. A
thread waits when it is in `time.sleep`, `Thread.join` or `Condition.wait`, of which `Event`, `Queue`, `Timer`
and here the queues of pools are made; all else, as reading a socket, is work. While the loop can only wait
for such work, or has sockets or processes to look at, time is that of the wall: nothing that waits for the
real world is told that its time is over. It is told of no more than it waits for: a machine may stand still.

The clocks of `time` and `site_spider.runtime` agree, until the end of the test (`reset`). Threads are those
of the system, not the greenlets of tests/simulation: these crawls write to real files and databases, and
some to sockets, from threads of the libraries, where a greenlet that blocked would stop all others.
This module is imported before all that keeps a clock as a default.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import queue
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any, TypeVar

from site_spider import runtime

T = TypeVar("T")

_LONGEST_LOOK_SECONDS = 0.05  # at threads that work; who begins to wait says so
_real_ns, _cpu_ns, _sleep = time.monotonic_ns, time.process_time_ns, time.sleep
_new_lock, _start, _join = threading.Lock, threading.Thread.start, threading.Thread.join


class _Waiter:
    """The lock of Condition.wait, in which a thread waits until another one, or the clock, releases it."""

    _guard = threading.RLock()  # a pool that is collected may tell another waiter meanwhile

    def __init__(self) -> None:
        self._lock = _new_lock()
        self._is_over = False
        self.deadline = inf

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of a lock; False as well when the clock has released it."""
        is_released = self._lock.acquire(False) or (blocking and self._wait(timeout))
        with self._guard:
            return is_released and not self._is_over

    def _wait(self, timeout: float) -> bool:
        if not _clock.knows(threading.get_ident()):
            return _in_real_time(lambda: self._lock.acquire(True, timeout))
        if timeout >= 0:
            self.deadline = time.monotonic() + timeout
        with _clock.waiting(self):
            while not self._lock.acquire(True, timeout):
                if (timeout := self.deadline - time.monotonic()) <= 0:  # of our time, not that of the wall
                    return False
        return True

    __enter__ = acquire

    def __exit__(self, *_error: object) -> None:
        self.release()

    def release(self) -> None:
        """Raises RuntimeError when somebody was faster."""
        self._release(is_over=False)

    def ring(self) -> None:
        """Its deadline has come, unless somebody was faster."""
        with suppress(RuntimeError):
            self._release(is_over=True)

    def _release(self, *, is_over: bool) -> None:
        with self._guard:
            self._lock.release()
            self._is_over = is_over

    def locked(self) -> bool:
        """False: its thread goes on, or is about to."""
        return self._lock.locked()


class _Jobs(queue._PySimpleQueue):  # type: ignore[misc, name-defined]
    """Those of a pool: that of the standard library, in C, does not show that a thread waits for one."""

    def __init__(self) -> None:
        super().__init__()
        self._count._cond = threading.Condition()  # reentrant: a pool that is collected puts something there


class _Clock:
    """What time it is, and who could still do something at this moment."""

    def __init__(self) -> None:
        self._origin = 0, _real_ns  # time is their sum; replaced as one, because all threads read it
        self.loop: VirtualLoop | None = None
        self._starting: set[threading.Thread] = set()
        self._threads: dict[int, threading.Thread] = {}  # that were started while the loop ran
        self._waiting: dict[int, _Waiter] = {}
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

    # --- time ---------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        base, clock = self._origin
        return base + clock()

    def _go_by(self, clock: Callable[[], int]) -> None:
        self._origin = self.now_ns() - clock(), clock

    def wait_for_the_world(self, wait: Callable[[], T], most_seconds: float = inf) -> T:
        """No more pass, though the machine stands still meanwhile."""
        latest = _real_ns() + most_seconds * 1e9
        self._go_by(lambda: int(min(_real_ns(), latest)))
        try:
            return wait()
        finally:
            self._go_by(_cpu_ns)

    def reset(self) -> None:
        self._origin = 0, _real_ns

    # --- who works ---------------------------------------------------------------------------------

    def knows(self, thread: int) -> bool:
        return thread in self._threads

    def is_idle(self) -> bool:
        before = self._changes
        works = bool(self._starting) or any(
            one.is_alive() and self._works(ident) for ident, one in tuple(self._threads.items())
        )
        return not works and self._changes == before

    def _works(self, thread: int) -> bool:
        waiter = self._waiting.get(thread)
        return waiter is None or not waiter.locked()

    @contextmanager
    def waiting(self, waiter: _Waiter) -> Iterator[None]:
        """A thread that it knows does nothing meanwhile."""
        thread = threading.get_ident()
        self._waiting[thread] = waiter
        self._changes += 1
        if (loop := self.loop) is not None and loop.is_looking:
            with suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(lambda: None)
        try:
            yield
        finally:
            del self._waiting[thread]

    def start(self, thread: threading.Thread) -> None:
        """Start it, and know it until it ends, if it begins while the loop runs."""
        if self.loop is None:
            _start(thread)
            return
        run, thread._virtual_end = thread.run, threading.Event()  # type: ignore[attr-defined]

        def known() -> None:
            self._threads[threading.get_ident()] = thread  # until it is over: who joins it works then
            self._starting.discard(thread)
            try:
                run()
            finally:
                thread._virtual_end.set()  # type: ignore[attr-defined]

        thread.run = known  # type: ignore[method-assign]
        self._starting.add(thread)
        _start(thread)

    # --- jumps -------------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        return min((one.deadline for one in tuple(self._waiting.values())), default=inf)

    def jump(self, moment: float) -> None:
        """To this moment; the threads whose time has come go on."""
        base, clock = self._origin
        self._origin = base + max(0, int((moment - time.monotonic()) * 1e9) + 1), clock
        now = time.monotonic()
        for waiter in tuple(self._waiting.values()):
            if waiter.deadline <= now:
                waiter.ring()


_clock = _Clock()


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Jumps instead of waiting."""

    loop: VirtualLoop

    def __init__(self) -> None:
        super().__init__()
        self._others: set[int] = set()  # of those registered: where something may come from elsewhere

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        key = super().register(fileobj, events, data)
        if key.fd != self.loop.pipe and not _listens(key.fd):
            self._others.add(key.fd)
        return key

    def unregister(self, fileobj: Any) -> Any:
        key = super().unregister(fileobj)
        self._others.discard(key.fd)
        return key

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if self._others:
            look = super().select
            return _clock.wait_for_the_world(lambda: look(timeout), inf if timeout is None else timeout)
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
                found = _clock.wait_for_the_world(partial(look, seconds), seconds)
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


def run(main: Coroutine[Any, Any, T]) -> T:
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            _clock.begin(runner.get_loop())
            return runner.run(main)
    finally:
        _clock.end()


def skip(seconds: float) -> None:
    """As if the event loop, which calls it, had stood still for so long."""
    _clock.jump(time.monotonic() + seconds)


reset = _clock.reset


# --- what all modules call -------------------------------------------------------------------------


def _replace(name: str) -> None:
    beyond_ns = getattr(time, f"{name}_ns")() - _real_ns()
    setattr(time, name, lambda: (_clock.now_ns() + beyond_ns) * 1e-9)
    setattr(time, f"{name}_ns", lambda: _clock.now_ns() + beyond_ns)


def _in_real_time(wait: Callable[[], T]) -> T:
    """In the thread of the loop, which waits for another one and stands still, time is that of the wall."""
    is_loop = _clock.loop is not None and _clock.loop.is_own_thread()
    return _clock.wait_for_the_world(wait) if is_loop else wait()


def _virtual_sleep(seconds: float) -> None:
    if seconds > 0 and _clock.knows(threading.get_ident()):
        threading.Event().wait(seconds)
    else:
        _in_real_time(lambda: _sleep(seconds))


def _virtual_start(self: threading.Thread) -> None:
    _clock.start(self)


def _virtual_join(self: threading.Thread, timeout: float | None = None) -> None:
    ended = getattr(self, "_virtual_end", None)
    if ended is None or not _clock.knows(threading.get_ident()):
        _join(self, timeout)
    elif ended.wait(timeout):
        _join(self)


for _name in ("monotonic", "time", "perf_counter"):
    _replace(_name)
threading._time = queue.time = time.monotonic  # type: ignore[attr-defined]
concurrent.futures.thread.queue = SimpleNamespace(SimpleQueue=_Jobs, Empty=queue.Empty)  # type: ignore[attr-defined]
subprocess.time = SimpleNamespace(sleep=_sleep)  # type: ignore[attr-defined]  # processes take their time
time.sleep = _virtual_sleep
for _name in ("monotonic", "time", "time_ns", "perf_counter", "sleep"):
    setattr(runtime, _name, getattr(time, _name))
runtime.now = lambda tz=None: datetime.fromtimestamp(time.time(), tz)  # type: ignore[assignment]
threading._allocate_lock = _Waiter  # type: ignore[attr-defined]
threading.Thread.start = _virtual_start  # type: ignore[method-assign]
threading.Thread.join = _virtual_join  # type: ignore[method-assign]
