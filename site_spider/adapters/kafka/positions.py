"""Commits of a Kafka consumer, and how long one has been without an answer.

The client keeps a request for a minute when packets vanish, and a thread that waited for it would hear
neither of rebalances nor of the end of its session. So commits of a crawl are begun, and answered in a later
poll. Before partitions leave there is no later poll: that commit waits for its answer, and is not begun when
an earlier one has none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from site_spider import runtime
from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.contracts.seed_log import ForeignPosition, Partition, Position
from site_spider.errors import GroupRebalances, LogSilent, LogUnavailable

LATE_SECONDS = 2.0  # then the servers are asked something before a thread waits for them

_REBALANCING = frozenset({KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION})
_THROWN_OUT = frozenset({KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID, KafkaError._ASSIGNMENT_LOST})

Answered = Callable[[LogUnavailable | None], None]


class SignedPosition(NamedTuple):
    """A position as it is committed, with what shows later whether it is of another log."""

    offset: int
    metadata: str = ""  # with the id of the topic
    leader_epoch: int = -1  # not known


Signed = Mapping[Partition, SignedPosition]


class _Unanswered(NamedTuple):
    positions: Signed
    answered: Answered
    begun_at: float  # monotonic


class KafkaCommits:
    """Commits of one member of `group`; the consumer's thread uses it."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._pending: _Unanswered | None = None

    @property
    def is_late(self) -> bool:
        return self._pending is not None and runtime.monotonic() - self._pending.begun_at > LATE_SECONDS

    def wait(self, client: Consumer, positions: Signed) -> None:
        try:
            answers = client.commit(offsets=to_raw(positions), asynchronous=False) or []
        except KafkaException as error:
            raise self._refused(error.args[0]) from error
        if failed := _error_in(answers):
            raise self._refused(failed)

    def begin(self, client: Consumer, positions: Signed, answered: Answered) -> None:
        self._pending = _Unanswered(positions, answered, runtime.monotonic())
        try:
            client.commit(offsets=to_raw(positions), asynchronous=True)
        except KafkaException as error:
            self._answer(self._refused(error.args[0]))

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The client's `on_commit`: called in its poll, for each commit that was begun."""
        if self._pending is None or (partitions and not _is_same(partitions, self._pending.positions)):
            return  # of an earlier one, or one that was waited for
        failed = error or _error_in(partitions)
        self._answer(self._refused(failed) if failed else None)

    def drop(self) -> None:
        """The client is of no more use: nothing will be answered."""
        self._answer(LogUnavailable(f"The membership in group {self._group} ended before a commit did."))

    def _answer(self, answer: LogUnavailable | None) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.answered(answer)

    def _refused(self, error: KafkaError) -> LogUnavailable:
        said = f"Kafka refused a commit of group {self._group}: {error.str()}"
        if error.code() in _REBALANCING:
            return GroupRebalances(f"{said} (the group is rebalancing; trying again after the next poll helps).")
        if error.code() in _THROWN_OUT:
            return LogUnavailable(f"{said} (the group went on without this member, so its partitions are lost).")
        if error.code() < 0:  # the client's own words
            return LogSilent(f"Kafka did not answer a commit of group {self._group}: {error.str()}.")
        return LogUnavailable(f"{said} (trying again may help).")


def _error_in(answers: Iterable[TopicPartition]) -> KafkaError | None:
    return next((answer.error for answer in answers if answer.error), None)


def to_raw(positions: Signed) -> list[TopicPartition]:
    """As the client takes them."""
    return [
        TopicPartition(*partition, at.offset, at.metadata, leader_epoch=at.leader_epoch)
        for partition, at in positions.items()
    ]


def _is_same(raw: Iterable[TopicPartition], positions: Signed) -> bool:
    return {Partition(one.topic, one.partition): one.offset for one in raw} == {
        partition: position.offset for partition, position in positions.items()
    }


