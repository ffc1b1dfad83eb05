"""Finds messages that the servers deleted before the group read them.

A client that asks for an offset below the start of the log is moved to the start, without a word. So the
offset that a partition hands out is compared with the one that was due. Most gaps are none of this:
compaction and the marks of transactions leave some. The start of the log tells, and is asked for at a
gap, but not often.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from site_spider.contracts.seed_log import Partition

_ASK_AGAIN_SECONDS = 10.0

_ANSWER_SECONDS = 1.0

Tell = Callable[[Partition, int, int], None]


class Gaps:
    """Of one member; `start_of` asks for the start of a partition's log and yields None without an answer."""

    def __init__(self, start_of: Callable[[Partition], int | None], tell: Tell) -> None:
        self._start_of = start_of
        self._tell = tell  # the first offset that is gone, and the one after the last
        self._due: dict[Partition, tuple[int, int | None]] = {}  # assignment, and what it hands out next
        self._open: dict[Partition, tuple[int, int]] = {}  # gaps that nothing is known about
        self._ask_at: dict[Partition, float] = {}

    def saw(
        self, partition: Partition, offset: int, following: int, assignment: int, begins_at: int | None
    ) -> None:
        """Everything below `offset` was handed out or is not there, and `following` is due next.

        `assignment` is its number, and `begins_at` what was committed then.
        """
        due = self._due.get(partition)
        self._due[partition] = assignment, following
        if due is None or due[0] != assignment:
            self._open.pop(partition, None)
            due = assignment, begins_at
        if due[1] is not None and offset > due[1]:
            first, _ = self._open.get(partition, (due[1], 0))
            self._open[partition] = first, offset

    def look(self, now: float) -> None:
        """Ask about the gaps that are known, each partition now and then."""
        for partition, (first, beyond) in list(self._open.items()):
            if now < self._ask_at.get(partition, 0.0):
                continue
            self._ask_at[partition] = now + _ASK_AGAIN_SECONDS
            start = self._start_of(partition)
            if start is None:
                continue
            del self._open[partition]
            if start > first:
                self._tell(partition, first, min(start, beyond))


def start_of(client: Consumer, partition: Partition) -> int | None:
    """Where the log of a partition begins; None without an answer."""
    try:
        found = client.get_watermark_offsets(TopicPartition(*partition), timeout=_ANSWER_SECONDS)
    except KafkaException:
        return None
    return None if found is None else int(found[0])
