"""Scrapy's scheduler over the levels of the queue model (design, section 2)."""

from __future__ import annotations

import logging
from typing import Self

from scrapy import Request, Spider
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from site_spider import options
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.dupefilter.seed_filter import SeedFilter
from site_spider.engine import hooks as engine_hooks
from site_spider.engine.cookies import use_jar_of
from site_spider.engine.guard import Callback, guarded
from site_spider.frontier.levels import Place, Step, bounded, place
from site_spider.frontier.waiting_link import WaitingLink
from site_spider.intake.seed_queue import Waiting
from site_spider.ledger import lineage
from site_spider.ledger.lineage import Job
from site_spider.service.assembly import SeedService

logger = logging.getLogger(__name__)


class SeedScheduler(Scheduler):
    """Serves redirected requests, then discovered links, then seeds, then retries.

    For a spider that takes no seeds it is Scrapy's own scheduler, JOBDIR included.
    """

    service: SeedService | None = None
    seed_filter: SeedFilter | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks; the dupefilter is DUPEFILTER_CLASS. Raises ConfigError."""
        scheduler = super().from_crawler(crawler)
        scheduler.service = SeedService.of(crawler)
        if scheduler.service is not None:
            all_seeds = options.boolean(crawler.settings, "SITE_FILTER_SEEDS")
            scheduler.seed_filter = SeedFilter.over(scheduler.df, scheduler.service, all_seeds=all_seeds)
        return scheduler

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Called by the engine before anything else happens in a crawl."""
        if self.service is None:
            return super().open(spider)
        self.spider = spider
        self._methods: dict[Callback, Callback] = {}  # of the spider, and what guards each
        self.service.attach(self)
        return self.df.open()

    def close(self, reason: str) -> Deferred[None] | None:
        """Called by the engine after the last pipeline has closed: the final commit happens here."""
        if self.service is None:
            return super().close(reason)
        return deferred_from_coro(self._close(self.service, reason))

    async def _close(self, service: SeedService, reason: str) -> None:
        await service.leave()
        closing = self.df.close(reason)
        if closing is not None:
            await maybe_deferred_to_future(closing)

    def __len__(self) -> int:
        if self.service is None:
            return super().__len__()
        return len(self.service.waiting_room) + len(self.service.queues.seeds)

    def enqueue_request(self, request: Request) -> bool:
        """Queue a request unless it is a duplicate.

        Never raises where a seed is concerned: Scrapy would lose the child silently.
        """
        if self.service is None:
            return super().enqueue_request(request)
        try:
            return self._enqueue(request, self.service)
        except Exception as error:
            logger.exception("A request could not be queued: %r", request, extra={"spider": self.spider})
            self._count("scheduler/failed")
            self._write_lost(request, self.service, error)
            return False

    def _write_lost(self, request: Request, service: SeedService, error: Exception) -> None:
        """What could not be queued gets a failure result of its own."""
        parent = lineage.current_job()
        if parent is None or lineage.job_of(request) is parent:
            return  # another attempt at the same page: the job ends without a result, which is seen
        lost = Job(request, parent)
        lost.error = f"the request could not be queued: {error!r}"
        service.results.write_missing(lost)

    def _enqueue(self, request: Request, service: SeedService) -> bool:
        completion = service.completion
        if completion.knows(request):
            request = request.copy()  # the same object again: its ending could not be told from the first's
        same_job = lineage.job_of(request)
        job = lineage.adopt(request, self._is_being_scraped)
        if job is not None and not job.entry.live:
            completion.refuse(job)
            return False  # its seed is another process's now
        is_another_attempt = job is not None and job is same_job
        if not (request.dont_filter or is_another_attempt) and self.df.request_seen(request):
            self.df.log(request, self.spider)
            return False
        _place(request, lineage.origin_of(request), is_new=job is not same_job)
        service.queues.put(request, job, is_link=job is not None and not is_another_attempt)
        self._count("scheduler/enqueued/memory")
        self._count("scheduler/enqueued")
        return True

    def next_request(self) -> Request | None:
        """The request to download next; None when there is none at the moment."""
        if self.service is None:
            return super().next_request()
        lineage.work_on(None)
        if not self.service.may_download():
            return None
        try:
            request = self._next(self.service)
        except Exception as error:  # noqa: BLE001 - the engine would only log it and stall
            self.service.ending.fail(error)
            return None
        lineage.work_on(request)
        return request

    def _next(self, service: SeedService) -> Request | None:
        if service.may_admit():
            if self.seed_filter is not None:
                self.seed_filter.sort()
            service.admit_seeds()
        while (request := service.waiting_room.next(self)) is not None:
            try:
                self._complete(request, service)
            except Exception as error:  # noqa: BLE001 - of this request alone, and the next one comes
                service.waiting_room.came_back(request)
                self._end_badly(request, service, error)
                continue
            self._count("scheduler/dequeued/memory")
            self._count("scheduler/dequeued")
            return request
        return None

    def _end_badly(self, request: Request, service: SeedService, error: Exception) -> None:
        """What could not be begun gets a failure result."""
        logger.error(
            "A request could not be begun: %r", request, exc_info=error, extra={"spider": self.spider}
        )
        self._count("scheduler/failed")
        job = lineage.job_of(request)
        if job is not None:
            job.error = f"the request could not be begun: {error!r}"
            service.completion.ended(request)

    def build_seed(self, waiting: Waiting) -> Request | None:
        """The first request of a seed; None when there can be none, and the seed is dealt with."""
        assert self.service is not None
        request = self.service.begin_seed(waiting)
        job = None if request is None else lineage.job_of(request)
        if request is None or job is None or job.root.is_unproven:
            return request
        try:
            # remembered, so that links to it are not fetched once more; not filtered here
            if isinstance(self.df, SeenDupeFilter):
                self.df.arrived(request, job)
            self.df.request_seen(lineage.first_request(request, job))
        except Exception as error:  # noqa: BLE001 - of a fingerprinter of the user's own, say
            self._end_badly(request, self.service, error)
            return None
        return request

    def build_link(self, link: WaitingLink) -> Request | None:
        """The request of a link that waited; None when there can be none, and it is dealt with."""
        assert self.service is not None
        try:
            return self.service.completion.begin_link(link)
        except Exception as error:
            logger.exception("A link could not be begun: %s", link.url, extra={"spider": self.spider})
            self._count("scheduler/failed")
            self.service.completion.give_up_link(link, f"the link {link.url} could not be begun: {error!r}")
            return None

    def _complete(self, request: Request, service: SeedService) -> None:
        """Add callback and errback, which requests of seeds do without while they wait."""
        job = lineage.job_of(request)
        if job is None:
            return
        use_jar_of(request, job.entry)
        errback = request.errback or getattr(self.spider, "failed", None)
        request.callback = self._guarded(request.callback or self.spider.parse, service)
        request.errback = None if errback is None else self._guarded(errback, service)

    def _guarded(self, callback: Callback, service: SeedService) -> Callback:
        """Made once for a method of the spider, which most callbacks are."""
        seconds = service.config.callback_timeout_seconds
        if getattr(callback, "__self__", None) is not self.spider:
            return guarded(callback, seconds)
        method = callback.__func__  # type: ignore[attr-defined] # it has a __self__
        if method not in self._methods:
            self._methods[method] = guarded(callback, seconds)
        return self._methods[method]

    def _is_being_scraped(self, request: Request) -> bool:
        assert self.crawler is not None
        return engine_hooks.is_being_scraped(self.crawler.engine, request)

    def _count(self, key: str) -> None:
        assert self.stats is not None
        self.stats.inc_value(key)


def _place(request: Request, origin: Request | None, *, is_new: bool) -> None:
    """Give a request the priority of its level. The meta of a new link may be copied from a retry."""
    unraised = request.meta.pop(lineage.UNRAISED, None)
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
        request.meta[lineage.UNRAISED] = unraised
