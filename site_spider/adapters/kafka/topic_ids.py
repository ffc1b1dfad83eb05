"""Tells a topic from one that had its name before, by the ids that Kafka gives to topics.

Theory of operation. Messages are fetched and positions committed by name and offset. When a topic is deleted
and created again, the client goes on at its old offset as soon as the new topic reaches as far, and the
servers take commits of positions in the former topic (measured with confluent-kafka 2.16 and Kafka 4.3).
Messages below would be skipped without a word. So each commit carries the id of its topic before the
metadata, and a position of another topic counts as none. A member asks for the ids now and then; when one
has changed, it joins its group again and begins that topic at the start.

The ids are no condition for work: servers may know none, may not tell, or may be too late. Then the id that
the commits of a topic carry counts as its own, until the servers tell another one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from site_spider import runtime
from site_spider.adapters.kafka.config import KafkaConfig
from site_spider.contracts.seed_log import Partition, Position

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # as often as the client itself asks for metadata
_WAIT_SECONDS = 2.0  # in a rebalance
_SIGNED = re.compile(r"([A-Za-z0-9+/_-]{22})\|(.*)", re.DOTALL)
_NO_ID = "A" * 22  # of servers that know none
_UNTOLD = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNSUPPORTED_FEATURE})


def ask_ids(admin: AdminClient, topics: Iterable[str], timeout_seconds: float) -> dict[str, str]:
    """The ids of these topics. Raises KafkaException."""
    return {name: _id_of(answer) for name, answer in _asked(admin, topics, timeout_seconds).items()}


def to_position(committed: TopicPartition, topic_id: str) -> Position | None:
    """What a group has committed in this topic, from the client's answer."""
    if committed.offset < 0 or _differ(_signer(committed), topic_id):
        return None
    metadata = committed.metadata or ""
    signed = _SIGNED.fullmatch(metadata)
    return Position(committed.offset, signed[2] if signed else metadata)


class TopicIds:
    """Of the topics that one member has partitions of. The consumer's thread uses it."""

    def __init__(self, config: KafkaConfig) -> None:
        self.former: set[Partition] = set()  # with a committed offset that is of another topic
        self._config = config
        self._ids: dict[str, str] = {}  # that positions are signed with
        self._told: dict[str, str] = {}  # by the servers, last
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
        """What the client says is committed, of partitions besides the owned ones."""
        found = {Partition(one.topic, one.partition): one for one in answers}
        signers = {one.topic: _signer(one) for one in found.values() if _signer(one)}
        self._told |= self._wait({one.topic for one in found})
        ids = {one.topic: self._told.get(one.topic) or signers.get(one.topic, "") for one in found}
        self._learn(ids, {one.topic for one in owned})
        positions = {one: to_position(raw, ids[one.topic]) for one, raw in found.items()}
        for partition, raw in found.items():
            if positions[partition] is None and raw.offset >= 0:
                self.former.add(partition)
                logger.warning(
                    "Topic %s was deleted and created again: %s/%d begins at its start, for offset %d was "
                    "committed in the former topic, whose seeds are gone",
                    partition.topic, *partition, raw.offset,
                )  # fmt: skip
        return positions

    def signed(self, positions: Mapping[Partition, Position]) -> dict[Partition, Position]:
        """The same with the ids of their topics."""
        return {one: self._sign(one.topic, position) for one, position in positions.items()}

    def forget(self) -> None:
        """The membership has ended."""
        self._ids.clear()
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

    def _sign(self, topic: str, position: Position) -> Position:
        topic_id = self._ids.get(topic)
        return Position(position.offset, f"{topic_id}|{position.metadata}") if topic_id else position

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
