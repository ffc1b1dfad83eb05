"""Puts parked messages back where no command does: their task has expired, or the command was killed.

The same where the end of a task waits for the parked topic although nothing of it waits there: who closed the
task saw a message that its process had parked, and not yet that the process sent it on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from site_spider.contracts.seed_log import Partition, SeedLog
from site_spider.engine.background import Background
from site_spider.errors import SiteSpiderError
from site_spider.tasks.board import Board
from site_spider.tasks.control_log import Endings
from site_spider.tasks.returning import put_back
from site_spider.tasks.topics import TaskTopics

logger = logging.getLogger(__name__)

_QUIET_SECONDS = 10.0  # without news of a task: a command that puts back tells of it
_MOST_AT_ONCE = 1_000  # tasks


class ReturnWatch:
    """In the process that has the first partition of the seed topic. On the event loop's thread."""

    def __init__(
        self,
        log: SeedLog,
        topics: TaskTopics,
        board: Board,
        partitions: Callable[[], Collection[Partition]],
        endings: Endings,
        background: Background,
    ) -> None:
        self._log = log
        self._topics = topics
        self._board = board
        self._partitions = partitions  # that this process has
        self._endings = endings
        self._look_at = 0.0
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
        now = asyncio.get_running_loop().time()
        if now >= self._look_at:
            self._look_at = now + _QUIET_SECONDS
            for task_id in self._endings.waiting_for(self._topics.parked):
                self._news.setdefault(task_id, now)
        if not self._news or (self._work is not None and not self._work.done()):
            return
        if Partition(self._topics.seeds, 0) not in self._partitions():
            return
        before = now - _QUIET_SECONDS
        quiet = (task_id for task_id, heard in self._news.items() if heard < before)
        due = [task_id for task_id in quiet if self._board.phase(task_id).name != "paused"]
        if due:
            self._work = self._background.start(self._put_back(due[:_MOST_AT_ONCE]), "parked messages")

    async def _put_back(self, task_ids: Collection[str]) -> None:
        said = "task " + ", ".join(list(task_ids)[:3]) + (", ..." if len(task_ids) > 3 else "")
        try:
            count = await asyncio.to_thread(put_back, self._log, self._topics, task_ids)
        except SiteSpiderError as error:
            logger.warning("Parked messages of %s cannot be put back now: %s", said, error)
        else:
            logger.info("Put back %d parked messages of %s", count, said)
        self.heard(task_ids)
