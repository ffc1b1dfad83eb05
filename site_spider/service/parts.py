"""The parts of a crawl, as the wiring has built them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, NoReturn, cast

from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import CloseSpider
from scrapy.settings import BaseSettings

from site_spider import options, webhook
from site_spider.contracts.seed_log import LogName, Partition, Producer, SeedLog
from site_spider.contracts.sink import Sink, StatisticsStore
from site_spider.download.bodies import Bodies
from site_spider.engine.background import Background
from site_spider.errors import ConfigError
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.scheduler import Dispatcher, Queues
from site_spider.frontier.waiter import TaskFlow, TaskRates, Waiter
from site_spider.frontier.waiting_room import WaitingRoom
from site_spider.intake.intake import Handover, Intake, LoopCalls
from site_spider.intake.room import BackPressure, PollRoom
from site_spider.intake.seed_queue import TopicPartitions
from site_spider.intake.seeds import Seeds
from site_spider.intake.suspects import Quarantine
from site_spider.ledger.completion import Completion
from site_spider.observe.frontier_socket import FrontierServer
from site_spider.observe.identity import statistics_id
from site_spider.observe.metrics.exporter import GroupWatch
from site_spider.observe.metrics.readings import Measurements
from site_spider.observe.snapshot import MOMENTS, Watched
from site_spider.observe.statistics import Statistics, StatisticsPlan, StatsTopic
from site_spider.options import SettingsView
from site_spider.results.commits import Commits
from site_spider.results.delivery import Delivery
from site_spider.results.failures import Mishaps
from site_spider.results.results import Results, Sinks
from site_spider.secrets import Redaction, secrets_of
from site_spider.seed.tiers import CrawlTopics
from site_spider.service import exit_code
from site_spider.service.config import KAFKA, STATS_TO, ServiceSettings, guard_of
from site_spider.service.stop import IdleClose
from site_spider.sources.extractor import Extractor
from site_spider.sources.library import SourceFolder
from site_spider.sources.url_rules import UrlRulesFile
from site_spider.tasks.board import Board, BrokerClock, PastUsage, TimeLimits
from site_spider.tasks.control_log import Endings
from site_spider.tasks.ends import Group, Notices, OverTasks, ReturnWatch, Teller
from site_spider.tasks.follower import BadRecords, Follower, TopicView
from site_spider.tasks.gate import TaskGate
from site_spider.tasks.moving import Leaving, Parking
from site_spider.tasks.page_counts import PageLog
from site_spider.tasks.rates import TELL_SECONDS, GroupRates, Overtaking, Send
from site_spider.tasks.states import TaskStates
from site_spider.tasks.tasks import Looking, Tasks, process_name
from site_spider.tasks.tracker import Control, Tracker
from site_spider.text import for_log

# --- ending ----------------------------------------------------------------------------------------------
# How a crawl that cannot start or go on ends: the exit code, and the reason in the log.


logger = logging.getLogger(__name__)


class Ending:
    """Of one crawl. On the event loop's thread only."""

    def __init__(self, crawler: Crawler, leave_at_once: Callable[[], None]) -> None:
        self.background = Background.for_crawler(crawler, self.fail)
        self.is_death = False  # by an error of our own: some seed may be at fault
        self._leave_at_once = leave_at_once  # ends the process, where it is ours
        self._crawler = crawler
        self._closing: asyncio.Task[None] | None = None

    @property
    def exit_code(self) -> int:
        """0 until something went wrong."""
        return getattr(self._crawler.spider, "exit_code", 0)

    def refuse_to_start(self, error: Exception) -> NoReturn:
        """Say why, in one line if a setting or a server is to blame, and close.

        For handlers of spider_opened. A crawl that has failed meanwhile is closing: what the start then does
        not find is no reason of its own.
        """
        if self._closing is not None:
            raise CloseSpider("failed") from error
        code = exit_code.of(error, exit_code.SETUP)
        reason = repr(error) if code == exit_code.SETUP else str(error)
        logger.error("Cannot start: %s", reason, exc_info=error if code == exit_code.SETUP else None)
        if self._crawler.settings.get("LOG_FILE"):
            # for whoever started it: the log is elsewhere
            shown = Redaction(secrets_of(self._crawler.settings))(f"Cannot start: {reason}")
            print(for_log(shown, one_line=True), file=sys.stderr)
        self._set_exit_code(code)
        raise CloseSpider("cannot_start")

    def fail(self, error: BaseException) -> None:
        """The crawl cannot go on: close it, with an exit code that has it started again."""
        code = exit_code.of(error, exit_code.SOFTWARE)
        if code == exit_code.SOFTWARE:
            logger.error("The crawl cannot go on: %r", error, exc_info=error)
            self.is_death = True
        else:
            logger.error("The crawl cannot go on: %s", error)
        if self._closing is None:
            self._set_exit_code(code)
        self.close("failed")

    def close(self, reason: str) -> None:
        """Close the crawl in order; what goes wrong then ends the process."""
        if self._closing is None:
            self._closing = self.background.start(self._close(reason), "closing")

    async def _close(self, reason: str) -> None:
        try:
            await self._crawler.engine.close_spider_async(reason=reason)
        except Exception:
            logger.exception("The crawl could not be closed in order")
            self._leave_at_once()

    def _set_exit_code(self, code: int) -> None:
        assert self._crawler.spider is not None
        self._crawler.spider.exit_code = code  # type: ignore[attr-defined]


