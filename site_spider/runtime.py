"""The clock, the threads and the randomness of the service, in one place that a simulation can replace.

The attributes are those of the standard library. Modules look them up when they call, `runtime.monotonic()`,
which costs what `time.monotonic()` does, and never keep them as a default. ruff forbids the others (TID251),
so that no module comes round this one.
"""

# ruff: noqa: F401 - what is imported here is for the others
# mypy: implicit-reexport

from __future__ import annotations

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
from uuid import uuid4

ThreadFailure = threading.ExceptHookArgs

now = datetime.now
this_process = get_running_loop  # what there is one of in each process; a simulation runs several in one loop


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
