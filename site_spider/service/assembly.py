"""Wires the parts of one crawl together, opens them in order and closes them in order."""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Self

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from site_spider.contracts.seed_log import Producer, SeedLog
from site_spider.download import descriptors
from site_spider.download.bodies import Bodies
from site_spider.engine import hooks as engine_hooks
from site_spider.engine.cookies import SeedCookies
from site_spider.frontier.queues import Queues
from site_spider.frontier.spill.spill import SentPages
from site_spider.frontier.spill.writer import SeedWriter
from site_spider.frontier.waiting_room import WaitingRoom
from site_spider.intake.handover import SINK_SECONDS, Handover
from site_spider.intake.intake import Intake
from site_spider.intake.seed_queue import Waiting
from site_spider.intake.seeds import Seeds
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Ledger
from site_spider.observe.document import NameCounts
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.delivery import Delivery
from site_spider.results.mishaps import Mishaps
from site_spider.results.outlets import Outlets
from site_spider.results.results import Results
from site_spider.seed.seed import parse_seed
from site_spider.service import exit_code
from site_spider.service import plugins as parts
from site_spider.service.ending import Ending
from site_spider.service.large_blocks import give_back_large_blocks
from site_spider.service.service_settings import ServiceSettings
from site_spider.service.startup import until_there
from site_spider.service.stop import Stop
from site_spider.service.ticker import tick
from site_spider.service.watchdog import Watchdog

if TYPE_CHECKING:
    from site_spider.frontier.scheduler import SeedScheduler

logger = logging.getLogger(__name__)

_LONGEST_KEPT_SECONDS = 10.0  # of the grace, for sinks and commit
_ANSWER_SECONDS = 10.0  # for the loop to answer a rebalance, beyond what it waits for


