"""The statistics topic: each process's snapshot, so that a console on any host sees the fleet.

A message is JSON of at most LARGEST_BYTES under the name of its process. The topic keeps an hour or
two. Nobody waits for it: while the log does not take the last messages, no more are sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from site_spider.contracts.seed_log import Producer, SeedLog
from site_spider.errors import SinkRejected
from site_spider.outage import Outage
from site_spider.results.document import encode

logger = logging.getLogger(__name__)

LARGEST_BYTES: Final = 256_000
KEPT_SECONDS: Final = 7_200.0

_KEEP_EVERY_SECONDS: Final = 60.0
_MOST_UNDER_WAY: Final = 3
_LEFT_OUT: Final = ("tasks", "counters", "texts", "failures", "unknown_fields", "newest_failures", "paused")


class StatsTopic:
    """Of one process; on the event loop's thread only."""

    def __init__(self, log: SeedLog, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._producer: Producer | None = None
        self._under_way = 0
        self._loop = asyncio.get_running_loop()
        self._outage = Outage(
            logger,
            f"Statistics do not reach the topic {topic} (SITE_STATS_TOPIC), so consoles on other hosts do "
            "not show this process. The crawl goes on",
            f"Statistics reach the topic {topic} again",
        )

    async def open(self) -> None:
        """Make the topic, let old messages go now and then, and take messages from now on."""
        while True:
            try:
                await asyncio.to_thread(self._log.keep, self._topic, KEPT_SECONDS)
                self._producer = self._producer or await asyncio.to_thread(self._log.producer, "statistics")
            except Exception as error:  # noqa: BLE001 - whatever it is, the crawl goes on
                self._say(error)
            await asyncio.sleep(_KEEP_EVERY_SECONDS)

    def send(self, process: str, document: Mapping[str, Any]) -> None:
        """Send a snapshot, unless earlier ones have not been taken."""
        if self._producer is None or self._under_way >= _MOST_UNDER_WAY:
            return
        try:
            value = bounded(document)
        except SinkRejected as error:
            self._outage.goes_on(error)
            return
        self._under_way += 1
        self._producer.send(self._topic, process.encode(), value).add_done_callback(self._done)

    def _say(self, error: Exception) -> None:
        """Old messages that cannot go now go a minute later; without a producer nothing arrives."""
        if self._producer is None:
            self._outage.goes_on(error)
        else:
            logger.debug("Old messages of the topic %s stay for now: %s", self._topic, error)

    async def close(self, seconds: float) -> None:
        """Let the last message through, if that does not take long."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.to_thread(_close, producer)

    def _done(self, future: Future[None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._ended, future)

    def _ended(self, future: Future[None]) -> None:
        self._under_way -= 1
        error = future.exception()
        if error is None:
            self._outage.is_over()
        elif self._producer is not None:
            self._outage.goes_on(error)


def bounded(document: Mapping[str, Any], most: int = LARGEST_BYTES) -> bytes:
    """The document as JSON, without its largest parts where it is too large. Raises SinkRejected."""
    value = encode(document)
    kept = dict(document)
    for name in _LEFT_OUT:
        if len(value) <= most:
            return value
        kept.pop(name, None)
        value = encode({**kept, "shortened": True})
    if len(value) > most:
        raise SinkRejected(f"a snapshot has {len(value)} bytes, and {most} are allowed")
    return value


def _close(producer: Producer) -> None:
    try:
        producer.close()
    except Exception:
        logger.exception("The producer of statistics could not be closed")
