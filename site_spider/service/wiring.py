"""Builds all parts of a crawl by constructor, in order.

A parts list: nothing is assigned to a part afterwards. What two parts need of each other is an event
of the life-cycle of seeds, a reason of `Urgency`, or a function that is asked later.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter

from site_spider import options
from site_spider.contracts.seed_log import Producer, SeedLog
from site_spider.contracts.sink import Sink
from site_spider.download.bodies import Bodies
from site_spider.dupefilter.dupefilter import SeenDupeFilter, SeenMarks
from site_spider.dupefilter.seed_filter import pages_of
from site_spider.engine import hooks as engine_hooks
from site_spider.engine import parts as registry
from site_spider.engine.cookies import SeedCookies
from site_spider.frontier.dispatcher import CrawlParts, Dispatcher
from site_spider.frontier.fairness import TaskRates, TaskWeights
from site_spider.frontier.links_in_hand import LinksInHand
from site_spider.frontier.politeness import build_frontier, build_politeness
from site_spider.frontier.preparation import Preparation
from site_spider.frontier.queues import Queues
from site_spider.frontier.sourced import checked, robots_free
from site_spider.frontier.spill.hosts import Ownership
from site_spider.frontier.spill.spill import Spill, SpilledPages
from site_spider.frontier.spill.writer import SeedWriter
from site_spider.frontier.waiting_room import WaitingRoom, build_load
from site_spider.intake.back_pressure import BackPressure
from site_spider.intake.handover import SINK_SECONDS, Handover
from site_spider.intake.intake import Intake
from site_spider.intake.loop_calls import LoopCalls
from site_spider.intake.own_requests import OwnRequests
from site_spider.intake.poll_room import PollRoom
from site_spider.intake.quarantine.quarantine import Quarantine
from site_spider.intake.seed_queue import SeedQueue
from site_spider.intake.seed_weights import SeedWeights
from site_spider.intake.seeds import Seeds
from site_spider.intake.topic_partitions import TopicPartitions
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Ledger
from site_spider.ledger.lifecycle import Lifecycle
from site_spider.observe.server import FrontierServer
from site_spider.observe.statistics import Statistics
from site_spider.observe.watched import Watched
from site_spider.results.at_least_once import OffsetCommits
from site_spider.results.callbacks import Callbacks
from site_spider.results.commits import Commits, Member
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.delivery import Delivery
from site_spider.results.exactly_once.keeper import CommitLimits, ExactlyOnce
from site_spider.results.fields import result_fields
from site_spider.results.mishaps import Mishaps
from site_spider.results.name_counts import NameCounts
from site_spider.results.results import Results
from site_spider.results.sinks import Sinks
from site_spider.results.urgency import Urgency
from site_spider.seed.seed import parse_seed
from site_spider.service.config import ServiceSettings
from site_spider.service.ending import Ending
from site_spider.service.stop import Stop
from site_spider.sources.extractor import Extractor
from site_spider.sources.library import SourceFolder

_ANSWER_SECONDS = 10.0  # for the loop to answer a rebalance, beyond the grace


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service opens, drives and closes, and what tests look at."""

    config: ServiceSettings
    log: SeedLog
    producer: Producer
    completion: Completion
    sinks: Sinks
    commits: Commits
    results: Results
    room: WaitingRoom
    queues: Queues
    partitions: TopicPartitions
    bodies: Bodies
    handover: Handover
    quarantine: Quarantine
    back_pressure: BackPressure
    seeds: Seeds
    intake: Intake
    dupefilter: BaseDupeFilter
    dispatcher: Dispatcher
    statistics: Statistics
    frontier_server: FrontierServer | None
    extractor: Extractor
    mishaps: Mishaps  # kept: Scrapy refers to its listeners weakly


