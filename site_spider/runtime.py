"""The clock, the threads and the randomness of the service, in one place that a simulation can replace.

The attributes are those of the standard library. Modules look them up when they call, `runtime.monotonic()`,
which costs what `time.monotonic()` does, and never keep them as a default. ruff forbids the others (TID251),
so that no module comes round this one.
"""

# ruff: noqa: F401 - what is imported here is for the others
# mypy: implicit-reexport

from __future__ import annotations

import asyncio
import threading
from asyncio import get_running_loop
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from random import random, uniform
from secrets import randbelow, token_bytes, token_hex, token_urlsafe
from threading import (
    Barrier,
    BoundedSemaphore,
    Condition,
    Event,
    Lock,
    RLock,
    Thread,
    Timer,
    current_thread,
    get_ident,
    main_thread,
)
from time import monotonic, perf_counter, process_time, sleep, time, time_ns
from typing import Any
from uuid import uuid4

ThreadFailure = threading.ExceptHookArgs

now = datetime.now
this_process = get_running_loop  # what there is one of in each process; a simulation runs several in one loop


_PARTS = 10


class Patience:
    """As asyncio.timeout, but that a time in which the process stands still (Ctrl-Z, a paused container) hardly counts.

    It passes in parts, of which only one is over then. None: it never ends.
    """

    def __init__(self, seconds: float | None) -> None:
        self._part_seconds = None if seconds is None else seconds / _PARTS
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> asyncio.Timeout:
        await self._limit.__aenter__()
        self._wait(_PARTS)
        return self._limit

    async def __aexit__(self, *error: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._limit.__aexit__(*error)

    def _wait(self, parts: int) -> None:
        loop = get_running_loop()
        if not parts:
            self._limit.reschedule(loop.time())
        elif self._part_seconds is not None:
            self._timer = loop.call_later(self._part_seconds, self._wait, parts - 1)


def watch_threads(tell: Callable[[ThreadFailure], bool]) -> Callable[[], None]:
    """Tell of exceptions that end threads, from now until what it returns is called.

    What is told returns whether it was meant: else the failure goes where it went before.
    """
    before = threading.excepthook

    def hook(failure: ThreadFailure) -> None:
        if not tell(failure):
            before(failure)

    def forget() -> None:
        if threading.excepthook is hook:
            threading.excepthook = before

    threading.excepthook = hook
    return forget
