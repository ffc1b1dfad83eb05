"""Shares the time of each turn of the event loop among pages and answers that are being read.

Theory of operation. A turn runs everything that is ready, one callback after the other, and
timers, signals and other sockets wait until it is over. One page is read in a few
milliseconds; a hundred that arrive together would hold up the loop for a second. So a turn
has a budget of time. Work that finds it spent waits for a later turn, in the order of arrival,
and work that takes long asks again after each step of some milliseconds.

While the budget lasts nothing waits and nothing is scheduled but one callback a turn. Each turn
lets at least one waiter go on, so none waits for ever. Used on the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import ClassVar, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_BUDGET_SECONDS = 0.02  # a turn in which much is ready ends soon after it


class Turns:
    """The turns of one event loop. Steps between two questions take 5 ms at the most."""

    _of_loop: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]] = WeakKeyDictionary()

    def __init__(
        self, budget_seconds: float = _BUDGET_SECONDS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._budget_seconds = budget_seconds
        self._clock = clock
        self._until = 0.0  # when the budget of this turn is spent
        self._is_open = False  # the budget is that of this turn, and ends with it
        self._waiting: deque[asyncio.Future[None]] = deque()

    @classmethod
    def of_running_loop(cls) -> Turns:
        """The one that all work on the running event loop shares."""
        loop = asyncio.get_running_loop()
        turns = cls._of_loop.get(loop)
        if turns is None:
            turns = cls._of_loop[loop] = cls()
        return turns

    def has_time(self) -> bool:
        """Whether this turn has time left."""
        if not self._is_open:
            self._open()
            return True
        return self._clock() < self._until

    async def time(self) -> None:
        """Return at once while this turn has time left, else in a later one."""
        if not self._waiting and self.has_time():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if not self._is_open:
            self._open()
        await waiter

    async def run(self, steps: Generator[object, None, T]) -> T:
        """Take steps while a turn has time, then in later ones; returns what they return."""
        if self._waiting or not self.has_time():
            await self.time()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if not self.has_time():
                await self.time()

    def _open(self) -> None:
        self._is_open = True
        self._until = self._clock() + self._budget_seconds
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """The next turn has come."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._open()
                return
        self._is_open = False


def run_through(steps: Generator[object, None, T]) -> T:
    """All steps, in a thread whose time need not be shared."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
