"""Starts the threads of `asyncio.to_thread` with the crawl.

A stop needs some of them, and a process at its limit of threads could not start them then.
"""

from __future__ import annotations

import asyncio
import os

from site_spider import runtime

_COUNT = min(32, (os.cpu_count() or 1) + 4)  # as asyncio has by itself
_START_SECONDS = 10.0


async def start_workers() -> None:
    """Give the running loop its threads. Raises RuntimeError when not one can be started."""
    loop = asyncio.get_running_loop()
    workers = runtime.ThreadPoolExecutor(_COUNT, thread_name_prefix="site-worker")
    all_there = runtime.Barrier(_COUNT)
    started = [loop.run_in_executor(workers, all_there.wait, _START_SECONDS) for _ in range(_COUNT)]
    await asyncio.gather(*started)
    loop.set_default_executor(workers)
