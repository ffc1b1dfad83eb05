"""Sorts out seeds whose page was done before (SITE_FILTER_SEEDS).

Each seed is looked at between the seed queue and the frontier, so that one that is sorted
out takes no turn of its host. It ends with the outcome `filtered`, without a result.

Never sorted out: a seed with `dont_filter`, and a link that was sent back to the seed topic
(it has a `seed_url_id`). That link was compared when it was found, and counts as met since.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from scrapy import Request, Spider
from scrapy.dupefilters import BaseDupeFilter

from site_spider.core.ledger import Outcome
from site_spider.crawl import engine_hooks, lineage
from site_spider.crawl.assembly import SeedService
from site_spider.crawl.dupefilter import SeenDupeFilter
from site_spider.crawl.seed_queue import Waiting, seed_request
from site_spider.errors import ConfigError

logger = logging.getLogger(__name__)


class SeedFilter:
    """Holds seeds back while the store of the dupefilter is asked for them. On the event loop's thread only.

    Raises ConfigError for a dupefilter that does not obey rule 5: it would filter a seed that is replayed
    as a duplicate of itself.
    """

    def __init__(self, dupefilter: BaseDupeFilter, service: SeedService) -> None:
        if not isinstance(dupefilter, SeenDupeFilter):
            raise ConfigError(
                f"SITE_FILTER_SEEDS is true, but DUPEFILTER_CLASS is {type(dupefilter).__qualname__}, which "
                "remembers requests that were never done; seeds would be lost. Set one of them back."
            )
        error_rate = getattr(dupefilter.seen.done, "error_rate", 0)
        if error_rate:
            logger.warning(
                "SITE_FILTER_SEEDS is true over a Bloom filter: up to %g of the seeds end as filtered though "
                "they were never fetched",
                error_rate,
            )
        self._dupefilter = dupefilter
        self._queue = service.seed_queue
        self._completion = service.completion
        self._crawler = service.crawler
        self._asked: deque[list[tuple[Waiting, Request | None]]] = deque()  # and answered
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _spider(self) -> Spider:
        assert self._crawler.spider is not None
        return self._crawler.spider

    def sort(self) -> None:
        """To be called right before the queue is emptied; those that may begin are in it then.

        At once: a seed that stayed would be compared with itself the next time.
        """
        fresh = []
        while (waiting := self._queue.pop()) is not None:
            fresh.append((waiting, self._request(waiting)))
        if fresh and self._dupefilter.is_elsewhere:
            task = asyncio.create_task(self._ask(fresh))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif fresh:
            self._asked.append(fresh)
        while self._asked:
            for waiting, request in self._asked.popleft():
                self._decide(waiting, request)

    async def _ask(self, fresh: list[tuple[Waiting, Request | None]]) -> None:
        try:
            await self._dupefilter.prefetch(request for _, request in fresh if request is not None)
        except Exception:  # the seeds go on all the same
            logger.exception("Seeds could not be looked up in the dupefilter")
        self._asked.append(fresh)
        engine_hooks.wake(self._crawler.engine)

    def _decide(self, waiting: Waiting, request: Request | None) -> None:
        if not waiting.entry.live:
            return  # its partition went elsewhere meanwhile
        if request is not None and self._dupefilter.request_seen(request):
            self._dupefilter.log(request, self._spider)
            self._completion.end_as(waiting.entry, Outcome.FILTERED)
        else:
            self._queue.push(waiting)

    def _request(self, waiting: Waiting) -> Request | None:
        """What would be requested for a seed; None when that decides nothing."""
        seed = waiting.seed
        if seed.dont_filter or seed.seed_url_id is not None:
            return None
        try:
            request, root = seed_request(waiting, self._spider)
        except Exception:  # noqa: BLE001 - it is set aside when it begins
            return None
        request.meta[lineage.JOB] = root
        return request
