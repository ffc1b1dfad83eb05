"""Commits of a Kafka consumer, and how long one has been without an answer.

The client keeps a request for a minute when packets vanish, and a thread that waited for it would hear
neither of rebalances nor of the end of its session. So commits of a crawl are begun, and answered in a later
poll. Before partitions leave there is no later poll: that commit waits for its answer, and is not begun when
an earlier one has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from site_spider import runtime
from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import GroupRebalances, LogSilent, LogUnavailable

LATE_SECONDS = 2.0  # then the servers are asked something before a thread waits for them

_REBALANCING = frozenset({KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION})
_THROWN_OUT = frozenset({
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError._ASSIGNMENT_LOST,
})  # fmt: skip

Answered = Callable[[LogUnavailable | None], None]


class _Unanswered(NamedTuple):
    positions: Mapping[Partition, Position]
    answered: Answered
    begun_at: float  # monotonic


class KafkaCommits:
    """Of one member of `group`; the consumer's thread uses it."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._pending: _Unanswered | None = None

    @property
    def is_late(self) -> bool:
        """Whether a commit has waited long for its answer."""
        return self._pending is not None and runtime.monotonic() - self._pending.begun_at > LATE_SECONDS

    def wait(self, client: Consumer, positions: Mapping[Partition, Position]) -> None:
        """Commit and wait for the answer. Raises LogUnavailable."""
        try:
            self._check(client.commit(offsets=_raw(positions), asynchronous=False) or [])
        except KafkaException as error:
            raise self._refused(error.args[0]) from error

    def begin(self, client: Consumer, positions: Mapping[Partition, Position], answered: Answered) -> None:
        """As `begin_commit` of a consumer."""
        self._pending = _Unanswered(positions, answered, runtime.monotonic())
        try:
            client.commit(offsets=_raw(positions), asynchronous=True)
        except KafkaException as error:
            self._answer(self._refused(error.args[0]))

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The client's `on_commit`: called in its poll, for each commit that was begun."""
        if self._pending is None or (partitions and not _is_same(partitions, self._pending.positions)):
            return  # of an earlier one, or one that was waited for
        try:
            if error is not None:
                raise self._refused(error)
            self._check(partitions)
        except LogUnavailable as failed:
            self._answer(failed)
        else:
            self._answer(None)

    def drop(self) -> None:
        """The client is of no more use: nothing will be answered."""
        self._answer(LogUnavailable(f"The membership in group {self._group} ended before a commit did."))

    def _answer(self, answer: LogUnavailable | None) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.answered(answer)

    def _check(self, answers: Iterable[TopicPartition]) -> None:
        for answer in answers:
            if answer.error:
                raise self._refused(answer.error)

    def _refused(self, error: KafkaError) -> LogUnavailable:
        said = f"Kafka refused a commit of group {self._group}: {error.str()}"
        if error.code() in _REBALANCING:
            return GroupRebalances(
                f"{said} (the group is rebalancing; trying again after the next poll helps)."
            )
        if error.code() in _THROWN_OUT:
            return LogUnavailable(
                f"{said} (the group went on without this member, so its partitions are lost)."
            )
        if error.code() < 0:  # the client's own words
            return LogSilent(f"Kafka did not answer a commit of group {self._group}: {error.str()}.")
        return LogUnavailable(f"{said} (trying again may help).")


def _raw(positions: Mapping[Partition, Position]) -> list[TopicPartition]:
    return [TopicPartition(*partition, *position) for partition, position in positions.items()]


def _is_same(raw: Iterable[TopicPartition], positions: Mapping[Partition, Position]) -> bool:
    return {Partition(one.topic, one.partition): one.offset for one in raw} == {
        partition: position.offset for partition, position in positions.items()
    }
