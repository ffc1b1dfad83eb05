"""Ends a process whose event loop is blocked, and one whose stop takes too long.

Nothing else can end such code. The process is started again by crawl_spider.sh, the seed is
repeated, and isolated when it does this each time (see intake.quarantine.one_by_one).
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable

from site_spider import runtime


class Watchdog:
    """Watches the running event loop from a thread, which lasts as long as the process."""

    def __init__(
        self, limit_seconds: float, bite: Callable[[], None], look_at_stop: Callable[[], None]
    ) -> None:
        self._limit_seconds = limit_seconds
        self._bite = bite
        self._look_at_stop = look_at_stop
        self._beat_at = runtime.monotonic()
        self._interval_seconds = min(1.0, limit_seconds / 4)
        self._loop = asyncio.get_running_loop()
        self._done = runtime.Event()
        self._watched = runtime.get_ident()
        self._beat()
        runtime.Thread(target=self._watch, name="site-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch the loop no more."""
        self._done.set()

    def _beat(self) -> None:
        self._beat_at = runtime.monotonic()
        if not self._done.is_set():
            self._loop.call_later(self._interval_seconds, self._beat)

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
            if not self._done.is_set() and runtime.monotonic() - self._beat_at > self._limit_seconds:
                try:
                    self._show()
                finally:  # nobody may read stderr any more
                    self._bite()
                return
