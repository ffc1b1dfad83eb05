"""Scrapy's dupefilter over the store that SITE_DUPEFILTER names; keeps rule 5 (seen means done)."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sized
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, cast

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred

from site_spider import meta_keys, options, runtime
from site_spider.bounded import BoundedDict
from site_spider.contracts.done_store import DoneStore
from site_spider.dupefilter.filters import Done
from site_spider.dupefilter.remote import DoneCourier, TaskForms, store_class, usual_form
from site_spider.engine.background import Background
from site_spider.engine.scrapy_parts import DupeFilterBase, count, part_of, provide, takes_seeds
from site_spider.errors import ConfigError
from site_spider.intake.seed_queue import SeedQueue, seed_request
from site_spider.ledger.completion import Completion, Job, SeedListener, current_job, first_request, job_of
from site_spider.ledger.ledger import Outcome, SeedInFlight
from site_spider.page.url import UrlForm, page_fingerprint, scoped

# --- seen: which pages were met: done, or in flight for a seed ------------------------------------------
# Rule 5, seen means done: a fingerprint is kept for good only when the seed on whose behalf it was met is complete.
# Until then it is in flight, in memory only, and forgotten together with its seed when that is handed to another
# process, which will meet it anew. Were it kept at the end of its own request, a repeated seed would skip a page whose
# links were still queued when the seed was handed over, and lose them.
#
# A page that was sent back to the seed topic is *spilled*: a seed of its own, durable there or about to be, that some
# process will do. So it is neither in flight nor done here, and yet not spilled twice, as long as there is room to
# remember it. When that seed arrives, here or anywhere, it is compared with what is in flight and done, and not with
# what was spilled: it would be a duplicate of itself. It may end as the duplicate of a page in flight elsewhere, whose
# seed then goes to this process: so what was spilled is forgotten when partitions come.
#
# Where tasks share what is done, each says its name: what is in flight, or spilled, for one of them may never be
# fetched (it is cancelled, say), and counts as met for that task alone.

_Page = bytes | tuple[str, bytes]  # its fingerprint, with its task where that shares what is done
_FINGERPRINT_BYTES = 97  # in a set, as measured
SPILLED_LIMIT = 200_000  # pages that were spilled; what is forgotten may be spilled, and compared, once more
_MOST_TASKS, _MOST_FORMS = 10_000, 4  # whose forms of URLs are remembered, and how many of each


class Seen(SeedListener):
    """Fingerprints in flight in front of a store of those that are done."""

    def __init__(self, done: Done | None = None) -> None:
        self.done: Done = set() if done is None else done
        self._seeds: dict[_Page, Hashable] = {}
        self._met_for: dict[Hashable, list[_Page]] = {}
        self._joined: dict[_Page, OrderedDict[Hashable, None]] = {}  # other seeds that it is fetched for as well
        self._then: dict[Hashable, list[Callable[[], None]]] = {}
        # the oldest first; with the seed while that is not complete, and may have to spill it again
        self._spilled: BoundedDict[_Page, Hashable | None] = BoundedDict(SPILLED_LIMIT)

    @property
    def known(self) -> int | None:
        """How many fingerprints it has in this process; None where the kind of store cannot count them."""
        return len(self._seeds) + len(self._spilled) + len(self.done) if isinstance(self.done, Sized) else None

    @property
    def size_bytes(self) -> int:
        """The memory of it, as estimated; what is kept outside the process does not count."""
        known = len(self._seeds) + len(self._spilled) if self.known is None else self.known
        return known * _FINGERPRINT_BYTES + int(getattr(self.done, "size_bytes", 0))

    def knows(self, fingerprint: bytes, task: str | None = None) -> bool:
        """Whether `begin` would be False; it counts as met, but nothing is remembered."""
        page = fingerprint if task is None else (task, fingerprint)
        return page in self._seeds or page in self._spilled or fingerprint in self.done

    def is_met_for(self, fingerprint: bytes, seed: Hashable, task: str | None = None) -> bool:
        """Whether it is in flight for `seed`, or was spilled from there."""
        page = fingerprint if task is None else (task, fingerprint)
        return seed in (self._seeds.get(page), self._spilled.get(page))

    def in_flight_for(self, fingerprint: bytes, task: str | None = None) -> Hashable | None:
        """The seed that it is in flight for, or was spilled from, while that may have to do it again."""
        page = fingerprint if task is None else (task, fingerprint)
        return self._seeds.get(page) or self._spilled.get(page)

    def after(self, seed: Hashable, then: Callable[[], None]) -> None:
        """Call it when a seed that something is in flight for ends, or goes elsewhere; what it met is still known."""
        self._then.setdefault(seed, []).append(then)

    def begin(self, fingerprint: bytes, seed: Hashable, task: str | None = None) -> bool:
        """True when it is met for the first time; it is then in flight for `seed`."""
        page = fingerprint if task is None else (task, fingerprint)
        if page in self._seeds or page in self._spilled or fingerprint in self.done:
            return False
        self._seeds[page] = seed
        self._met_for.setdefault(seed, []).append(page)
        return True

    def join(self, fingerprint: bytes, seed: Hashable, task: str | None = None) -> None:
        """As `begin`; what is in flight for another seed is fetched for this one, too, and is done with the last.

        The links of it are in flight for one of them, which would be filtered where it goes to.
        """
        page = fingerprint if task is None else (task, fingerprint)
        if not self.begin(fingerprint, seed, task) and self._seeds.get(page, seed) != seed:
            self._joined.setdefault(page, OrderedDict())[seed] = None
            self._met_for.setdefault(seed, []).append(page)

    def _pass_on(self, page: _Page) -> bool:
        """What is not in flight for one seed any more is so for the next that joined it, if there is one."""
        del self._seeds[page]
        if page not in self._joined:
            return False
        self._seeds[page] = seed = next(iter(self._joined[page]))
        self._leave(page, seed)
        return True

    def _leave(self, page: _Page, seed: Hashable) -> None:
        """It is none of those any more that a page is fetched for as well."""
        self._joined[page].pop(seed, None)
        if not self._joined[page]:
            del self._joined[page]

    def spill(self, fingerprint: bytes, seed: Hashable, task: str | None = None) -> None:
        """What is in flight for `seed` goes to the seed topic; nothing happens to what is not."""
        page = fingerprint if task is None else (task, fingerprint)
        if self._seeds.get(page) == seed:
            self._pass_on(page)
            self._spilled[page] = seed

    def drop(self, fingerprint: bytes, seed: Hashable, task: str | None = None) -> None:
        """What is in flight for `seed` ends without being fetched: it counts as never met."""
        page = fingerprint if task is None else (task, fingerprint)
        if self._seeds.get(page) == seed:
            self._pass_on(page)

    def arrive(self, fingerprint: bytes, task: str | None = None) -> None:
        """It comes from the seed topic, or could not be sent there: it does not count as spilled any more."""
        if self._spilled:
            self._spilled.pop(fingerprint if task is None else (task, fingerprint), None)

    def assigned(self) -> None:
        """What was spilled may be wanted again; else it is compared where it arrives, once more."""
        self._spilled.clear()

    def complete(self, seed: Hashable) -> None:
        """It has ended well: what was met for it, and was not spilled, is done for good."""
        for page in self._met_for.pop(seed, ()):
            if page in self._joined:
                self._leave(page, seed)
            if self._seeds.get(page) == seed:
                if not self._pass_on(page):
                    self.done.add(page if isinstance(page, bytes) else page[1])
            elif self._spilled.get(page) == seed:
                self._spilled[page] = None

    def ended(self, entry: SeedInFlight) -> None:
        if entry.outcome is Outcome.RESULT:
            self.complete(entry)
        self.fenced(entry)  # what did not end well may be sent, or put back, and is wanted then

    def fenced(self, entry: SeedInFlight) -> None:
        """It goes to another process: its pages count as never met, and as never spilled."""
        for then in self._then.pop(entry, ()):
            then()
        for page in self._met_for.pop(entry, ()):
            if page in self._joined:
                self._leave(page, entry)
            if self._seeds.get(page) == entry:
                self._pass_on(page)
            elif self._spilled.get(page) == entry:
                del self._spilled[page]

    leaves = fenced  # what comes back is no duplicate of it


class _Known(NamedTuple):
    """The fingerprints that a page is remembered by, and those that a link is compared with.

    One for both, as a rule. With SITE_FILTER_SEEDS a seed is never filtered for what its URL is like, so it goes
    by the first alone, which is of the URL itself; the form of links has a fingerprint apart. And a page of a
    list that ends where it is known is compared with those of the same crawl of the list, and of its seed.
    """

    marks: tuple[bytes, ...]
    asks: tuple[bytes, ...]
    asks_of_seed: tuple[bytes, ...] = ()


class SeenDupeFilter(DupeFilterBase):
    """Filters requests by fingerprint, see above; one that belongs to no seed as Scrapy's own dupefilter does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen = Seen(self.own_fingerprints)
        self._is_plain = self.has_default_fingerprints
        self._crawler: Crawler | None = None
        self._courier: DoneCourier | None = None  # when the store is elsewhere
        self._form: UrlForm | None = None
        self._forms_had: BoundedDict[str, tuple[UrlForm | None, ...]] = BoundedDict(_MOST_TASKS)
        self._filters_seeds = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks; a spider without seeds gets Scrapy's own memory. Raises ConfigError."""
        dupefilter = super().from_crawler(crawler)
        dupefilter._crawler = crawler
        provide(crawler, dupefilter)
        if not takes_seeds(crawler):  # settings of ours may not even be there
            return dupefilter
        dupefilter._form = usual_form(crawler.settings)
        dupefilter._filters_seeds = options.boolean(crawler.settings, "SITE_FILTER_SEEDS")
        if (store := store_class(crawler.settings)) is not None:
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
        with_whom = elsewhere, wait_seconds, partial(count, crawler), Background.of(crawler)
        self._courier = DoneCourier(*with_whom, known_limit=cache, now=runtime.monotonic)
        self.seen = Seen(self._courier)

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
            await self._courier.ask([ask for request, job in jobs for ask in self._known(request, job).asks])

    def request_seen(self, request: Request) -> bool:
        """Whether the same request was met before; it is remembered if not."""
        job = job_of(request)
        if job is None:
            return super().request_seen(request)
        known = self._known(request, job)
        return self._is_known(known, job) if _is_check(job) else self._is_met(known, job)

    def in_flight_for(self, request: Request) -> tuple[Any, tuple[bytes, ...]] | None:
        """The seed on whose account alone `request_seen` is True of this one, and what it is compared with; or None."""
        job: Job = request.meta[meta_keys.JOB]
        asks, task = self._asked_of(self._known(request, job), job), _task_of(job)
        if any(ask in self.seen.done for ask in asks):
            return None  # its page is done
        return next(((seed, asks) for ask in asks if (seed := self.seen.in_flight_for(ask, task)) is not None), None)

    def begins(self, request: Request, job: Job) -> None:
        """The first request of a seed is made: its page has come from the seed topic, and is in flight.

        One that is fetched if it has changed is so when it has: else its links are not followed.
        """
        for mark in self._known(first_request(request, job), job).marks:
            self.seen.arrive(mark, _task_of(job))
            if not _is_check(job):
                self.seen.join(mark, job.entry, _task_of(job))

    def has_changed(self, request: Request, job: Job) -> None:
        """The page of such a seed is read, and its links are followed."""
        for mark in self._known(first_request(request, job), job).marks if job.entry.live else ():
            self.seen.join(mark, job.entry, _task_of(job))  # nobody would forget it for one that is not live

    def list_begins(self, request: Request, job: Job) -> None:
        """The page, which has been read, is the first one of a list that ends where it is known."""
        for mark in self._marks(request, job) if job.entry.live else ():
            self.seen.begin(mark, job.entry, _task_of(job))

    def _is_met(self, known: _Known, job: Job) -> bool:
        if known.asks is known.marks:
            return not self.seen.begin(known.asks[0], job.entry, _task_of(job))
        if self._is_known(known, job):
            return True
        for mark in known.marks:
            self.seen.begin(mark, job.entry, _task_of(job))
        return False

    def _is_known(self, known: _Known, job: Job) -> bool:
        task = _task_of(job)
        of_seed = (self.seen.is_met_for(ask, job.entry, task) for ask in known.asks_of_seed)
        return any(self.seen.knows(ask, task) for ask in self._asked_of(known, job)) or any(of_seed)

    @staticmethod
    def _asked_of(known: _Known, job: Job) -> tuple[bytes, ...]:
        return known.marks[:1] if job.parent is None and job.seed.spilled is None else known.asks

    def spilled(self, request: Request, job: Job) -> None:
        """The page of this job goes to the seed topic: see Seen."""
        for mark in self._marks_had(request, job):
            self.seen.spill(mark, job.entry, _task_of(job))

    def not_fetched(self, request: Request, job: Job) -> None:
        """The page of this job is given up, and is not done with its seed."""
        for mark in self._marks_had(request, job):
            self.seen.drop(mark, job.entry, _task_of(job))

    def not_spilled(self, request: Request, job: Job) -> None:
        self.arrived(request, job)
        for mark in self._marks(request, job) if job.entry.live else ():
            self.seen.begin(mark, job.entry, _task_of(job))

    def arrived(self, request: Request, job: Job) -> None:
        for mark in self._marks(request, job):
            self.seen.arrive(mark, _task_of(job))

    def new_pages(self, urls: Iterable[str], job: Job) -> list[str]:
        """The links of a page that are worth a request: the others would be filtered, and count as such.

        Without this every duplicate would cost a request, its way through the spider middlewares and
        a fingerprint. With DUPEFILTER_DEBUG, or a fingerprinter of the user's own, all are let through.
        """
        if not self._is_plain or self.debug:
            return list(urls)
        found = list(urls)
        knows, task = self.seen.knows, _task_of(job)
        scope, form = job.seed.page_scope, self._form_for(job)
        if self._filters_seeds and form is not None:
            new = [url for url in found if not any(knows(ask, task) for ask in self._compared(url, scope, form).asks)]
        else:
            new = [url for url in found if not knows(page_fingerprint(url, scope, form), task)]
        if len(new) < len(found):
            assert self._crawler is not None  # as the job came from there
            count(self._crawler, "dupefilter/filtered", len(found) - len(new))
        return new

    def are_one(self, url: str, other: str, job: Job) -> bool:
        """Whether links to both are compared as one page, so that the second of them is not fetched."""
        form = self._form_for(job)
        return self._is_plain and page_fingerprint(url, None, form) == page_fingerprint(other, None, form)

    def fingerprint(self, request: Request) -> bytes:
        """As Scrapy's; for a plain page without its detours. Within what the job's page is compared with."""
        return self._known(request, job_of(request)).marks[0]

    def _marks(self, request: Request, job: Job) -> tuple[bytes, ...]:
        if job.parent is None and job.entry.is_unproven:
            return ()  # anybody may have written which page this is
        return self._known(first_request(request, job), job).marks

    def _marks_had(self, request: Request, job: Job) -> list[bytes]:
        """Also in the forms that its task had before: it may have been found then."""
        if not (marks := self._marks(request, job)):
            return []
        first, had = first_request(request, job), self._forms_had.get(job.seed.task_id or "", ())
        return [*marks, *(mark for form in had[:-1] for mark in self._known_as(form, first, job).marks)]

    def _known(self, request: Request, job: Job | None) -> _Known:
        return self._known_as(None if job is None else self._form_for(job), request, job)

    def _known_as(self, form: UrlForm | None, request: Request, job: Job | None) -> _Known:
        scope = None if job is None else job.seed.page_scope
        found = self._known_within(scope, request, form)
        if (run := request.meta.get(meta_keys.KNOWN_RUN)) is None:
            return found
        own = self._known_within(f"{scope or ''}\n{run[1]}", request, form)
        return _Known(own.marks + found.marks, own.asks, found.asks)

    def _known_within(self, scope: str | None, request: Request, form: UrlForm | None) -> _Known:
        is_get = request.method == "GET" and not request.body
        if self._is_plain and is_get and meta_keys.VERBATIM_URL not in request.meta:
            return self._compared(request.url, scope, form)
        only = (scoped(super().fingerprint(request), scope),)
        return _Known(only, only)

    def _compared(self, url: str, scope: str | None, form: UrlForm | None) -> _Known:
        alike = page_fingerprint(url, scope, form)
        if form is None or not self._filters_seeds:
            only = (alike,)
            return _Known(only, only)
        exact, apart = page_fingerprint(url, scope), scoped(alike, "links")
        return _Known((exact,) if exact == alike else (exact, apart), (exact, alike, apart))

    def _form_for(self, job: Job) -> UrlForm | None:
        task_id, forms = job.seed.task_id, self._forms
        if forms is None or task_id is None:
            return self._form
        form, had = forms.of(task_id, self._form), self._forms_had.get(task_id, ())
        if form not in had[-1:]:  # the last is the one of now
            self._forms_had[task_id] = (*(one for one in had if one is not form), form)[-_MOST_FORMS:]
        return form

    @cached_property
    def _forms(self) -> TaskForms | None:
        return None if self._crawler is None else part_of(self._crawler, TaskForms)

    def close(self, reason: str) -> Deferred[None] | None:  # type: ignore[override]  # as BaseDupeFilter's
        super().close(reason)
        return None if self._courier is None else deferred_from_coro(self._courier.close())


