"""Bounds one download in time and size, and pauses its reading."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple, NoReturn

from scrapy import Request
from scrapy.exceptions import DownloadCancelledError, DownloadTimeoutError

from site_spider import runtime
from site_spider.download.answer import HttpAnswer
from site_spider.download.bodies import LARGE_BYTES, Bodies
from site_spider.download.wire import Wire

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0  # for a download that is paused


class DownloadLimits(NamedTuple):
    """Of one request; 0 bytes: none."""

    seconds: float
    most_bytes: int
    warn_bytes: int


class DownloadWatch:
    """Over one download: its time, its size, and its pauses while large bodies fill the memory."""

    def __init__(self, request: Request, limits: DownloadLimits, began: float, bodies: Bodies | None) -> None:
        self._request = request
        self._limits = limits
        self._began = began
        self._is_warned = False
        self._bodies = bodies
        self._wire: Wire
        self._timer: asyncio.TimerHandle
        self._paused_at: float | None = None

    def begin(self, wire: Wire) -> None:
        """The request is sent on this wire."""
        self._wire = wire
        self._set_timer(self.seconds_left())

    def end(self) -> None:
        """The answer is there, or none will be."""
        self._timer.cancel()
        if self._paused_at is not None:  # what was read before the pause was all
            self._pause(False)
        if self._bodies is not None:
            self._bodies.arrived(self._request)

    def _set_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look_at_clock)

    def _look_at_clock(self) -> None:
        is_ours = self._paused_at is not None or self._wire.is_withholding
        left = _LOOK_SECONDS if is_ours else self.seconds_left()
        if left > 0:  # the time in which we took nothing does not count
            self._set_timer(left)
        else:
            self._wire.fail(self.timed_out())

    def _pause(self, is_paused: bool) -> None:
        now = runtime.monotonic()
        if self._paused_at is not None:
            self._began += now - self._paused_at
        self._paused_at = now if is_paused else None
        (self._wire.hold if is_paused else self._wire.release)()

    def seconds_left(self) -> float:
        """Until the timeout."""
        return max(0.0, self._limits.seconds - (runtime.monotonic() - self._began))

    def has_waited(self, seconds: float) -> None:
        """For a place of ours, which is not the server's fault."""
        self._began += seconds

    def timed_out(self) -> DownloadTimeoutError:
        """The error of a download that has taken too long."""
        return DownloadTimeoutError(
            f"Getting {self._request.url} took longer than {self._limits.seconds} seconds."
        )

    def head_came(self, answer: HttpAnswer) -> None:
        """Raises DownloadCancelledError for a body that is said to be too large."""
        self._request.meta["download_latency"] = runtime.monotonic() - self._began
        if answer.length is not None and self._request.method != "HEAD":
            self._look_at(answer.length)

    def more_came(self, answer: HttpAnswer) -> None:
        """Likewise for one that is."""
        if answer.length is None:
            self._look_at(answer.received)
        if answer.received >= LARGE_BYTES and self._bodies is not None:
            self._bodies.arriving(self._request, answer.received, self._pause)

    def _look_at(self, size: int) -> None:
        limits = self._limits
        if limits.most_bytes and size > limits.most_bytes:
            self._refuse(size)
        if limits.warn_bytes and size > limits.warn_bytes and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s has %d bytes or more: over the %d of DOWNLOAD_WARNSIZE",
                self._request,
                size,
                limits.warn_bytes,
            )

    def _refuse(self, size: int) -> NoReturn:
        said = f"{size} bytes or more, over the {self._limits.most_bytes} of DOWNLOAD_MAXSIZE"
        logger.warning("%s has %s", self._request, said)
        raise DownloadCancelledError(said)
