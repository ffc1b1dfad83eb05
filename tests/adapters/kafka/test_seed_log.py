"""What is special about Kafka: static members, fencing, gaps, outages, the client's limits."""

from __future__ import annotations

import threading
import uuid

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as KafkaClient
from confluent_kafka.admin import AdminClient, ConfigResource

from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.membership import MemberSlot
from site_spider.adapters.kafka.seed_log import KafkaSeedLog
from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import LogUnavailable
from tests.adapters.kafka.cases import case, lock_folder
from tests.adapters.seed_log_process import process
from tests.contracts.seed_logs import (
    PATIENCE_SECONDS,
    QUICK_KAFKA,
    Case,
    kafka_producer,
    make_kafka_topic,
    poll_until,
    wait_until,
)

__all__ = ["case", "kafka_producer", "lock_folder"]


CLASS = "site_spider.adapters.kafka.seed_log.KafkaSeedLog"


# --- members -------------------------------------------------------------------------------


@pytest.mark.servers
def test_a_killed_process_has_its_partitions_back_at_once(case: Case, kafka_brokers: str) -> None:
    """A static member does not wait for the session timeout of 10 s."""
    case.produce(20)
    settings = {"SITE_KAFKA_BROKERS": kafka_brokers, "SITE_KAFKA_OPTIONS": QUICK_KAFKA}
    with process("consume", CLASS, settings, case.topic, case.group) as first:
        assert first.wait_for("assigned") == 4
        first.wait_for("taken")
        first.kill()
    member = case.member()
    member.take(20)


@pytest.fixture
def one_name(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """All members of the group have the same name, as one has twice that the servers took for dead."""
    slot = MemberSlot.claim(case.group)
    monkeypatch.setattr(MemberSlot, "claim", lambda _group, place="": slot)


@pytest.mark.servers
def test_a_member_that_was_fenced_joins_again(case: Case, one_name: None) -> None:
    """Its partitions are lost, come back with what is committed, and it reads and commits on."""
    case.produce(10)
    older = case.member()
    older.take(10)
    committed = older.next_positions()
    older.consumer.commit(committed)
    newer = case.member()
    newer.own(4)
    case.leave(newer)
    poll_until([older], lambda: older.listener.told("lost"))
    assert sorted(older.listener.told("lost")) == sorted(older.listener.told("assigned")[:4])
    older.own(4)
    assert {part: position for part, position in older.listener.owned.items() if position} == committed
    values = case.produce(10, first=10)
    assert sorted(message.value or b"" for message in older.take(20)[10:]) == sorted(values)
    older.consumer.commit(older.next_positions())


@pytest.mark.servers
def test_two_with_one_name_do_not_fence_each_other_for_ever(case: Case, one_name: None) -> None:
    """One of them ends with an error; who starts it again does so with growing pauses."""
    case.produce(1)
    older, newer = case.member(), case.member()
    with pytest.raises(LogUnavailable, match="for good"):
        poll_until([newer, older], lambda: False)


@pytest.mark.servers
def test_a_member_that_leaves_in_the_middle_of_a_rebalance_commits(case: Case) -> None:
    """The servers answer when the rebalance is over, and refuse what was sent before; so it tries again."""
    case.produce(20)
    leaving = case.member()
    leaving.take(20)
    leaving.commit_when_leaving()
    holding_up = case.member()  # the group waits for it until it is polled
    poll_until([leaving], lambda: len(leaving.owned) < 4)
    case.produce(20, first=20)
    poll_until([leaving], lambda: len({message.offset for message in leaving.taken[20:]}) > 3)
    kept = sorted(leaving.owned)
    closing = threading.Thread(target=case.leave, args=[leaving])
    closing.start()
    wait_until(lambda: not leaving.owned, "the listener gives its partitions up")
    wait_until(lambda: [holding_up.poll(), not closing.is_alive()][1], "the end of the member")
    committed = {p.partition: p.committed for p in case.log.progress(case.topic, case.group)}
    assert {part: committed[part] for part in kept} == leaving.next_positions(kept)


@pytest.mark.servers
def test_a_member_works_without_lock_files(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a dynamic one, where nothing can be written."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    case.produce(5)
    case.member().take(5)


def untold(*_arguments: object) -> None:
    """What the servers do that keep committed positions back."""
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.servers
def test_positions_that_cannot_be_read_at_a_rebalance_are_read_later(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is handed out before the listener knows where its group is."""
    case.produce(40)
    with monkeypatch.context() as patched:
        patched.setattr("site_spider.adapters.kafka.membership.KafkaAssignment._committed", untold)
        member = case.member()
        poll_until([member], lambda: "cannot be read yet" in caplog.text)
        assert [member.poll(0.2) for _ in range(3)] == [[]] * 3
        assert member.owned == set()
    member.take(40)
    assert sorted(message.offset for message in member.taken if message.partition.number == 0) == list(
        range(sum(1 for message in member.taken if message.partition.number == 0))
    )


@pytest.mark.servers
def test_a_member_that_is_not_told_its_positions_joins_again(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A transaction that was cut off by the death of a broker may keep them back from this client."""
    case.produce(10)
    monkeypatch.setattr("site_spider.adapters.kafka.consumer._LEARN_SECONDS", 0.5)
    with monkeypatch.context() as patched:
        patched.setattr("site_spider.adapters.kafka.membership.KafkaAssignment._committed", untold)
        member = case.member()
        poll_until([member], lambda: "does not tell group" in caplog.text)
    member.take(10)


# --- offsets -------------------------------------------------------------------------------


@pytest.mark.servers
def test_the_end_is_told_behind_the_marks_of_a_transaction(case: Case, kafka_brokers: str) -> None:
    """They take offsets and are never handed out."""
    make_kafka_topic(kafka_brokers, case.topic, 1)
    producer = KafkaClient({"bootstrap.servers": kafka_brokers, "transactional.id": case.topic})
    producer.init_transactions(PATIENCE_SECONDS)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(case.topic, b"value")
        producer.flush(PATIENCE_SECONDS)
        end(PATIENCE_SECONDS)
    member = case.member()
    partition = Partition(case.topic, 0)
    poll_until([member], lambda: member.listener.ends.get(partition) == 4)
    assert member.values == [b"value"]
    assert [message.value for message in case.log.read(case.topic)] == [b"value"]
    assert case.log.progress(case.topic, case.group)[0].end == 4


@pytest.mark.servers
def test_metadata_that_is_too_large_is_refused_with_a_reason(case: Case) -> None:
    """The server takes 4,095 bytes."""
    case.produce(1)
    member = case.member()
    member.own(4)
    with pytest.raises(LogUnavailable, match="metadata"):
        member.consumer.commit({Partition(case.topic, 0): Position(0, "x" * 5000)})


@pytest.mark.servers
def test_a_topic_that_is_made_to_be_kept_has_a_short_retention(kafka_brokers: str) -> None:
    """And segments that are short enough for it to count."""
    topic = f"kept-{uuid.uuid4().hex}"
    log = KafkaSeedLog(KafkaConfig(kafka_brokers))
    log.keep(topic, 7200)
    log.keep(topic, 7200)
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": kafka_brokers})
    found = admin.describe_configs([asked])[asked].result(300)
    assert (found["retention.ms"].value, found["segment.ms"].value) == ("7200000", "1800000")
    assert log.partitions(topic) == 1
