"""Virtual time, virtual threads, and the event loop that owns both. To be imported before the product.

Theory of operation. There is one thread of the operating system. The event loop runs in the main greenlet,
and each thread of the product is a greenlet that gives way only where a thread would wait: in a lock, an
event, a sleep. When nothing is ready the clock jumps to the next timer. Each turn of the loop takes 2 us
besides, for a timer of 1e-13 s would else never be reached.

Every callback carries a context with the process that it belongs to. So a process dies between any two
steps: its callbacks are dropped and its threads never go on, and nothing of it is closed, as with kill -9.
It stands still the same way, and its callbacks are kept for later. What is on the network belongs to no
process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - before its lock is replaced
import contextvars
import heapq
import logging.handlers  # noqa: F401 - likewise
import math
import os
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable
from datetime import datetime
from itertools import count
from typing import Any

from greenlet import getcurrent, greenlet

_real_seconds, _real_ident = time.perf_counter, threading.get_ident
EPOCH = 1_790_000_000.0
TURN_SECONDS = 2e-6
MOST_STEPS = 3_000_000  # of a run: what does not end is told, and not waited for

PROCESS: contextvars.ContextVar[Any] = contextvars.ContextVar("PROCESS", default=None)
NETWORK = contextvars.Context()  # of what is under way between processes


def cpu_seconds() -> float:
    """Of this process and those that it has waited for."""
    return sum(os.times()[:4])


class WouldBlock(RuntimeError):
    """The event loop was about to wait for a thread, a lock or a server: rule 8."""


class Machine:
    """What the patched functions ask: the loop of this run, and the product's randomness."""

    loop: VirtualLoop | None = None
    random = random.Random(0)

    @classmethod
    def now(cls) -> float:
        return _real_seconds() if cls.loop is None else cls.loop.now

    @classmethod
    def unix(cls) -> float:
        process = PROCESS.get()
        return EPOCH + cls.now() + (process.clock_error if process else 0.0)

    @classmethod
    def running(cls) -> VirtualLoop:
        assert cls.loop is not None, "outside of a simulation"
        return cls.loop


async def until(found: Callable[[], Any], seconds: float = 20.0, step: float = 0.001) -> Any:
    """Look for something again and again; what was found, or what is false when the time is over."""
    deadline = Machine.now() + seconds
    while not (what := found()) and Machine.now() < deadline:
        await asyncio.sleep(step)
    return what


class VirtualThread(greenlet):
    """Runs `call` in a context of its own; switched to from the loop alone."""

    def __init__(self, call: Callable[[], None]) -> None:
        loop = Machine.running()
        super().__init__(call, loop.hub)
        self.gr_context = contextvars.copy_context()
        self._wake_context = contextvars.copy_context()  # the other one is entered while it runs
        self.is_parked = True
        loop.threads.append(self)
        self.wake_soon()

    def wake_soon(self) -> None:
        if self.is_parked:
            Machine.running().call_soon(self.wake, context=self._wake_context)

    def wake(self) -> None:
        if self.is_parked:
            self.is_parked = False
            self.switch()


class Line:
    """Virtual threads that wait for something; `notify` has each of them look again."""

    def __init__(self) -> None:
        self._waiting: list[VirtualThread] = []

    def wait(self, ready: Callable[[], Any], timeout: float | None = None) -> bool:
        """Give way until it is ready, or for so long."""
        if ready():
            return True
        me = getcurrent()
        if not isinstance(me, VirtualThread):
            if timeout is not None and timeout <= 0:
                return False
            raise WouldBlock("the event loop would wait for a thread")
        loop = Machine.running()
        until = math.inf if timeout is None else loop.now + max(0.0, timeout)
        timer = None if timeout is None else loop.call_at(until, me.wake)
        self._waiting.append(me)
        try:
            while not (is_ready := bool(ready())) and loop.now < until:
                me.is_parked = True
                loop.hub.switch()
            return is_ready
        finally:
            self._waiting.remove(me)
            if timer is not None:
                timer.cancel()

    def notify(self) -> None:
        for each in list(self._waiting):
            each.wake_soon()


def sleep(seconds: float) -> None:
    Line().wait(lambda: False, seconds)


class Lock(Line):
    def __init__(self) -> None:
        super().__init__()
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        seconds = 0.0 if not blocking else None if timeout < 0 else timeout
        if not self.wait(lambda: not self._is_held, seconds):
            return False
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        self.notify()

    _at_fork_reinit = release

    __enter__ = acquire

    def __exit__(self, *_error: object) -> None:
        self.release()