@dataclass(frozen=True, slots=True)
class Stores:
    """What settings name, not yet opened."""

    log: SeedLog
    sinks: Sequence[Sink]
    item_sinks: Sequence[Sink]
    statistics: Sink
    sources: SourceFolder
    obeys_robots: bool  # where no source says otherwise


def build(  # noqa: PLR0915 - a parts list, in the order in which parts need each other
    crawler: Crawler,
    config: ServiceSettings,
    stores: Stores,
    stop: Stop,
    ending: Ending,
) -> Parts:
    """All parts of a crawl, none of them opened or started. Raises ConfigError."""
    engine, spider, stats, settings = crawler.engine, crawler.spider, crawler.stats, crawler.settings
    assert engine is not None
    assert spider is not None
    assert stats is not None
    dupefilter = _dupefilter_of(engine.scheduler)
    is_stopping = lambda: stop.has_begun  # noqa: E731
    wake = partial(engine_hooks.wake, engine)
    background = ending.background
    tell = LoopCalls(background)
    topics = config.tiers.topics
    member = Member(topics[0], config.consumer_group, topics[1:])
    task_weight, task_rate = (lambda _task_id: 1.0), (lambda _task_id: None)  # as tasks declare them

    def sink_changed() -> None:
        bodies.look()
        wake()

    # seeds in flight
    lifecycle = Lifecycle()
    ledger = Ledger(owner=secrets.token_hex(4))
    completion = Completion(ledger, lifecycle)

    # results
    producer = stores.log.producer()
    dead_letters = DeadLetters(producer, config.dead_letter_topic, completion, background)
    urgency = Urgency()
    deliver = partial(Delivery, limits=config.batch, on_change=sink_changed, on_failure=ending.fail)
    of_results, of_items = [*map(deliver, stores.sinks)], [*map(deliver, stores.item_sinks)]
    sinks = Sinks([*of_results, *of_items], config.backlog_bytes)
    commits: Commits
    if config.exactly_once:
        limits = CommitLimits(config.batch, config.backlog_bytes)
        commits = keeper = ExactlyOnce(completion, dead_letters, limits, member, tell, urgency, wake)
        lifecycle.add(keeper)
    else:
        commits = OffsetCommits(completion, producer, member, tell)
    failures = NameCounts()
    fields = result_fields(settings)
    results = Results(of_results, of_items, commits, completion, dead_letters, failures, urgency, fields)
    mishaps = Mishaps(crawler.signals)

    # bodies in memory
    bodies = Bodies(
        config.bodies_bytes,
        sinks.have_taken_most,
        lambda request: request in engine_hooks.requests_in_progress(engine),
        wake,
    )
    links_in_hand = LinksInHand()
    extractor = Extractor()

    # intake
    load = build_load(settings)
    handover = Handover(engine, sinks, config.revoke_grace_seconds)
    back_pressure = BackPressure(load, sinks, commits, handover, is_stopping, lambda: bodies.has_room)
    poll_room = PollRoom(ledger, load, config.limits, back_pressure.may_poll, config.tiers.weights)
    own_requests = OwnRequests(spider)
    seed_queue = SeedQueue(wake, own_requests)
    quarantine = Quarantine(completion, seed_queue, dead_letters, commits.commit_first, wake)
    urgency.add(quarantine.is_cautious, lambda: handover.active)

    # frontier
    sources = stores.sources
    library = lambda: sources.library  # noqa: E731
    partitions = TopicPartitions(topics, ledger, stores.log.partitions, background)
    weights, rates = TaskWeights(config.tiers.weights, task_weight), TaskRates(task_rate, partitions.share)
    frontier = build_frontier(settings, library, weights, rates)
    politeness = build_politeness(
        crawler, frontier, wake, robots_free(library, by_default=not stores.obeys_robots)
    )
    room = WaitingRoom(frontier, politeness, load, completion, lifecycle.may_begin, poll_room.starved, wake)
    cookies = SeedCookies(crawler)
    hosts = Ownership(partitions) if config.host_ownership else None
    spill = Spill(
        config.spill,
        commits,
        SeedWriter(spider, cookies.for_request, config.spill_keys),
        completion,
        room,
        dupefilter if isinstance(dupefilter, SpilledPages) else None,
        hosts,
        stats.inc_value,
        background,
    )
    next_suspect = quarantine.isolation.proceed
    queues = Queues(seed_queue, room, spill, completion, dead_letters, lifecycle.may_begin, next_suspect)
    all_seeds = options.boolean(settings, "SITE_FILTER_SEEDS")
    pages = pages_of(dupefilter, seed_queue, completion, spider, background, all_seeds=all_seeds)
    crawl = CrawlParts(engine, spider, stats)
    dispatcher = Dispatcher(
        crawl,
        queues,
        completion,
        results,
        dead_letters,
        pages,
        back_pressure,
        Preparation(Callbacks(spider, config.callback_timeout_seconds), config.seed_meta_keys, library),
    )

    # the thread of the consumer
    has_died = lambda: ending.is_death  # noqa: E731
    seeds = Seeds(completion, seed_queue, quarantine, dead_letters, poll_room, handover, queues, has_died)
    callbacks = frozenset(spider.seed_callbacks)  # type: ignore[attr-defined]
    read_seed = partial(
        parse_seed,
        callbacks=callbacks,
        keys=config.spill_keys,
        by_task=config.by_task,
        needs_url=not own_requests.are_made,
    )
    intake = Intake(
        stores.log,
        seeds,
        lambda value: checked(read_seed(value), sources.library),
        config.revoke_grace_seconds + SINK_SECONDS + _ANSWER_SECONDS,
        commits.thread,
        tell,
        ending.fail,
    )

    # who follows the life-cycle of a seed, in this order
    lifecycle.add(SeedWeights(load), results, cookies)
    if isinstance(dupefilter, SeenDupeFilter):
        lifecycle.add(SeenMarks(dupefilter.seen))
    lifecycle.add(quarantine.care, quarantine.isolation)

    # what can be seen
    watched = Watched(crawler, member, ledger, queues, seeds, quarantine, back_pressure, sinks, failures)
    interval_seconds = options.seconds(settings, "SITE_STATS_INTERVAL_SECONDS", minimum=0.1)
    store = Delivery(stores.statistics, on_failure=ending.fail)
    statistics = Statistics(watched, store, interval_seconds, background)
    frontier_server = FrontierServer(watched) if options.boolean(settings, "SITE_FRONTIER_SOCKET") else None

    # what Scrapy has constructed and works with them
    gates = () if politeness.gate is None else (politeness.gate,)
    registry.provide(crawler, completion, results, sinks, room, bodies, links_in_hand, *gates)
    registry.provide(crawler, sources, extractor)
    for ended in (bodies.ended, completion.ended, links_in_hand.ended):
        engine_hooks.on_request_ended(engine, ended)
    engine_hooks.on_downloaded(engine, room.came_back)
    engine_hooks.shorten(engine, room.came_back, completion.broken_off, background.start)
    return Parts(
        config=config,
        log=stores.log,
        producer=producer,
        completion=completion,
        sinks=sinks,
        commits=commits,
        results=results,
        room=room,
        queues=queues,
        partitions=partitions,
        bodies=bodies,
        handover=handover,
        quarantine=quarantine,
        back_pressure=back_pressure,
        seeds=seeds,
        intake=intake,
        dupefilter=dupefilter,
        dispatcher=dispatcher,
        statistics=statistics,
        frontier_server=frontier_server,
        extractor=extractor,
        mishaps=mishaps,
    )


def _dupefilter_of(scheduler: BaseScheduler | None) -> BaseDupeFilter:
    dupefilter = scheduler.df  # type: ignore[union-attr] # of Scrapy's scheduler, which ours is
    assert isinstance(dupefilter, BaseDupeFilter)
    return dupefilter
