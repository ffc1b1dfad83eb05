"""All sinks of a crawl, one delivery each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from site_spider.results.delivery import Delivery

logger = logging.getLogger(__name__)


class Sinks:
    """On the event loop's thread only, but for `are_taking`."""

    def __init__(self, deliveries: Sequence[Delivery], backlog_bytes: int) -> None:
        self._deliveries = deliveries
        self.backlog_limit_bytes = backlog_bytes  # of each
        self._are_closed = False

    def __iter__(self) -> Iterator[Delivery]:
        """Those in use: of a crawl without items, only those of results."""
        return (delivery for delivery in self._deliveries if getattr(delivery.sink, "is_used", True))

    async def open(self, wait_seconds: float) -> None:
        """Open one after the other, waiting for those that are away. Raises SinkUnavailable, ConfigError."""
        for delivery in self._deliveries:
            await delivery.open(wait_seconds)

    def are_taking(self) -> bool:
        """False while one is away, or too much waits for it. Any thread may ask."""
        limit = self.backlog_limit_bytes
        return all(delivery.available and delivery.backlog_bytes < limit for delivery in self._deliveries)

    def flush(self) -> None:
        """Send the results that wait for their batch to fill."""
        for delivery in self._deliveries:
            delivery.flush()

    @property
    def have_room(self) -> bool:
        """Whether not too much waits for any of them, or they are closed and take nothing any more."""
        limit = self.backlog_limit_bytes
        return self._are_closed or all(delivery.backlog_bytes < limit for delivery in self._deliveries)

    def have_taken_most(self) -> bool:
        """Whether few results wait, so that a large one may be made."""
        return sum(delivery.backlog_bytes for delivery in self._deliveries) < self.backlog_limit_bytes // 4

    @property
    def are_writing(self) -> bool:
        """Whether results wait for a sink that is there."""
        return any(delivery.available and delivery.backlog_count for delivery in self._deliveries)

    async def close(self, timeout_seconds: float) -> None:
        """Let each take what waits; what it does not take in time is repeated."""
        closing = (delivery.close(timeout_seconds) for delivery in self._deliveries)
        left = sum(await asyncio.gather(*closing))
        self._are_closed = True
        if left:
            logger.warning("%d results were not taken by their sinks; their seeds are repeated", left)