def _task_of(job: Job) -> str | None:
    """Within what a page in flight is compared; None where the fingerprint says so itself."""
    return job.seed.task_id if job.seed.page_scope is None else None


def _is_check(job: Job) -> bool:
    return not job.is_link and job.method in ("GET", "HEAD") and bool(job.seed.directives.get("if_changed"))


# --- seed filter: filters seeds whose page is done or in flight ------------------------------------------
# Links that were sent there (`Seed.spilled`) are compared as they would have been where they were found: a
# page that is in flight or done here is not fetched once more. Seeds of producers are compared with
# SITE_FILTER_SEEDS only. Never sorted out: a seed with `dont_filter`, and an attempt at a page that another
# process began.
#
# A seed is looked at between the seed queue and the frontier, so one that is sorted out takes no turn of its host. It
# ends as `filtered`, without a result, when its page is done. While that is in flight for another seed it waits for
# the end of that one: its next owner may know that page as done, and have left ours to this message. It ends with one
# that has failed, or many would fail one after the other, each with its retries.

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 500  # that waited for one seed: the event loop goes on in between
_Place = tuple[Any, tuple[bytes, ...]]  # see `in_flight_for`


class _Asked(NamedTuple):
    """A seed to be decided."""

    seed: SeedInFlight
    request: Request | None
    has_failed: bool = False  # its page was in flight for a seed that has failed
    behind: deque[tuple[SeedInFlight, Request]] | None = None  # those that waited with it, to be decided next


