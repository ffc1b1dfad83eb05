"""Measures how late the event loop is, ten times a second."""

from __future__ import annotations

import asyncio
from collections import deque

from site_spider.histogram import Histogram

WINDOW_SECONDS = 10.0
_PERIOD_SECONDS = 0.1


class LoopLag:
    """A timer that notes by how much it is late. The lag of a turn counts however long the turn took."""

    def __init__(self, lags: Histogram, window_seconds: float = WINDOW_SECONDS) -> None:
        self._lags = lags
        self._window_seconds = window_seconds
        self._largest: deque[tuple[float, float]] = deque()  # time and lag, falling: the first is the largest
        self._timer: asyncio.Handle | None = None  # uvloop gives no TimerHandle for a moment that has come
        self._due = 0.0
        self.turned_at = 0.0  # the loop's time: when it was seen to turn last

    def start(self) -> None:
        """Measure from now on."""
        self._turned(asyncio.get_running_loop().time())

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turned(self, now: float) -> None:
        self.turned_at = now
        self._due = now + _PERIOD_SECONDS
        self._timer = asyncio.get_running_loop().call_at(self._due, self._ring)

    def _ring(self) -> None:
        now = asyncio.get_running_loop().time()
        lag = max(0.0, now - self._due)
        self._lags.observe(lag)
        while self._largest and self._largest[-1][1] <= lag:
            self._largest.pop()
        self._largest.append((now, lag))
        self._forget(now)
        self._turned(now)

    def _forget(self, now: float) -> None:
        while self._largest and self._largest[0][0] < now - self._window_seconds:
            self._largest.popleft()

    def max_seconds(self) -> float:
        """The largest lag of the last seconds, WINDOW_SECONDS by default."""
        self._forget(asyncio.get_running_loop().time())
        return self._largest[0][1] if self._largest else 0.0
