"""Bounds the connections to sites that are open at a time; a download without a place waits for one.

A connection has its place from before it is made until it is lost, so those that are kept for
later have one too. When all are taken, one that is kept is closed. When descriptors run out all
the same, because others took them, the number of places shrinks to what there was, and grows again
with every connection that succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from site_spider.download.descriptors import is_shortage

logger = logging.getLogger(__name__)

_FEWEST = 4
_PAUSE_SECONDS = 0.2  # after a shortage, before the next attempt; doubled up to the longest
_LONGEST_PAUSE_SECONDS = 2.0
_Result = TypeVar("_Result")


class Places:
    """On the event loop's thread only."""

    def __init__(self, count: Callable[[], int], close_idle: Callable[[], bool]) -> None:
        """`count` is asked once, when the first place is taken; `close_idle` closes one connection."""
        self._count = count
        self._close_idle = close_idle
        self._usual = 0
        self._now = 0
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pause = _PAUSE_SECONDS
        self._closed_until = 0.0
        self._has_said = False

    async def take(self) -> float:
        """Take a place. Returns the seconds that it was waited for."""
        if not self._usual:
            self._usual = self._now = max(_FEWEST, self._count())
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (pause := self._closed_until - loop.time()) > 0 or self._taken >= self._now:
            await self._changed(pause)
        self._taken += 1
        return loop.time() - began

    @property
    def are_wanted(self) -> bool:
        """Whether a download waits, so that no connection is to be kept."""
        return bool(self._waiting)

    def give_back(self) -> None:
        """A connection is gone."""
        self._taken -= 1
        self._wake_one()

    def succeeded(self) -> None:
        """A connection was made."""
        if self._now < self._usual:
            self._now += 1
            self._wake_one()
        self._pause = _PAUSE_SECONDS

    def ran_out(self) -> None:
        """A descriptor was refused, though a place was taken."""
        if not self._has_said:
            self._has_said = True
            logger.warning(
                "No file descriptor is left with %d connections open: connections that are kept are closed, "
                "downloads wait. Raise the limit (ulimit -n). This is logged once",
                self._taken,
            )
        closed = sum(1 for _ in iter(self._close_idle, False))
        self._now = max(_FEWEST, min(self._now, self._taken - closed))
        self._closed_until = asyncio.get_running_loop().time() + self._pause
        self._pause = min(_LONGEST_PAUSE_SECONDS, 2 * self._pause)

    async def lend(self, download: Callable[[], Awaitable[_Result]]) -> _Result:
        """What `download` returns; it is called again for as long as descriptors run out."""
        while True:
            await self.take()
            try:
                result = await download()
            except Exception as error:
                if not is_shortage(error):
                    raise
                self.ran_out()
            else:
                self.succeeded()
                return result
            finally:
                self.give_back()

    async def _changed(self, pause_seconds: float) -> None:
        if pause_seconds > 0:
            await asyncio.sleep(pause_seconds)
            return
        self._close_idle()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_one()  # it was this one's turn
            raise

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
