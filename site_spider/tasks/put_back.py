"""Says of dead letters that are put back which tasks go on with them.

Of a task whose end was told they begin the next generation. It is closed again when all of them are in the
topic, if it was closed before.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from site_spider.contracts.seed_log import MessagePlace, Producer, SeedLog
from site_spider.tasks.closing import TaskProducer, read_endings
from site_spider.tasks.topics import TaskTopics


class _Going(NamedTuple):
    producer: TaskProducer
    was_closed: bool


class PutBackTasks:
    """Of one run of the command. Blocks."""

    def __init__(self, log: SeedLog, producer: Producer, topics: TaskTopics) -> None:
        self._log = log
        self._producer = producer
        self._topics = topics
        self._endings = read_endings(log, topics)
        self._going: dict[str, _Going] = {}

    def before(self, topic: str, value: bytes | None) -> str | None:
        """A message is about to be sent; its task, if that is known."""
        task_id = _task_of(value) if topic in self._topics.all_seeds else None
        if task_id is None or (ending := self._endings.get(task_id)) is None:
            return None
        if task_id not in self._going:
            producer = TaskProducer(self._log, self._producer, self._topics, task_id)
            producer.begin()
            self._going[task_id] = _Going(producer, ending.is_closed or ending.is_told)
        return task_id

    def sent(self, task_id: str | None, place: MessagePlace) -> None:
        """It is durable there."""
        if task_id is not None:
            self._going[task_id].producer.sent(place)

    def end(self) -> None:
        """All of them are."""
        for going in self._going.values():
            going.producer.end(closes=going.was_closed)
        self._going.clear()


def _task_of(value: bytes | None) -> str | None:
    """What the message says, whether it is a valid seed or not."""
    try:
        document = json.loads(value or b"")
        task_id = document["meta"]["task_id"] if "meta" in document else document["task_id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return task_id if isinstance(task_id, str) and task_id else None