# --- topic ids: tells a topic from one that had its name before, by the ids that Kafka gives to topics ---
# Theory of operation. Messages are fetched and positions committed by name and offset. When a topic is
# deleted and created again, the client goes on at its old offset as soon as the new topic reaches as far,
# and the servers take commits of positions in the former topic (measured with confluent-kafka 2.16 and
# Kafka 4.3). Messages below would be skipped without a word. So each commit carries the id of its topic
# before the metadata, and a position of another topic counts as none. A member asks for the ids now and
# then; when one has changed, it joins its group again and begins that topic at the start.
#
# The ids are no condition for work: servers may know none, may not tell, or may be too late. Then the id
# that the commits of a topic carry counts as its own, until the servers tell another one.

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # as often as the client itself asks for metadata
_WAIT_SECONDS = 2.0  # in a rebalance
_SIGNED = re.compile(r"([A-Za-z0-9+/_-]{22})\|(.*)", re.DOTALL)
_NO_ID = "A" * 22  # of servers that know none
_UNTOLD = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNSUPPORTED_FEATURE})


def ask_ids(admin: AdminClient, topics: Iterable[str], timeout_seconds: float) -> dict[str, str]:
    """The ids of these topics. Raises KafkaException."""
    return {name: _id_of(answer) for name, answer in _asked(admin, topics, timeout_seconds).items()}


def committed_by(client: Consumer, wanted: list[TopicPartition], timeout_seconds: float) -> list[TopicPartition]:
    """What the group of a client has committed. Raises KafkaException, for one of them, too."""
    answers = client.committed(wanted, timeout=timeout_seconds)
    if error := _error_in(answers):
        raise KafkaException(error)
    return answers


def to_position(committed: TopicPartition, topic_id: str) -> Position | None:
    """What a group has committed in this topic, from the client's answer."""
    if committed.offset < 0 or _differ(_signer(committed), topic_id):
        return None
    metadata = committed.metadata or ""
    signed = _SIGNED.fullmatch(metadata)
    return Position(committed.offset, signed[2] if signed else metadata)


