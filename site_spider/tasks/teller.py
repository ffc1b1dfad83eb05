"""Tells the end of tasks: one record to the topic of events for each generation.

The process that has the first partition of the seed topic does it. The end is written to the control log
first, with the text of the event: the first one of a generation counts. Whoever has the first partition
then sends the event and notes that. A crash in between sends the same bytes once more; `task_id` and
`generation` name an event.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from site_spider.contracts.seed_log import MessagePlace, Producer, SeedLog
from site_spider.engine.background import Background
from site_spider.errors import LogUnavailable
from site_spider.tasks.control import Control
from site_spider.tasks.ending import EndTold, Noticed, TaskEnding
from site_spider.tasks.topics import TaskTopics

logger = logging.getLogger(__name__)


class Teller:
    """On the event loop's thread only."""

    def __init__(
        self,
        log: SeedLog,
        producer: Producer,
        topics: TaskTopics,
        control: Control,
        kind_of: Callable[[str, float], str],
        has_first: Callable[[], bool],
        background: Background,
    ) -> None:
        self._log = log
        self._producer = producer
        self._topics = topics
        self._control = control
        self._kind_of = kind_of  # done, cancelled or expired
        self._has_first = has_first  # the first partition of the seed topic
        self._background = background
        self._busy: set[str] = set()  # tasks of which something is on its way
        self._has_topic = False
        self._loop = asyncio.get_running_loop()

    def look(self) -> None:
        """To be called now and then."""
        unfinished = self._control.endings.unfinished
        if not unfinished or not self._has_first():
            return
        for task_id in unfinished - self._busy:
            ending = self._control.get(task_id)
            if ending is None:
                continue
            if ending.ended is not None and ending.noticed < ending.ended.generation:
                self._busy.add(task_id)
                self._background.start(self._send(task_id, ending.ended), "task event")
            elif ending.is_over and not ending.is_told:
                self._busy.add(task_id)
                self._control.when_read(lambda task_id=task_id: self._tell(task_id))  # type: ignore[misc]

    def _tell(self, task_id: str) -> None:
        """The log is read to its end, where the rule holds."""
        ending = self._control.get(task_id)
        if ending is None or not ending.is_over or ending.is_told:
            self._busy.discard(task_id)
            return
        event = event_of(task_id, ending, self._kind_of(task_id, time.time()))
        ended = EndTold(ending.generation, ending.read_to, dict(ending.highs), event)
        self._control.write(task_id, ended, lambda _: self._when_settled(task_id))

    def _when_settled(self, task_id: str) -> None:
        """What was written is read back before the next look at the task."""
        self._control.when_read(lambda: self._busy.discard(task_id))

    async def _send(self, task_id: str, ended: EndTold) -> None:
        value = json.dumps(ended.event, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            if not self._has_topic:
                await asyncio.to_thread(self._log.make_topic, self._topics.events, 1, compacted=False)
                self._has_topic = True
            sent: Future[MessagePlace] = self._producer.send(self._topics.events, task_id.encode(), value)
            await asyncio.wrap_future(sent)
        except LogUnavailable as error:
            logger.warning("The end of task %s cannot be told now, trying again: %s", task_id, error)
            self._busy.discard(task_id)
            return
        logger.info(
            "Task %s has ended (%s, generation %d)", task_id, ended.event.get("event"), ended.generation
        )
        self._control.write(task_id, Noticed(ended.generation), lambda _: self._when_settled(task_id))


def event_of(task_id: str, ending: TaskEnding, kind: str) -> dict[str, Any]:
    """What is told of the end of a task: the counts of all its generations."""
    counts = ending.counts()
    return {
        "task_id": task_id,
        "generation": ending.generation,
        "event": kind,
        "first_at": _time(counts.first_ms),
        "last_at": _time(counts.last_ms),
        "seeds": {**counts.seeds, "total": sum(counts.seeds.values())},
        "pages": counts.pages,
        "failures": counts.failures,
        "bytes": counts.bytes,
        "reasons": dict(counts.reasons),
    }


def _time(milliseconds: int) -> str | None:
    if not milliseconds:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
