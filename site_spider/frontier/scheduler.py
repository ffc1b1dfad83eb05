"""Scrapy's scheduler: passes requests to the dispatcher, or to Scrapy's own for spiders without seeds."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

from scrapy import Request, Spider
from scrapy.core.engine import ExecutionEngine
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred

from site_spider.engine import flow as engine_hooks
from site_spider.engine.background import Turns
from site_spider.engine.scrapy_parts import takes_seeds
from site_spider.frontier.politeness import PoliteFrontier
from site_spider.frontier.priority_queue import place, queue_lengths
from site_spider.frontier.spill import Spill
from site_spider.frontier.waiter import Waiter, WaitingLink, as_request
from site_spider.intake.room import BackPressure
from site_spider.intake.seed_queue import SeedQueue, seed_request
from site_spider.intake.suspects import Quarantine
from site_spider.ledger.completion import Completion, Job, adopt, current_job, job_of, origin_of, work_on
from site_spider.ledger.ledger import SeedInFlight
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.pipeline import Results

# --- Everything that waits in a crawl: frontier, seed queue, requests being spilled ----------------------

logger = logging.getLogger(__name__)


class Queues:
    """On the event loop's thread only."""

    def __init__(
        self,
        seeds: SeedQueue,  # level 0: never reclaimed
        room: PoliteFrontier,
        spill: Spill,
        completion: Completion,
        dead_letters: DeadLetters,
        quarantine: Quarantine,
        sort_seeds: Callable[[], None],  # takes those that are not to be fetched out of `seeds`
    ) -> None:
        self.seeds = seeds
        self.room = room
        self._spill = spill
        self._completion = completion
        self._dead_letters = dead_letters
        self._quarantine = quarantine
        self._sort_seeds = sort_seeds

    def __len__(self) -> int:
        return len(self.room) + len(self.seeds)

    def put(self, request: Request, job: Job | None, *, is_link: bool) -> None:
        """A request waits, or goes to the seed topic; it holds its seed in either case."""
        if job is None:
            self.room.put(request)
            return
        leaves = self._spill.wants(request, job, is_link=is_link)
        if is_link and not leaves:
            job.entry.pages += 1
            if self.room.put_link(request, job):
                self._completion.ledger.hold(job.entry)  # a link waits as less than a request
                return
        self._completion.accept(request, job)
        try:
            if not (leaves and self._spill.send(request, job, is_link=is_link)):
                self.room.put(request)
        except Exception:
            job.written = job.written or is_link  # by who hears of the error
            self._completion.ended(request)
            raise

    def admit_seeds(self) -> None:
        """Let the seeds that may begin wait among the requests, each for its host."""
        if self.seeds.is_due:
            self.seeds.begin_sorting()
            self._sort_seeds()
        for waiting in self.room.take_kept_back() if self.room.keeps_back else ():
            if waiting.live and self._quarantine.may_begin(waiting):
                self._admit(waiting)
            elif waiting.live:
                self.room.keeps_back.append(waiting)
        while (next_one := self.seeds.pop()) is not None:
            self._admit(next_one)
        self._quarantine.proceed_alone()  # the next suspect begins, if it may, when nothing else is under way

    def _admit(self, waiting: SeedInFlight) -> None:
        try:
            self.room.put_seed(waiting)
        except Exception as error:  # of this one alone: settings for its host, say
            logger.exception("A seed could not be queued: %s", waiting.seed.url)
            self._dead_letters.set_aside(waiting, f"the seed could not be queued: {error!r}")

    async def take_out(self, unwanted: Callable[[Waiter], bool]) -> AsyncIterator[Waiter]:
        """Take out what `unwanted` picks of all that waits, in turns of the event loop; the oldest seeds first."""
        turns = Turns.of_running_loop()
        async for picked in turns.through(self._taken_out(unwanted)):
            async for waiter in turns.through(picked):
                yield waiter

    def _taken_out(self, unwanted: Callable[[Waiter], bool]) -> Iterator[Sequence[Waiter]]:
        yield from self.room.remove(unwanted)
        kept_back = self.room.take_kept_back()
        picked = dict.fromkeys(filter(unwanted, kept_back))
        self.room.keeps_back.extend(waiting for waiting in kept_back if waiting not in picked)
        yield [*picked]
        yield self.seeds.remove(unwanted)

    async def look(self) -> None:
        """To be called now and then; what takes long shares the turns of the event loop."""
        self.room.load.look()
        if self.room.fencings:
            await self._drop_fenced()
        await self._spill.look()

    def lengths(self) -> dict[str, int]:
        """How many requests wait by level, how many are being spilled, and what all of them weigh."""
        load = self.room.load
        lengths = queue_lengths(self.room.frontier.lengths())
        return {**lengths, "spilling": load.spilling, "bytes": load.bytes}

    async def _drop_fenced(self) -> None:
        async for removed in Turns.of_running_loop().through(self.room.remove_fenced()):
            for waiter in removed:
                self.room.drop(waiter)


