"""The parts that find and tell the end of tasks, opened, driven and closed together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from site_spider import runtime
from site_spider.contracts.seed_log import Producer, SeedLog
from site_spider.engine.background import Background
from site_spider.errors import SiteSpiderError
from site_spider.tasks.board import Board
from site_spider.tasks.closing import close_for_all, make_control_log
from site_spider.tasks.control import Control
from site_spider.tasks.desk import forget_tasks
from site_spider.tasks.follower import read_board
from site_spider.tasks.notices import Notices, is_settled
from site_spider.tasks.record import Task
from site_spider.tasks.teller import Teller
from site_spider.tasks.topics import TaskTopics
from site_spider.tasks.tracker import Tracker

logger = logging.getLogger(__name__)

_OVER_SECONDS = 1.0  # between looks for tasks that were cancelled, or have expired
_MOST_KEPT = 50_000  # tasks that are declared: half of what the board takes
_MOST_FORGOTTEN = 5_000


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
    """Closes tasks that were cancelled or have expired: nobody sends seeds of them any more.

    It also has the topic forget tasks that have ended, the first one first, when there are very many.
    """

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
        self._closed: dict[str, Task] = {}  # as declared when they were closed here
        self._is_forgetting = False
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
        now = runtime.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _OVER_SECONDS
        if not self._has_log and len(self._board):
            self._background.start(self._make_log(), "control log of tasks")
        if not self._has_first():
            return
        if over := [task for task in self._board if self._is_over(task)]:
            self._closed |= {task.task_id: task for task in over}
            task_ids = [task.task_id for task in over]
            self._control.when_read(partial(self._begin, task_ids))  # another process may have closed them
        if max(len(self._board), len(self._control.endings)) > _MOST_KEPT and not self._is_forgetting:
            self._is_forgetting = True
            self._background.start(self._forget(), "forgetting tasks that have ended")

    def _is_over(self, task: Task) -> bool:
        if task.state != "cancelled" and task.expires_at is None:
            return False
        return self._closed.get(task.task_id) is not task and self._board.phase(task.task_id).is_over

    async def _make_log(self) -> None:
        try:
            await asyncio.to_thread(self.make_log)
        except SiteSpiderError as error:
            logger.warning("The control log of tasks cannot be made now, trying again: %s", error)

    def _begin(self, task_ids: list[str]) -> None:
        endings = ((task_id, self._control.get(task_id)) for task_id in task_ids)
        open_ones = [task_id for task_id, ending in endings if not (ending and ending.is_ending)]
        if open_ones:
            self._background.start(self._close(open_ones), "closing tasks")

    async def _close(self, task_ids: list[str]) -> None:
        def parked() -> set[str]:
            board = read_board(self._log, self._topics.tasks)
            return {task_id for task_id in task_ids if board.has_parked(task_id)}

        arguments = (self._log, self._producer, self._topics, task_ids, parked)
        try:
            await asyncio.to_thread(close_for_all, *arguments)
        except SiteSpiderError as error:
            logger.warning("%d tasks cannot be closed now, trying again: %s", len(task_ids), error)
            for task_id in task_ids:
                self._closed.pop(task_id, None)

    async def _forget(self) -> None:
        ended = [task_id for task_id in self._control.endings.ended() if self._may_forget(task_id)]
        too_many = max(len(self._board), len(self._control.endings)) - _MOST_KEPT
        first = ended[: too_many + _MOST_FORGOTTEN]  # and some more: it reads the topics
        try:
            if first:
                await asyncio.to_thread(forget_tasks, self._log, self._producer, self._topics, first)
        except SiteSpiderError as error:
            logger.warning("Tasks that have ended cannot be forgotten now, trying again: %s", error)
        for task_id in first:
            self._closed.pop(task_id, None)
        self._control.when_read(self._has_forgotten)

    def _may_forget(self, task_id: str) -> bool:
        task, ending = self._board.task(task_id), self._control.get(task_id)
        return task is None or task.webhook is None or ending is None or is_settled(ending)

    def _has_forgotten(self) -> None:
        self._is_forgetting = False
