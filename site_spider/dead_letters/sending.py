"""Sends dead letters to the topics they came from, byte by byte as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from site_spider.contracts.seed_log import Message, MessagePlace, Producer
from site_spider.errors import SinkRejected
from site_spider.tasks.desk import PutBackTasks

TRUNCATED = "truncated_from_bytes"  # the header of a dead letter that does not hold the whole message


TasksOf = Callable[[Producer], PutBackTasks]


class _UnderWay(NamedTuple):
    task_id: str | None  # a task that goes on with it
    future: Future[MessagePlace]


class PuttingBack:
    """Counts what went and what cannot go; `complain(message, reason)` hears of the latter.

    Without `tasks_of` nobody waits for the end of a task.
    """

    def __init__(
        self, producer: Producer, complain: Callable[[Message, str], None], tasks_of: TasksOf | None = None
    ) -> None:
        self._tasks = tasks_of(producer) if tasks_of is not None else None
        self.sent = 0
        self.skipped = 0
        self._producer = producer
        self._complain = complain

    def send(self, messages: Sequence[Message]) -> None:
        """Send a batch and wait until it is durable. Raises LogUnavailable."""
        under_way = [(message, self._send(message)) for message in messages]
        for message, sending in under_way:
            try:
                if sending is not None:
                    place = sending.future.result()
                    self.sent += 1
                    if self._tasks is not None:
                        self._tasks.sent(sending.task_id, place)
            except SinkRejected as error:
                self._skip(message, str(error))

    def end(self) -> None:
        """All that is to be sent is durable."""
        if self._tasks is not None:
            self._tasks.end()

    def _send(self, message: Message) -> _UnderWay | None:
        headers = dict(message.headers)
        origin = headers.get("origin_topic", b"").decode("utf-8", "replace")
        if not origin:
            self._skip(message, "it has no header origin_topic")
            return None
        if TRUNCATED in headers:
            self._skip(message, "it holds the beginning of its message only; the whole is where it came from")
            return None
        task_id = None if self._tasks is None else self._tasks.before(origin, message.value)
        return _UnderWay(task_id, self._producer.send(origin, message.key, message.value))

    def _skip(self, message: Message, reason: str) -> None:
        self.skipped += 1
        self._complain(message, reason)
