"""Puts the parked messages of a task back into the seed topic, in their order.

Theory. Messages are sent and durable before the record that says so is written. So what is cut short does
some of it again, and leaves nothing out. Which messages a process had parked is read before the ends of the
topic: what is parked later is not counted as put back, and somebody does this once more.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import NamedTuple

from site_spider.contracts.seed_log import Message, MessagePlace, Partition, Producer, SeedLog
from site_spider.errors import SinkRejected, TopicMissing
from site_spider.tasks.board import RETURNED, note_key
from site_spider.tasks.closing import make_control_log
from site_spider.tasks.control_log import written
from site_spider.tasks.counts import MOVED
from site_spider.tasks.ending import High, Passed
from site_spider.tasks.topics import TASK_HEADER, TaskTopics
from site_spider.tasks.usage import Numbers, Returned

_MOST_UNDER_WAY = 2_000
_NOTE_EVERY = 5_000  # messages


class Backlog(NamedTuple):
    """What is known of a task's parked messages, before they are put back."""

    parked: Numbers  # of each process
    offsets: Numbers  # of each partition: the first that was not looked at


class Returning:
    """One run for one task. It blocks."""

    def __init__(self, log: SeedLog, topics: TaskTopics, task_id: str) -> None:
        self._log = log
        self._topics = topics
        self._key = note_key(task_id, RETURNED)
        self._header = task_id.encode()
        self._under_way: deque[tuple[Message, Future[MessagePlace] | None]] = deque()  # None: of another task
        self._offsets: dict[str, int] = {}
        self._task_id = task_id
        self._highs: dict[Partition, int] = {}  # of what was put back

    def run(self, backlog: Backlog) -> int:
        """How many were put back, up to the present end. Raises LogUnavailable."""
        self._offsets = dict(backlog.offsets)
        count = 0
        with closing(self._log.producer()) as producer:
            for message in self._new():
                is_wanted = dict(message.headers).get(TASK_HEADER) == self._header
                self._take(producer, message, is_wanted=is_wanted)
                count += is_wanted
                if is_wanted and count % _NOTE_EVERY == 0:
                    self._settle_all()
                    self._note(producer, {})
            self._settle_all()
            self._note(producer, backlog.parked)
        return count

    def _new(self) -> Iterator[Message]:
        try:
            messages = self._log.read(self._topics.parked)
        except TopicMissing:
            return iter(())
        known = dict(self._offsets)
        return (
            message for message in messages if message.offset >= known.get(str(message.partition.number), 0)
        )

    def _take(self, producer: Producer, message: Message, *, is_wanted: bool) -> None:
        seeds = self._topics.seeds
        sent = producer.send(seeds, message.key, message.value, MOVED) if is_wanted else None
        self._under_way.append((message, sent))
        if len(self._under_way) >= _MOST_UNDER_WAY:
            self._settle()

    def _settle_all(self) -> None:
        while self._under_way:
            self._settle()

    def _settle(self) -> None:
        """Wait for the oldest."""
        message, future = self._under_way.popleft()
        try:
            if future is not None:
                place = future.result()
                self._highs[place.partition] = max(place.offset + 1, self._highs.get(place.partition, 0))
        except SinkRejected as error:
            where = f"{message.partition.topic}/{message.partition.number} offset {message.offset}"
            raise SinkRejected(f"{where} cannot be put back: {error}") from error
        self._offsets[str(message.partition.number)] = message.offset + 1

    def _note(self, producer: Producer, parked: Numbers) -> None:
        self._tell_end(producer)
        note = Returned(parked=parked, offsets=self._offsets)
        producer.send(self._topics.tasks, self._key, note.model_dump_json().encode()).result()

    def _tell_end(self, producer: Producer) -> None:
        """The end of the task waits for these seeds where they are now, and no more for where they were."""
        make_control_log(self._log, self._topics)
        name = secrets.token_hex(6)
        highs = [High(partition, name, position) for partition, position in self._highs.items()]
        parked = [
            Passed(Partition(self._topics.parked, int(number)), name, position)
            for number, position in self._offsets.items()
        ]
        for facts in (highs, parked):
            records = [written(self._task_id, fact) for fact in facts]
            for sent in [producer.send(self._topics.control, *record) for record in records]:
                sent.result()
