"""How the process of a crawl ends: in time after a signal, even if the event loop is blocked.

The first SIGTERM or SIGINT goes to Scrapy, which finishes what is downloading. The thread of the watchdog
looks at the deadline: a blocked event loop cannot prolong the stop, and no thread is started for it, which
fails at the limit of threads. The second signal ends the process at once. Nothing is lost by either: what
was not committed is repeated.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection
from math import inf
from types import FrameType
from typing import Any, Final, NoReturn

from scrapy.crawler import Crawler, CrawlerProcessBase
from scrapy.exceptions import CloseSpider

from site_spider import runtime
from site_spider.engine.background import Background
from site_spider.engine.scrapy_parts import provide
from site_spider.errors import EXIT_SETUP, EXIT_SOFTWARE, exit_code_of
from site_spider.redaction import Redaction, secrets_of
from site_spider.text import for_log

logger = logging.getLogger(__name__)

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


# --- How a crawl that cannot start or go on ends: the exit code, and the reason in the log ---------------


class Ending:
    """Of one crawl. On the event loop's thread only."""

    def __init__(self, crawler: Crawler, leave_at_once: Callable[[], None]) -> None:
        self.background = Background(self.fail)
        provide(crawler, self.background)
        self.is_death = False  # by an error of our own: some seed may be at fault
        self._leave_at_once = leave_at_once  # ends the process, where it is ours
        self._crawler = crawler
        self._closing: asyncio.Task[None] | None = None

    @property
    def exit_code(self) -> int:
        return getattr(self._crawler.spider, "exit_code", 0)

    async def refuse_to_start(self, error: Exception) -> NoReturn:
        """Say why, in one line if a setting or a server is to blame, and close.

        For handlers of spider_opened. A crawl that has failed meanwhile is closing: what the start then does
        not find is no reason of its own.
        """
        if self._closing is not None:
            await asyncio.wait([self._closing])  # Scrapy takes the crawl for closed when its downloads are
            raise CloseSpider("failed") from error
        code = exit_code_of(error, EXIT_SETUP)
        reason = repr(error) if code == EXIT_SETUP else str(error)
        logger.error("Cannot start: %s", reason, exc_info=error if code == EXIT_SETUP else None)
        if self._crawler.settings.get("LOG_FILE"):
            # for whoever started it: the log is elsewhere
            shown = Redaction(secrets_of(self._crawler.settings))(f"Cannot start: {reason}")
            print(for_log(shown, one_line=True), file=sys.stderr)
        self._set_exit_code(code)
        raise CloseSpider("cannot_start")

    def check(self) -> None:
        """Raises CloseSpider when the crawl is closing: what its start opened from now on nobody would close."""
        if self._closing is not None:
            raise CloseSpider("failed")

    def fail(self, error: BaseException) -> None:
        """The crawl cannot go on: close it, with an exit code that has it started again."""
        code = exit_code_of(error, EXIT_SOFTWARE)
        if code == EXIT_SOFTWARE:
            logger.error("The crawl cannot go on: %r", error, exc_info=error)
            self.is_death = True
        else:
            logger.error("The crawl cannot go on: %s", error)
        self.close("failed", code)

    def close(self, reason: str, code: int) -> None:
        """Close the crawl in order, with this exit code; what goes wrong then ends the process."""
        if self._closing is None:
            self._set_exit_code(code)
            self._closing = self.background.start(self._close(reason), "closing")

    async def _close(self, reason: str) -> None:
        try:
            await self._crawler.engine.close_spider_async(reason=reason)
        except Exception:
            logger.exception("The crawl could not be closed in order")
            self._leave_at_once()

    def _set_exit_code(self, code: int) -> None:
        assert self._crawler.spider is not None
        self._crawler.spider.exit_code = code  # type: ignore[attr-defined]


# --- idle: ends a process that has had no seed for so long -----------------------------------------------

IDLE_CODE: Final = "CRAWL_SPIDER_IDLE_CODE"  # the exit code by which the supervisor knows of it; 0 without one
_JOIN_SECONDS = 60.0  # more without a partition: the group may not have handed out any yet
_STANDSTILL_SECONDS = 10.0  # between two looks, which are a quarter of a second apart; with a short limit less
_SHORTEST_STANDSTILL_SECONDS = 1.0


class IdleClose:
    """Is told again and again whether there is anything to do."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds  # 0: for ever
        self._before: object = ()
        self._standstill_seconds = max(_SHORTEST_STANDSTILL_SECONDS, min(limit_seconds, _STANDSTILL_SECONDS))
        self._since = self._looked_at = 0.0

    def is_over(
        self, now: float, counts: object, *, is_busy: bool, partitions: Collection[object], known_until: float = inf
    ) -> bool:
        """Whether nothing was to be done for the whole time; `counts` differ when a seed has come or ended.

        What came after `known_until` may not have been heard of.
        """
        stood_still = now - self._looked_at > self._standstill_seconds  # and seeds may have come meanwhile
        self._looked_at = now
        # partitions of a process that died may have seeds
        if is_busy or stood_still or (counts, partitions) != self._before:
            self._before, self._since = (counts, partitions), now
        spare_seconds = 0.0 if partitions else _JOIN_SECONDS
        return min(now, known_until) - self._since >= self._limit_seconds + spare_seconds > spare_seconds
