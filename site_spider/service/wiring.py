"""Builds all parts of a crawl by constructor, in order.

A parts list: nothing is assigned to a part afterwards. What two parts need of each other is an event of
the life-cycle of seeds, or a function that is asked later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, cast

from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter

from site_spider import options, runtime, signed_post
from site_spider.contracts.seed_log import Partition, Producer, SeedLog
from site_spider.contracts.sink import Sink, StatisticsStore
from site_spider.download.bodies import Bodies
from site_spider.dupefilter.dupefilter import SeenDupeFilter, pages_of
from site_spider.dupefilter.remote import TaskForms
from site_spider.engine import flow as engine_hooks
from site_spider.engine import scrapy_parts as registry
from site_spider.engine.background import Background
from site_spider.engine.scrapy_parts import SeedCookies
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.politeness import PoliteFrontier, build_frontier, build_load, build_politeness
from site_spider.frontier.scheduler import Dispatcher, Queues
from site_spider.frontier.spill import SeedWriter, Spill, SpilledPages, TopicPartitions
from site_spider.frontier.waiter import (
    LinksInHand,
    TaskFlow,
    TaskRates,
    Waiter,
    checked,
    preparation,
    robots_free,
    seed_headers,
    task_weights,
)
from site_spider.intake.intake import SINK_SECONDS, Handover, Intake, LoopCalls, Seeds
from site_spider.intake.room import BackPressure, PollRoom, SoftLimit
from site_spider.intake.seed_queue import METHOD, SeedQueue
from site_spider.intake.suspects import Quarantine
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Ledger
from site_spider.observe.counters import Counted, Pauses
from site_spider.observe.frontier_socket import FrontierServer
from site_spider.observe.metrics.exporter import GroupWatch
from site_spider.observe.metrics.readings import Measurements
from site_spider.observe.snapshot import Identity, Watched, rss_bytes
from site_spider.observe.statistics import Statistics, StatisticsPlan, StatsTopic, statistics_id
from site_spider.results.commits import Commits, Member, OffsetCommits
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.delivery import Delivery
from site_spider.results.document import PAGE_FIELDS, result_fields
from site_spider.results.exactly_once import ExactlyOnce
from site_spider.results.pipeline import Callbacks, Results, Sinks, note_errors
from site_spider.seed.seed import parse_seed
from site_spider.service.config import SEED_HEADERS, ServiceSettings, guard_of
from site_spider.service.log_lines import slot_name
from site_spider.service.stop import Ending, IdleClose, Stop
from site_spider.sources.extraction_process import Extractor
from site_spider.sources.library import Library, SourceFolder
from site_spider.sources.url_rules import UrlRulesFile
from site_spider.tasks.admission import Overtaking, TaskAdmission, with_source
from site_spider.tasks.board import Board, BrokerClock, PastUsage
from site_spider.tasks.budgets import TaskStates, TimeLimits
from site_spider.tasks.control_log import Endings
from site_spider.tasks.end_events import EndAnnouncer, TaskCloser
from site_spider.tasks.follower import Follower, TopicView
from site_spider.tasks.page_log import PageLog
from site_spider.tasks.parking import Leaving, Parking
from site_spider.tasks.rates import TELL_SECONDS, GroupRates
from site_spider.tasks.returning import ParkedWatch
from site_spider.tasks.tracker import Control, Group, Tracker
from site_spider.tasks.traps import Traps
from site_spider.tasks.unfollowed_links import WantedPages
from site_spider.tasks.webhooks import Webhooks

logger = logging.getLogger(__name__)

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
        self.config, self.log, self.stop = config, stores.log, stop
        self._idle = IdleClose(config.idle_close_seconds)
        self.dupefilter = dupefilter = engine.scheduler.df  # type: ignore[union-attr] # of Scrapy's scheduler, which ours is
        assert isinstance(dupefilter, BaseDupeFilter)
        wake = partial(engine_hooks.wake, engine)
        background, tell = ending.background, LoopCalls(ending.background)
        member = Member(config.tiers.topics, config.consumer_group)

        def sink_changed() -> None:
            bodies.look()
            wake()

        # seeds in flight
        ledger = Ledger(owner=runtime.token_hex(4))
        self.completion = completion = Completion(ledger)

        # results
        self.producer = producer = stores.log.producer()
        dead_letters = DeadLetters(producer, config.topics.dead_letters, completion, background)
        # Results are sent at once instead of waiting for a full batch: few seeds are in flight and others wait for
        # them, partitions leave, or no further result is on its way.
        urgent: list[Callable[[], bool]] = []
        deliver = partial(Delivery, limits=config.batch, on_change=sink_changed, on_failure=ending.fail)
        of_results, of_items = [*map(deliver, stores.sinks)], [*map(deliver, stores.item_sinks)]
        self.sinks = sinks = Sinks([*of_results, *of_items], config.backlog_bytes)
        commits: Commits
        if config.exactly_once:
            limits = config.batch, config.backlog_bytes
            links = stores.log.fault_of, background
            commits = keeper = ExactlyOnce(completion, dead_letters, *limits, member, tell, urgent, wake, *links)
            completion.add(keeper)
        else:
            commits = OffsetCommits(completion, producer, member, tell)
        self.commits = commits
        counted = Counted()
        nulls = dict.fromkeys(PAGE_FIELDS) if getattr(spider, "page_texts", None) is not None else {}
        deletes = options.choice(settings, "SITE_GONE", ("mark", "delete")) == "delete"
        describe = getattr(spider, "describe_answer", None)
        form = result_fields(settings), spider.name, describe, nulls, deletes
        by_kind = {"result": of_results, "item": of_items}
        self.results = results = Results(by_kind, commits, completion, dead_letters, counted.pages, urgent, *form)

        # tasks
        self.partitions = partitions = TopicPartitions(member.topics, ledger, stores.log.partitions, background)
        called = tell, background, stats.inc_value
        self.tasks = tasks = TaskParts(config, stores.log, producer, *called, completion, partitions)

        # bodies in memory
        in_progress = partial(engine_hooks.requests_in_progress, engine)
        self.bodies = bodies = Bodies(
            config.bodies_bytes, sinks.have_taken_most, wake, lambda request: request in in_progress()
        )
        links_in_hand = LinksInHand()
        self.extractor = extractor = Extractor(patience_seconds=config.callback_timeout_seconds / 2)

        # intake
        load = build_load(settings)

        def is_telling() -> bool:
            return tasks.is_counting() or dead_letters.under_way > 0

        self.handover = handover = Handover(engine, sinks, config.revoke_grace_seconds, is_telling)
        soft = SoftLimit(config.memory_soft_bytes, rss_bytes, lambda: ledger.in_flight)
        is_stopping, has_memory = _asking(stop, "has_begun"), _asking(bodies, "has_room")
        is_leaving = _asking(handover, "active")
        self.back_pressure = back_pressure = BackPressure(
            load, sinks, commits, is_leaving, is_stopping, has_memory, soft, lambda: quarantine.is_closed
        )
        poll_room = PollRoom(
            ledger, load, *config.limits, back_pressure.refusal, config.tiers.weights, lambda: tasks.shares(frontier)
        )
        own_request = getattr(spider, METHOD, None)
        seed_queue = SeedQueue(wake, own_request, lambda seed: checked(seed, stores.sources.library))
        self.quarantine = quarantine = Quarantine(completion, seed_queue, dead_letters, commits.commit_first, wake)

        # frontier
        library: Callable[[], Library] = partial(attrgetter("library"), stores.sources)
        weights = task_weights(config.tiers.weights, tasks.board.weight_of)
        frontier = build_frontier(settings, library, weights, tasks.rates)
        politeness = build_politeness(crawler, frontier, wake, robots_free(library, by_default=not stores.obeys_robots))
        times = counted.download_seconds.observe, counted.kept_waiting_seconds.observe

        def takes(waiter: Waiter) -> bool:
            return bool(gate.tasks) and gate.takes(waiter)

        asked = quarantine.may_begin, poll_room.starved, wake
        self.room = room = PoliteFrontier(frontier, politeness, load, completion, *asked, *times, takes=takes)
        urgent += quarantine.is_cautious, is_leaving, _asking(room, "is_idle")
        cookies = SeedCookies(crawler)
        headers = seed_headers(library, everywhere=SEED_HEADERS in config.seed_meta_keys)
        spill = Spill(
            replace(config.spill, hosts=partitions if config.host_ownership else None),
            commits,
            SeedWriter(spider, cookies.for_request, config.spill_keys, headers),
            room,
            dupefilter if isinstance(dupefilter, SpilledPages) else None,
            stats.inc_value,
            background,
            tasks.parking,
        )

        def sort_seeds() -> None:
            if gate.tasks:
                gate.sort()
            pages.sort_seeds()
            if gate.tasks:  # some come from a look-up
                gate.sort()

        self.queues = queues = Queues(seed_queue, room, spill, completion, dead_letters, quarantine, sort_seeds)
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
            control=tasks.control if config.tells_ends else None,
            writes_cancelled=config.cancelled_results,
        )
        gate = TaskAdmission(tasks.states, queues, leaving, background)
        flight = completion, queues, poll_room.is_full, lambda: not back_pressure.refusal().cause
        webhooks = Webhooks(tasks.group, signed_post.secret_of(config.spill_keys), guard_of(settings))
        tasks.complete(gate, Overtaking(tasks.group, config.consumer_group, *flight), webhooks)
        callbacks = Callbacks(spider, config.callback_timeout_seconds)
        begins = lambda request, job: gate.begins(request, job) if gate.tasks else None  # noqa: E731
        self.dispatcher = Dispatcher(
            engine,
            spider,
            stats.inc_value,
            queues,
            completion,
            results,
            dead_letters,
            WantedPages(pages, rules, traps, gate, tasks.tracker.trapped, tasks.topics.parked, stats.inc_value),
            back_pressure,
            preparation(callbacks, config.seed_meta_keys, library, begins, headers),
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
            lambda value: with_source(read_seed(value), tasks.board) if tasks.board.tasks else read_seed(value),
            config.revoke_grace_seconds + SINK_SECONDS + _ANSWER_SECONDS,
            commits,
            tell,
            ending.fail,
        )

        # who follows the life-cycle of a seed, in this order
        completion.add(load, results, cookies)
        completion.add(tasks.states, of_tasks=True)
        if isinstance(dupefilter, SeenDupeFilter):
            completion.add(dupefilter.seen)
        completion.add(quarantine.suspect_queue, counted.seed_times, traps)
        if config.tells_ends:
            completion.add(tasks.tracker, of_tasks=True)

        # what can be seen
        identity = Identity(spider.name, member.group, config.tiers.main, lambda: intake.member_name or slot_name())
        pauses = Pauses(poll_room, lambda: intake.is_away)
        self.watched = watched = Watched(
            crawler, identity, ledger, queues, seeds, intake, sinks, commits, bodies, pauses, tasks.clock, counted
        )
        self.measurements = measurements = Measurements(watched, commits, quarantine, dupefilter)
        # made as a sink is, but by another class method: nothing else differs
        deliveries = [Delivery(cast(Sink, store), name=f"statistics {store.name}") for store in stores.statistics]
        topic = StatsTopic(stores.log, config.topics.statistics, background)
        plan = StatisticsPlan(settings, statistics_id(settings, identity))
        self.statistics = Statistics(watched, deliveries, topic, plan, background)
        has_socket = options.boolean(settings, "SITE_FRONTIER_SOCKET")
        self.server = FrontierServer(watched, measurements.measured, stores.log) if has_socket else None

        # what Scrapy has constructed and works with them
        robots = () if politeness.robots is None else (politeness.robots,)
        registry.provide(crawler, completion, results, sinks, room, bodies, links_in_hand, *robots)
        self.group = group = GroupWatch(
            stores.log, config.tiers.topics, config.consumer_group, config.topics.dead_letters
        )
        registry.provide(crawler, stores.sources, extractor, tasks.states, group, counted.pages)
        registry.provide(crawler, TaskForms(tasks.states.form_of))
        engine_hooks.on_request_ended(engine, links_in_hand.ended, completion.ended, bodies.ended)
        engine_hooks.shorten(engine, room.came_back, completion.broken_off, background.start)
        note_errors(crawler.signals)

    async def show(self) -> None:
        """Show the crawl to others from now on. None of these parts holds it up."""
        self.measurements.log.open()
        self.watched.counted.loop_lag.start()
        self.statistics.start()
        if self.server is not None:
            await self.server.open()

    async def hide(self) -> None:
        """Write the last statistics, and show nothing any more."""
        if self.server is not None:
            await self.server.close()
        await self.statistics.close(self.stop.seconds_left())
        self.watched.counted.loop_lag.stop()
        self.measurements.log.close()

    def commit(self) -> None:
        """Write what was counted of tasks, and commit what is safe; to be called often."""
        self.tasks.count()
        self.commits.tick()

    def is_idle(self, now: float) -> bool:
        """Whether there was nothing to do for long enough. An outage, a full memory or a full sink is no rest.

        Nor is a poll that takes its time: it may bring seeds.
        """
        ledger, intake = self.completion.ledger, self.intake
        waits = ledger.in_flight or len(self.room) or intake.is_away or intake.hands_over or self.tasks.have_work()
        is_busy = bool(waits or self.back_pressure.refusal().cause)
        counts, partitions = tuple(ledger.outcomes.values()), frozenset(ledger.partitions())
        return self._idle.is_over(now, counts, is_busy=is_busy, partitions=partitions, known_until=intake.looked_at)

    def unready(self) -> str:
        """Why no seed would be taken now; empty when one would. What is away comes back by itself."""
        away = [*(delivery.sink.name for delivery in self.sinks if not delivery.available), self.commits.sink_away]
        if not self.intake.is_member:
            return "the process is not a member of the consumer group yet"
        if self.intake.is_away:
            return "the seed log does not answer"
        return f"sink {away[0]} is away" if away[0] else ""


@dataclass(frozen=True, slots=True)
class Stores:
    """What settings name, not yet opened."""

    log: SeedLog
    sinks: Sequence[Sink]
    item_sinks: Sequence[Sink]
    statistics: Sequence[StatisticsStore]
    sources: SourceFolder
    url_rules: UrlRulesFile
    obeys_robots: bool  # where no source says otherwise


# --- The parts of tasks, which live as long as the crawl: built, opened, driven and closed together -------

Duty = tuple[float, Callable[[], None]]  # seconds from one call to the next, and what is called


class TaskParts:
    """On the event loop's thread, but for `open` and `close`, which block.

    `complete` builds the rest, once there is a frontier. Where results and offsets are one transaction, no
    seed is counted, and no end is told.
    """

    def __init__(
        self,
        config: ServiceSettings,
        log: SeedLog,
        producer: Producer,
        tell: LoopCalls,
        background: Background,
        count: Callable[[str], None],
        completion: Completion,
        partitions: TopicPartitions,
    ) -> None:
        self._config, self._background, self._completion = config, background, completion
        self._partitions = partitions.counts
        self.topics = topics = config.topics
        self.board = Board()
        send = partial(producer.send, topics.tasks)
        process = f"{socket.gethostname()}-{os.getpid()}-{runtime.token_hex(4)}"
        self.states = TaskStates(self.board, process, send, background)
        self._endings = Endings()
        view = TopicView(log, topics.control, self._endings.take, count)
        self.control = Control(view, tell, self._endings, producer, process, background, (*topics.tiers, topics.parked))
        tell_place = self.control.put if config.tells_ends else None
        self.parking = Parking(producer, topics.parked, self.states, background, tell_place)
        self.group = group = Group(log, producer, topics, self.board, self.control, self._has_first, background)
        self._over, self._watch = TaskCloser(group), ParkedWatch(group)
        pages = PageLog(log, producer, topics.pages, background)
        self.tracker = Tracker(completion, self.control, pages, self._over.is_declared)
        self._announcer = EndAnnouncer(group, count)
        self._is_telling = False  # once a task was closed
        self.clock = BrokerClock(log, producer, topics.clock)
        told = self.board, topics.tasks, producer, self._has_first
        self._limits, self._past = TimeLimits(self.clock, *told), PastUsage(*told)
        self.rates = TaskRates(self.board.rate_of, partitions.share)
        self._rates = GroupRates(self.board, self.rates, process, send)
        self._follower = Follower(TopicView(log, topics.tasks, self.board.take, count), tell, self._heard)

    def _has_first(self) -> bool:
        """Whether this process has the first partition of the main tier, or while that has no topic of another one.

        While processes differ in that there may be two of them, or none, as in a rebalance.
        """
        tiers = self.topics.seeds, *self.topics.tiers
        there = next((topic for topic in tiers if self._partitions.get(topic)), self.topics.seeds)
        epoch = self._completion.ledger.epoch
        return any(epoch(Partition(topic, 0)) is not None for topic in (self.topics.seeds, there))

    def complete(self, gate: TaskAdmission, overtaking: Overtaking, webhooks: Webhooks) -> None:
        """With what needs the frontier, and the network."""
        self._gate, self._webhooks = gate, webhooks
        looks: list[Any] = [self.states, self._limits, self._watch, self._past]
        looks += [self._over, webhooks] if self._config.tells_ends else []
        looks += [] if self._config.exactly_once else [overtaking]  # a seed that leaves would be in no transaction
        loop = asyncio.get_running_loop()
        due = {(each.every_seconds, each.look): 0.0 for each in looks}
        due[TELL_SECONDS, lambda: self._rates.look(loop.time())] = 0.0
        measure = lambda: self._background.start(asyncio.to_thread(self.clock.measure), "the broker's time")  # noqa: E731
        due[BrokerClock.every_seconds, measure] = loop.time() + BrokerClock.every_seconds
        self._duties: dict[Duty, float] = due

    def open(self, timeout_seconds: float) -> None:
        """Read what was declared before. Raises ConfigError, LogUnavailable."""
        self._follower.open(timeout_seconds)
        self._limits.open()
        if self._config.tells_ends:
            self._over.make_log()

    def start(self) -> None:
        """Follow what is declared, and what is said of ends, from now on."""
        self._hear([task.task_id for task in self.board])
        self._follower.start()
        if self._config.tells_ends:
            self.control.start()
        else:
            logger.info("The end of tasks is not told with SITE_KAFKA_EXACTLY_ONCE")

    def look(self) -> None:
        now = asyncio.get_running_loop().time()
        for duty, due in self._duties.items():
            if now >= due:
                self._duties[duty] = now + duty[0]
                duty[1]()

    def count(self) -> None:
        """Write what was counted, and which ends are there; to be called often."""
        if not self._config.tells_ends:
            return
        self._is_telling = self._is_telling or bool(self._endings.unfinished)
        if self._is_telling or self._completion.has_tasks or self._endings.deleted:
            self.tracker.look()
        if self._is_telling:
            self._announcer.look()

    def is_counting(self) -> bool:
        """Whether seeds that are done wait to be counted."""
        return self._config.tells_ends and self.tracker.is_counting

    def have_work(self) -> bool:
        """Whether something is to be done though no seed is here."""
        is_ending = self._over.is_at_work or self._announcer.is_at_work or self._webhooks.is_sending
        return self.is_counting() or self._watch.is_waiting or (self._config.tells_ends and is_ending)

    def shares(self, frontier: Frontier[Waiter]) -> bool:
        """Whether there are tasks that share what is polled: here, declared, or named by a producer."""
        return (
            any(isinstance(flow, TaskFlow) and flow.task_id is not None for flow in frontier.flows)
            or self.board.has_running()
            or self._endings.have_seeds()
        )

    def tell(self) -> None:
        self._rates.close()
        self.states.close()

    def close(self) -> None:
        self._follower.close()
        if self._config.tells_ends:
            self._announcer.close()
            self.control.close()

    def _hear(self, task_ids: Collection[str]) -> None:
        for each in (self._watch, self._limits, self._over, self._webhooks):
            each.heard(task_ids)

    def _heard(self, task_ids: Collection[str]) -> None:
        changed = self.states.changed(task_ids)
        self.parking.changed(task_ids)
        self._hear(task_ids)
        if changed:
            self._gate.changed(changed)
        self._gate.heard()
