"""Ends the process in time after a signal, even if the event loop is blocked.

The first SIGTERM or SIGINT goes to Scrapy, which finishes what is downloading. The thread of the watchdog
looks at the deadline: a blocked event loop cannot prolong the stop, and no thread is started for it, which
fails at the limit of threads. The second signal ends the process at once. Nothing is lost by either: what
was not committed is repeated.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, Final

from scrapy.crawler import CrawlerProcessBase

from site_spider import runtime

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FOR_GOOD = signal.SIGUSR2  # stop as after SIGTERM, and give the partitions to others at once
_SPARE_SECONDS = 3.0  # after the grace, for the process to end by itself

Handler = Callable[[int, FrameType | None], Any]


class Stop:
    """Ends the process at the latest when the grace is over.

    Only a process that exists for the crawl: inside somebody else's (a script that runs a
    crawler, a test) nothing is ended by force.
    """

    def __init__(self, grace_seconds: float, exit_code: Callable[[], int]) -> None:
        self._grace_seconds = grace_seconds
        self._exit_code = exit_code
        self._signalled = False
        self._deadline: float | None = None
        self.has_begun = False  # nothing new is to be started; any thread may ask
        self.owns_process = False
        self.is_for_good = False  # no process takes its place

    def catch_signals(self) -> None:
        """Stand in front of Scrapy's handlers, where a Scrapy process has installed them."""
        if runtime.current_thread() is not runtime.main_thread():
            return
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if isinstance(getattr(handler, "__self__", None), CrawlerProcessBase):
                signal.signal(number, self._caught(handler))  # type: ignore[arg-type]
                signal.signal(_FOR_GOOD, self._leave_for_good)
                self.owns_process = True

    def _caught(self, scrapys: Handler) -> Handler:
        def handle(number: int, frame: FrameType | None) -> None:
            if self._signalled:
                self.exit_now(128 + number)
            self._signalled = True
            self.begin()
            scrapys(number, frame)  # installs handlers of its own for the next signal
            for each in _SIGNALS:
                signal.signal(each, handle)

        return handle

    def _leave_for_good(self, _number: int, _frame: FrameType | None) -> None:
        self.is_for_good = True
        if not self._signalled:
            signal.raise_signal(signal.SIGTERM)

    def begin(self) -> None:
        """The stop has begun, for whatever reason: from now on there is a limit."""
        if self._deadline is None:
            self._deadline = runtime.monotonic() + self._grace_seconds
            self.has_begun = True

    def seconds_left(self) -> float:
        """What is left of the grace, a second at least; it begins now when it has not."""
        self.begin()
        assert self._deadline is not None
        return max(1.0, self._deadline - runtime.monotonic())

    def look(self) -> None:
        """End the process when its time is up; called on the watchdog's thread."""
        deadline = self._deadline
        if self.owns_process and deadline is not None and runtime.monotonic() > deadline + _SPARE_SECONDS:
            try:
                sys.stderr.write("The stop took longer than SITE_STOP_GRACE_SECONDS; unfinished seeds are repeated\n")
            finally:  # nobody may read stderr any more
                self.exit_now(self._exit_code())

    def exit_now(self, code: int) -> None:
        """Leave without waiting for anything: threads, buffers and connections are left as they are."""
        try:
            logging.shutdown()
        finally:
            os._exit(code)


# --- idle: ends a process that has had no seed for so long -----------------------------------------------

TELLS: Final = "CRAWL_SPIDER_TELLS"  # a file descriptor, by which the supervisor hears why a process ends
IDLE: Final = b"idle"
_JOIN_SECONDS = 60.0  # more without a partition: the group may not have handed out any yet


class IdleClose:
    """Is told again and again whether there is anything to do."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds  # 0: for ever
        self._before: object = ()
        self._since = 0.0

    def is_over(self, now: float, counts: object, *, is_busy: bool, partitions: Collection[object]) -> bool:
        """Whether nothing was to be done for the whole time; `counts` differ when a seed has come or ended."""
        if is_busy or (counts, partitions) != self._before:  # those of a process that died may have seeds
            self._before, self._since = (counts, partitions), now
        spare_seconds = 0.0 if partitions else _JOIN_SECONDS
        return now - self._since >= self._limit_seconds + spare_seconds > spare_seconds


def tell_supervisor(said: bytes) -> None:
    """Where one has started this process."""
    with contextlib.suppress(OSError, ValueError):
        os.write(int(os.environ.get(TELLS, "")), said)
