"""Builds all parts of a crawl by constructor, in order.

A parts list: nothing is assigned to a part afterwards. What two parts need of each other is an event of
the life-cycle of seeds, a reason of `Urgency`, or a function that is asked later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import cast

from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter

from site_spider import options, runtime
from site_spider.contracts.sink import Sink
from site_spider.download.bodies import Bodies
from site_spider.dupefilter.dupefilter import SeenDupeFilter, SeenMarks, TaskForms, pages_of
from site_spider.engine import flow as engine_hooks
from site_spider.engine import scrapy_parts as registry
from site_spider.engine.scrapy_parts import SeedCookies
from site_spider.frontier.scheduler import CrawlParts, Dispatcher, Queues
from site_spider.frontier.spill import SeedWriter, Spill, SpilledPages, TopicPartitions
from site_spider.frontier.waiter import (
    LinksInHand,
    Preparation,
    SeedHeaders,
    TaskRates,
    TaskWeights,
    Waiter,
    checked,
    robots_free,
)
from site_spider.frontier.waiting_room import Times, WaitingRoom, build_frontier, build_load, build_politeness
from site_spider.intake.intake import SINK_SECONDS, Handover, Intake, LoopCalls, Seeds
from site_spider.intake.room import BackPressure, PollRoom, SoftLimit
from site_spider.intake.seed_queue import METHOD, SeedQueue
from site_spider.intake.suspects import Quarantine
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Ledger
from site_spider.observe.counters import LoopLag, Pauses
from site_spider.observe.frontier_socket import FrontierServer
from site_spider.observe.metrics.exporter import GroupWatch
from site_spider.observe.metrics.readings import Measurements
from site_spider.observe.snapshot import Counted, Identity, Watched, rss_bytes, statistics_id
from site_spider.observe.statistics import Statistics, StatisticsPlan, StatsTopic
from site_spider.results.commits import Commits, Member, OffsetCommits, Urgency
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.delivery import Delivery
from site_spider.results.document import PAGE_FIELDS, result_fields
from site_spider.results.exactly_once import ExactlyOnce
from site_spider.results.failures import Mishaps
from site_spider.results.pipeline import Callbacks
from site_spider.results.results import DocumentForm, Results, Sinks
from site_spider.seed.seed import parse_seed
from site_spider.service.config import SEED_HEADERS, ServiceSettings
from site_spider.service.log_lines import slot_name
from site_spider.service.parts import Ending, Stores, TaskParts
from site_spider.service.stop import IdleClose, Stop
from site_spider.sources.extractor import Extractor
from site_spider.tasks.gate import TaskGate, Traps, WantedPages, with_source
from site_spider.tasks.parking import Leaving

_ANSWER_SECONDS = 10.0  # for the loop to answer a rebalance, beyond the grace


def _asking(part: object, name: str) -> Callable[[], bool]:
    """Says what an attribute is when it is called, at less cost than a lambda."""
    return partial(attrgetter(name), part)


class Parts:
    """What the service opens, drives and closes, and what tests look at."""

    def __init__(  # noqa: PLR0915 - a parts list, in the order in which parts need each other
        self, crawler: Crawler, config: ServiceSettings, stores: Stores, stop: Stop, ending: Ending
    ) -> None:
        """None of them is opened or started. Raises ConfigError."""
        engine, spider, stats, settings = crawler.engine, crawler.spider, crawler.stats, crawler.settings
        assert engine is not None
        assert spider is not None
        assert stats is not None
        self.config, self.log = config, stores.log
        self.dupefilter = dupefilter = engine.scheduler.df  # type: ignore[union-attr] # of Scrapy's scheduler, which ours is
        assert isinstance(dupefilter, BaseDupeFilter)
        wake = partial(engine_hooks.wake, engine)
        background, tell = ending.background, LoopCalls(ending.background)
        member = Member.of(config.tiers.topics, config.consumer_group)

        def sink_changed() -> None:
            bodies.look()
            wake()

        # seeds in flight
        ledger = Ledger(owner=runtime.token_hex(4))
        self.completion = completion = Completion(ledger)

        # results
        self.producer = producer = stores.log.producer()
        dead_letters = DeadLetters(producer, config.dead_letter_topic, completion, background)
        urgency = Urgency()
        deliver = partial(Delivery, limits=config.batch, on_change=sink_changed, on_failure=ending.fail)
        of_results, of_items = [*map(deliver, stores.sinks)], [*map(deliver, stores.item_sinks)]
        self.sinks = sinks = Sinks([*of_results, *of_items], config.backlog_bytes)
        commits: Commits
        if config.exactly_once:
            limits = config.batch, config.backlog_bytes
            commits = keeper = ExactlyOnce(completion, dead_letters, *limits, member, tell, urgency, wake)
            completion.add(keeper)
        else:
            commits = OffsetCommits(completion, producer, member, tell)
        self.commits = commits
        counted = Counted()
        nulls = dict.fromkeys(PAGE_FIELDS) if getattr(spider, "page_texts", None) is not None else {}
        deletes = options.choice(settings, "SITE_GONE", ("mark", "delete")) == "delete"
        describe = getattr(spider, "describe_answer", None)
        form = DocumentForm(result_fields(settings), spider.name, describe, nulls, deletes)
        told = counted.pages, urgency, form
        self.results = results = Results(of_results, of_items, commits, completion, dead_letters, *told)

        # tasks
        count = stats.inc_value
        self.tasks = tasks = TaskParts(config, stores.log, producer, tell, background, count, completion)

        # bodies in memory
        self.bodies = bodies = Bodies(
            config.bodies_bytes,
            sinks.have_taken_most,
            lambda request: request in engine_hooks.requests_in_progress(engine),
            wake,
        )
        links_in_hand = LinksInHand()
        self.extractor = extractor = Extractor()

        # intake
        load = build_load(settings)

        def is_telling() -> bool:
            return tasks.is_counting() or dead_letters.under_way > 0

        self.handover = handover = Handover(engine, sinks, config.revoke_grace_seconds, is_telling)
        soft = SoftLimit(config.memory_soft_bytes, rss_bytes, lambda: ledger.in_flight)
        is_stopping, has_memory = _asking(stop, "has_begun"), _asking(bodies, "has_room")
        is_leaving = _asking(handover, "active")
        self.back_pressure = back_pressure = BackPressure(
            load, sinks, commits, is_leaving, is_stopping, has_memory, soft
        )
        poll_room = PollRoom(
            ledger, load, config.limits, back_pressure.may_poll, config.tiers.weights, lambda: tasks.shares(frontier)
        )
        own_request = getattr(spider, METHOD, None)
        seed_queue = SeedQueue(wake, own_request)
        self.quarantine = quarantine = Quarantine(completion, seed_queue, dead_letters, commits.commit_first, wake)

        # frontier
        library = lambda: stores.sources.library  # noqa: E731
        self.partitions = partitions = TopicPartitions(member.topics, ledger, stores.log.partitions, background)
        weights = TaskWeights(config.tiers.weights, tasks.board.weight_of)
        rates = TaskRates(tasks.board.rate_of, partitions.share)
        frontier = build_frontier(settings, library, weights, rates)
        politeness = build_politeness(crawler, frontier, wake, robots_free(library, by_default=not stores.obeys_robots))
        histograms = counted.histograms
        times = Times(histograms.download_seconds.observe, histograms.kept_waiting_seconds.observe)

        def takes(waiter: Waiter) -> bool:
            return gate.takes(waiter)

        self.room = room = WaitingRoom(
            frontier,
            politeness,
            load,
            completion,
            quarantine.may_begin,
            poll_room.starved,
            wake,
            times=times,
            takes=takes,
        )
        urgency.add(quarantine.is_cautious, is_leaving, _asking(room, "is_idle"))
        cookies = SeedCookies(crawler)
        hosts = partitions if config.host_ownership else None
        headers = SeedHeaders(library, everywhere=SEED_HEADERS in config.seed_meta_keys)
        spill = Spill(
            config.spill,
            commits,
            SeedWriter(spider, cookies.for_request, config.spill_keys, headers.add),
            completion,
            room,
            dupefilter if isinstance(dupefilter, SpilledPages) else None,
            hosts,
            stats.inc_value,
            background,
            tasks.parking,
            tasks.highs,
        )
        self.queues = queues = Queues(seed_queue, room, spill, completion, dead_letters, quarantine)
        all_seeds = options.boolean(settings, "SITE_FILTER_SEEDS")
        pages = pages_of(dupefilter, seed_queue, completion, spider, background, all_seeds=all_seeds)
        traps, rules = Traps(), lambda: stores.url_rules.rules
        leaving = Leaving(
            spider,
            completion,
            room,
            spill,
            tasks.parking,
            results,
            dead_letters,
            background,
            control=tasks.highs,
            writes_cancelled=config.cancelled_results,
        )
        gate = TaskGate(tasks.states, queues, leaving, background)
        tasks.complete(settings, gate, rates, queues, poll_room.is_full, back_pressure.may_poll)
        callbacks = Callbacks(spider, config.callback_timeout_seconds)
        self.dispatcher = Dispatcher(
            CrawlParts(engine, spider, stats),
            queues,
            completion,
            results,
            dead_letters,
            WantedPages(pages, rules, traps, gate, tasks.tracker.trapped, tasks.topics.parked, stats.inc_value),
            back_pressure,
            Preparation(callbacks, config.seed_meta_keys, library, gate.begins, headers),
        )

        # the thread of the consumer
        has_died = lambda: ending.is_death  # noqa: E731
        self.seeds = seeds = Seeds(
            completion, seed_queue, quarantine, dead_letters, poll_room, handover, room.fenced, has_died
        )
        read_seed = partial(
            parse_seed,
            callbacks=frozenset(spider.seed_callbacks),  # type: ignore[attr-defined]
            keys=config.spill_keys,
            by_task=config.by_task,
            needs_url=own_request is None,
        )
        self.intake = intake = Intake(
            stores.log,
            seeds,
            lambda value: checked(with_source(read_seed(value), tasks.board), stores.sources.library),
            config.revoke_grace_seconds + SINK_SECONDS + _ANSWER_SECONDS,
            commits.thread,
            tell,
            ending.fail,
        )

        # who follows the life-cycle of a seed, in this order
        completion.add(load, results, cookies)
        completion.add(tasks.states, of_tasks=True)
        if isinstance(dupefilter, SeenDupeFilter):
            completion.add(SeenMarks(dupefilter.seen))
        completion.add(quarantine.care, counted.seed_times, traps)
        if config.tells_ends:
            completion.add(tasks.tracker, of_tasks=True)

        # what can be seen
        identity = Identity(spider.name, member.group, config.tiers.main, lambda: intake.member_name or slot_name())
        pauses = Pauses(seeds, quarantine, back_pressure, sinks, lambda: intake.is_away)
        loop_lag = LoopLag(counted.histograms.loop_lag_seconds)
        self.watched = watched = Watched(
            crawler, identity, ledger, queues, seeds, intake, sinks, bodies, pauses, loop_lag, tasks.clock, counted
        )
        self.measurements = measurements = Measurements(watched, commits, quarantine, dupefilter)
        # made as a sink is, but by another class method: nothing else differs
        deliveries = [Delivery(cast(Sink, store)) for store in stores.statistics]
        topic = StatsTopic(stores.log, config.stats_topic)
        plan = StatisticsPlan(settings, statistics_id(settings, identity))
        self.statistics = Statistics(watched, deliveries, topic, plan, background)
        has_socket = options.boolean(settings, "SITE_FRONTIER_SOCKET")
        self.server = FrontierServer(watched, measurements.measured, stores.log_name) if has_socket else None

        # what Scrapy has constructed and works with them
        robots = () if politeness.robots is None else (politeness.robots,)
        registry.provide(crawler, completion, results, sinks, room, bodies, links_in_hand, *robots)
        self.group = group = GroupWatch(
            stores.log, config.tiers.topics, config.consumer_group, config.dead_letter_topic
        )
        registry.provide(crawler, stores.sources, extractor, tasks.states, group, counted.pages)
        registry.provide(crawler, TaskForms(tasks.states.form_of))
        engine_hooks.on_request_ended(engine, links_in_hand.ended, completion.ended, bodies.ended)
        engine_hooks.shorten(engine, room.came_back, completion.broken_off, background.start)
        self.mishaps = Mishaps(crawler.signals)  # kept: Scrapy refers to its listeners weakly

    async def show(self) -> None:
        """Show the crawl to others from now on. None of these parts holds it up."""
        self.measurements.log.open()
        self.watched.loop_lag.start()
        self.statistics.start()
        if self.server is not None:
            await self.server.open()

    async def hide(self) -> None:
        """Write the last statistics, and show nothing any more."""
        if self.server is not None:
            await self.server.close()
        await self.statistics.close()
        self.watched.loop_lag.stop()
        self.measurements.log.close()

    def commit(self) -> None:
        """Write what was counted of tasks, and commit what is safe; to be called often."""
        self.tasks.count()
        self.commits.tick()

    def idle(self) -> IdleClose:
        """What looks whether there is anything to do. An outage, a full memory or a full sink is no rest."""
        ledger, tells = self.completion.ledger, self.tasks.is_counting

        def is_busy() -> bool:
            waits = ledger.in_flight or len(self.room) or self.intake.is_away or tells()
            return bool(waits) or not self.back_pressure.may_poll()

        counts = lambda: tuple(ledger.outcomes.values())  # noqa: E731
        return IdleClose(self.config.idle_close_seconds, counts, is_busy, lambda: bool(ledger.partitions()))

    def unready(self) -> str:
        """Why no seed would be taken now. Sinks and the log that are away come back by themselves."""
        if not self.intake.is_member:
            return "the process is not a member of the consumer group yet"
        if self.intake.is_away:
            return "the seed log does not answer"
        away = [delivery.sink.name for delivery in self.sinks if not delivery.available]
        return f"sink {away[0]} is away" if away else ""
