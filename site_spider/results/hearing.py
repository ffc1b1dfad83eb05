"""When a sink was heard of last: one with writes under way and no answer to any of them is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SILENT_SECONDS = 10.0


class Hearing:
    """On the event loop's thread only; `on_silence` is called once in each silence."""

    def __init__(self, on_silence: Callable[[], None]) -> None:
        self.silent_since: float | None = None  # the event loop's time
        self._on_silence = on_silence
        self._timer: asyncio.TimerHandle | None = None

    def asked(self) -> None:
        """A write has begun."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SILENT_SECONDS, self._is_silent)

    def heard(self, *, goes_on: bool) -> None:
        """A write has ended; with others under way they are given their time from now on."""
        self.close()
        if goes_on:
            self.asked()

    def close(self) -> None:
        """Nothing is waited for."""
        self.silent_since = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _is_silent(self) -> None:
        self.silent_since = asyncio.get_running_loop().time() - SILENT_SECONDS
        self._on_silence()
