"""Lets downloads and sinks finish before partitions are revoked.

When the group asks for partitions back, their next owner repeats whatever is not committed. So
nothing new is begun, the downloads of these partitions get a few seconds to end, and then
the sinks as long as they need to take the results: a page that was fetched is not fetched again because its
result waits for a slow sink, or for an index that is just being created. What is complete then is
committed. Downloads that take longer are repeated, and so is what a sink that is away does not take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from scrapy.core.engine import ExecutionEngine

from site_spider.contracts.seed_log import Partition
from site_spider.engine import hooks as engine_hooks
from site_spider.ledger import completion
from site_spider.results.results import Sinks

SINK_SECONDS = 30.0  # for sinks to take results; one that needs longer is as good as away
COUNT_SECONDS = 3.0  # for the log to take dead letters and counts of tasks; the rest is repeated
_LOOK_SECONDS = 0.02


class Handover:
    """The pause before partitions leave. On the event loop's thread; `active` may be read by any."""

    def __init__(
        self,
        engine: ExecutionEngine,
        sinks: Sinks,
        grace_seconds: float,
        is_telling: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_telling = is_telling  # the log of dead letters, or of seeds of tasks that are done
        self.active = False  # nothing may be begun
        self._engine = engine
        self._sinks = sinks
        self._grace_seconds = grace_seconds
        self._closed = False

    async def prepare(self, partitions: Collection[Partition]) -> None:
        """Return when nothing of these partitions is under way any more, or there is no more time."""
        self.active = True
        try:
            self._sinks.flush()
            await self._while(lambda: self._is_downloading(partitions), self._grace_seconds)
            await self._while(lambda: self._sinks.are_writing, SINK_SECONDS)
            await self.told()
        finally:
            self.active = False
            engine_hooks.wake(self._engine)

    async def told(self) -> None:
        """Return when dead letters are durable and seeds of tasks counted, or there is no more time."""
        await self._while(self._is_telling, COUNT_SECONDS)

    def close(self) -> None:
        """The crawl has ended: nothing is waited for any more."""
        self._closed = True

    async def _while(self, is_under_way: Callable[[], bool], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # looked at again and again, for requests and records end in many places
        while not self._closed and loop.time() < deadline and is_under_way():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)

    def _is_downloading(self, partitions: Collection[Partition]) -> bool:
        jobs = map(completion.job_of, engine_hooks.requests_in_progress(self._engine))
        return any(job is not None and job.entry.live and job.entry.partition in partitions for job in jobs)