class ForeignPages:
    """Over any DUPEFILTER_CLASS: seeds are not compared, only remembered."""

    def __init__(self, dupefilter: BaseDupeFilter) -> None:
        self._pages = dupefilter

    def request_seen(self, request: Request) -> bool:
        return self._pages.request_seen(request)

    def log(self, request: Request, spider: Spider) -> None:
        self._pages.log(request, spider)

    def begins(self, request: Request, job: Job) -> None:
        """Remembered, so that links to it are not fetched once more; not filtered here."""
        self._pages.request_seen(first_request(request, job))

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
            said = "SITE_FILTER_SEEDS is true over a Bloom filter: up to %g of the seeds are filtered and never fetched"
            logger.warning(said, error_rate)
        self._dupefilter = dupefilter
        self._all_seeds = all_seeds
        self._queue = queue
        self._completion = completion
        self._spider = spider
        self._background = background
        self._asked: deque[list[_Asked]] = deque()  # and answered
        self._held: dict[_Place, deque[tuple[SeedInFlight, Request]]] = {}

    def begins(self, request: Request, job: Job) -> None:
        """As in ForeignPages; it has come from the seed topic."""
        self._dupefilter.begins(request, job)

    def sort_seeds(self) -> None:
        """To be called right before the queue is emptied; those that may begin are in it then.

        At once: a seed that stayed would be compared with itself the next time.
        """
        fresh: list[_Asked] = []
        for waiting in self._queue.remove(self._is_sorted):
            spilled = waiting.seed.spilled
            is_compared = self._all_seeds if spilled is None else spilled.is_link
            request = self._request(waiting) if is_compared and not waiting.seed.dont_filter else None
            fresh.append(_Asked(waiting, request))
        if fresh and self._dupefilter.is_elsewhere:
            self._background.start(self._ask(fresh), "look-up of seeds")
        elif fresh:
            self._asked.append(fresh)
        for _ in range(_MOST_AT_ONCE):
            if not self._asked:
                break
            for asked in self._asked.popleft():
                self._decide(asked)
        if self._asked:
            self._queue.look()

    def _is_sorted(self, waiting: SeedInFlight) -> bool:
        """With SITE_FILTER_SEEDS each keeps its place among the others."""
        spilled = waiting.seed.spilled
        return self._all_seeds or (spilled is not None and spilled.is_link and not waiting.seed.dont_filter)

    async def _ask(self, fresh: list[_Asked]) -> None:
        try:
            await self._dupefilter.prefetch(asked.request for asked in fresh if asked.request is not None)
        except Exception:  # the seeds go on all the same
            logger.exception("Seeds could not be looked up in the dupefilter")
        self._asked.append(fresh)
        self._queue.look()

    def _decide(self, asked: _Asked) -> None:
        behind = asked.behind
        if asked.seed.live and (place := self._place(asked)) is not None:  # else its partition went elsewhere meanwhile
            if place not in self._held:
                self._held[place] = deque()
                self._dupefilter.seen.after(place[0], partial(self._decide_again, place))
            self._held[place].append((asked.seed, cast(Request, asked.request)))
            self._held[place].extend(behind or ())
        elif behind:
            self._asked.append([_Asked(*behind.popleft(), asked.has_failed, behind)])

    def _place(self, asked: _Asked) -> _Place | None:
        """Behind what a seed waits; None when it is queued, or ends here."""
        waiting, request, has_failed, _ = asked
        if request is None or not (has_failed or self._is_known(waiting, request)):
            self._queue.push(waiting)
        elif has_failed or (place := self._dupefilter.in_flight_for(request)) is None:
            self._dupefilter.log(request, self._spider)
            self._completion.end_as(waiting, Outcome.FILTERED)
        elif waiting.is_suspected:  # what it would wait for may wait until this one was done alone
            self._queue.push(waiting)
        else:
            return place
        return None

    def _decide_again(self, place: _Place) -> None:
        first, behind = place[0], self._held.pop(place)
        waiting, request = behind.popleft()
        has_failed = first.outcome is Outcome.FAILURE and not first.holds
        has_failed = has_failed and self._dupefilter.in_flight_for(request) == place
        self._asked.append([_Asked(waiting, request, has_failed, behind)])
        self._queue.look()

    def _is_known(self, waiting: SeedInFlight, request: Request) -> bool:
        try:
            job = job_of(request)
            if waiting.seed.spilled is not None and job is not None:
                self._dupefilter.arrived(request, job)
            return self._dupefilter.request_seen(request)
        except Exception:  # of a fingerprinter of the user's own, say: those behind it go on, and so does it
            logger.exception("A seed could not be compared: %r", request)
            return False

    def _request(self, waiting: SeedInFlight) -> Request | None:
        """What would be requested for a seed; None when that is refused, which is found when it begins."""
        try:
            request, job = seed_request(waiting, self._spider)
        except Exception:  # noqa: BLE001 - it is set aside when it begins
            return None
        request.meta[meta_keys.JOB] = job
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
