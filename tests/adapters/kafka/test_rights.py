"""What Kafka says of rights; tests/acceptance/test_secured.py asks one with users."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, AdminClient

from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.seed_log import KafkaSeedLog, _read, granted
from site_spider.contracts.seed_log import Granted, Right

READS = Right("topic", "seeds", ("Read", "Write"))
WRITES = Right("topic", "letters", ("Write",))
JOINS = Right("group", "crawlers", ("Read",))


def done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(result, int):
        future.set_exception(KafkaException(KafkaError(result)))
    else:
        future.set_result(result)
    return future


class Described:
    """A topic or a group with the operations that are allowed."""

    def __init__(self, *operations: AclOperation) -> None:
        self.authorized_operations = [*operations] or None


class Admin:
    """Answers as it is told; by name."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def describe_topics(self, topics: Any, **_options: Any) -> dict[str, Future[Any]]:
        return {name: done(self._answers[name]) for name in topics.topic_names}

    def positions_of(self, _config: object, group: str, _topic: str, _seconds: float) -> Any:
        """As `_of_group`."""
        return _read(done(self._answers[group]))

    def create_topics(self, topics: Any, *, validate_only: bool, **_options: Any) -> dict[str, Future[Any]]:
        assert validate_only
        return {topic.topic: done(self._answers[f"create_{topic.topic}"]) for topic in topics}


def told_by(admin: Admin) -> list[Granted]:
    with patch("site_spider.adapters.kafka.seed_log._of_group", admin.positions_of):
        return granted(admin, KafkaConfig("127.0.0.1:1"), [READS, WRITES, JOINS], 1)  # type: ignore[arg-type]


def ask(**answers: Any) -> list[tuple[str, ...] | None]:
    """What is missing of each; None for a topic that does not exist and may be created."""
    said = told_by(Admin(**answers))
    assert [one.right for one in said] == [READS, WRITES, JOINS]
    return [one.missing if one.exists or one.missing else None for one in said]


def test_what_is_missing_is_told_of_each() -> None:
    read, write = AclOperation.READ, AclOperation.WRITE
    found = ask(seeds=Described(read, write), letters=Described(write), crawlers=Described(read))
    assert found == [(), (), ()]
    found = ask(
        seeds=Described(read),
        letters=KafkaError.TOPIC_AUTHORIZATION_FAILED,
        crawlers=KafkaError.GROUP_AUTHORIZATION_FAILED,
    )
    assert found == [("Write",), ("Write",), ("Read",)]


def test_a_topic_that_does_not_exist_may_lack_create() -> None:
    missing = KafkaError.UNKNOWN_TOPIC_OR_PART
    found = ask(
        seeds=missing,
        create_seeds=KafkaError.TOPIC_AUTHORIZATION_FAILED,
        letters=missing,
        create_letters=None,
        crawlers=Described(AclOperation.READ),
    )
    assert found == [("Create",), None, ()]


def test_servers_that_do_not_say_refuse_nothing() -> None:
    """An old one, say, or one that has no coordinator of groups yet: a crawl starts."""
    admin = Admin(seeds=Described(), letters=KafkaError.UNSUPPORTED_VERSION, crawlers=KafkaError._TIMED_OUT)
    said = told_by(admin)
    assert [(one.missing, one.is_known) for one in said] == [((), False)] * 3


@pytest.mark.servers
def test_servers_without_users_refuse_nothing_and_nothing_is_created(kafka_brokers: str) -> None:
    name = f"rights-{uuid4().hex[:8]}"
    settings = {"SITE_KAFKA_BROKERS": kafka_brokers, "SITE_KAFKA_OPTIONS": {}}
    log = KafkaSeedLog(KafkaConfig.from_settings(settings))
    right, group = Right("topic", name, ("Read", "Write")), Right("group", name, ("Read",))
    assert log.granted([right, group]) == [Granted(right, (), exists=False), Granted(group, ())]
    client = AdminClient({"bootstrap.servers": kafka_brokers})
    assert name not in client.list_topics(timeout=300).topics
    log.close()
