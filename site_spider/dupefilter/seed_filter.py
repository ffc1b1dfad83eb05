"""Filters seeds whose page is done or in flight.

Links that were sent there (`Seed.spilled`) are compared as they would have been where they
were found: a page that is in flight or done here is not fetched once more. Seeds of producers
are compared with SITE_FILTER_SEEDS only. Never sorted out: a seed with `dont_filter`, and an
attempt at a page that another process began.

Each seed is looked at between the seed queue and the frontier, so that one that is sorted
out takes no turn of its host. It ends with the outcome `filtered`, without a result.
"""

from __future__ import annotations

import logging
from collections import deque

from scrapy import Request, Spider
from scrapy.dupefilters import BaseDupeFilter

from site_spider import meta_keys
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.engine.background import Background
from site_spider.errors import ConfigError
from site_spider.intake.seed_queue import SeedQueue, Waiting, seed_request
from site_spider.ledger import completion as lineage
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Outcome

logger = logging.getLogger(__name__)

_Pair = tuple[Waiting, Request | None]


class ForeignPages:
    """Over any DUPEFILTER_CLASS: seeds are not compared, only remembered."""

    def __init__(self, dupefilter: BaseDupeFilter) -> None:
        self._pages = dupefilter

    def request_seen(self, request: Request) -> bool:
        """Whether the same request was met before; it is remembered if not."""
        return self._pages.request_seen(request)

    def log(self, request: Request, spider: Spider) -> None:
        """A request was filtered."""
        self._pages.log(request, spider)

    def begins(self, request: Request, job: lineage.Job) -> None:
        """Remembered, so that links to it are not fetched once more; not filtered here."""
        self._pages.request_seen(lineage.first_request(request, job))

    def sort_seeds(self) -> None:
        """Nothing: such a dupefilter would filter a seed that is repeated as a duplicate of itself."""


class SeedFilter(ForeignPages):
    """Holds seeds back while the dupefilter's store is asked for them. On the event loop's thread only."""

    def __init__(
        self,
        dupefilter: SeenDupeFilter,
        queue: SeedQueue,
        completion: Completion,
        spider: Spider,
        background: Background,
        *,
        all_seeds: bool,
    ) -> None:
        super().__init__(dupefilter)
        error_rate = getattr(dupefilter.seen.done, "error_rate", 0)
        if error_rate and all_seeds:
            logger.warning(
                "SITE_FILTER_SEEDS is true over a Bloom filter: up to %g of the seeds end as filtered though "
                "they were never fetched",
                error_rate,
            )
        self._dupefilter = dupefilter
        self._all_seeds = all_seeds
        self._queue = queue
        self._completion = completion
        self._spider = spider
        self._background = background
        self._asked: deque[list[_Pair]] = deque()  # and answered

    def begins(self, request: Request, job: lineage.Job) -> None:
        """As in ForeignPages; it has come from the seed topic."""
        self._dupefilter.arrived(request, job)
        super().begins(request, job)

    def sort_seeds(self) -> None:
        """To be called right before the queue is emptied; those that may begin are in it then.

        At once: a seed that stayed would be compared with itself the next time.
        """
        fresh: list[_Pair] = []
        free: list[Waiting] = []
        while (waiting := self._queue.pop()) is not None:
            request = self._request(waiting) if self._is_compared(waiting) else None
            if request is None and not self._all_seeds:  # else it keeps its place among the others
                free.append(waiting)
            else:
                fresh.append((waiting, request))
        if fresh and self._dupefilter.is_elsewhere:
            self._background.start(self._ask(fresh), "look-up of seeds")
        elif fresh:
            self._asked.append(fresh)
        for waiting in free:
            self._queue.push(waiting)
        while self._asked:
            for pair in self._asked.popleft():
                self._decide(*pair)

    def _is_compared(self, waiting: Waiting) -> bool:
        spilled = waiting.seed.spilled
        wanted = self._all_seeds if spilled is None else spilled.is_link
        return wanted and not waiting.seed.dont_filter

    async def _ask(self, fresh: list[_Pair]) -> None:
        try:
            await self._dupefilter.prefetch(request for _, request in fresh if request is not None)
        except Exception:  # the seeds go on all the same
            logger.exception("Seeds could not be looked up in the dupefilter")
        self._asked.append(fresh)
        self._queue.wake()

    def _decide(self, waiting: Waiting, request: Request | None) -> None:
        if not waiting.entry.live:
            return  # its partition went elsewhere meanwhile
        if request is not None and self._is_known(waiting, request):
            self._dupefilter.log(request, self._spider)
            self._completion.end_as(waiting.entry, Outcome.FILTERED)
        else:
            self._queue.push(waiting)

    def _is_known(self, waiting: Waiting, request: Request) -> bool:
        try:
            return self._is_seen(waiting, request)
        except Exception:  # of a fingerprinter of the user's own, say: those behind it go on, and so does it
            logger.exception("A seed could not be compared: %r", request)
            return False

    def _is_seen(self, waiting: Waiting, request: Request) -> bool:
        job = lineage.job_of(request)
        if waiting.seed.spilled is not None and job is not None:
            self._dupefilter.arrived(request, job)
        return self._dupefilter.request_seen(request)

    def _request(self, waiting: Waiting) -> Request | None:
        """What would be requested for a seed; None when that is refused, which is found when it begins."""
        try:
            request, root = seed_request(waiting, self._spider)
        except Exception:  # noqa: BLE001 - it is set aside when it begins
            return None
        request.meta[meta_keys.JOB] = root
        return request


def pages_of(
    dupefilter: BaseDupeFilter,
    queue: SeedQueue,
    completion: Completion,
    spider: Spider,
    background: Background,
    *,
    all_seeds: bool,
) -> ForeignPages:
    """What compares requests and seeds. Raises ConfigError for `all_seeds` where seeds would be lost."""
    if isinstance(dupefilter, SeenDupeFilter):
        return SeedFilter(dupefilter, queue, completion, spider, background, all_seeds=all_seeds)
    if all_seeds:
        raise ConfigError(
            f"SITE_FILTER_SEEDS is true, but DUPEFILTER_CLASS is {type(dupefilter).__qualname__}, which "
            "remembers requests that were never done; seeds would be lost. Set one of them back."
        )
    return ForeignPages(dupefilter)