# --- Enqueues requests and gives out the next one: the scheduler's work for seeds ------------------------


class Pages(Protocol):
    """Which pages were met before."""

    def request_seen(self, request: Request) -> bool:
        """Whether the same request was met before; it is remembered if not."""

    def log(self, request: Request, spider: Spider) -> None:
        """A request was filtered."""

    def begins(self, request: Request, job: Job) -> None:
        """The first request of a seed is made; it is remembered, not filtered."""


@dataclass(eq=False)
class Dispatcher:
    """On the event loop's thread only."""

    _engine: ExecutionEngine
    _spider: Spider
    _count: Callable[[str], None]  # in Scrapy's statistics
    _queues: Queues
    _completion: Completion
    _results: Results
    _dead_letters: DeadLetters
    _pages: Pages
    _back_pressure: BackPressure
    _prepare: Callable[[Request, Job], None]

    def __len__(self) -> int:
        return len(self._queues)

    # --- in -----------------------------------------------------------------------------------

    def enqueue(self, request: Request) -> bool:
        """Queue a request unless it is a duplicate. Never raises: Scrapy would lose the child silently."""
        try:
            return self._enqueue(request)
        except Exception as error:
            logger.exception("A request could not be queued: %r", request, extra={"spider": self._spider})
            self._count("scheduler/failed")
            self._write_lost(request, error)
            return False

    def _write_lost(self, request: Request, error: Exception) -> None:
        """What could not be queued gets a failure result of its own."""
        parent = current_job()
        if parent is None or parent.is_over or job_of(request) is parent:
            return  # of no seed; or another attempt at the page: the job ends without a result, which is seen
        job = Job(request, parent.entry, parent)
        job.error = f"the request could not be queued: {error!r}"
        self._results.write_missing(job)

    def _enqueue(self, request: Request) -> bool:
        if self._completion.knows(request):
            request = request.copy()  # the same object again: its ending could not be told from the first's
        same_job = job_of(request)
        job = adopt(request, partial(engine_hooks.is_being_scraped, self._engine))
        if job is not None and not job.entry.live:
            self._completion.repeats.broken(job.entry)
            return False  # its seed is another process's now
        is_another_attempt = job is not None and job is same_job
        if not (request.dont_filter or is_another_attempt) and self._pages.request_seen(request):
            self._pages.log(request, self._spider)
            return False
        place(request, origin_of(request), is_new=job is not same_job)
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
        work_on(None)
        if self._back_pressure.hindrance():
            return None
        if self._back_pressure.may_admit():
            self._queues.admit_seeds()
        else:
            self._queues.room.withdraw_seeds()
        while (request := self._queues.room.next(self._build)) is not None:
            try:
                if (job := job_of(request)) is not None:
                    self._prepare(request, job)
            except Exception as error:  # noqa: BLE001 - of this request alone, and the next one comes
                self._queues.room.came_back(request)
                self._end_badly(request, error)
                continue
            self._count("scheduler/dequeued/memory")
            self._count("scheduler/dequeued")
            break
        work_on(request)
        return request

    def _end_badly(self, request: Request, error: Exception) -> None:
        """What could not be begun gets a failure result."""
        logger.error("A request could not be begun: %r", request, exc_info=error, extra={"spider": self._spider})
        self._count("scheduler/failed")
        job = job_of(request)
        if job is not None:
            job.error = f"the request could not be begun: {error!r}"
            self._completion.ended(request)

    def _build(self, waiter: Waiter) -> Request | None:
        """The request of what waited; when there can be none, its seed is set aside."""
        if isinstance(waiter, SeedInFlight):
            return self._build_seed(waiter)
        return self._build_link(waiter) if isinstance(waiter, WaitingLink) else waiter

    def _build_seed(self, waiting: SeedInFlight) -> Request | None:
        try:
            request, job = seed_request(waiting, self._spider)
        except Exception as error:  # noqa: BLE001 - whatever Scrapy dislikes about this seed, the next one comes
            self._dead_letters.set_aside(waiting, f"Scrapy refuses the request: {error}")
            return None
        self._completion.begin(request, job)
        try:
            if not waiting.is_unproven:
                self._pages.begins(request, job)
        except Exception as error:  # noqa: BLE001 - of a fingerprinter of the user's own, say
            self._end_badly(request, error)
            return None
        return request

    def _build_link(self, link: WaitingLink) -> Request | None:
        try:
            request, job = as_request(link)
        except Exception as error:
            logger.exception("A link could not be begun: %s", link.url, extra={"spider": self._spider})
            self._count("scheduler/failed")
            self._dead_letters.give_up(link.parent.entry, f"the link {link.url} could not be begun: {error!r}")
            self._completion.release(link.parent.entry)
            return None
        self._completion.begin_job(request, job)
        return request


