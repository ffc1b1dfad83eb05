"""What the user of a Kafka client may do, as the servers say it; nothing is joined or written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # not in its stubs

from site_spider import runtime
from site_spider.adapters.kafka.config import KafkaConfig
from site_spider.contracts.seed_log import Granted, Right

_CREATE = "Create"
_OF_GROUPS = frozenset({"READ", "DESCRIBE", "DELETE"})
_STEP_SECONDS = 0.5
_GROUP_SECONDS = 8.0  # servers on their first day have no coordinator yet, which this client waits for
_REFUSED = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
})  # fmt: skip
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


class _Authorized(NamedTuple):
    operations: frozenset[str] | None = None  # None: the servers do not say
    exists: bool = True


def granted(
    admin: AdminClient, config: KafkaConfig, rights: Sequence[Right], seconds: float
) -> list[Granted]:
    """As SeedLog.granted; what nobody answers is not known."""
    topics = sorted({right.name for right in rights if right.kind == "topic"})
    groups = sorted({right.name for right in rights if right.kind == "group"})
    more: dict[str, Any] = {"include_authorized_operations": True, "request_timeout": seconds}
    of_topics = _said(admin.describe_topics(TopicCollection(topics), **more)) if topics else {}
    of_groups = {name: _of_group(config, name, [*topics, name][0], seconds) for name in groups}
    absent = [name for name, said in of_topics.items() if not said.exists]
    refused = set(_not_creatable(admin, absent, seconds))
    return [
        Granted(right, (_CREATE,) if right.name in refused else (), exists=False)
        if right.kind == "topic" and right.name in absent
        else _judged(right, (of_topics if right.kind == "topic" else of_groups)[right.name])
        for right in rights
    ]


def _of_group(config: KafkaConfig, group: str, topic: str, seconds: float) -> _Authorized:
    """Who may see a group's positions is taken to have all rights to it; if not, joining it says so.

    The servers say more, but not without a risk (group_assignment.py).
    """
    client = Consumer(config.reader(group, lambda _error: None))
    give_up = runtime.monotonic() + min(seconds, _GROUP_SECONDS)
    try:
        while runtime.monotonic() < give_up:
            try:
                client.committed([TopicPartition(topic, 0)], timeout=_STEP_SECONDS)
                return _Authorized(_OF_GROUPS)
            except KafkaException as refusal:
                if refusal.args[0].code() in _REFUSED:
                    return _Authorized(frozenset())
            # who is refused hears it from the client, not as the answer to the question
            said = client.poll(0)
            if said is not None and (error := said.error()) and error.code() in _REFUSED:
                return _Authorized(frozenset())
    finally:
        client.close()
    return _Authorized()


def _judged(right: Right, said: _Authorized) -> Granted:
    operations = said.operations
    if operations is None:
        return Granted(right, (), is_known=False)
    return Granted(right, tuple(one for one in right.operations if one.upper() not in operations))


def _said(answers: Mapping[str, Future[Any]]) -> dict[str, _Authorized]:
    return {name: _read(answer) for name, answer in answers.items()}


def _read(answer: Future[Any]) -> _Authorized:
    try:
        operations = answer.result().authorized_operations
    except KafkaException as error:
        code = error.args[0].code()
        return _Authorized(frozenset() if code in _REFUSED else None, exists=code not in _MISSING)
    return _Authorized(frozenset(operation.name for operation in operations) if operations else None)


def _not_creatable(admin: AdminClient, names: Iterable[str], seconds: float) -> Iterator[str]:
    """Of topics that do not exist; nothing is created."""
    wanted = [NewTopic(name, -1, -1) for name in names]
    if not wanted:
        return
    for name, answer in admin.create_topics(wanted, validate_only=True, request_timeout=seconds).items():
        try:
            answer.result()
        except KafkaException as error:
            if error.args[0].code() in _REFUSED:
                yield name
