"""Puts parked messages back where no command does: their task has expired, or the command was killed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from site_spider.contracts.seed_log import Partition, SeedLog
from site_spider.engine.background import Background
from site_spider.errors import SiteSpiderError
from site_spider.tasks.board import Board
from site_spider.tasks.returning import Backlog, Returning
from site_spider.tasks.topics import TaskTopics

logger = logging.getLogger(__name__)

_QUIET_SECONDS = 10.0  # without news of a task: a command that puts back tells of it


class ReturnWatch:
    """In the process that has the first partition of the seed topic. On the event loop's thread."""

    def __init__(
        self,
        log: SeedLog,
        topics: TaskTopics,
        board: Board,
        partitions: Callable[[], Collection[Partition]],
        background: Background,
    ) -> None:
        self._log = log
        self._topics = topics
        self._board = board
        self._partitions = partitions  # that this process has
        self._background = background
        self._news: dict[str, float] = {}  # when something was heard of a task that has parked messages
        self._work: asyncio.Task[None] | None = None

    def heard(self, task_ids: Collection[str]) -> None:
        """Records of these tasks have come."""
        now = asyncio.get_running_loop().time()
        for task_id in task_ids:
            if self._board.has_parked(task_id):
                self._news[task_id] = now
            else:
                self._news.pop(task_id, None)

    def look(self) -> None:
        """To be called now and then."""
        if not self._news or (self._work is not None and not self._work.done()):
            return
        if Partition(self._topics.seeds, 0) not in self._partitions():
            return
        before = asyncio.get_running_loop().time() - _QUIET_SECONDS
        for task_id, heard in self._news.items():
            if heard < before and self._board.phase(task_id).name != "paused":
                self._work = self._background.start(self._put_back(task_id), "parked messages")
                return

    async def _put_back(self, task_id: str) -> None:
        parked = {name: usage.waiting for name, usage in self._board.usages(task_id).items()}
        backlog = Backlog(parked, self._board.returned(task_id).offsets)
        returning = Returning(self._log, self._topics, task_id)
        try:
            count = await asyncio.to_thread(returning.run, backlog)
        except SiteSpiderError as error:
            logger.warning("Parked messages of task %s cannot be put back now: %s", task_id, error)
            self.heard([task_id])
            return
        logger.info("Put back %d parked messages of task %s", count, task_id)
