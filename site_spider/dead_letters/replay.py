"""Puts dead letters back into the topic they came from, each once.

Theory: `put_back` says where it is remembered. A batch is sent, waited for until it is durable, and only then
committed: a replay that is cut short sends at most that batch again. Whoever asks what is left looks at
the same commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from site_spider.contracts.seed_log import Consumer, Listener, Message, Partition, Position, SeedLog
from site_spider.dead_letters.put_back import Copies, PutBack, group_of, put_back
from site_spider.dead_letters.sending import PuttingBack, TasksOf
from site_spider.errors import LogUnavailable, TopicMissing

_BATCH = 500
_POLL_SECONDS = 0.5
_COMMIT_TRIES = 10  # a rebalance may get into some


class Replay(Listener):
    """One replay. `complain(message, reason)` hears of what cannot be put back, which stays where it is."""

    def __init__(
        self,
        log: SeedLog,
        topic: str,
        complain: Callable[[Message, str], None],
        tasks_of: TasksOf | None = None,
    ) -> None:
        self._tasks_of = tasks_of
        self.replayed = 0
        self.skipped = 0
        self._log = log
        self._topic = topic
        self._complain = complain
        self._before: dict[Partition, PutBack] = {}  # of the partitions we own, when they were assigned
        self._done: dict[Partition, PutBack] = {}  # of the same, now: durable, perhaps not committed
        self._changed: set[Partition] = set()
        self._ends: dict[Partition, int] = {}
        self._copies = Copies()
        self._failed_commits = 0

    def run(self) -> None:
        """Replay all up to the present end. Raises LogUnavailable."""
        try:
            parts = self._log.progress(self._topic, group_of(self._topic))
        except TopicMissing:  # nothing was ever set aside
            return
        self._ends = {part.partition: part.end for part in parts if part.end > part.start}
        if self._is_done():
            return
        done = {part.partition: PutBack.of(part.committed) for part in parts}
        self._copies = Copies.read(self._log, self._topic, done)
        with (
            closing(self._log.producer()) as producer,
            closing(self._log.consumer(self._topic, group_of(self._topic), self)) as consumer,
        ):
            sending = PuttingBack(producer, self._complain, self._tasks_of)
            self._work(consumer, sending)
            sending.end()

    def _work(self, consumer: Consumer, sending: PuttingBack) -> None:
        while True:
            polled = consumer.poll(_POLL_SECONDS, _BATCH)
            # what comes later may be what was put back just now: a crawl that runs sets it aside again
            messages = [
                message for message in polled if message.offset < self._ends.get(message.partition, 0)
            ]
            sending.send([message for message in messages if not self._is_put_back(message)])
            self.replayed, self.skipped = sending.sent, sending.skipped
            for message in messages:
                self._note(message.partition, message.offset + 1)
            self._commit(consumer)
            if (not polled or len(messages) < len(polled)) and self._is_done():
                return

    def _is_done(self) -> bool:
        """Whether the group is at the ends; others may be replaying as well."""
        reached = put_back(self._log, self._topic)
        return all(reached.get(partition, PutBack()).below >= end for partition, end in self._ends.items())

    def _is_put_back(self, message: Message) -> bool:
        if message.offset in self._before.get(message.partition, PutBack()):
            return True
        return not self._copies.may_go(message)

    def _note(self, partition: Partition, offset: int) -> None:
        below = min(offset, self._ends.get(partition, 0))
        self._done[partition] = self._done.get(partition, PutBack()).up_to(below)
        self._changed.add(partition)

    def _commit(self, consumer: Consumer) -> None:
        if not self._changed:
            return
        try:
            consumer.commit({partition: self._done[partition].position() for partition in self._changed})
        except LogUnavailable:
            self._failed_commits += 1
            if self._failed_commits >= _COMMIT_TRIES:
                raise
            return  # with the next batch
        self._failed_commits = 0
        self._changed.clear()

    # --- Listener: called from within poll and close, when all that was polled before is durable ----------

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in Listener."""
        self._before.update({partition: PutBack.of(position) for partition, position in positions.items()})
        self._done.update({partition: self._before[partition] for partition in positions})

    def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position]:
        """As in Listener."""
        changed = self._changed.intersection(partitions)
        positions = {partition: self._done[partition].position() for partition in changed}
        self.lost(partitions)
        return positions

    def lost(self, partitions: Sequence[Partition]) -> None:
        """As in Listener."""
        for partition in partitions:
            self._done.pop(partition, None)
        self._changed.difference_update(partitions)

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        """As in Listener: dead letters whose retention is over."""

    def reached(self, partition: Partition, offset: int) -> None:
        """As in Listener: the last offsets may hold no messages, so the end counts too."""
        self._note(partition, offset)
