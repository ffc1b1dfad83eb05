"""Watches the topic in which the ends of tasks are told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from site_spider.contracts.seed_log import Message, TopicReader
from site_spider.errors import LogUnavailable, TopicMissing
from site_spider.tasks.follower import TaskTopics
from tools.chaos.roster import Roster
from tools.deployment.deployment import Deployment

LOOK_SECONDS = 1.0
POLL_SECONDS = 0.05
SHOWN = 3


class ToldEnd(NamedTuple):
    """One record of the topic."""

    when: float
    value: bytes

    @property
    def event(self) -> dict[str, Any]:
        """What it says."""
        said: dict[str, Any] = json.loads(self.value)
        return said


class EndWatch:
    """Says which ends are still to come. As in storm.Watched."""

    is_away = False

    def __init__(self, deployment: Deployment, roster: Roster, can_answer: Callable[[], bool]) -> None:
        self._log = deployment.log
        self._topic = TaskTopics.read(deployment.scrapy_settings).events
        self._roster = roster
        self._can_answer = can_answer  # Kafka lives: else each question would hold the storm up
        self._reader: TopicReader | None = None
        self._look_at = 0.0

    @property
    def waits_for(self) -> str:
        """As in Watched."""
        due = [task.name for task in self._roster.all() if task.has_end and not task.is_ended]
        more = f" and {len(due) - SHOWN} more" if len(due) > SHOWN else ""
        return f"the end of {', '.join(due[:SHOWN])}{more}" if due else ""

    def look(self) -> None:
        """As in Watched."""
        now = time.monotonic()
        if now < self._look_at or not self._can_answer():
            return
        self._look_at = now + LOOK_SECONDS
        for message in self._new():
            self._roster.task((message.key or b"").decode()).is_ended = True

    def told(self) -> Iterator[ToldEnd]:
        """All records, from the beginning."""
        try:
            for message in self._log.read(self._topic):
                yield ToldEnd(message.timestamp_ms / 1000, message.value or b"")
        except TopicMissing:
            return

    def close(self) -> None:
        """Release the reader."""
        if self._reader is not None:
            self._reader.close()

    def _new(self) -> list[Message]:
        try:
            if self._reader is None:
                if not self._log.partitions(self._topic):
                    return []
                self._reader = self._log.reader(self._topic, compacted=False)
            return self._reader.poll(POLL_SECONDS)
        except LogUnavailable:
            return []
