"""Runs the periodic work of a crawl on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from site_spider import runtime

_LOOK_SECONDS = 0.25
_COMMIT_SECONDS = 0.1  # how often the intake is told what is safe to commit
_COMMIT_SHARE = 0.05  # of the loop's time for that: with many seeds in flight it takes some milliseconds


async def tick(
    looks: Sequence[Callable[[], None]],
    look_at_queues: Callable[[], Awaitable[None]],
    commit: Callable[[], None],
) -> None:
    """Call all of them until cancelled: `commit` often, as far as it is quick, and the others less often."""
    look_at = 0.0
    while True:
        now = runtime.perf_counter()
        if is_time := now >= look_at:
            look_at = now + _LOOK_SECONDS
            for look in looks:
                look()
        began = runtime.perf_counter()
        commit()
        spent = runtime.perf_counter() - began
        if is_time:
            await look_at_queues()
        await asyncio.sleep(max(_COMMIT_SECONDS, spent / _COMMIT_SHARE))