class Thread:
    ident: int | None = None

    def __init__(self, *, target: Any, name: str = "", args: Any = (), daemon: Any = None) -> None:
        self._target, self._args, self.name, self.daemon = target, args, name, daemon
        self._over = threading.Event()

    def start(self) -> None:
        self.ident = next(Machine.running().numbers)
        VirtualThread(self._run)

    def _run(self) -> None:
        try:
            self._target(*self._args)
        except Exception as error:  # noqa: BLE001 - as threading does
            failure = threading.ExceptHookArgs((type(error), error, error.__traceback__, self))
            if not PROCESS.get().hears_of_thread(failure):
                threading.excepthook(failure)
        finally:
            self._over.set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        return self.ident is not None and not self._over.is_set()


def get_ident() -> int:
    """As threading.get_ident: its reentrant lock asks, and in the main thread the end of the process."""
    me = getcurrent()
    return id(me) if isinstance(me, VirtualThread) else _real_ident()


class VirtualLoop(asyncio.base_events.BaseEventLoop):
    """Runs what is ready, and else jumps to the next timer."""

    def __init__(self, worker_delay: Callable[[], float]) -> None:
        self.now = 1_000.0
        super().__init__()
        self.hub = getcurrent()
        self.threads: list[VirtualThread] = []
        self.steps = 0  # callbacks of processes
        self.buried: list[Any] = []  # of the dead: referenced, so that no finaliser of it acts
        self.numbers = count(1)  # of threads
        self._worker_delay = worker_delay
        self._at_steps: dict[int, list[Callable[[], None]]] = {}
        Machine.loop = self

    def time(self) -> float:
        return self.now

    def after_steps(self, steps: int, call: Callable[[], None]) -> None:
        """Call it before the step of any process that comes then, counted over all of them."""
        self._at_steps.setdefault(self.steps + max(1, steps), []).append(call)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        task = super().create_task(coro, name=name, context=context)
        if process is not None:
            process.tasks.add(task)
        return task

    def thaw(self, process: Any) -> None:
        self._ready.extend(process.kept)
        process.kept = []

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """In a thread of its own, after a while."""
        future = self.create_future()

        def work() -> None:
            sleep(self._worker_delay())
            try:
                tell, what = future.set_result, func(*args)
            except Exception as error:  # noqa: BLE001 - as an executor does
                tell, what = future.set_exception, error
            self.call_soon(lambda: future.done() or tell(what))

        VirtualThread(work)
        return future

    call_soon_threadsafe = asyncio.base_events.BaseEventLoop.call_soon  # type: ignore[assignment]

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and scheduled:
            self.now = max(self.now, scheduled[0]._when)
        elif not ready:
            raise RuntimeError("nothing will ever happen again")
        self.now += TURN_SECONDS
        while scheduled and scheduled[0]._when <= self.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                self._run_handle(handle)

    def _run_handle(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS)
        if process is not None:
            if self._is_held(process, handle):
                return
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise RuntimeError("a run without end")
            for call in self._at_steps.pop(self.steps, ()):
                call()
            if self._is_held(process, handle):
                return
        handle._run()

    def _is_held(self, process: Any, handle: asyncio.Handle) -> bool:
        if process.is_dead:
            self.buried.append(handle)
        elif process.is_frozen or (process.is_late and not _is_of_a_thread(handle)):
            process.kept.append(handle)
        else:
            return False
        return True


def _is_of_a_thread(handle: asyncio.Handle) -> bool:
    """Whether a callback stands for a thread, or for a client with threads of its own."""
    owner = getattr(handle._callback, "__self__", handle._callback)
    return isinstance(owner, VirtualThread) or getattr(owner, "is_client", False)


def watch_threads(tell: Callable[[Any], bool]) -> Callable[[], None]:
    """As in site_spider.runtime, for the threads of the running process."""
    process = PROCESS.get()
    process.hears_of_thread = tell
    return lambda: setattr(process, "hears_of_thread", lambda _failure: False)


def install() -> None:
    """Replace clock, threads and randomness for this process, for good."""
    time.time = Machine.unix
    time.monotonic = time.perf_counter = threading._time = queue.time = Machine.now  # type: ignore[attr-defined]
    time.time_ns = lambda: int(Machine.unix() * 1e9)
    time.monotonic_ns = time.perf_counter_ns = lambda: int(Machine.now() * 1e9)
    time.sleep = sleep
    threading.Thread = Thread  # type: ignore[assignment, misc]
    threading.Lock = threading._allocate_lock = Lock  # type: ignore[attr-defined, assignment, misc]
    threading.RLock = threading._RLock  # type: ignore[attr-defined, assignment, misc]
    threading.get_ident = get_ident
    threading.current_thread = threading.main_thread
    secrets.token_hex = lambda nbytes=None: Machine.random.randbytes(nbytes or 32).hex()
    from site_spider import runtime

    runtime.now = lambda tz=None: datetime.fromtimestamp(Machine.unix(), tz)  # type: ignore[assignment]
    runtime.this_process = PROCESS.get
    runtime.watch_threads = watch_threads


install()
