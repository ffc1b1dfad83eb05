"""Waits for servers that are away when a crawl starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from site_spider.errors import LogUnavailable
from site_spider.spoken import up_to

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5


async def until_there(check: Callable[[], Awaitable[None]], wait_seconds: float) -> None:
    """Call `check` until it does not raise LogUnavailable. Raises that after `wait_seconds`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    said = False
    while True:
        try:
            return await check()
        except LogUnavailable as error:
            if loop.time() >= deadline:
                raise
            if not said:
                logger.warning("Waiting%s: %s", up_to(wait_seconds), error)
            said = True
        await asyncio.sleep(_PAUSE_SECONDS)
