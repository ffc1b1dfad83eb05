"""Parts that the wiring builds in steps: the end of a crawl, and tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from scrapy.settings import BaseSettings

from site_spider import runtime, webhook
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
from site_spider.tasks.follower import BadRecords, Follower, TopicView
from site_spider.tasks.gate import TaskGate
from site_spider.tasks.group_work import Group, Notices, OverTasks, ReturnWatch, Teller
from site_spider.tasks.page_counts import PageLog
from site_spider.tasks.parking import Parking
from site_spider.tasks.rates import TELL_SECONDS, GroupRates, Overtaking
from site_spider.tasks.states import TaskStates
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
    ) -> None:
        self._config, self._log, self._producer, self._tell = config, log, producer, tell
        self._background, self._count_in_stats, self._completion = background, count, completion
        self.topics = topics = config.task_topics
        self.board = Board()
        self._send = partial(producer.send, topics.tasks)
        process = f"{socket.gethostname()}-{os.getpid()}-{runtime.token_hex(4)}"
        self.states = TaskStates(self.board, process, self._send, background)
        self._endings = Endings()
        view = TopicView(log, topics.control, self._endings.take, count)
        self.control = Control(view, tell, self._endings, producer, process, background)
        self.highs = self.control if config.tells_ends else None  # None: the end of tasks is not told
        self.parking = Parking(producer, topics, self.states, background, self.highs)
        self._has_first = lambda: Partition(topics.seeds, 0) in completion.ledger.partitions()
        group = Group(log, producer, topics, self.board, self.control, self._has_first, background)
        self._group, self._over = group, OverTasks(group)
        pages = PageLog(log, producer, topics.pages, background)
        self.tracker = Tracker(completion, self.control, pages, self._over.is_declared)
        self.clock = BrokerClock(log, producer, topics.clock)

    def complete(
        self,
        settings: BaseSettings,
        gate: TaskGate,
        rates: TaskRates,
        queues: Queues,
        is_full: Callable[[], bool],
        may_poll: Callable[[], bool],
    ) -> None:
        """Build what needs the frontier. Raises ConfigError."""
        board, group, config = self.board, self._group, self._config
        told = board, self.topics.tasks, self._producer, self._has_first
        self._gate, self._watch = gate, ReturnWatch(group)
        self._limits, past = TimeLimits(self.clock, *told), PastUsage(*told)
        self._notices = Notices(group, webhook.secret_of(config.spill_keys), guard_of(settings))
        self._teller = Teller(group, BadRecords(self.topics.pages, self._count_in_stats))
        self._is_telling = False  # once a task was closed
        self._rates = GroupRates(board, rates, self.states.process, self._send)
        view = TopicView(self._log, self.topics.tasks, board.take, self._count_in_stats)
        self._follower = Follower(view, self._tell, self._heard)
        looks: list[Any] = [self.states, self._limits, self._watch, past]
        looks += [self._over, self._notices] if config.tells_ends else []
        if not config.exactly_once:  # else a seed that leaves would not be part of a transaction
            flight = self._completion, queues, is_full, may_poll
            looks.append(Overtaking(group, config.consumer_group, *flight))
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
        """To be called now and then."""
        now = asyncio.get_running_loop().time()
        for duty, due in self._duties.items():
            if now >= due:
                self._duties[duty] = now + duty[0]
                duty[1]()

    def count(self) -> None:
        """Write what was counted, and which ends are there; to be called often."""
        if self._config.tells_ends:
            self.tracker.look()
            self._is_telling = self._is_telling or bool(self._endings.unfinished)
            if self._is_telling:
                self._teller.look()

    def is_counting(self) -> bool:
        """Whether seeds that are done wait to be counted."""
        return self._config.tells_ends and self.tracker.is_counting

    def shares(self, frontier: Frontier[Waiter]) -> bool:
        """Whether there are tasks that share what is polled: here, declared, or named by a producer."""
        return (
            frontier.has_flow(lambda flow: isinstance(flow, TaskFlow) and flow.task_id is not None)
            or self.board.has_running()
            or self._endings.have_seeds()
        )

    def tell(self) -> None:
        """Tell the other processes the rest."""
        self._rates.close()
        self.states.close()

    def close(self) -> None:
        """Follow no more."""
        self._follower.close()
        if self._config.tells_ends:
            self._teller.close()
            self.control.close()

    def _hear(self, task_ids: Collection[str]) -> None:
        for each in (self._watch, self._limits, self._over, self._notices):
            each.heard(task_ids)

    def _heard(self, task_ids: Collection[str]) -> None:
        changed = self.states.changed(task_ids)
        self.parking.changed(task_ids)
        self._hear(task_ids)
        if changed:
            self._gate.changed(changed)
        self._gate.heard()