# --- observers -------------------------------------------------------------------------------------------
# What shows a crawl to others: statistics and the socket of `scrapy frontier`.


_WHEN = "SITE_STATS_WHEN"
_ALWAYS = frozenset({"interval", "close"})  # for the topic: a console shows each process, and its end


class Observers:
    """All of them take their numbers from `observe.snapshot`. None holds up the crawl."""

    def __init__(
        self,
        watched: Watched,
        measurements: Measurements,
        stores: Sequence[StatisticsStore],
        log: SeedLog,
        log_name: LogName,
        config: ServiceSettings,
        ending: Ending,
    ) -> None:
        settings = watched.crawler.settings
        self._watched = watched
        self._log = measurements.log
        # made as a sink is, but by another class method: nothing else differs
        deliveries = [Delivery(cast(Sink, store)) for store in stores]
        plan = statistics_plan(settings, statistics_id(settings, watched.identity))
        topic = StatsTopic(log, config.stats_topic)
        self._statistics = Statistics(watched, deliveries, topic, plan, ending.background)
        has_socket = options.boolean(settings, "SITE_FRONTIER_SOCKET")
        self._server = FrontierServer(watched, measurements.measured, log_name) if has_socket else None

    async def open(self) -> None:
        """Show from now on."""
        self._log.open()
        self._watched.loop_lag.start()
        self._statistics.start()
        if self._server is not None:
            await self._server.open()

    async def close(self) -> None:
        """Write the last statistics, and show nothing any more."""
        if self._server is not None:
            await self._server.close()
        await self._statistics.close()
        self._watched.loop_lag.stop()
        self._log.close()


def statistics_plan(settings: SettingsView, own_id: str) -> StatisticsPlan:
    """What SITE_STATS_* say. Raises ConfigError."""
    moments = frozenset(options.names(settings, _WHEN))
    if not moments or not moments.issubset(MOMENTS):
        raise ConfigError(
            f"{_WHEN} is {settings.get(_WHEN)!r}, but must name one or several of {', '.join(MOMENTS)}."
        )
    has_topic = KAFKA in options.names(settings, STATS_TO)
    return StatisticsPlan(
        own_id,
        options.seconds(settings, "SITE_STATS_INTERVAL_SECONDS", minimum=0.1),
        moments,
        _ALWAYS | moments if has_topic else _ALWAYS,
    )


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
    watched: Watched
    group: GroupWatch
    measurements: Measurements
    observers: Observers
    extractor: Extractor
    tasks: Tasks
    mishaps: Mishaps  # kept: Scrapy refers to its listeners weakly


def build_idle(parts: Parts) -> IdleClose:
    """What looks whether there is anything to do. An outage, a full memory or a full sink is no rest."""
    ledger, tells = parts.completion.ledger, parts.tasks.is_counting

    def is_busy() -> bool:
        waits = ledger.in_flight or len(parts.room) or parts.intake.is_away or tells()
        return bool(waits) or not parts.back_pressure.may_poll()

    counts = lambda: tuple(ledger.outcomes.values())  # noqa: E731
    return IdleClose(parts.config.idle_close_seconds, counts, is_busy, lambda: bool(ledger.partitions()))


@dataclass(frozen=True, slots=True)
class Stores:
    """What settings name, not yet opened."""

    log: SeedLog
    log_name: LogName
    sinks: Sequence[Sink]
    item_sinks: Sequence[Sink]
    statistics: Sequence[StatisticsStore]
    sources: SourceFolder
    url_rules: UrlRulesFile
    obeys_robots: bool  # where no source says otherwise


# --- task wiring -----------------------------------------------------------------------------------------
# Builds the parts of tasks: what they need of others is named in two steps, as these are made.


