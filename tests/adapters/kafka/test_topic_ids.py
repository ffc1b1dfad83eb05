"""A topic that is deleted and created again, under the feet of a group: all of its messages are read."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.member_name import MemberSlot
from site_spider.adapters.kafka.positions import SignedPosition, TopicIds, to_position, to_raw
from site_spider.adapters.kafka.seed_log import KafkaSeedLog
from site_spider.contracts.seed_log import ForeignPosition, Partition, Position
from tests.contracts.seed_logs import PATIENCE_SECONDS, Case, Member, is_listed, poll_until, wait_until

FORMER, NEW = 30, 80  # messages
ID, OTHER = "q83v-EjRVniQq83v_JrRVg", "A2KM6RnPTFmkCTlYVxiaxQ"


def create_again(case: Case, brokers: str) -> list[bytes]:
    """The topic, with more messages than it had before; returns these."""
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.delete_topics([case.topic])[case.topic].result(PATIENCE_SECONDS)
    with suppress(KafkaException):  # a producer that knew the topic was faster
        admin.create_topics([NewTopic(case.topic, 1, 1)])[case.topic].result(PATIENCE_SECONDS)
    values = [b"new-%d" % number for number in range(NEW)]
    for future in [case.producer.send(case.topic, None, value) for value in values]:
        future.result(PATIENCE_SECONDS)
    wait_until(lambda: is_listed(admin, case.topic))
    return values


@pytest.mark.parametrize(
    ("metadata", "topic_id", "expected"),
    [
        (f"{ID}|text", ID, Position(7, "text")),
        (f"{ID}|", ID, Position(7)),
        (f"{ID}|a|b\n", ID, Position(7, "a|b\n")),
        (f"{ID}|text", OTHER, None),
        (f"{ID}|text", "", Position(7, "text")),  # servers that know no ids
        ("3;0;r:;;1234abcd", ID, Position(7, "3;0;r:;;1234abcd")),  # of an earlier version
        ("", ID, Position(7)),
        ("|text", ID, Position(7, "|text")),
        (f"{ID}x|text", ID, Position(7, f"{ID}x|text")),
    ],
)
def test_a_position_is_that_of_its_topic(metadata: str, topic_id: str, expected: Position | None) -> None:
    assert to_position(TopicPartition("seeds", 0, 7, metadata), topic_id) == expected
    assert to_position(TopicPartition("seeds", 0, -1001, metadata), topic_id) is None  # nothing is committed


class Servers(TopicIds):
    """They give `ids` to topics; an empty answer means that they are away."""

    def __init__(self) -> None:
        super().__init__(KafkaConfig("127.0.0.1:1"))
        self.ids: dict[str, str] = {}
        self.asked = 0

    def client(self) -> Any:
        return self

    def are_others(self) -> bool:
        """As the next polls find it, which need not wait for their time."""
        with patch("site_spider.adapters.kafka.positions.LOOK_SECONDS", 0.0):
            return any([self.have_changed(), self.have_changed()])

    def describe_topics(self, _topics: object, **_options: object) -> dict[str, Future[Any]]:
        self.asked += 1
        answers: dict[str, Future[Any]] = {name: Future() for name in ("seeds", "bulk")}
        for name, answer in answers.items():
            if name in self.ids:
                answer.set_result(SimpleNamespace(topic_id=self.ids[name]))
            else:
                answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return answers


@pytest.fixture
def ids() -> Servers:
    return Servers()


def test_a_position_of_another_client_is_told_from_ours(ids: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """A console consumer in our group, or kafka-consumer-groups: they sign nothing."""
    ids.ids = {"seeds": ID, "bulk": "A" * 22}
    ours = [TopicPartition("seeds", 1, 7, f"{ID}|"), TopicPartition("seeds", 2, 7, "3;0;r:;;1234abcd")]
    ours += [TopicPartition("seeds", 3, 0), TopicPartition("seeds", 4, -1001), TopicPartition("bulk", 5, 7)]
    found = ids.positions([TopicPartition("seeds", 0, 7), *ours], [])
    assert {one for one, at in found.items() if isinstance(at, ForeignPosition)} == {Partition("seeds", 0)}
    assert found[Partition("seeds", 0)] == Position(7)
    assert caplog.text.count("another client") == caplog.text.count("seeds/0 begins at offset 7") == 1


def test_a_topic_with_another_id_is_noticed_once(ids: Servers) -> None:
    ids.ids = {"seeds": ID, "bulk": ID}
    ids.positions([TopicPartition("seeds", 0, 7), TopicPartition("bulk", 0, -1001)], [])
    assert not ids.are_others()
    ids.ids = {}
    assert not ids.are_others()  # they are away
    ids.ids = {"seeds": ID, "bulk": OTHER}
    assert ids.are_others()
    assert ids.signed({Partition("bulk", 0): Position(3, "x")}) == {
        Partition("bulk", 0): SignedPosition(3, f"{ID}|x")  # of the topic that it was read in
    }
    ids.forget()
    ids.positions([TopicPartition("bulk", 0, 3, f"{ID}|x")], [])
    assert ids.former == {Partition("bulk", 0)}
    ids.former.clear()  # the client has begun at the start
    assert not ids.are_others()


def test_partitions_of_two_topics_of_one_name_are_not_mixed(ids: Servers) -> None:
    """The second one is assigned after the topic was created again."""
    ids.ids = {"seeds": ID, "bulk": ID}
    first, second = Partition("seeds", 0), Partition("seeds", 1)
    ids.positions([TopicPartition(*first, 7)], [])
    ids.ids = {"seeds": OTHER, "bulk": ID}
    ids.positions([TopicPartition(*second, -1001)], [first])
    assert ids.signed({first: Position(9)}) == {first: SignedPosition(9, f"{ID}|")}
    assert ids.are_others()


def test_servers_without_ids_are_believed(ids: Servers) -> None:
    ids.ids = {"seeds": "A" * 22, "bulk": "A" * 22}
    at = Partition("seeds", 0)
    assert ids.positions([TopicPartition(*at, 7, f"{ID}|x")], []) == {at: Position(7, "x")}
    assert ids.signed({at: Position(8, "y")}) == {at: SignedPosition(8, f"{ID}|y")}  # it may be told later
    assert not ids.are_others()


def test_servers_that_do_not_tell_are_waited_for_once(ids: Servers) -> None:
    """The commit names a topic then; what the servers tell later is compared with that."""
    at = Partition("seeds", 0)
    assert ids.positions([TopicPartition(*at, 7, f"{ID}|x")], []) == {at: Position(7, "x")}
    assert ids.signed({at: Position(8)}) == {at: SignedPosition(8, f"{ID}|")}
    assert ids.asked == 1
    ids.positions([TopicPartition("seeds", 1, -1001)], [at])
    assert ids.asked == 1
    assert not ids.are_others()
    ids.ids = {"seeds": OTHER, "bulk": OTHER}
    assert ids.are_others()
    ids.ids = {}
    ids.forget()
    assert ids.positions([TopicPartition(*at, 7, f"{ID}|x")], []) == {at: None}  # they have told once


def test_a_position_has_the_epoch_of_what_was_read_before_it(ids: Servers) -> None:
    """Behind that there may be marks of transactions, of a later epoch."""
    at = Partition("seeds", 0)
    ids.positions([TopicPartition(*at, 7, "", 2)], [])
    assert [ids.signed({at: Position(offset)})[at].leader_epoch for offset in (7, 8)] == [2, -1]
    ids.read(at, 10, 3)
    ids.read(at, 11, None)  # of servers that do not tell
    assert [ids.signed({at: Position(offset)})[at].leader_epoch for offset in (9, 10, 11)] == [3, 3, -1]
    assert to_raw(ids.signed({at: Position(10)}))[0].leader_epoch == 3
    ids.positions([TopicPartition(*at, 5)], [])  # it was away, and whoever had it did not tell
    assert [one.offset for one in ids.begins([TopicPartition(*at)])] == [-1001]
    ids.forget()
    assert ids.signed({at: Position(9)})[at].leader_epoch == -1


def test_a_member_begins_before_its_position_where_the_log_lacks_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that lacked messages became the leader, and others were written at their offsets."""
    monkeypatch.setattr(MemberSlot, "try_claim", lambda *_named: None)
    monkeypatch.setattr("site_spider.adapters.kafka.positions._WAIT_SECONDS", 0.1)
    cluster = AdminClient({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    brokers = ",".join(f"{one.host}:{one.port}" for one in cluster.list_topics(timeout=300).brokers.values())
    log = KafkaSeedLog(KafkaConfig(brokers))
    producer = log.producer()
    for future in [producer.send("seeds", b"k", b"%d" % number) for number in range(20)]:
        number = future.result(PATIENCE_SECONDS).partition.number
    committed = TopicPartition("seeds", number, 10, leader_epoch=7)  # which the mock does not know
    monkeypatch.setattr(
        "site_spider.adapters.kafka.assignment.committed_by",
        lambda _client, wanted, _seconds: [committed if one.partition == number else one for one in wanted],
    )
    member = Member(log, "seeds", "group")
    member.take(20)
    assert [message.offset for message in member.taken] == list(range(20))
    member.consumer.close()
    producer.close()


def test_an_id_that_is_told_late_is_taken(ids: Servers) -> None:
    at = Partition("seeds", 0)
    ids.positions([TopicPartition(*at, 7)], [])
    assert ids.signed({at: Position(8)}) == {at: SignedPosition(8)}
    ids.ids = {"seeds": ID, "bulk": ID}
    assert not ids.are_others()
    assert ids.signed({at: Position(8)}) == {at: SignedPosition(8, f"{ID}|")}


@pytest.mark.servers
@pytest.mark.usefixtures("one_partition")
def test_a_member_reads_the_new_topic_from_its_start(case: Case, kafka_brokers: str) -> None:
    """The client goes on at its offset by itself, which is one of the topic that is gone."""
    case.produce(FORMER)
    member = case.member()
    member.take(FORMER)
    member.consumer.commit(member.next_positions())
    values = create_again(case, kafka_brokers)
    poll_until([member], lambda: set(values) <= set(member.values), "all messages of the new topic")


@pytest.mark.servers
@pytest.mark.usefixtures("one_partition")
def test_a_position_of_the_former_topic_counts_as_none(case: Case, kafka_brokers: str) -> None:
    """A commit that comes after the deletion is taken by the servers, whichever topic it is about."""
    case.produce(FORMER)
    member = case.member()
    member.take(FORMER)
    values = create_again(case, kafka_brokers)
    at = Partition(case.topic, 0)
    member.consumer.commit({at: Position(20, "3;0;r:;;x")})
    assert stored(case, kafka_brokers).offset == 20
    assert [one.committed for one in case.log.progress(case.topic, case.group)] == [None]
    case.leave(member)
    second = case.member()
    second.own(1)
    assert second.listener.owned == {at: None}
    second.take(NEW)
    assert second.values == values
    second.consumer.commit({at: Position(FORMER, "text")})
    assert [one.committed for one in case.log.progress(case.topic, case.group)] == [Position(FORMER, "text")]


def stored(case: Case, brokers: str) -> TopicPartition:
    """What Kafka itself has of the group."""
    client = Consumer({"bootstrap.servers": brokers, "group.id": case.group})
    try:
        (found,) = client.committed([TopicPartition(case.topic, 0)], timeout=PATIENCE_SECONDS)
    finally:
        client.close()
    return found
