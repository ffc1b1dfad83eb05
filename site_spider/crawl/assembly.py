"""Wires the parts of one crawl together, opens them in order and closes them in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn, Self

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, NotConfigured
from twisted.python.failure import Failure

from site_spider.core import options
from site_spider.core.batch import BatchLimits
from site_spider.core.frontier import Frontier
from site_spider.core.ledger import Ledger
from site_spider.core.seed_log import Producer, SeedLog
from site_spider.core.sink import Sink
from site_spider.core.statistics import NameCounts, queue_lengths
from site_spider.crawl import engine_hooks, lineage, parts
from site_spider.crawl.completion import Completion
from site_spider.crawl.dead_letters import DeadLetters
from site_spider.crawl.delivery import Delivery
from site_spider.crawl.intake import Intake
from site_spider.crawl.results import Results
from site_spider.crawl.seed_queue import SeedQueue
from site_spider.crawl.seeds import Seeds
from site_spider.crawl.stop import Stop
from site_spider.errors import ConfigError, LogUnavailable, SiteSpiderError

if TYPE_CHECKING:
    from site_spider.crawl.scheduler import SeedScheduler

logger = logging.getLogger(__name__)

EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h: a server is away
EXIT_SOFTWARE = 70  # EX_SOFTWARE: ended by an error of its own, to be started again
EXIT_CONFIG = 78  # EX_CONFIG: a setting cannot be used
_LONGEST_KEPT_SECONDS = 10.0  # of the grace, for sinks and commit
_POSITIONS_SECONDS = 0.25  # how often the intake is told what is safe to commit


class SeedService:
    """The extension that runs the seed side of a crawl; for spiders with `takes_seeds`."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.settings = crawler.settings
        self.completion = Completion(Ledger())
        self.results: Results
        self.failures = NameCounts()
        self.callback_timeout_seconds = 0.0
        self.deliveries: list[Delivery] = []
        self.seed_queue = SeedQueue()  # level 0: made with the scheduler, never reclaimed
        self.seeds: Seeds | None = None
        self.dead_letters: DeadLetters | None = None
        self._log: SeedLog | None = None
        self._producer: Producer | None = None
        self._intake: Intake | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._frontier: Frontier[Request] = Frontier()  # the scheduler's, once that is open
        self._backlog_bytes = 0
        self._grace_seconds = 0.0
        self._stop: Stop | None = None
        self._deadline: float | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks."""
        if not getattr(crawler.spidercls, "takes_seeds", False):
            raise NotConfigured
        service = cls(crawler)
        connect = crawler.signals.connect
        connect(service._spider_opened, signal=signals.spider_opened)
        connect(service._spider_error, signal=signals.spider_error)
        connect(service._item_failed, signal=signals.item_error)
        connect(service._item_dropped, signal=signals.item_dropped)
        return service

    @classmethod
    def of(cls, crawler: Crawler) -> Self | None:
        """The service of a crawl; None when its spider takes no seeds."""
        extensions = crawler._extensions
        return None if extensions is None else crawler.get_extension(cls)

    # --- opening ------------------------------------------------------------------------------

    def attach(self, scheduler: SeedScheduler) -> None:
        """Called by the scheduler as it opens."""
        self.completion.seen = getattr(scheduler.df, "seen", self.completion.seen)
        self.completion.drop_fenced = scheduler.drop_fenced
        self._frontier = scheduler.frontier
        engine_hooks.on_request_ended(self.crawler.engine, self.completion.ended)
        engine_hooks.on_drain(self.crawler.engine, self._drain)

    async def _spider_opened(self) -> None:
        try:
            await self._open()
        except SiteSpiderError as error:
            self.refuse_to_start(error)

    def refuse_to_start(self, error: SiteSpiderError) -> NoReturn:
        """Say why in one line, and have the engine close. For handlers of spider_opened."""
        logger.error("Cannot start: %s", error)
        self._set_exit_code(EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_UNAVAILABLE)
        raise CloseSpider("cannot_start")

    async def _open(self) -> None:
        settings = self.settings
        wait_seconds = options.seconds(settings, "SITE_STARTUP_WAIT_SECONDS")
        self.callback_timeout_seconds = options.seconds(
            settings, "SITE_CALLBACK_TIMEOUT_SECONDS", minimum=0.001
        )
        self._grace_seconds = options.seconds(settings, "SITE_STOP_GRACE_SECONDS")
        self._stop = Stop(self._grace_seconds, self._exit_code)
        self._stop.catch_signals()
        self._backlog_bytes = options.integer(settings, "SITE_SINK_BACKLOG_BYTES", minimum=1)
        limit = options.integer(settings, "SITE_MAX_SEEDS_IN_FLIGHT", minimum=1)
        topic = options.text(settings, "SITE_SEED_TOPIC", required=True)
        group = options.text(settings, "SITE_CONSUMER_GROUP", required=True)
        dead_letter_topic = options.text(settings, "SITE_DEAD_LETTER_TOPIC") or f"{topic}.dead-letters"
        deliveries = [self._delivery(sink) for sink in parts.sinks(settings)]
        self._log = log = parts.seed_log(settings)
        await _until_there(lambda: asyncio.to_thread(log.check, 5.0), wait_seconds)
        for delivery in deliveries:
            await delivery.open(wait_seconds)
            self.deliveries.append(delivery)
        self._producer = log.producer()
        assert self.crawler.spider is not None
        self.dead_letters = DeadLetters(self._producer, dead_letter_topic, self.completion.set_aside)
        self.results = Results(self.deliveries, self.completion, self.dead_letters.set_aside, self.failures)
        self.completion.write_missing = self.results.write_missing
        seeds = Seeds(self.seed_queue, self.completion, self.dead_letters, limit, self.crawler.spider)
        self.seeds = seeds
        seeds.may_poll = self.may_download
        seeds.on_arrival = self._wake
        seeds.on_failure = self._intake_failed
        callbacks = frozenset(self.crawler.spider.seed_callbacks)  # type: ignore[attr-defined]
        self._intake = Intake(
            lambda listener: log.consumer(topic, group, listener), seeds, callbacks, "intake"
        )
        self._intake.start()
        self._ticker = asyncio.create_task(self._tell_positions())
        logger.info("Taking seeds from %s of %s as a member of %s", topic, log.address, group)

    def _delivery(self, sink: Sink) -> Delivery:
        limits = BatchLimits(
            size_bytes=options.integer(self.settings, "SITE_SINK_BATCH_BYTES", minimum=1),
            age_seconds=options.seconds(self.settings, "SITE_SINK_FLUSH_SECONDS"),
        )
        return Delivery(sink, limits=limits, on_change=self._wake)

    async def _tell_positions(self) -> None:
        while self._intake is not None:
            self._intake.want_committed(self.completion.positions())
            await asyncio.sleep(_POSITIONS_SECONDS)

    # --- while crawling -----------------------------------------------------------------------

    def may_download(self) -> bool:
        """False while a sink is away, too much waits for it, or the crawl stops. Any thread may ask."""
        if self._deadline is not None:
            return False
        limit = self._backlog_bytes
        return all(delivery.available and delivery.backlog_bytes < limit for delivery in self.deliveries)

    def next_seed(self) -> Request | None:
        """The first request of the next seed; None when none waits."""
        return None if self.seeds is None else self.seeds.next_request()

    def queue_lengths(self) -> dict[str, int]:
        """How many requests wait, by the names of the levels."""
        return queue_lengths(self._frontier.lengths(), self.seed_queue.waiting)

    def _wake(self) -> None:
        engine_hooks.wake(self.crawler.engine)

    def _intake_failed(self, error: BaseException) -> None:
        code = EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_UNAVAILABLE
        if not isinstance(error, SiteSpiderError):
            code = EXIT_SOFTWARE
        logger.error(
            "No more seeds can be taken: %s", error, exc_info=error if code == EXIT_SOFTWARE else None
        )
        self._set_exit_code(code)
        self._closing = asyncio.ensure_future(self.crawler.engine.close_spider_async(reason="intake_failed"))

    def _set_exit_code(self, code: int) -> None:
        assert self.crawler.spider is not None
        self.crawler.spider.exit_code = code  # type: ignore[attr-defined]

    def _exit_code(self) -> int:
        return getattr(self.crawler.spider, "exit_code", 0)

    # --- why there may be no result -------------------------------------------------------------

    def _spider_error(self, failure: Failure, response: object) -> None:
        job = lineage.current_job()
        if job is not None:
            job.error = f"{type(failure.value).__name__} in the spider: {failure.getErrorMessage()}"
            job.status = getattr(response, "status", None)

    def _item_failed(self, failure: Failure, response: object) -> None:
        job = lineage.current_job()
        if job is not None:
            job.error = f"{type(failure.value).__name__} in an item pipeline: {failure.getErrorMessage()}"
            job.status = getattr(response, "status", None)

    def _item_dropped(self, exception: BaseException, response: object) -> None:
        job = lineage.current_job()
        if job is not None:
            job.error = f"the item was dropped: {exception}"
            job.status = getattr(response, "status", None)

    # --- closing --------------------------------------------------------------------------------

    async def _drain(self, drain: engine_hooks.Drain) -> None:
        """Finish what is downloading, but keep a part of the grace for the sinks and the commit."""
        if self._stop is None:  # it never started
            return await drain()
        self._stop.begin()
        kept_seconds = min(_LONGEST_KEPT_SECONDS, self._grace_seconds / 3)
        seconds = self._seconds_left() - kept_seconds
        try:
            async with asyncio.timeout(seconds):
                await drain()
        except TimeoutError:
            logger.warning(
                "%d requests did not end within %.0f s of the stop; their seeds will be replayed",
                engine_hooks.requests_in_progress(self.crawler.engine),
                seconds,
            )
            await self.flush()
            await self.leave()
            self._stop.exit_now(self._exit_code())

    def _seconds_left(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._grace_seconds
        return max(1.0, self._deadline - now)

    async def flush(self) -> None:
        """Let every sink take what waits; what it does not take in time is replayed."""
        seconds = self._seconds_left()
        left = await asyncio.gather(*(delivery.close(seconds) for delivery in self.deliveries))
        if sum(left):
            logger.warning(
                "%d results were not taken by their sinks; their seeds will be replayed", sum(left)
            )

    async def leave(self) -> None:
        """Commit what is complete and leave the group; called when nothing else happens any more."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.flush, self._seconds_left())
            await asyncio.sleep(0)  # lets the last dead letters reach the ledger
        if self._ticker is not None:
            self._ticker.cancel()
        if self._intake is not None:
            ledger = self.completion.ledger
            logger.info("Seeds: %d complete, %d in flight", sum(ledger.outcomes.values()), ledger.in_flight)
            self._intake.want_committed(self.completion.positions())
            self._intake.stop()
            if not await self._intake.stopped(self._seconds_left()):
                logger.warning("The consumer did not leave its group in time")
        for part in (self._producer, self._log):
            if part is not None:
                await asyncio.to_thread(part.close)


async def _until_there(check: Callable[[], Awaitable[None]], wait_seconds: float) -> None:
    """Wait for a server that is away at start. Raises LogUnavailable after `wait_seconds`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    said = False
    while True:
        try:
            return await check()
        except LogUnavailable as error:
            if loop.time() >= deadline:
                raise
            if not said:
                logger.warning("Waiting up to %.0f s: %s", wait_seconds, error)
            said = True
        await asyncio.sleep(0.5)
