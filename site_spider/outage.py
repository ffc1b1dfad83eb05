"""That something is away: said once when it begins, and once when it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import TypeVar

from site_spider import runtime

T = TypeVar("T")

_PAUSE_SECONDS = 0.5  # between two attempts


class Outage:
    """Of one thing that is tried again and again. One thread at a time uses it."""

    def __init__(self, logger: logging.Logger, begins: str, ends: str, level: int = logging.WARNING) -> None:
        """`begins` is logged at `level` with the reason behind it, `ends` with the seconds it took."""
        self._logger = logger
        self._level = level
        self._begins = begins
        self._ends = ends
        self._since = 0.0
        self.is_on = False  # where much passes, look here before `is_over` is called

    def seconds(self) -> float:
        """Since it began; 0 when there is none."""
        return runtime.monotonic() - self._since if self.is_on else 0.0

    def goes_on(self, reason: object) -> None:
        """It was tried, in vain."""
        if not self.is_on:
            self.is_on, self._since = True, runtime.monotonic()
            self._logger.log(self._level, "%s: %s", self._begins, reason)

    def is_over(self) -> None:
        """It was tried, and all is well."""
        if self.is_on:
            self._logger.info("%s after %.1f s", self._ends, self.seconds())
            self.is_on = False

    @contextmanager
    def tried(self, *away: type[Exception], until: float = inf) -> Iterator[None]:
        """Around one attempt: errors of these kinds are said and end here, before that monotonic time."""
        try:
            yield
        except away as error:
            if runtime.monotonic() >= until:
                raise
            self.goes_on(error)
        else:
            self.is_over()


async def until_there(
    attempt: Callable[[], Awaitable[T]], away: type[Exception], wait_seconds: float, outage: Outage
) -> T:
    """Call `attempt` until it does not raise `away`. Raises that when `wait_seconds` are over."""
    last_at = runtime.monotonic() + wait_seconds - _PAUSE_SECONDS
    while True:
        with outage.tried(away, until=last_at):
            return await attempt()
        await asyncio.sleep(_PAUSE_SECONDS)


def wait_until_there(attempt: Callable[[], T], away: type[Exception], wait_seconds: float, outage: Outage) -> T:
    """The same for a thread that may wait: it blocks."""
    last_at = runtime.monotonic() + wait_seconds - _PAUSE_SECONDS
    while True:
        with outage.tried(away, until=last_at):
            return attempt()
        runtime.sleep(_PAUSE_SECONDS)
