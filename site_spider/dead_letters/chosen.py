"""Puts chosen dead letters back, each once; the others wait for another replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

from site_spider import runtime
from site_spider.contracts.seed_log import Consumer, Listener, Message, Partition, Position, SeedLog
from site_spider.dead_letters.put_back import Copies, PutBack, group_of, put_back
from site_spider.dead_letters.sending import PuttingBack, TasksOf
from site_spider.errors import LogUnavailable

_JOIN_SECONDS = 20.0  # until the partitions are ours; another replay may hold them
_POLL_SECONDS = 0.2

Chosen = Mapping[Partition, frozenset[int]]


class ChosenReplay(Listener):
    """One replay of chosen offsets; `complain(message, reason)` hears of what cannot be put back."""

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
        self._owned: dict[Partition, PutBack] = {}

    def run(self, chosen: Chosen) -> None:
        """Put them back, but for those that were already. Raises LogUnavailable, TopicMissing."""
        known = put_back(self._log, self._topic)
        chosen = {partition: offsets for partition, offsets in chosen.items() if partition in known}
        if not self._left(chosen, known):
            return
        with (
            closing(self._log.producer()) as producer,
            closing(self._log.consumer(self._topic, group_of(self._topic), self)) as consumer,
        ):
            self._join(consumer, chosen)
            left = self._left(chosen, self._owned)  # another replay may have been quicker
            sending = PuttingBack(producer, self._complain, self._tasks_of)
            copies = Copies.read(self._log, self._topic, {**known, **self._owned})
            messages = list(self._read(left))
            sending.send(list(filter(copies.may_go, messages)))
            self.replayed, self.skipped = sending.sent, sending.skipped
            self._commit(consumer, messages)
            sending.end()

    def _left(self, chosen: Chosen, done: Mapping[Partition, PutBack]) -> dict[Partition, set[int]]:
        left = {
            partition: {offset for offset in offsets if offset not in done.get(partition, PutBack())}
            for partition, offsets in chosen.items()
        }
        return {partition: offsets for partition, offsets in left.items() if offsets}

    def _join(self, consumer: Consumer, chosen: Chosen) -> None:
        deadline = runtime.monotonic() + _JOIN_SECONDS
        while not chosen.keys() <= self._owned.keys():
            if runtime.monotonic() > deadline:
                raise LogUnavailable(
                    f"{self._topic} could not be taken within {_JOIN_SECONDS:g} s: another replay is going "
                    "on. Nothing was put back; try again when it has ended."
                )
            consumer.poll(_POLL_SECONDS, 1)  # what it hands out is read again below

    def _read(self, left: Mapping[Partition, set[int]]) -> Iterator[Message]:
        ends = {part.partition: part.end for part in self._log.progress(self._topic, group_of(self._topic))}
        missing = {partition: set(offsets) for partition, offsets in left.items()}
        start = ends | {partition: min(offsets) for partition, offsets in left.items() if partition in ends}
        for message in self._log.read(self._topic, start):
            if message.offset in missing.get(message.partition, ()):
                missing[message.partition].remove(message.offset)
                yield message
            if not any(missing.values()):
                return

    def _commit(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        changed: dict[Partition, PutBack] = {}
        for message in messages:
            done = changed.get(message.partition) or self._owned[message.partition]
            changed[message.partition] = done.with_offsets([message.offset])
        if changed:
            consumer.commit({partition: done.position() for partition, done in changed.items()})

    # --- Listener ------------------------------------------------------------------------------------

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in Listener."""
        self._owned.update({partition: PutBack.of(position) for partition, position in positions.items()})

    def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position]:
        """As in Listener."""
        self.lost(partitions)
        return {}

    def lost(self, partitions: Sequence[Partition]) -> None:
        """As in Listener."""
        for partition in partitions:
            self._owned.pop(partition, None)

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        """As in Listener: dead letters whose retention is over."""

    def reached(self, partition: Partition, offset: int) -> None:
        """As in Listener."""
