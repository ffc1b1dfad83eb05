"""Shares the time of each turn of the event loop among pages and answers that are being read.

Theory of operation. A turn runs everything that is ready, one callback after the other, and
timers, signals and other sockets wait until it is over. One page is read in a few
milliseconds; a hundred that arrive together would hold up the loop for a second. So a turn
has a budget of time. Work that finds it spent waits for a later turn, in the order of arrival,
and work that takes long asks again after each step of some milliseconds.

While the budget lasts nothing waits and nothing is scheduled but one callback a turn. Each turn wakes some
waiters. The first of them goes on in any case, so none waits for ever; each other one looks whether those
before it have left time, and else waits on, before all that came later. Used on the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import ClassVar, TypeVar
from weakref import WeakKeyDictionary

from site_spider import runtime

T = TypeVar("T")

_BUDGET_SECONDS = 0.02  # a turn in which much is ready ends soon after it
_MOST_WOKEN = 32  # in one turn: what wakes in vain takes some microseconds


class Turns:
    """The turns of one process's event loop. Steps between two questions take 5 ms at the most."""

    _of_processes: ClassVar[WeakKeyDictionary[object, Turns]] = WeakKeyDictionary()

    def __init__(
        self, budget_seconds: float = _BUDGET_SECONDS, clock: Callable[[], float] | None = None
    ) -> None:
        self._budget_seconds = budget_seconds
        self._clock = clock or runtime.perf_counter
        self._until = 0.0  # when the budget of this turn is spent
        self._is_open = False  # the budget is that of this turn, and ends with it
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._woken_in_vain: deque[asyncio.Future[bool]] = deque()  # they go before the others

    @classmethod
    def of_running_loop(cls) -> Turns:
        """The one that all work on the running event loop shares."""
        process = runtime.this_process()
        turns = cls._of_processes.get(process)
        if turns is None:
            turns = cls._of_processes[process] = cls()
        return turns

    def has_time(self) -> bool:
        """Whether this turn has time left."""
        if not self._is_open:
            self._open()
            return True
        return self._clock() < self._until

    def is_free(self) -> bool:
        """Whether this turn has time left, and nobody waits for it."""
        return not self._waiting and not self._woken_in_vain and self.has_time()

    async def time(self) -> None:
        """Return at once while this turn has time left and nobody waits, else in a later one."""
        if self.is_free() or await self._woken(self._waiting):
            return
        while not self.has_time() and not await self._woken(self._woken_in_vain):
            pass

    async def _woken(self, line: deque[asyncio.Future[bool]]) -> bool:
        """Whether it goes on in any case, as the first of its turn."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        line.append(waiter)
        if not self._is_open:
            self._open()
        return await waiter

    async def run(self, steps: Generator[object, None, T]) -> T:
        """Take steps while a turn has time, then in later ones; returns what they return."""
        if not self.has_time():
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
        woken = 0
        while woken < _MOST_WOKEN and (line := self._woken_in_vain or self._waiting):
            waiter = line.popleft()
            if not waiter.done():
                waiter.set_result(woken == 0)
                woken += 1
        if woken:
            self._open()
        else:
            self._is_open = False


def run_through(steps: Generator[object, None, T]) -> T:
    """All steps, in a thread whose time need not be shared."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