class TaskRecords(NamedTuple):
    """What is known of tasks, and told of them."""

    topics: CrawlTopics
    board: Board
    states: TaskStates
    parking: Parking
    control: Control
    highs: Control | None  # None: the end of tasks is not told
    pages: PageLog
    clock: BrokerClock
    over: OverTasks
    group: Group
    producer: Producer
    background: Background
    send: Send  # to the task topic
    count_in_stats: Callable[[str], None]


def build_records(
    config: ServiceSettings,
    log: SeedLog,
    producer: Producer,
    tell: LoopCalls,
    background: Background,
    count: Callable[[str], None],
    partitions: Callable[[], Collection[Partition]],
) -> TaskRecords:
    """The first step, before there is a frontier; `partitions` are those of this process."""
    topics, board, endings = config.task_topics, Board(), Endings()
    send = partial(producer.send, topics.tasks)
    states = TaskStates(board, process_name(), send, background)
    view = TopicView(log, topics.control, endings.take, count)
    control = Control(view, tell, endings, producer, states.process, background)
    highs = control if config.tells_ends else None
    parking = Parking(producer, topics, states, background, highs)
    pages = PageLog(log, producer, topics.pages, background)
    clock = BrokerClock(log, producer, topics.clock)
    has_first = lambda: Partition(topics.seeds, 0) in partitions()  # noqa: E731
    group = Group(log, producer, topics, board, control, has_first, background)
    over = OverTasks(group)
    return TaskRecords(
        topics, board, states, parking, control, highs, pages, clock, over, group, producer, background,
        send, count,
    )  # fmt: skip


def shares(records: TaskRecords, frontier: Frontier[Waiter]) -> bool:
    """Whether there are tasks that share what is polled: here, declared, or named by a producer."""
    return (
        frontier.has_flow(lambda flow: isinstance(flow, TaskFlow) and flow.task_id is not None)
        or records.board.has_running()
        or records.control.endings.have_seeds()
    )


def build_gate(records: TaskRecords, queues: Queues, leaving: Leaving) -> TaskGate:
    """The second: what lets seeds, links and requests begin."""
    return TaskGate(records.states, queues, leaving, records.background)


def build_overtaking(
    records: TaskRecords,
    config: ServiceSettings,
    poll_room: PollRoom,
    may_poll: Callable[[], bool],
    queues: Queues,
    completion: Completion,
    log: SeedLog,
) -> Overtaking | None:
    """None with exactly-once: a seed that leaves would not be part of a transaction."""
    if config.exactly_once:
        return None
    return Overtaking(
        poll_room.is_full,
        may_poll,
        records.board,
        records.control,
        queues=queues,
        completion=completion,
        log=log,
        group=config.consumer_group,
        producer=records.producer,
        background=records.background,
    )


def build_tasks(  # noqa: PLR0913 - all of it
    settings: BaseSettings,
    config: ServiceSettings,
    records: TaskRecords,
    tracker: Tracker,
    gate: TaskGate,
    log: SeedLog,
    *,
    tell: LoopCalls,
    rates: TaskRates,
    overtaking: Overtaking | None,
) -> Tasks:
    """All of it, to be opened and driven. Raises ConfigError."""
    topics, board, states, group = records.topics, records.board, records.states, records.group
    measured = itertools.count()  # Tasks.open measures, too

    def measure() -> None:
        if next(measured):
            group.background.start(asyncio.to_thread(records.clock.measure), "the broker's time")

    watch = ReturnWatch(group)
    group_rates = GroupRates(board, rates, states.process, records.send)
    limits = TimeLimits(board, records.clock, topics.tasks, group.producer, group.has_first)
    past = PastUsage(board, topics.tasks, group.producer, group.has_first)
    teller = Teller(group, BadRecords(topics.pages, records.count_in_stats))
    notices = Notices(group, webhook.secret_of(config.spill_keys), guard_of(settings))
    ends: list[Looking] = [records.over, notices] if config.tells_ends else []
    looks: list[Looking] = [states, limits, watch, past, *ends, *([] if overtaking is None else [overtaking])]
    share = lambda: group_rates.look(asyncio.get_running_loop().time())  # noqa: E731
    duties = [
        *((each.every_seconds, each.look) for each in looks),
        (BrokerClock.every_seconds, measure),
        (TELL_SECONDS, share),
    ]
    view = TopicView(log, topics.tasks, board.take, records.count_in_stats)
    return Tasks(
        states=states,
        parking=records.parking,
        gate=gate,
        watch=watch,
        limits=limits,
        rates=group_rates,
        control=records.control,
        tracker=tracker,
        teller=teller,
        over=records.over,
        duties=dict.fromkeys(duties, 0.0),
        follow=partial(Follower, view, tell),
        tells_ends=config.tells_ends,
    )
