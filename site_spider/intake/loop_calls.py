"""Calls functions on the event loop's thread from other threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from site_spider.engine.background import Background


class LoopCalls:
    """A function that can say whether it is of use. A call that fails ends the crawl."""

    def __init__(self, background: Background) -> None:
        self._loop = asyncio.get_running_loop()
        self._guarded = background.guarded
        self.are_over = False  # the loop has closed: the process is ending

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Have `call(*arguments)` made on the loop, in the order of asking."""
        try:
            self._loop.call_soon_threadsafe(self._guarded(call), *arguments)
        except RuntimeError:
            self.are_over = True