class SeedService:
    """The extension that runs the seed side of a crawl; for spiders with `takes_seeds`."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.settings = crawler.settings
        self.ending = Ending(crawler)
        self.background = self.ending.background
        self.completion = Completion(Ledger(owner=secrets.token_hex(4)))
        self.config: ServiceSettings  # from here on set as the spider opens
        self.results: Results
        self.failures = NameCounts()
        self.deliveries: list[Delivery] = []
        self.bodies: Bodies | None = None  # likewise
        self.queues = Queues(crawler, self.completion, self._wake)
        self.seeds: Seeds | None = None
        self.dead_letters: DeadLetters | None = None
        self._log: SeedLog | None = None
        self._producer: Producer | None = None
        self._intake: Intake | None = None
        self._outlets: Outlets | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._watchdog: Watchdog | None = None
        self.handover: Handover | None = None
        self._pages: SentPages | None = None  # the dupefilter, if it is one of ours
        self._mishaps = Mishaps(crawler.signals)
        self._stop: Stop | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks."""
        if not getattr(crawler.spidercls, "takes_seeds", False):
            raise NotConfigured
        service = cls(crawler)
        crawler.signals.connect(service._spider_opened, signal=signals.spider_opened)
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
        self._pages = scheduler.df if isinstance(scheduler.df, SentPages) else None
        for ended in (self._ended, self.queues.links_in_hand.ended):
            engine_hooks.on_request_ended(self.crawler.engine, ended)
        engine_hooks.on_drain(self.crawler.engine, self._drain)
        came_back = lambda request: self.waiting_room.came_back(request)  # noqa: E731, PLW0108 - the room is made later
        engine_hooks.shorten(
            self.crawler.engine, came_back, self.completion.broken_off, self.background.start
        )

    def _ended(self, request: Request) -> None:
        if self.bodies is not None:
            self.bodies.ended(request)
        self.completion.ended(request)

    async def _spider_opened(self) -> None:
        try:
            await self._open()
        except Exception as error:  # noqa: BLE001 - of somebody's own sink, say; Scrapy would go on without seeds
            self.ending.refuse_to_start(error)

    async def _open(self) -> None:
        descriptors.raise_limit()
        self.config = config = ServiceSettings.read(self.settings)
        self._stop = Stop(config.stop_grace_seconds, lambda: self.ending.exit_code)
        self._stop.catch_signals()
        self.background.watch_threads()
        give_back_large_blocks()
        sinks = parts.sinks(self.settings)
        self._outlets = Outlets(self.deliveries, config, self.completion, self.ending.fail)
        log = self._log = parts.seed_log(self.settings)
        await until_there(lambda: asyncio.to_thread(log.check, 5.0), config.startup_wait_seconds)
        self.bodies = Bodies(
            config.bodies_bytes,
            self._outlets.has_taken_most,
            lambda request: request in engine_hooks.requests_in_progress(self.crawler.engine),
            self._wake,
        )
        await self._outlets.open(sinks, self._sink_changed)
        await self._wire(config, log, self._outlets)
        descriptors.check_limit(self.settings)
        self._start(config, log, self._outlets)

    async def _wire(self, config: ServiceSettings, log: SeedLog, outlets: Outlets) -> None:
        completion = self.completion
        self._producer = log.producer()
        self.dead_letters = DeadLetters(
            self._producer, config.dead_letter_topic, completion.set_aside, self.background
        )
        self.results = Results(self.deliveries, completion, self.dead_letters.set_aside, self.failures)
        completion.write_missing = self.results.write_missing
        completion.give_up = self.results.give_up
        cookies = SeedCookies(self.crawler)
        completion.on_seed_ended.append(cookies.forget)
        assert self.crawler.spider is not None
        writer = SeedWriter(self.crawler.spider, cookies.for_request, config.spill_keys)
        spill = self.queues.open_spill(
            config.spill, outlets.spill_by(self._producer), writer, self._pages, self._count
        )
        spill.is_crowded = outlets.is_crowded
        if config.host_ownership:
            await self.queues.share_hosts(config.seed_topic, log.partitions)

    def _start(self, config: ServiceSettings, log: SeedLog, outlets: Outlets) -> None:
        spider, stop = self.crawler.spider, self._stop
        assert spider is not None
        assert stop is not None
        assert self.dead_letters is not None
        callbacks = frozenset(spider.seed_callbacks)  # type: ignore[attr-defined]
        seeds = Seeds(self.queues.seeds, self.completion, self.dead_letters, config.limits, spider)
        seeds.load = self.waiting_room.load
        intake = Intake(
            lambda listener: outlets.consumer(log, listener),
            seeds,
            partial(parse_seed, callbacks=callbacks, keys=config.spill_keys),
            config.revoke_grace_seconds + SINK_SECONDS + _ANSWER_SECONDS,
            outlets.commits_of_intake,
        )
        self.handover = seeds.handover = Handover(
            self.crawler.engine, outlets, config.revoke_grace_seconds, stop
        )
        # few are in flight, and the next wait for these; or a partition is about to leave
        outlets.join(self.results, lambda: seeds.is_cautious or seeds.handover.active, self._wake)
        seeds.may_poll = lambda: self.may_download() and not outlets.is_crowded()
        seeds.on_arrival = self._wake
        seeds.on_failure = self.ending.fail
        self.ending.on_death = seeds.die
        seeds.commit_first = outlets.commits.commit_first
        self.queues.may_begin = seeds.isolation.lets_begin
        self.queues.refuse = seeds.refuse
        self.waiting_room.on_starved = seeds.starved
        self.seeds, self._intake = seeds, intake
        if stop.owns_process:
            self.ending.leave_at_once = lambda: stop.exit_now(self.ending.exit_code)
            self._watchdog = Watchdog(
                config.callback_timeout_seconds, lambda: stop.exit_now(exit_code.SOFTWARE)
            )
        intake.start()
        self._ticker = self.background.start(self._tick(seeds, outlets), "ticker")
        logger.info(
            "Taking seeds from %s of %s as a member of %s",
            config.seed_topic,
            log.address,
            config.consumer_group,
        )

    async def _tick(self, seeds: Seeds, outlets: Outlets) -> None:
        assert self.bodies is not None
        await tick([seeds.look, self.bodies.look], self.queues.look, outlets.commits.tick)

    # --- while crawling -----------------------------------------------------------------------

    def may_download(self) -> bool:
        """False while a sink or the seed topic takes nothing, bodies fill the memory, partitions leave
        or the crawl stops.
        """
        if self.handover is not None and (self.handover.stop.has_begun or self.handover.active):
            return False
        if self.bodies is not None and not self.bodies.has_room:
            return False
        return self.waiting_room.load.may_download and self._outlets is not None and self._outlets.take_more()

    @property
    def waiting_room(self) -> WaitingRoom:
        """Where requests and seeds wait for their turn."""
        return self.queues.room

    def may_admit(self) -> bool:
        """Whether seeds may begin; while trees keep too many results, none is to be in their way."""
        assert self._outlets is not None
        if self._outlets.is_crowded():
            self.queues.withdraw_seeds()
            return False
        return True

    def admit_seeds(self) -> None:
        """Let the seeds that may begin wait among the requests, each for its host."""
        if self.seeds is not None:
            self.queues.admit_seeds()
            self.seeds.isolation.proceed()

    def begin_seed(self, waiting: Waiting) -> Request | None:
        """The first request of a seed; None when there can be none."""
        return None if self.seeds is None else self.seeds.begin(waiting)

    def _count(self, key: str) -> None:
        assert self.crawler.stats is not None
        self.crawler.stats.inc_value(key)

    def _sink_changed(self) -> None:
        if self.bodies is not None:
            self.bodies.look()
        self._wake()

    def _wake(self) -> None:
        engine_hooks.wake(self.crawler.engine)

    # --- closing --------------------------------------------------------------------------------

    async def _drain(self, drain: engine_hooks.Drain) -> None:
        """Finish what is downloading, but keep a part of the grace for the sinks and the commit."""
        if self._stop is None:  # it never started
            return await drain()
        kept_seconds = min(_LONGEST_KEPT_SECONDS, self.config.stop_grace_seconds / 3)
        seconds = self._stop.seconds_left() - kept_seconds
        try:
            async with asyncio.timeout(seconds):
                await drain()
        except TimeoutError:
            logger.warning(
                "%d requests did not end within %.0f s of the stop; their seeds will be replayed",
                len(engine_hooks.requests_in_progress(self.crawler.engine)),
                seconds,
            )
            await self.flush()
            await self.leave()
            if self._stop.owns_process:
                self._stop.exit_now(self.ending.exit_code)

    async def flush(self) -> None:
        """Let every sink take what waits; what it does not take in time is replayed."""
        if self._stop is not None and self._outlets is not None:
            await self._outlets.close(self._stop.seconds_left())

    async def leave(self) -> None:
        """Commit what is complete and leave the group; called when nothing else happens any more."""
        if self._stop is None:
            return  # it never started
        if self._producer is not None:
            await asyncio.to_thread(self._producer.flush, self._stop.seconds_left())
            await asyncio.sleep(0)  # lets the last dead letters reach the ledger
        if self._ticker is not None:
            self._ticker.cancel()
        if self._watchdog is not None:
            self._watchdog.stop()
        self.queues.close()
        if self.handover is not None:
            self.handover.close()
        if self._intake is not None:
            ledger = self.completion.ledger
            logger.info("Seeds: %d complete, %d in flight", sum(ledger.outcomes.values()), ledger.in_flight)
            self._intake.stop()
            if not await self._intake.stopped(self._stop.seconds_left()):
                logger.warning("The consumer did not leave its group in time")
        for part in (self._producer, self._log):
            if part is not None:
                await asyncio.to_thread(part.close)
        self.background.forget_threads()
