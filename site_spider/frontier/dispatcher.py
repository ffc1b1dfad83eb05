"""Enqueues requests and gives out the next one: the scheduler's work for seeds."""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

from scrapy import Request, Spider
from scrapy.core.engine import ExecutionEngine
from scrapy.statscollectors import StatsCollector

from site_spider import meta_keys
from site_spider.engine import hooks as engine_hooks
from site_spider.frontier.levels import Place, Step, bounded, place
from site_spider.frontier.preparation import Preparation
from site_spider.frontier.queues import Queues
from site_spider.frontier.waiting_link import WaitingLink, as_request
from site_spider.intake.room import BackPressure
from site_spider.intake.seed_queue import Waiting, seed_request
from site_spider.ledger import completion as lineage
from site_spider.ledger.completion import Completion, Job
from site_spider.results.results import DeadLetters, Results

logger = logging.getLogger(__name__)


class Pages(Protocol):
    """Which pages were met before."""

    def request_seen(self, request: Request) -> bool:
        """Whether the same request was met before; it is remembered if not."""

    def log(self, request: Request, spider: Spider) -> None:
        """A request was filtered."""

    def begins(self, request: Request, job: Job) -> None:
        """The first request of a seed is made; it is remembered, not filtered."""

    def sort_seeds(self) -> None:
        """Take those that are not to be fetched out of the seed queue, right before it is emptied."""


class CrawlParts(NamedTuple):
    """Scrapy's, of this crawl."""

    engine: ExecutionEngine
    spider: Spider
    stats: StatsCollector


class Dispatcher:
    """On the event loop's thread only."""

    def __init__(
        self,
        crawl: CrawlParts,
        queues: Queues,
        completion: Completion,
        results: Results,
        dead_letters: DeadLetters,
        pages: Pages,
        back_pressure: BackPressure,
        prepare: Preparation,
    ) -> None:
        self._crawl = crawl
        self._queues = queues
        self._completion = completion
        self._results = results
        self._dead_letters = dead_letters
        self._pages = pages
        self._back_pressure = back_pressure
        self._prepare = prepare

    def __len__(self) -> int:
        return len(self._queues)

    # --- in -----------------------------------------------------------------------------------

    def enqueue(self, request: Request) -> bool:
        """Queue a request unless it is a duplicate. Never raises: Scrapy would lose the child silently."""
        try:
            return self._enqueue(request)
        except Exception as error:
            spider = self._crawl.spider
            logger.exception("A request could not be queued: %r", request, extra={"spider": spider})
            self._count("scheduler/failed")
            self._write_lost(request, error)
            return False

    def _write_lost(self, request: Request, error: Exception) -> None:
        """What could not be queued gets a failure result of its own."""
        parent = lineage.current_job()
        if parent is None or lineage.job_of(request) is parent:
            return  # another attempt at the same page: the job ends without a result, which is seen
        self._results.write_missing(Job.lost(request, parent, f"the request could not be queued: {error!r}"))

    def _enqueue(self, request: Request) -> bool:
        if self._completion.knows(request):
            request = request.copy()  # the same object again: its ending could not be told from the first's
        same_job = lineage.job_of(request)
        job = lineage.adopt(request, self._is_being_scraped)
        if job is not None and not job.entry.live:
            self._completion.refuse(job)
            return False  # its seed is another process's now
        is_another_attempt = job is not None and job is same_job
        if not (request.dont_filter or is_another_attempt) and self._pages.request_seen(request):
            self._pages.log(request, self._crawl.spider)
            return False
        _place(request, lineage.origin_of(request), is_new=job is not same_job)
        is_link = job is not None and not is_another_attempt
        self._queues.put(request, job, is_link=is_link)
        if is_link:
            self._count("links/accepted")
        self._count("scheduler/enqueued/memory")
        self._count("scheduler/enqueued")
        return True

    # --- out ----------------------------------------------------------------------------------

    def next(self) -> Request | None:
        """The request to download next; None when there is none at the moment."""
        lineage.work_on(None)
        if not self._back_pressure.may_download():
            return None
        if self._back_pressure.may_admit():
            self._pages.sort_seeds()
            self._queues.admit_seeds()
        else:
            self._queues.withdraw_seeds()
        while (request := self._queues.room.next(self)) is not None:
            try:
                self._complete(request)
            except Exception as error:  # noqa: BLE001 - of this request alone, and the next one comes
                self._queues.room.came_back(request)
                self._end_badly(request, error)
                continue
            self._count("scheduler/dequeued/memory")
            self._count("scheduler/dequeued")
            break
        lineage.work_on(request)
        return request

    def _end_badly(self, request: Request, error: Exception) -> None:
        """What could not be begun gets a failure result."""
        spider = self._crawl.spider
        logger.error("A request could not be begun: %r", request, exc_info=error, extra={"spider": spider})
        self._count("scheduler/failed")
        job = lineage.job_of(request)
        if job is not None:
            job.error = f"the request could not be begun: {error!r}"
            self._completion.ended(request)

    def build_seed(self, waiting: Waiting) -> Request | None:
        """As in Builder: a seed of which there can be none is set aside."""
        try:
            request, root = seed_request(waiting, self._crawl.spider)
        except Exception as error:  # noqa: BLE001 - whatever Scrapy dislikes about this seed, the next one comes
            reason = f"Scrapy refuses the request: {error}"
            self._dead_letters.set_aside(waiting.message, reason, waiting.entry)
            return None
        self._completion.begin(request, root)
        try:
            if not root.is_unproven:
                self._pages.begins(request, root)
        except Exception as error:  # noqa: BLE001 - of a fingerprinter of the user's own, say
            self._end_badly(request, error)
            return None
        return request

    def build_link(self, link: WaitingLink) -> Request | None:
        """As in Builder: the seed of a link of which there can be none is set aside."""
        try:
            request, job = as_request(link)
        except Exception as error:
            spider = self._crawl.spider
            logger.exception("A link could not be begun: %s", link.url, extra={"spider": spider})
            self._count("scheduler/failed")
            self._dead_letters.give_up(link.parent, f"the link {link.url} could not be begun: {error!r}")
            self._completion.release(link.parent.entry)
            return None
        self._completion.begin_job(request, job)
        return request

    def _complete(self, request: Request) -> None:
        job = lineage.job_of(request)
        if job is not None:
            self._prepare(request, job)

    def _is_being_scraped(self, request: Request) -> bool:
        return engine_hooks.is_being_scraped(self._crawl.engine, request)

    def _count(self, key: str) -> None:
        self._crawl.stats.inc_value(key)


def _place(request: Request, origin: Request | None, *, is_new: bool) -> None:
    """Give a request the priority of its level. The meta of a new link may be copied from a retry."""
    unraised = request.meta.pop(meta_keys.UNRAISED_PRIORITY, None)
    retries = request.meta.get("retry_times", 0)
    before = None
    if is_new:
        step = Step.NEW
        request.priority = bounded(request.priority)
    elif origin is None:
        step = Step.RETRY if retries else Step.NEW
    else:
        step = Step.RETRY if retries > origin.meta.get("retry_times", 0) else Step.REDIRECT
        before = Place(origin.priority, unraised)
    request.priority, unraised = place(request.priority, step, before)
    if unraised is not None:
        request.meta[meta_keys.UNRAISED_PRIORITY] = unraised
