"""The parts that find and tell the end of tasks, opened, driven and closed together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from site_spider.contracts.seed_log import Producer, SeedLog
from site_spider.engine.background import Background
from site_spider.errors import SiteSpiderError
from site_spider.tasks.board import Board
from site_spider.tasks.closing import TaskProducer, make_control_log
from site_spider.tasks.control import Control
from site_spider.tasks.desk import TaskDesk
from site_spider.tasks.notices import Notices
from site_spider.tasks.teller import Teller
from site_spider.tasks.topics import TaskTopics
from site_spider.tasks.tracker import Tracker

logger = logging.getLogger(__name__)

_OVER_SECONDS = 1.0  # between looks for tasks that were cancelled, or have expired


class TaskEnds:
    """On the event loop's thread; `close` blocks. Off where results and offsets are one transaction."""

    def __init__(
        self,
        control: Control,
        tracker: Tracker,
        teller: Teller,
        over: OverTasks,
        notices: Notices,
        *,
        is_on: bool,
    ) -> None:
        self._control = control
        self._tracker = tracker
        self._teller = teller
        self._over = over
        self._notices = notices
        self._is_on = is_on

    def open(self) -> None:
        """Make the control log where tasks are declared: it may have one partition only. Blocks."""
        if self._is_on:
            self._over.make_log()

    def is_counted(self, task_id: str) -> bool:
        """Whether the seeds of a task are counted although the control log does not name it yet."""
        return self._over.is_declared(task_id)

    def start(self) -> None:
        """Follow the control log from now on."""
        if self._is_on:
            self._control.start()
        else:
            logger.info("The end of tasks is not told with SITE_KAFKA_EXACTLY_ONCE")

    def look(self) -> None:
        """Write what has changed; to be called often."""
        if self._is_on:
            self._tracker.look()
            self._teller.look()
            self._over.look()
            self._notices.look()

    def is_counting(self) -> bool:
        """Whether seeds that are done wait to be counted."""
        return self._is_on and self._tracker.is_counting

    def close(self) -> None:
        """Follow it no more."""
        if self._is_on:
            self._teller.close()
            self._control.stop()


class OverTasks:
    """Closes tasks that were cancelled or have expired: nobody sends seeds of them any more."""

    def __init__(
        self,
        log: SeedLog,
        producer: Producer,
        topics: TaskTopics,
        board: Board,
        control: Control,
        has_first: Callable[[], bool],
        background: Background,
    ) -> None:
        self._log = log
        self._producer = producer
        self._topics = topics
        self._board = board
        self._control = control
        self._has_first = has_first  # the first partition of the seed topic
        self._background = background
        self._look_at = 0.0
        self._closing: set[str] = set()  # once for each process and task
        self._has_log = False

    def is_declared(self, task_id: str) -> bool:
        """Whether there is such a task, and the control log takes records of it."""
        return self._has_log and task_id in self._board.tasks

    def make_log(self) -> None:
        """Make the control log, if there is a task. Blocks. Raises ConfigError, LogUnavailable."""
        if not self._has_log and len(self._board):
            make_control_log(self._log, self._topics)
            self._has_log = True

    def look(self) -> None:
        """To be called now and then."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _OVER_SECONDS
        if not self._has_log and len(self._board):
            self._background.start(self._make_log(), "control log of tasks")
        if not self._has_first():
            return
        for task in self._board:
            if not self._board.phase(task.task_id).is_over:
                self._closing.discard(task.task_id)  # it was declared anew
            elif task.task_id not in self._closing:
                self._closing.add(task.task_id)
                self._control.when_read(
                    partial(self._begin, task.task_id)
                )  # another process may have closed it

    async def _make_log(self) -> None:
        try:
            await asyncio.to_thread(self.make_log)
        except SiteSpiderError as error:
            logger.warning("The control log of tasks cannot be made now, trying again: %s", error)

    def _begin(self, task_id: str) -> None:
        self._background.start(self._close(task_id), "closing a task")

    def _has_parked(self, task_id: str) -> bool:
        return TaskDesk(self._log, self._topics).board.has_parked(task_id)

    async def _close(self, task_id: str) -> None:
        ending = self._control.get(task_id)
        if ending is not None and (ending.is_closed or ending.is_told):
            return
        closer = TaskProducer(self._log, self._producer, self._topics, task_id)
        try:
            await asyncio.to_thread(closer.close_for_all, lambda: self._has_parked(task_id), counts=False)
        except SiteSpiderError as error:
            logger.warning("Task %s cannot be closed now, trying again: %s", task_id, error)
            self._closing.discard(task_id)
