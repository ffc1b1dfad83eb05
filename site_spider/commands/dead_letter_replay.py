"""Puts dead letters back into the topic they came from, each once.

Theory: how far a replay has come is the committed offset of a consumer group of its own,
`<dead-letter topic>.replay`. A batch is sent, waited for until it is durable, and only then committed: a
replay that is cut short sends at most that batch again. Whoever asks what is left looks at the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import NamedTuple

from site_spider.contracts.seed_log import (
    Consumer,
    Listener,
    Message,
    MessagePlace,
    Partition,
    Position,
    Producer,
    SeedLog,
)
from site_spider.errors import LogUnavailable, SinkRejected, TopicMissing
from site_spider.tasks.put_back import PutBackTasks

TRUNCATED = "truncated_from_bytes"  # the header of a dead letter that does not hold the whole message

_BATCH = 500
_POLL_SECONDS = 0.5
_COMMIT_TRIES = 10  # a rebalance may get into some


def replayed_up_to(log: SeedLog, topic: str) -> dict[Partition, int]:
    """The offset of each partition below which everything was replayed. Raises TopicMissing."""
    return {
        part.partition: part.committed.offset if part.committed else 0
        for part in log.progress(topic, _group(topic))
    }


class _PutBack(NamedTuple):
    task_id: str | None  # a task that goes on with it
    future: Future[MessagePlace]


class Replay(Listener):
    """One replay. `complain(message, reason)` hears of what cannot be put back, which stays where it is."""

    def __init__(
        self,
        log: SeedLog,
        topic: str,
        complain: Callable[[Message, str], None],
        tasks_of: Callable[[Producer], PutBackTasks] | None = None,
    ) -> None:
        self._tasks_of = tasks_of  # None: nobody waits for the end of a task
        self._tasks: PutBackTasks | None = None
        self.replayed = 0
        self.skipped = 0
        self._log = log
        self._topic = topic
        self._complain = complain
        self._durable: dict[
            Partition, int
        ] = {}  # the next offset, of what was put back and not yet committed
        self._ends: dict[Partition, int] = {}
        self._failed_commits = 0

    def run(self) -> None:
        """Replay all up to the present end. Raises LogUnavailable."""
        try:
            parts = self._log.progress(self._topic, _group(self._topic))
        except TopicMissing:  # nothing was ever set aside
            return
        self._ends = {part.partition: part.end for part in parts if part.end > part.start}
        if self._is_done():
            return
        with (
            closing(self._log.producer()) as producer,
            closing(self._log.consumer(self._topic, _group(self._topic), self)) as consumer,
        ):
            self._tasks = self._tasks_of(producer) if self._tasks_of is not None else None
            self._work(consumer, producer)
            if self._tasks is not None:
                self._tasks.end()

    def _work(self, consumer: Consumer, producer: Producer) -> None:
        while True:
            messages = consumer.poll(_POLL_SECONDS, _BATCH)
            self._put_back(producer, messages)
            for message in messages:
                self._durable[message.partition] = message.offset + 1
            self._commit(consumer)
            if not messages and self._is_done():
                return

    def _is_done(self) -> bool:
        """Whether the group is at the ends; others may be replaying as well."""
        reached = replayed_up_to(self._log, self._topic)
        return all(reached.get(partition, 0) >= end for partition, end in self._ends.items())

    def _put_back(self, producer: Producer, messages: Sequence[Message]) -> None:
        """Send a batch and wait until it is durable. Raises LogUnavailable."""
        sent = [(message, self._send(producer, message)) for message in messages]
        for message, sending in sent:
            try:
                if sending is not None:
                    place = sending.future.result()
                    self.replayed += 1
                    if self._tasks is not None:
                        self._tasks.sent(sending.task_id, place)
            except SinkRejected as error:
                self._skip(message, str(error))

    def _send(self, producer: Producer, message: Message) -> _PutBack | None:
        headers = dict(message.headers)
        origin = headers.get("origin_topic", b"").decode("utf-8", "replace")
        if not origin:
            self._skip(message, "it has no header origin_topic")
            return None
        if TRUNCATED in headers:
            self._skip(message, "it holds the beginning of its message only; the whole is where it came from")
            return None
        task_id = None if self._tasks is None else self._tasks.before(origin, message.value)
        return _PutBack(task_id, producer.send(origin, message.key, message.value))

    def _skip(self, message: Message, reason: str) -> None:
        self.skipped += 1
        self._complain(message, reason)

    def _commit(self, consumer: Consumer) -> None:
        if not self._durable:
            return
        try:
            consumer.commit({partition: Position(offset) for partition, offset in self._durable.items()})
        except LogUnavailable:
            self._failed_commits += 1
            if self._failed_commits >= _COMMIT_TRIES:
                raise
            return  # with the next batch
        self._failed_commits = 0
        self._durable.clear()

    # --- Listener: called from within poll and close, when all that was polled before is durable ----------

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in Listener."""

    def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position]:
        """As in Listener."""
        return {p: Position(self._durable.pop(p)) for p in partitions if p in self._durable}

    def lost(self, partitions: Sequence[Partition]) -> None:
        """As in Listener."""
        for partition in partitions:
            self._durable.pop(partition, None)

    def reached(self, partition: Partition, offset: int) -> None:
        """As in Listener: the last offsets may hold no messages, so the end counts too."""
        self._durable[partition] = max(offset, self._durable.get(partition, 0))


def _group(topic: str) -> str:
    return f"{topic}.replay"
