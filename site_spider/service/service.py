"""Opens, drives and closes a crawl, as an extension of Scrapy.

open    settings > servers there > parts wired > sinks, statistics, dupefilter open > intake joins the group
close   drain (downloads end) > sinks take what waits > last commit, the group is left
        > marks of the dupefilter > clients closed > last statistics
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from site_spider import options, runtime
from site_spider.download import descriptors
from site_spider.download.bodies import give_back_large_blocks
from site_spider.download.names import guard_reactor
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.engine import flow as engine_hooks
from site_spider.engine.callback_guard import SafeDownloader, Watchdog
from site_spider.engine.scrapy_parts import takes_seeds
from site_spider.errors import EXIT_SOFTWARE, ConfigError, LogUnavailable
from site_spider.frontier.scheduler import SeedScheduler
from site_spider.installation import form, left_out
from site_spider.observe.metrics.exporter import Exporter, serve_metrics
from site_spider.observe.snapshot import rss_bytes
from site_spider.outage import Outage, until_there
from site_spider.results.pipeline import PlacedItemProcessor
from site_spider.service import config as plugins
from site_spider.service.config import ServiceSettings, check_rights, spill_keys
from site_spider.service.log_lines import (
    say_idle_processes,
    say_starts_without_seeds,
    say_what_has_no_effect,
    say_who_waits_for_idle,
    where_results_go,
)
from site_spider.service.notices import NO_ITEMS, Notifier, Troubles, sender
from site_spider.service.stop import IDLE_CODE, Ending, Stop
from site_spider.service.wiring import Parts, Stores
from site_spider.sources.library import SourceFolder
from site_spider.sources.url_rules import UrlRulesFile
from site_spider.text import up_to

logger = logging.getLogger(__name__)

# --- ticker: runs the periodic work of a crawl on the event loop -----------------------------------------

_LOOK_SECONDS = 0.25
_COMMIT_SECONDS = 0.1  # how often the intake is told what is safe to commit
_COMMIT_SHARE = 0.05  # of the loop's time for that: with many seeds in flight it takes some milliseconds


async def tick(
    looks: Sequence[Callable[[], None]], look_at_queues: Callable[[], Awaitable[None]], commit: Callable[[], None]
) -> None:
    """Call all of them until cancelled: `commit` often, as far as it is quick, and the others less often."""
    look_at = 0.0
    while True:
        now = runtime.perf_counter()
        if is_time := now >= look_at:
            look_at = now + _LOOK_SECONDS
            for look in looks:
                look()
        began = runtime.perf_counter()
        commit()
        spent = runtime.perf_counter() - began
        if is_time:
            await look_at_queues()
        await asyncio.sleep(max(_COMMIT_SECONDS, spent / _COMMIT_SHARE))


# --- workers: starts the threads of `asyncio.to_thread` with the crawl -----------------------------------
# A stop needs some of them, and a process at its limit of threads could not start them then.

_COUNT = min(32, (os.cpu_count() or 1) + 4)  # as asyncio has by itself
_START_SECONDS = 10.0


async def start_workers() -> None:
    """Give the running loop its threads. Raises RuntimeError when not one can be started."""
    loop = asyncio.get_running_loop()
    workers = runtime.ThreadPoolExecutor(_COUNT, thread_name_prefix="site-worker")
    all_there = runtime.Barrier(_COUNT)
    started = [loop.run_in_executor(workers, all_there.wait, _START_SECONDS) for _ in range(_COUNT)]
    await asyncio.gather(*started)
    loop.set_default_executor(workers)


_LONGEST_KEPT_SECONDS = 10.0  # of the grace, for sinks and commit


class SeedService:
    """For spiders with `takes_seeds`."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._sources = _source_folder(crawler.settings)
        self._url_rules = UrlRulesFile.open(crawler.settings)
        self._send = sender(crawler.settings, spill_keys(crawler.settings))
        self._obeys_robots = options.boolean(crawler.settings, "ROBOTSTXT_OBEY")
        self._ending = Ending(crawler, self._leave_at_once)
        self._parts: Parts | None = None  # wired as the spider opens
        self._stop: Stop | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._metrics: Exporter | None = None  # opened first and closed last, so that /healthz answers
        self._at_close: list[Callable[[], object]] = []  # what ends that goes on beside the crawl
        self._forget_threads: Callable[[], None] = lambda: None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not takes_seeds(crawler):
            raise NotConfigured
        if older := left_out():
            logger.warning(older)
        _check_classes(crawler.settings)
        service = cls(crawler)
        if any(source.request.robots for source in service._sources.library.enabled):
            crawler.settings.set("ROBOTSTXT_OBEY", True, priority="cmdline")  # the middleware asks for it
        crawler.signals.connect(service._spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(service._spider_closed, signal=signals.spider_closed)
        return service

    @classmethod
    def of(cls, crawler: Crawler) -> Self | None:
        """The service of a crawl; None when its spider takes no seeds."""
        try:
            return crawler.get_extension(cls)
        except RuntimeError:  # not made yet
            return None

    @property
    def parts(self) -> Parts:
        """What it drives, from the opening of the spider on."""
        assert self._parts is not None, "the spider has not opened"
        return self._parts

    @property
    def is_open(self) -> bool:
        return self._ticker is not None

    # --- opening ------------------------------------------------------------------------------

    async def _spider_opened(self) -> None:
        try:
            await self._open()
        except Exception as error:  # noqa: BLE001 - of somebody's own sink, say; Scrapy would go on without seeds
            await self._ending.refuse_to_start(error)

    async def _open(self) -> None:
        settings, ending = self._crawler.settings, self._ending
        descriptors.raise_limit()
        give_back_large_blocks(beside_large_bodies=False)
        config = ServiceSettings(settings)
        say_what_has_no_effect(settings)
        assert self._crawler.spider is not None
        say_starts_without_seeds(self._crawler.spider)
        say_who_waits_for_idle(self._crawler)
        self._stop = stop = Stop(config.stop_grace_seconds, lambda: ending.exit_code)
        stop.catch_signals()
        if stop.owns_process:
            await start_workers()
            limit_seconds = config.callback_timeout_seconds
            watchdog = Watchdog(limit_seconds, lambda: stop.exit_now(EXIT_SOFTWARE), stop.look)
            self._at_close.append(watchdog.stop)
        self._forget_threads = ending.background.watch_threads()
        self._metrics = await serve_metrics(settings)
        stores = await self._stores(config)
        ending.check()
        guard_reactor(self._crawler)
        self._parts = parts = Parts(self._crawler, config, stores, stop, ending)
        _scheduler_of(self._crawler).serve(parts.dispatcher, ending.fail, self._close)
        engine_hooks.on_drain(self._crawler.engine, self._drain)
        await parts.sinks.open(config.startup_wait_seconds)
        if isinstance(parts.dupefilter, SeenDupeFilter):
            await parts.dupefilter.connect(config.startup_wait_seconds)
        await parts.partitions.ask()
        await asyncio.to_thread(parts.tasks.open, max(config.startup_wait_seconds, 5.0))
        descriptors.check_limit(settings)
        logger.info(
            "Taking seeds from %s of %s as a member of %s; results go to %s; site_spider is %s",
            ", ".join(config.tiers.topics),
            stores.log.address,
            config.consumer_group,
            where_results_go(settings),
            form(),
        )
        await self._start(parts)
        say_idle_processes(config.tiers.topics, sum(parts.partitions.counts.values()))

    async def _stores(self, config: ServiceSettings) -> Stores:
        """What the settings name, when the seed log is there and lets us use it."""
        wait_seconds, stores = config.startup_wait_seconds, self._named()
        away = Outage(logger, f"Waiting{up_to(wait_seconds)}", "The seed log is there")
        await until_there(lambda: asyncio.to_thread(stores.log.check, 5.0), LogUnavailable, wait_seconds, away)
        await asyncio.to_thread(check_rights, stores.log, config, self._crawler.settings)
        return stores

    def _named(self) -> Stores:
        settings = self._crawler.settings
        sinks, item_sinks = plugins.sinks(settings), plugins.sinks(settings, of_items=True)
        statistics, log = plugins.statistics_stores(settings), plugins.seed_log(settings)
        return Stores(log, sinks, item_sinks, statistics, self._sources, self._url_rules, self._obeys_robots)

    @classmethod
    async def rehearse(cls, crawler: Crawler, arguments: Mapping[str, str]) -> Stores:
        """Build what a start builds, and open nothing. Raises ConfigError."""
        engine_hooks.construct(crawler, arguments)
        service, config = cls.of(crawler), ServiceSettings(crawler.settings)
        assert service is not None
        _scheduler_of(crawler)
        stop = Stop(config.stop_grace_seconds, lambda: 0)
        parts = Parts(crawler, config, stores := service._named(), stop, service._ending)
        await asyncio.to_thread(parts.producer.close)
        return stores

    async def _start(self, parts: Parts) -> None:
        self._ending.check()  # it may have failed while its parts opened
        await parts.show()
        self._ending.check()
        background = self._ending.background
        parts.tasks.start()
        parts.intake.start()
        watched = parts.watched
        looks = [self._close_if_idle, parts.seeds.look, parts.bodies.look, parts.back_pressure.soft_limit.look]
        looks += [watched.pauses.look, parts.tasks.look, parts.partitions.look]
        if self._send is not None:
            troubles = Troubles(parts, options.seconds(self._crawler.settings, NO_ITEMS), rss_bytes)
            notifier = Notifier(troubles.now, self._send, watched.identity.document(), background)
            looks.append(notifier.look)
            self._at_close.append(notifier.close)
        self._ticker = background.start(tick(looks, parts.queues.look, parts.commit), "ticker")
        sources = background.start(self._sources.follow(), "sources")
        rules = background.start(self._url_rules.follow(), "rules for URLs")
        self._at_close += [self._ticker.cancel, sources.cancel, rules.cancel]
        if self._metrics is not None:
            self._metrics.show(parts.measurements.measured, parts.group.look, parts.unready)

    def _close_if_idle(self) -> None:
        stop, seconds = self.parts.stop, self.parts.config.idle_close_seconds
        if stop.has_begun or not self.parts.is_idle(runtime.monotonic()):
            return
        logger.info("No seed for SITE_IDLE_CLOSE_SECONDS=%g: the crawl ends", seconds)
        stop.begin()
        self._ending.close("idle", int(os.environ.get(IDLE_CODE, "0")) if stop.owns_process else 0)

    # --- closing: the engine calls _drain, the scheduler _close, and the signal _spider_closed ------

    async def _drain(self, drain: engine_hooks.Drain, reason: str) -> None:
        """Finish what is downloading, but keep a part of the grace for the sinks and the commit."""
        stop = self.parts.stop
        kept_seconds = min(_LONGEST_KEPT_SECONDS, self.parts.config.stop_grace_seconds / 3)
        seconds = stop.seconds_left() - kept_seconds
        try:
            async with asyncio.timeout(seconds):
                await drain()
        except TimeoutError:
            logger.warning(
                "%d requests did not end within %.0f s of the stop; their seeds are repeated",
                len(engine_hooks.requests_in_progress(self._crawler.engine)),
                seconds,
            )
            if stop.owns_process:
                try:
                    await self._close_at_once(reason)
                finally:
                    stop.exit_now(self._ending.exit_code)

    async def _close_at_once(self, reason: str) -> None:
        """All that the engine does, which would wait for what did not end."""
        crawler = self._crawler
        assert crawler.engine is not None
        assert crawler.stats is not None
        for end in (self._close(reason), crawler.engine.scraper.itemproc.close_spider_async()):
            try:
                await end
            except Exception:
                logger.exception("The crawl could not be closed in order")
        await crawler.signals.send_catch_log_async(signals.spider_closed, spider=crawler.spider, reason=reason)
        crawler.stats.close_spider(reason=reason)

    async def _close(self, reason: str) -> None:
        """What is complete is stored, committed and marked, in this order; then nothing happens any more."""
        parts, stop = self.parts, self.parts.stop
        await self._let_sinks_take(parts, stop)
        await parts.handover.told()
        parts.tasks.tell()
        for _ in range(2):  # the last dead letters reach the ledger, and that the end of a task was told its topic
            await asyncio.to_thread(parts.producer.flush, stop.seconds_left())
            await asyncio.sleep(0)
        for end in self._at_close:
            end()
        if self._metrics is not None:
            self._metrics.hide()
        parts.room.close()
        parts.handover.close()
        await self._leave_group(parts, stop)
        if (marks := parts.dupefilter.close(reason)) is not None:
            await maybe_deferred_to_future(marks)
        for client in (parts.tasks, parts.producer, parts.log):
            await asyncio.to_thread(client.close)
        self._forget_threads()

    async def _let_sinks_take(self, parts: Parts, stop: Stop) -> None:
        deadline = asyncio.get_running_loop().time() + stop.seconds_left()
        await parts.sinks.close(stop.seconds_left())
        seconds = 0.0 if parts.intake.has_failed else max(1.0, deadline - asyncio.get_running_loop().time())
        if left := await parts.commits.close(seconds):
            logger.warning("%d seeds could not be committed with their results; they are repeated", left)

    async def _leave_group(self, parts: Parts, stop: Stop) -> None:
        if self._ticker is None:
            return  # it never joined
        parts.commits.tick()
        ledger = parts.completion.ledger
        logger.info("Seeds: %d complete, %d in flight", sum(ledger.outcomes.values()), ledger.in_flight)
        parts.intake.stop(for_good=stop.is_for_good)
        if not await parts.intake.stopped(stop.seconds_left()):
            logger.warning("The consumer did not leave its group in time")

    def _leave_at_once(self) -> None:
        if self._stop is not None and self._stop.owns_process:
            self._stop.exit_now(self._ending.exit_code)

    async def _spider_closed(self) -> None:
        if self._parts is not None:
            await self._parts.extractor.close()
            await self._parts.hide()
        if self._metrics is not None:
            await self._metrics.close()


def _source_folder(settings: BaseSettings) -> SourceFolder:
    name = "SITE_SOURCES_DIR"
    must_exist = (settings.getpriority(name) or 0) > SETTINGS_PRIORITIES["project"]
    return SourceFolder.open(Path(options.text(settings, name, required=True)), must_exist=must_exist)


def _check_classes(settings: BaseSettings) -> None:
    """Raise ConfigError where no seed would come, no host be free again, or all items of a page have one id.

    Before a scheduler is made, which may ask a server of its own.
    """
    ours = {"SCHEDULER": SeedScheduler, "DOWNLOADER": SafeDownloader, "ITEM_PROCESSOR": PlacedItemProcessor}
    for name, needed in ours.items():
        # whatever looks like a scheduler is a subclass of one for Scrapy
        if needed not in getattr(load_object(settings[name]), "__mro__", ()):
            usable = global_object_name(needed)
            raise ConfigError(f"{name} is {settings[name]!r}, but seeds need '{usable}' or a subclass. Leave it out.")


def _scheduler_of(crawler: Crawler) -> SeedScheduler:
    assert crawler.engine is not None
    assert isinstance(crawler.engine.scheduler, SeedScheduler)
    return crawler.engine.scheduler