class SeedScheduler(Scheduler):
    """Serves redirected requests, then discovered links, then seeds, then retries.

    For a spider that takes no seeds it is Scrapy's own scheduler, JOBDIR included. For one that does, the
    wiring calls `serve` as the spider opens; nothing is asked of a scheduler before that.
    """

    _is_ours = False
    _early: list[Request]  # of who gives some as the spider opens
    _dispatcher: Dispatcher | None = None
    _fail: Callable[[BaseException], None]
    _close_crawl: Callable[[str], Coroutine[Any, Any, None]]

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks; the dupefilter is DUPEFILTER_CLASS. Raises ConfigError."""
        scheduler = super().from_crawler(crawler)
        scheduler._is_ours, scheduler._early = takes_seeds(crawler), []
        return scheduler

    def serve(
        self,
        dispatcher: Dispatcher,
        fail: Callable[[BaseException], None],
        close_crawl: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        """From now on requests come from the dispatcher; `close_crawl` is the end of the crawl."""
        self._dispatcher = dispatcher
        self._fail = fail
        self._close_crawl = close_crawl
        while self._early:
            dispatcher.enqueue(self._early.pop(0))

    def open(self, spider: Spider) -> Deferred[None] | None:
        if not self._is_ours:
            return super().open(spider)
        self.spider = spider
        return self.df.open()

    def close(self, reason: str) -> Deferred[None] | None:
        if not self._is_ours:
            return super().close(reason)
        if self._dispatcher is None:  # the crawl never started
            return self.df.close(reason)
        closed: Deferred[None] = deferred_from_coro(self._close_crawl(reason))
        return closed

    def __len__(self) -> int:
        if not self._is_ours:
            return super().__len__()
        return 1 if self._dispatcher is None else len(self._dispatcher)

    def enqueue_request(self, request: Request) -> bool:
        if not self._is_ours:
            return super().enqueue_request(request)
        if self._dispatcher is not None:
            return self._dispatcher.enqueue(request)
        self._early.append(request)
        return True

    def next_request(self) -> Request | None:
        if not self._is_ours:
            return super().next_request()
        if self._dispatcher is None:
            return None
        try:
            return self._dispatcher.next()
        except Exception as error:  # noqa: BLE001 - the engine would only log it and stall
            self._fail(error)
            return None
