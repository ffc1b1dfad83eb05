"""Opens a sink, and waits for one that is away."""

from __future__ import annotations

import asyncio
import logging

from site_spider.contracts.sink import Sink
from site_spider.errors import SinkUnavailable
from site_spider.text import up_to

logger = logging.getLogger(__name__)

_SHORTEST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0
_ATTEMPT_SECONDS = 15.0  # what one attempt is granted even when the whole wait is shorter


async def open_sink(sink: Sink, wait_seconds: float) -> None:
    """Raises SinkUnavailable when it stays away for so long, and ConfigError at once."""
    now = asyncio.get_running_loop().time
    deadline = now() + wait_seconds
    pause = _SHORTEST_PAUSE_SECONDS
    warned = False
    while True:
        failure = await _try_open(sink, max(deadline - now(), _ATTEMPT_SECONDS))
        if failure is None:
            break
        if now() + pause >= deadline:
            raise failure
        if not warned:
            logger.warning("Sink %s is away, waiting%s: %s", sink.name, up_to(wait_seconds), failure)
            warned = True
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
    if warned:
        logger.info("Sink %s is there.", sink.name)


async def _try_open(sink: Sink, timeout_seconds: float) -> SinkUnavailable | None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await sink.open()
    except SinkUnavailable as error:
        return error
    except TimeoutError:
        return SinkUnavailable(f"{sink.name}: no answer within {timeout_seconds:.0f} s.")
    return None
