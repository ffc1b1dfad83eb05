"""Tells the end of tasks: one record to the topic of events for each generation.

The process that has the first partition of the seed topic does it. The end is written to the control log
first, with the text of the event: the first one of a generation counts. Whoever has the first partition
then sends the event and notes that. A crash in between sends the same bytes once more; `task_id` and
`generation` name an event.

Before that the pages of the task are counted: a thread reads what is new in the page log, once for all tasks
that end meanwhile. All pages are in it, because no seed is complete before its pages are. If the control log
says more of the task when the pages are counted, they are counted again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from site_spider.contracts.seed_log import Message, MessagePlace, Producer, SeedLog
from site_spider.engine.background import Background, Turns
from site_spider.errors import LogUnavailable, SinkRejected, SiteSpiderError
from site_spider.outage import Outage
from site_spider.tasks.bad_records import BadRecords
from site_spider.tasks.control import Control
from site_spider.tasks.counted_page import BadPages
from site_spider.tasks.counts import SeedCounts
from site_spider.tasks.ending import EndTold, Noticed, TaskEnding
from site_spider.tasks.page_counts import PageCounts, PageReading, PageTable
from site_spider.tasks.topics import TaskTopics

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5  # while pages cannot be counted


class Teller:
    """On the event loop's thread only."""

    def __init__(
        self,
        log: SeedLog,
        producer: Producer,
        topics: TaskTopics,
        control: Control,
        kind_of: Callable[[str], str],
        has_first: Callable[[], bool],
        background: Background,
        bad: BadRecords,
    ) -> None:
        self._log = log
        self._producer = producer
        self._topics = topics
        self._control = control
        self._kind_of = kind_of  # done, cancelled or expired
        self._has_first = has_first  # the first partition of the seed topic
        self._background = background
        self._busy: set[str] = set()  # tasks of which something is on its way
        self._over: set[str] = set()  # of these, those whose pages are to be counted
        self._is_counting = False
        self._table: PageTable | None = None  # once something has ended here
        self._bad = bad  # records of the page log
        self._away = Outage(logger, "The pages of tasks cannot be counted, trying again", "They are counted")
        self._has_topic = False
        self._loop = asyncio.get_running_loop()

    def look(self) -> None:
        """To be called now and then."""
        unfinished = self._control.endings.unfinished
        if self._over and not self._is_counting:
            self._is_counting = True
            self._background.start(self._tell_all(), "counting pages")
        if not self._has_first():
            self._forget_pages()
            return
        silent: dict[str, EndTold] = {}
        over: set[str] = set()
        for task_id in unfinished - self._busy:
            if (ending := self._control.get(task_id)) is None:
                continue
            if ending.ended is not None and ending.noticed < ending.ended.generation:
                silent[task_id] = ending.ended
            elif ending.is_over and not ending.is_told:
                over.add(task_id)
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
            self._table = PageTable(self._log, self._topics.pages)
        told = self._control.endings.pages_told()
        try:
            reading = await asyncio.to_thread(self._table.read, tuple(ends), told, self._skipped)
        except LogUnavailable as error:
            self._away.goes_on(error)
            await asyncio.sleep(_PAUSE_SECONDS)
            self._busy -= over
            return
        finally:
            self._is_counting = False
        self._away.is_over()
        turns = Turns.of_running_loop()
        for task_id, ending in ends.items():
            if not turns.has_time():
                await turns.time()
            if ending.read_to == read_to[task_id] and self._is_over(task_id) is ending:
                with self._control.guarded(task_id):
                    self._tell(task_id, ending, reading)
            else:
                self._busy.discard(task_id)
        for key in reading.stale:
            with suppress(SiteSpiderError):  # the next owner finds them again
                self._producer.send(self._topics.pages, key, None)

    def _is_over(self, task_id: str) -> TaskEnding | None:
        ending = self._control.get(task_id)
        return ending if ending is not None and ending.is_over and not ending.is_told else None

    def _skipped(self, message: Message, error: BadPages) -> None:
        self._bad.skip(message, str(error))

    def _tell(self, task_id: str, ending: TaskEnding, reading: PageReading) -> None:
        pages = pages_before(ending).plus(reading.counts[task_id])
        event = event_of(task_id, ending, self._kind_of(task_id), pages)
        ended = EndTold(ending.generation, ending.read_to, dict(ending.highs), event, reading.end)
        self._control.write(task_id, ended, lambda _: self._when_settled(task_id))

    def _when_settled(self, task_id: str) -> None:
        """What was written is read back before the next look at the task."""
        self._control.when_read(lambda: self._busy.discard(task_id))

    async def _send_all(self, silent: Mapping[str, EndTold]) -> None:
        try:
            if not self._has_topic:
                await asyncio.to_thread(self._log.make_topic, self._topics.events, 1, compacted=False)
                self._has_topic = True
        except LogUnavailable as error:
            logger.warning("The end of tasks cannot be told now, trying again: %s", error)
            self._busy -= silent.keys()
            return
        turns = Turns.of_running_loop()
        sent: dict[str, Future[MessagePlace]] = {}
        for task_id, ended in silent.items():
            if not turns.has_time():
                await turns.time()
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
        logger.info(
            "Task %s has ended (%s, generation %d)", task_id, ended.event.get("event"), ended.generation
        )
        self._control.write(task_id, Noticed(ended.generation), lambda _: self._when_settled(task_id))


def pages_before(ending: TaskEnding) -> PageCounts:
    """What was told of the generations before."""
    event = {} if ending.ended is None else ending.ended.event
    numbers = [int(event.get(name) or 0) for name in ("pages", "failures", "bytes")]
    return PageCounts(numbers[0], numbers[1], numbers[2], dict(event.get("reasons") or {}))


def event_of(task_id: str, ending: TaskEnding, kind: str, pages: PageCounts) -> dict[str, Any]:
    """What is told of the end of a task: the counts of all its generations."""
    counts = ending.counts()
    return {
        "task_id": task_id,
        "generation": ending.generation,
        "event": kind,
        "first_at": _time(counts.first_ms),
        "last_at": _time(counts.last_ms),
        **SeedCounts.of(counts.seeds).fields(),
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
