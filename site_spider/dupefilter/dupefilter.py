"""Scrapy's dupefilter over the store that SITE_DUPEFILTER names; keeps rule 5 (seen means done)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred

from site_spider import meta_keys, options, runtime
from site_spider.contracts.done_store import DoneStore
from site_spider.dupefilter.courier import DoneCourier
from site_spider.dupefilter.remote import RemoteDone
from site_spider.dupefilter.seen import Seen
from site_spider.engine.background import Background
from site_spider.engine.bases import DupeFilterBase
from site_spider.engine.loading import load_class
from site_spider.engine.parts import takes_seeds
from site_spider.errors import ConfigError
from site_spider.ledger.completion import Job, SeedListener, current_job, first_request, job_of
from site_spider.ledger.ledger import Entry, Outcome
from site_spider.page.url import page_fingerprint, scoped

MEMORY = "memory"
_MARKS_LIMIT = 1_000_000  # that wait for a store that is away: about 150 MB


class SeenMarks(SeedListener):
    """Keeps what a seed met for good when that ends with a result (rule 5)."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def ended(self, entry: Entry) -> None:
        """As in SeedListener."""
        if entry.outcome is Outcome.RESULT:
            self._seen.complete(entry)
        else:
            self._seen.forget(entry)  # what did not end well may be sent, or put back, and is wanted then

    def leaves(self, entry: Entry) -> None:
        """As in SeedListener: what comes back is no duplicate of it."""
        self._seen.forget(entry)

    def fenced(self, entry: Entry) -> None:
        """As in SeedListener."""
        self._seen.forget(entry)


class SeenDupeFilter(DupeFilterBase):
    """Filters requests by fingerprint.

    What is met on behalf of a seed stays in flight until that seed is complete, see
    dupefilter.seen. For a request that belongs to no seed it is Scrapy's own dupefilter.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen = Seen(self.own_fingerprints)
        self._is_plain = self.has_default_fingerprints
        self._crawler: Crawler | None = None
        self._courier: DoneCourier | None = None  # when the store is elsewhere

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks; a spider without seeds gets Scrapy's own memory. Raises ConfigError."""
        dupefilter = super().from_crawler(crawler)
        dupefilter._crawler = crawler
        if not takes_seeds(crawler):  # settings of ours may not even be there
            return dupefilter
        store = store_class(crawler.settings)
        if store is not None:
            dupefilter._use(store, crawler)
        return dupefilter

    def _use(self, store: type[Any], crawler: Crawler) -> None:
        settings = crawler.settings
        if not issubclass(store, DoneStore):
            self.seen = Seen(store.from_settings(settings, runtime.monotonic))
            return
        elsewhere = store.from_settings(settings)
        cache = options.integer(settings, "SITE_DUPEFILTER_CACHE", minimum=10_000)
        wait_seconds = options.seconds(settings, "SITE_DUPEFILTER_WAIT_SECONDS")
        done = RemoteDone(cache, _MARKS_LIMIT, elsewhere.cache_seconds, runtime.monotonic)
        self.seen = Seen(done)
        background = Background.of(crawler)
        self._courier = DoneCourier(elsewhere, done, wait_seconds, self._count, background)

    @property
    def is_elsewhere(self) -> bool:
        """Whether `request_seen` knows only what was fetched in advance."""
        return self._courier is not None

    async def connect(self, wait_seconds: float) -> None:
        """Open a store that is elsewhere. Raises DoneUnavailable when it stays away for so long."""
        if self._courier is not None:
            await self._courier.open(wait_seconds)

    async def prefetch(self, requests: Iterable[Request]) -> None:
        """To be awaited before `request_seen` is asked for these: it cannot wait for a store itself."""
        if self._courier is not None:
            working_on = current_job()  # of links, which have no job yet
            jobs = ((each, job_of(each) or working_on) for each in requests if not each.dont_filter)
            await self._courier.ask([self._within(request, job) for request, job in jobs])

    def request_seen(self, request: Request) -> bool:
        """Whether the same request was met before; it is remembered if not."""
        job = job_of(request)
        if job is None:
            return super().request_seen(request)
        return not self.seen.begin(self.fingerprint(request), job.entry)

    def spilled(self, request: Request, job: Job) -> None:
        """The page of this job goes to the seed topic: see dupefilter.seen."""
        if not _is_unproven(job):
            self.seen.spill(self.fingerprint(first_request(request, job)), job.entry)

    def not_spilled(self, request: Request, job: Job) -> None:
        """It stays after all."""
        self.arrived(request, job)
        if job.entry.live and not _is_unproven(job):
            self.seen.begin(self.fingerprint(first_request(request, job)), job.entry)

    def arrived(self, request: Request, job: Job) -> None:
        """The page of this job has come from the seed topic."""
        if not _is_unproven(job):
            self.seen.arrive(self.fingerprint(first_request(request, job)))

    def new_pages(self, urls: Iterable[str], job: Job) -> list[str]:
        """The links of a page that are worth a request: the others would be filtered, and count as such.

        Without this every duplicate would cost a request, its way through the spider middlewares and
        a fingerprint. With DUPEFILTER_DEBUG, or a fingerprinter of the user's own, all are let through.
        """
        if not self._is_plain or self.debug:
            return list(urls)
        found = list(urls)
        knows = self.seen.knows
        scope = job.page_scope
        new = [url for url in found if not knows(page_fingerprint(url, scope))]
        if len(new) < len(found):
            self._count("dupefilter/filtered", len(found) - len(new))
        return new

    def fingerprint(self, request: Request) -> bytes:
        """As Scrapy's; for a plain page without its detours. Within what the job's page is compared with."""
        return self._within(request, job_of(request))

    def _within(self, request: Request, job: Job | None) -> bytes:
        scope = None if job is None else job.page_scope
        if self._is_plain and _is_plain(request):
            return page_fingerprint(request.url, scope)
        return scoped(super().fingerprint(request), scope)

    def close(self, reason: str) -> Deferred[None] | None:  # type: ignore[override]  # as BaseDupeFilter's
        """Called when nothing else happens any more: the last marks are written."""
        super().close(reason)
        return None if self._courier is None else deferred_from_coro(self._courier.close())

    def _count(self, key: str, by: int) -> None:
        assert self._crawler is not None
        assert self._crawler.stats is not None
        self._crawler.stats.inc_value(key, by)


def _is_plain(request: Request) -> bool:
    return request.method == "GET" and not request.body and meta_keys.VERBATIM_URL not in request.meta


def store_class(settings: BaseSettings) -> type[Any] | None:
    """What SITE_DUPEFILTER names; None for Scrapy's own memory. Raises ConfigError."""
    name = options.text(settings, "SITE_DUPEFILTER")
    if name == MEMORY:
        return None
    classes = options.mapping(settings, "SITE_DUPEFILTER_CLASSES")
    if name not in classes and "." not in name:
        raise ConfigError(
            f"SITE_DUPEFILTER is {name!r}, but must be {', '.join([MEMORY, *classes])}, "
            "or the dotted path of a class."
        )
    loaded: type[Any] = load_class("SITE_DUPEFILTER", classes.get(name, name))
    return loaded


def is_elsewhere(settings: BaseSettings) -> bool:
    """Whether the store of SITE_DUPEFILTER has to be asked in advance. Raises ConfigError."""
    store = store_class(settings)
    return store is not None and issubclass(store, DoneStore)


def _is_unproven(job: Job) -> bool:
    """Whether anybody may have written which page this is: nothing is remembered of it then."""
    return job is job.root and job.root.is_unproven
