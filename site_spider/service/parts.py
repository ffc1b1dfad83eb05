"""Parts that the wiring builds in steps: the end of a crawl, and tasks."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from scrapy.settings import BaseSettings

from site_spider import webhook
from site_spider.contracts.seed_log import LogName, Partition, Producer, SeedLog
from site_spider.contracts.sink import Sink, StatisticsStore
from site_spider.engine.background import Background
from site_spider.errors import EXIT_SETUP, EXIT_SOFTWARE, exit_code_of
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.scheduler import Queues
from site_spider.frontier.waiter import TaskFlow, TaskRates, Waiter
from site_spider.intake.intake import LoopCalls
from site_spider.ledger.completion import Completion
from site_spider.secrets import Redaction, secrets_of
from site_spider.service.config import ServiceSettings, guard_of
from site_spider.sources.library import SourceFolder
from site_spider.sources.url_rules import UrlRulesFile
from site_spider.tasks.board import Board, BrokerClock, PastUsage, TimeLimits
from site_spider.tasks.control_log import Endings
from site_spider.tasks.ends import Group, Notices, OverTasks, ReturnWatch, Teller
from site_spider.tasks.follower import BadRecords, Follower, TopicView
from site_spider.tasks.gate import TaskGate
from site_spider.tasks.moving import Parking
from site_spider.tasks.page_counts import PageLog
from site_spider.tasks.rates import TELL_SECONDS, GroupRates, Overtaking
from site_spider.tasks.states import TaskStates
from site_spider.tasks.tasks import Duty, Looking, Tasks, process_name
from site_spider.tasks.tracker import Control, Tracker
from site_spider.text import for_log

# --- How a crawl that cannot start or go on ends: the exit code, and the reason in the log ---------------

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
        code = exit_code_of(error, EXIT_SETUP)
        reason = repr(error) if code == EXIT_SETUP else str(error)
        logger.error("Cannot start: %s", reason, exc_info=error if code == EXIT_SETUP else None)
        if self._crawler.settings.get("LOG_FILE"):
            # for whoever started it: the log is elsewhere
            shown = Redaction(secrets_of(self._crawler.settings))(f"Cannot start: {reason}")
            print(for_log(shown, one_line=True), file=sys.stderr)
        self._set_exit_code(code)
        raise CloseSpider("cannot_start")

    def fail(self, error: BaseException) -> None:
        """The crawl cannot go on: close it, with an exit code that has it started again."""
        code = exit_code_of(error, EXIT_SOFTWARE)
        if code == EXIT_SOFTWARE:
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


# --- Builds the parts of tasks: what they need of others is named in two steps, as these are made --------


class TaskParts:
    """What is known of tasks, and told of them; its methods build the rest, once there is a frontier."""

    def __init__(
        self,
        config: ServiceSettings,
        log: SeedLog,
        producer: Producer,
        tell: LoopCalls,
        background: Background,
        count: Callable[[str], None],
        partitions: Callable[[], Collection[Partition]],  # of this process
    ) -> None:
        self._config, self._log, self._producer, self._tell = config, log, producer, tell
        self._background, self._count_in_stats = background, count
        self.topics = topics = config.task_topics
        self.board = Board()
        self._send = partial(producer.send, topics.tasks)
        self.states = TaskStates(self.board, process_name(), self._send, background)
        self._endings = Endings()
        view = TopicView(log, topics.control, self._endings.take, count)
        self.control = Control(view, tell, self._endings, producer, self.states.process, background)
        self.highs = self.control if config.tells_ends else None  # None: the end of tasks is not told
        self.parking = Parking(producer, topics, self.states, background, self.highs)
        self.pages = PageLog(log, producer, topics.pages, background)
        self.clock = BrokerClock(log, producer, topics.clock)
        has_first = lambda: Partition(topics.seeds, 0) in partitions()  # noqa: E731
        self._group = Group(log, producer, topics, self.board, self.control, has_first, background)
        self.over = OverTasks(self._group)

    def shares(self, frontier: Frontier[Waiter]) -> bool:
        """Whether there are tasks that share what is polled: here, declared, or named by a producer."""
        return (
            frontier.has_flow(lambda flow: isinstance(flow, TaskFlow) and flow.task_id is not None)
            or self.board.has_running()
            or self._endings.have_seeds()
        )

    def overtaking(
        self,
        is_full: Callable[[], bool],
        may_poll: Callable[[], bool],
        queues: Queues,
        completion: Completion,
    ) -> Overtaking | None:
        """None with exactly-once: a seed that leaves would not be part of a transaction."""
        if self._config.exactly_once:
            return None
        return Overtaking(
            is_full,
            may_poll,
            self.board,
            self.control,
            queues=queues,
            completion=completion,
            log=self._log,
            group=self._config.consumer_group,
            producer=self._producer,
            background=self._background,
        )

    def _duties(self, looks: Sequence[Looking], rates: GroupRates) -> dict[Duty, float]:
        measured = itertools.count()  # Tasks.open measures, too

        def measure() -> None:
            if next(measured):
                self._background.start(asyncio.to_thread(self.clock.measure), "the broker's time")

        share = lambda: rates.look(asyncio.get_running_loop().time())  # noqa: E731
        duties = [*((each.every_seconds, each.look) for each in looks), (TELL_SECONDS, share)]
        return dict.fromkeys([*duties, (BrokerClock.every_seconds, measure)], 0.0)

    def tasks(
        self,
        settings: BaseSettings,
        tracker: Tracker,
        gate: TaskGate,
        rates: TaskRates,
        overtaking: Overtaking | None,
    ) -> Tasks:
        """All of it, to be opened and driven. Raises ConfigError."""
        topics, board, group, config = self.topics, self.board, self._group, self._config
        watch = ReturnWatch(group)
        group_rates = GroupRates(board, rates, self.states.process, self._send)
        limits = TimeLimits(board, self.clock, topics.tasks, group.producer, group.has_first)
        past = PastUsage(board, topics.tasks, group.producer, group.has_first)
        teller = Teller(group, BadRecords(topics.pages, self._count_in_stats))
        notices = Notices(group, webhook.secret_of(config.spill_keys), guard_of(settings))
        ends: list[Looking] = [self.over, notices] if config.tells_ends else []
        looks: list[Looking] = [self.states, limits, watch, past, *ends]
        looks += [] if overtaking is None else [overtaking]
        view = TopicView(self._log, topics.tasks, board.take, self._count_in_stats)
        return Tasks(
            states=self.states,
            parking=self.parking,
            gate=gate,
            hear=(watch.heard, limits.heard, self.over.heard, notices.heard),
            limits=limits,
            rates=group_rates,
            control=self.control,
            tracker=tracker,
            teller=teller,
            over=self.over,
            duties=self._duties(looks, group_rates),
            follow=partial(Follower, view, self._tell),
            tells_ends=config.tells_ends,
        )
