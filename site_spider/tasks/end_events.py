"""What one process does for the ends of tasks: closes them, and tells their events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from site_spider.contracts.seed_log import MessagePlace
from site_spider.engine.background import Turns
from site_spider.errors import LogUnavailable, SinkRejected, SiteSpiderError
from site_spider.outage import Outage
from site_spider.tasks.closing import close_for_all
from site_spider.tasks.control_log import make_ordered
from site_spider.tasks.ending import EndTold, Noticed, SeedCounts, TaskEnding
from site_spider.tasks.orders import forget_tasks
from site_spider.tasks.page_log import PageCounts, PageReading, PageTable
from site_spider.tasks.tracker import Group, GroupWork
from site_spider.tasks.webhooks import is_settled

logger = logging.getLogger(__name__)


# --- end announcer --------------------------------------------------------------------------------------
# Tells the end of tasks: one record to the topic of events for each generation.
#
# The process that has the first partition of the seed topic does it. The end is written to the control log
# first, with the text of the event: the first one of a generation counts. Whoever has the first partition
# then sends the event and notes that. A crash in between sends the same bytes once more; `task_id` and
# `generation` name an event.
#
# Before that the pages of the task are counted: a thread reads what is new in the page log, once for all
# tasks that end meanwhile. All pages are in it, because no seed is complete before its pages are. If the
# control log says more of the task when the pages are counted, they are counted again.

_PAUSE_SECONDS = 0.5  # while pages cannot be counted
_MOST_AT_ONCE = 2_000  # tasks, in one look: some milliseconds
_MOST_UNDER_WAY = 1_000  # records of pages that are deleted
_TRAP = "trap "  # begins what the reasons say of links that were not followed


class EndAnnouncer(GroupWork):
    """Tells the end of each generation, once."""

    def __init__(self, group: Group, count: Callable[[str], None]) -> None:
        super().__init__(group)
        self._over: set[str] = set()  # of those that are busy: whose pages are to be counted
        self._unfinished: list[str] = []  # that are to be looked at
        self._is_counting = False
        self._table: PageTable | None = None  # once something has ended here
        self._count = count  # in Scrapy's statistics
        self._away = Outage(logger, "The pages of tasks cannot be counted, trying again", "They are counted")
        self._has_topic = False

    def look(self) -> None:
        if self._over and not self._is_counting:
            self._is_counting = True
            self._background.start(self._tell_all(), "counting pages")
        if not self._has_first():
            self._forget_pages()
            return
        silent: dict[str, EndTold] = {}
        over: set[str] = set()
        self._unfinished = self._unfinished or list(self._control.endings.unfinished)
        for task_id in self._unfinished[-_MOST_AT_ONCE:]:
            if task_id in self._busy or (ending := self._control.get(task_id)) is None:
                continue
            if ending.ended is not None and ending.noticed < ending.ended.generation:
                silent[task_id] = ending.ended
            elif ending.is_over and not ending.is_told:
                over.add(task_id)
        del self._unfinished[-_MOST_AT_ONCE:]
        self._busy |= over | silent.keys()
        if over:
            self._control.when_read(lambda: self._over.update(over))
        if silent:
            self._background.start(self._send_all(silent), "task events")

    def close(self) -> None:
        """Release what pages were read with. Blocks for a moment."""
        if self._table is not None:
            self._table.close()

    def _forget_pages(self) -> None:
        if self._table is not None and not self._is_counting:
            table, self._table = self._table, None
            self._background.start(asyncio.to_thread(table.close), "closing the table of pages")

    async def _tell_all(self) -> None:
        """The log is read to its end, where the rule holds."""
        over, self._over = self._over, set()
        ends = {task_id: ending for task_id in over if (ending := self._is_over(task_id)) is not None}
        read_to = {task_id: ending.read_to for task_id, ending in ends.items()}
        self._busy -= over - ends.keys()
        if self._table is None:
            self._table = PageTable(self._log, self._topics.pages, self._count)
        told = self._control.endings.pages_told()
        try:
            reading = await asyncio.to_thread(self._table.read, tuple(ends), told)
        except LogUnavailable as error:
            self._away.goes_on(error)
            await asyncio.sleep(_PAUSE_SECONDS)
            self._busy -= over
            return
        finally:
            self._is_counting = False
        self._away.is_over()
        turns = Turns.of_running_loop()
        async for task_id, ending in turns.through(ends.items()):
            if ending.read_to == read_to[task_id] and self._is_over(task_id) is ending:
                with self._control.guarded(task_id):
                    self._tell(task_id, ending, reading)
            else:
                self._busy.discard(task_id)
        async for number, key in turns.through(enumerate(reading.stale, 1)):
            with suppress(SiteSpiderError):  # the next owner finds them again
                sent = self._producer.send(self._topics.pages, key, None)
                if number % _MOST_UNDER_WAY == 0:
                    await asyncio.wrap_future(sent)

    def _is_over(self, task_id: str) -> TaskEnding | None:
        ending = self._control.get(task_id)
        return ending if ending is not None and ending.is_over and not ending.is_told else None

    def _tell(self, task_id: str, ending: TaskEnding, reading: PageReading) -> None:
        pages = pages_before(ending).plus(reading.counts[task_id])
        traps = {f"{_TRAP}{pattern}": count for pattern, count in ending.counts().traps.items()}
        kept = {name: count for name, count in pages.reasons.items() if not name.startswith(_TRAP)}
        pages = pages._replace(reasons={**kept, **traps})  # of all generations
        phase = self._board.phase(task_id)
        event = event_of(task_id, ending, phase.name if phase.is_over else "done", pages)
        ended = EndTold(ending.generation, ending.read_to, event, reading.end, pages.came_back)
        self._control.write(task_id, ended, lambda _: self._when_settled(task_id))

    async def _send_all(self, silent: Mapping[str, EndTold]) -> None:
        try:
            if not self._has_topic:
                await asyncio.to_thread(self._log.make_topic, self._topics.events, 1, compacted=False)
                self._has_topic = True
        except LogUnavailable as error:
            logger.warning("The end of tasks cannot be told now, trying again: %s", error)
            self._busy -= silent.keys()
            return
        sent: dict[str, Future[MessagePlace]] = {}
        async for task_id, ended in Turns.of_running_loop().through(silent.items()):
            with self._control.guarded(task_id):
                value = json.dumps(ended.event, ensure_ascii=False, separators=(",", ":")).encode()
                sent[task_id] = self._producer.send(self._topics.events, task_id.encode(), value)
        for task_id, future in sent.items():
            await self._when_sent(task_id, silent[task_id], future)

    async def _when_sent(self, task_id: str, ended: EndTold, future: Future[MessagePlace]) -> None:
        try:
            await asyncio.wrap_future(future)
        except SinkRejected as error:
            self._control.set_aside(task_id, error)
            return
        except LogUnavailable as error:
            logger.warning("The end of task %s cannot be told now, trying again: %s", task_id, error)
            self._busy.discard(task_id)
            return
        logger.info("Task %s has ended (%s, generation %d)", task_id, ended.event.get("event"), ended.generation)
        if (ending := self._control.get(task_id)) is not None:
            self._control.take_back(task_id, ending.carried_words(ended.upto))
        self._control.write(task_id, Noticed(ended.generation), lambda _: self._when_settled(task_id))


def pages_before(ending: TaskEnding) -> PageCounts:
    """What was told of the generations before."""
    if (ended := ending.ended) is None:
        return PageCounts()
    pages, failures, size_bytes = (ended.event.get(name, 0) for name in ("pages", "failures", "bytes"))
    return PageCounts(pages, failures, size_bytes, ended.event.get("reasons", {}), ended.came_back)


def event_of(task_id: str, ending: TaskEnding, kind: str, pages: PageCounts) -> dict[str, Any]:
    """What is told of the end of a task: the counts of all its generations."""
    counts = ending.counts()
    return {
        "task_id": task_id,
        "generation": ending.generation,
        "event": kind,
        "first_at": _time(counts.first_ms),
        "last_at": _time(counts.last_ms),
        **SeedCounts.of(counts.seeds, pages.came_back).fields(),
        "partial": ending.is_partial,
        "pages": pages.pages,
        "failures": pages.failures,
        "bytes": pages.size_bytes,
        "reasons": dict(pages.reasons),
    }


def _time(milliseconds: int) -> str | None:
    if not milliseconds:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


# --- closing ---------------------------------------------------------------------------------------------

_MOST_KEPT = 50_000  # tasks that are declared: half of what the board takes
_MOST_FORGOTTEN = 5_000


class TaskCloser(GroupWork):
    """Closes tasks that were cancelled or have expired: nobody sends seeds of them any more.

    It also has the topics forget tasks that have ended, the first one first, when there are very many.
    """

    every_seconds = 1.0

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._is_forgetting = self._is_making = False
        self._has_log = False
        self._away = Outage(logger, "Tasks cannot be closed now, trying again", "Tasks are closed again")

    def is_declared(self, task_id: str) -> bool:
        """Whether there is such a task, and the control log takes records of it."""
        return self._has_log and task_id in self._board.tasks

    def make_log(self) -> None:
        """Make the control log, if there is a task. Blocks. Raises ConfigError, LogUnavailable."""
        if not self._has_log and len(self._board):
            make_ordered(self._log, self._topics, self._topics.control)
            self._has_log = True

    def look(self) -> None:
        if not (self._has_log or self._is_making) and len(self._board):
            self._is_making = True
            self._background.start(self._make_log(), "control log of tasks")
        if not self._has_first():
            return
        news, self._heard_of = self._heard_of, self._heard_of & self._busy
        over = [each for each in news - self._busy if self._board.phase(each).is_over]
        if over := [each for each in over if not self._is_ending(each)]:
            self._busy.update(over)
            self._control.when_read(partial(self._begin, over))  # another process may have closed them
        if max(len(self._board), len(self._control.endings)) > _MOST_KEPT and not self._is_forgetting:
            self._is_forgetting = True
            self._background.start(self._forget(), "forgetting tasks that have ended")

    def _is_ending(self, task_id: str) -> bool:
        ending = self._control.get(task_id)
        return ending is not None and ending.is_ending

    async def _make_log(self) -> None:
        with self._away.tried(SiteSpiderError):
            await asyncio.to_thread(self.make_log)
        self._is_making = False

    def _begin(self, task_ids: list[str]) -> None:
        open_ones = [task_id for task_id in task_ids if not self._is_ending(task_id)]
        self._busy.difference_update(task_ids)
        self._busy.update(open_ones)
        if open_ones:
            self._background.start(self._close(open_ones), "closing tasks")

    async def _close(self, task_ids: list[str]) -> None:
        try:
            await asyncio.to_thread(close_for_all, self._log, self._producer, self._topics, task_ids)
            self._away.is_over()
        except SiteSpiderError as error:
            self._away.goes_on(error)
            self.heard(task_ids)
        for task_id in task_ids:
            self._when_settled(task_id)

    async def _forget(self) -> None:
        ended = [task_id for task_id in self._control.endings.ended() if self._may_forget(task_id)]
        too_many = max(len(self._board), len(self._control.endings)) - _MOST_KEPT
        first = ended[: too_many + _MOST_FORGOTTEN]  # and some more: it reads the topics
        try:
            if first:
                await asyncio.to_thread(forget_tasks, self._log, self._producer, self._topics, first)
        except SiteSpiderError as error:
            logger.warning("Tasks that have ended cannot be forgotten now, trying again: %s", error)
        self._control.when_read(self._has_forgotten)

    def _may_forget(self, task_id: str) -> bool:
        task, ending = self._board.task(task_id), self._control.get(task_id)
        return task is None or task.webhook is None or ending is None or is_settled(ending)

    def _has_forgotten(self) -> None:
        self._is_forgetting = False
