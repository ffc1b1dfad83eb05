"""Whether the event loop turns, as other threads see it."""

from __future__ import annotations

import asyncio

from site_spider import runtime

_BEAT_SECONDS = 0.25


class Pulse:
    """Beats on the running event loop. By its own clock: that of uvloop stands still while the loop does."""

    def __init__(self) -> None:
        self._beat_at = runtime.monotonic()
        self._timer: asyncio.Handle | None = None

    def start(self) -> None:
        """Beat from now on."""
        self._beat_at = runtime.monotonic()
        self._timer = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self.start)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()

    def silent_seconds(self) -> float:
        """Since the last beat was due. Any thread may ask."""
        return max(0.0, runtime.monotonic() - self._beat_at - _BEAT_SECONDS)