class TopicIds:
    """The ids of topics that one member has partitions of. The consumer's thread uses it."""

    def __init__(self, config: KafkaConfig) -> None:
        self.former: set[Partition] = set()  # with a committed offset that is of another topic
        self._config = config
        self._ids: dict[str, str] = {}  # that positions are signed with
        self._told: dict[str, str] = {}  # by the servers, last
        # of each partition: up to where it was read, and the epoch of the leader that has written what is before
        self._epochs: dict[Partition, tuple[int, int]] = {}
        self._admin: AdminClient | None = None
        self._answers: Mapping[str, Future[Any]] = {}
        self._look_at = 0.0
        self._is_silent = False  # a thread that waits for ids waits in vain
        self._is_mixed = False  # partitions were assigned before and after a topic was created again

    def have_changed(self) -> bool:
        """Whether a topic is another one than that in which the client reads. Does not wait."""
        if self.former or self._is_mixed:
            return True
        now = runtime.monotonic()
        if self._answers and all(answer.done() for answer in self._answers.values()):
            answers, self._answers = self._answers, {}
            return any(self._is_other(name, answer) for name, answer in answers.items())
        if self._ids and not self._answers and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            with suppress(KafkaException):  # a machine without a thread to spare, say
                self._answers = _asked(self.client(), self._ids, LOOK_SECONDS)
        return False

    def positions(
        self, answers: Iterable[TopicPartition], owned: Iterable[Partition]
    ) -> dict[Partition, Position | None]:
        """Positions that the client says are committed, of more partitions than the owned ones."""
        found = {Partition(one.topic, one.partition): one for one in answers}
        signers = {one.topic: _signer(one) for one in found.values() if _signer(one)}
        self._told |= self._wait({one.topic for one in found})
        ids = {one.topic: self._told.get(one.topic) or signers.get(one.topic, "") for one in found}
        self._learn(ids, {one.topic for one in owned})
        positions = {one: to_position(raw, ids[one.topic]) for one, raw in found.items()}
        for partition, raw in found.items():
            self._epochs.pop(partition, None)  # it may have been here before
            self.read(partition, raw.offset, raw.leader_epoch)
            if positions[partition] is None and raw.offset >= 0:
                self.former.add(partition)
                logger.warning(
                    "Topic %s was deleted and created again: %s/%d begins at its start, for offset %d was "
                    "committed in the former topic, whose seeds are gone",
                    partition.topic, *partition, raw.offset,
                )  # fmt: skip
            elif raw.offset > 0 and ids[partition.topic] and not raw.metadata:  # ours are signed
                positions[partition] = ForeignPosition(raw.offset)
                logger.warning(
                    "%s/%d begins at offset %d, which another client has committed: a tool, or a consumer that has "
                    "joined this group. Seeds before it that were not crawled are skipped; to crawl them, stop all "
                    "processes and set the offset back. Give other consumers groups of their own",
                    *partition, raw.offset,
                )  # fmt: skip
        return positions

    def read(self, partition: Partition, following: int, leader_epoch: int | None) -> None:
        """The message before `following` was read, or committed."""
        if leader_epoch is not None:
            self._epochs[partition] = following, leader_epoch

    def signed(self, positions: Mapping[Partition, Position]) -> Signed:
        """By the epoch the client finds, when it begins there, that messages before it were lost with their leader.

        A later one than that of the last of these finds the same; an earlier one would find what is not so.
        """
        signed = {}
        for one, at in positions.items():
            following, epoch = self._epochs.get(one, (-1, -1))
            prefix = f"{topic_id}|" if (topic_id := self._ids.get(one.topic)) else ""
            signed[one] = SignedPosition(at.offset, prefix + at.metadata, epoch if at.offset <= following else -1)
        return signed

    def begins(self, raw: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Where the client is to begin in partitions whose positions are known, with an epoch where there is one.

        The servers have an offset of a former topic for some.
        """
        return [self._begin(Partition(one.topic, one.partition)) or one for one in raw]

    def _begin(self, partition: Partition) -> TopicPartition | None:
        if partition in self.former:
            return TopicPartition(*partition, OFFSET_BEGINNING)
        if (known := self._epochs.get(partition)) is None:
            return None
        return TopicPartition(*partition, known[0], leader_epoch=known[1])

    def forget(self) -> None:
        self._ids.clear()
        self._epochs.clear()
        self.former.clear()
        self._is_mixed = False
        self._answers = {}
        self._admin = None

    def _wait(self, topics: Iterable[str]) -> dict[str, str]:
        if self._is_silent:
            return {}
        try:
            return ask_ids(self.client(), topics, _WAIT_SECONDS)
        except KafkaException:
            self._admin = None  # measured: after an outage it may go on failing
            self._is_silent = True
            return {}

    def _learn(self, ids: Mapping[str, str], owned: Container[str]) -> None:
        """Positions of owned partitions keep their id, even if it is that of a former topic."""
        self._answers = {}  # they are older
        for name, topic_id in ids.items():
            known = self._ids.get(name, "") if name in owned else ""
            self._is_mixed = self._is_mixed or _differ(topic_id, known)
            self._ids[name] = known or topic_id

    def client(self) -> AdminClient:
        """For questions of this member besides; another one after an outage. Raises KafkaException."""
        if self._admin is None:
            self._admin = AdminClient(self._config.admin(lambda _error: None))
        return self._admin

    def _is_other(self, name: str, answer: Future[Any]) -> bool:
        try:
            told = _id_of(answer)
        except KafkaException:
            self._admin = None  # as above; a topic that is gone the other client hears of
            return False
        self._is_silent = False
        self._told[name] = told
        self._ids[name] = self._ids.get(name) or told
        return _differ(told, self._ids[name])


def _signer(committed: TopicPartition) -> str:
    signed = _SIGNED.fullmatch(committed.metadata or "")
    return signed[1] if signed else ""


def _differ(one: str, other: str) -> bool:
    return bool(one and other) and one != other


def _asked(admin: AdminClient, topics: Iterable[str], timeout_seconds: float) -> dict[str, Future[Any]]:
    return admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_seconds)


def _id_of(answer: Future[Any]) -> str:
    try:
        topic_id = str(answer.result().topic_id)
    except KafkaException as error:
        if error.args[0].code() not in _UNTOLD:
            raise
        return ""
    return "" if topic_id == _NO_ID else topic_id
