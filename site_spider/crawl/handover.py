"""Lets what is downloading end before its partitions are given up.

When the group asks for partitions back, their next owner repeats whatever is not complete. So for
a few seconds nothing new is begun, the downloads of these partitions end, and the sinks
take their results; what is complete then is committed. Work that takes longer is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from scrapy.core.engine import ExecutionEngine

from site_spider.core.seed_log import Partition
from site_spider.crawl import engine_hooks, lineage
from site_spider.crawl.delivery import Delivery
from site_spider.crawl.stop import Stop

_LOOK_SECONDS = 0.02


class Handover:
    """The pause before partitions leave. On the event loop's thread; `active` may be read by any."""

    def __init__(
        self,
        engine: ExecutionEngine,
        deliveries: Sequence[Delivery],
        grace_seconds: float,
        stop: Stop,
    ) -> None:
        self.active = False  # nothing may be begun
        self._engine = engine
        self._deliveries = deliveries
        self._grace_seconds = grace_seconds
        self.stop = stop  # which lets all downloads end, not only these

    async def prepare(self, partitions: Collection[Partition]) -> None:
        """Return when nothing of these partitions is under way any more, or the grace is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._grace_seconds
        self.active = True
        try:
            # looked at again and again, for requests and records end in many places
            while loop.time() < deadline and self._is_under_way(partitions) and not self.stop.has_begun:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self.active = False
            engine_hooks.wake(self._engine)

    def _is_under_way(self, partitions: Collection[Partition]) -> bool:
        if any(delivery.available and delivery.backlog_count for delivery in self._deliveries):
            return True
        jobs = map(lineage.job_of, engine_hooks.requests_in_progress(self._engine))
        return any(job is not None and job.entry.live and job.entry.partition in partitions for job in jobs)
