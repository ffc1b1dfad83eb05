"""What is special about Kafka: static members, fencing, gaps, outages, the client's limits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from unittest.mock import Mock, patch
from uuid import uuid4

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka import Producer as KafkaClient
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource

from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.seed_log import KafkaSeedLog, KafkaTopicReader, _read, granted
from site_spider.contracts.seed_log import Granted, Partition, Position, Right
from site_spider.errors import LogUnavailable
from tests.adapters.kafka.conftest import of
from tests.adapters.seed_log_process import Process, process
from tests.contracts.seed_logs import (
    PATIENCE_SECONDS,
    QUICK_KAFKA,
    Case,
    Member,
    make_kafka_topic,
    one_name,
    poll_until,
    wait_until,
)

__all__ = ["one_name"]

CLASS = "site_spider.adapters.kafka.seed_log.KafkaSeedLog"


# --- members -------------------------------------------------------------------------------


@pytest.mark.servers
def test_two_with_one_name_do_not_fence_each_other_for_ever(case: Case, one_name: Callable[[], None]) -> None:
    """One of them ends with an error; who starts it again does so with growing pauses."""
    one_name()
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
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    case.produce(5)
    case.member().take(5)


@pytest.mark.servers
def test_a_batch_that_unpacks_to_more_than_the_client_takes_is_told_of_with_the_remedy(
    one_partition: Case, kafka_brokers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client asks for it for ever, and reads nothing behind it; two kilobytes are enough."""
    case = one_partition
    client = KafkaClient(
        {"bootstrap.servers": kafka_brokers, "compression.type": "zstd", "message.max.bytes": 10_000_000}
    )
    client.produce(case.topic, b"x" * 5_000_000)
    client.flush()
    limits = {"fetch.max.bytes": 1_000_000, "receive.message.max.bytes": 1_001_000}
    stuck = Member(of(kafka_brokers, **limits), case.topic, case.group)
    poll_until([stuck], lambda: "raise receive.message.max.bytes" in caplog.text)
    stuck.consumer.close(for_good=True)
    case.member().take(1)


def untold(*_arguments: object) -> None:
    """What the servers do that keep committed positions back."""
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.servers
@pytest.mark.parametrize("learn_seconds", [20.0, 0.5])
def test_positions_that_are_not_told_at_a_rebalance_are_read_later(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, learn_seconds: float
) -> None:
    """Nothing is handed out before the listener knows where its group is.

    A member joins again when it takes long: the death of a broker within a transaction may keep them back.
    """
    monkeypatch.setattr("site_spider.adapters.kafka.consumer._LEARN_SECONDS", learn_seconds)
    case.produce(40)
    with monkeypatch.context() as patched:
        patched.setattr("site_spider.adapters.kafka.assignment.KafkaAssignment._committed", untold)
        member = case.member()
        said = "cannot be read yet" if learn_seconds > 1 else "does not tell group"
        poll_until([member], lambda: said in caplog.text)
        assert member.taken == []
        assert member.owned == set()
    member.take(40)
    assert member.took_all_in_order()


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
    topic = f"kept-{uuid4().hex}"
    log = KafkaSeedLog(KafkaConfig(kafka_brokers))
    log.keep(topic, 7200)
    log.keep(topic, 7200)
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": kafka_brokers})
    found = admin.describe_configs([asked])[asked].result(300)
    assert (found["retention.ms"].value, found["segment.ms"].value) == ("7200000", "1800000")
    assert log.partitions(topic) == 1


@pytest.mark.servers
@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_compacted_topic_of_seeds_is_told_of_with_the_remedy(
    case: Case, caplog: pytest.LogCaptureFixture, *, is_compacted: bool
) -> None:
    """Of 400 seeds, 38 were left, and all counted as done."""
    case.log.make_topic(case.topic, 1, compacted=is_compacted)
    case.member()
    told = [message for message in caplog.messages if "cleanup.policy=delete" in message and case.topic in message]
    assert len(told) == is_compacted


@pytest.mark.servers
def test_a_topic_of_tasks_with_a_retention_is_told_of_with_the_remedy(
    kafka_brokers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Made by hand: when the order to pause a task was a week old, its seeds were crawled after the next start."""
    log = KafkaSeedLog(KafkaConfig(kafka_brokers))
    wrong, endless, compacted = topics = [f"tasks-{uuid4().hex}" for _ in range(3)]
    log.keep(wrong, 7200)
    log.make_topic(endless, 1, compacted=False)
    log.make_topic(compacted, 1, compacted=True)
    for topic in topics:
        with suppress(LogUnavailable):  # not all brokers know it yet
            log.reader(topic, compacted=True).close()
    [told] = [message for message in caplog.messages if "cleanup.policy=compact" in message]
    assert wrong in told


def test_the_retention_of_a_topic_of_tasks_is_said_once(
    nobody: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command reads such a topic several times, and a process that resumes a task again and again."""
    asked = Mock(return_value={"cleanup.policy": "delete", "retention.ms": "604800000"})
    monkeypatch.setattr("site_spider.adapters.kafka.seed_log._config_of", asked)
    monkeypatch.setattr("site_spider.adapters.kafka.seed_log.KafkaTopicReader", Mock())
    log = of(nobody)
    for topic in ("seeds.tasks", "seeds.tasks", "seeds.tasks.control"):
        log.reader(topic, compacted=True)
    assert [message.split()[1] for message in caplog.messages] == ["seeds.tasks", "seeds.tasks.control"]


def test_servers_that_are_away_are_waited_for_once(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy of a topic is not asked for then, which takes five seconds more."""
    monkeypatch.setattr("site_spider.adapters.kafka.seed_log._ANSWER_SECONDS", 0.5)
    asked = Mock(return_value={})
    monkeypatch.setattr("site_spider.adapters.kafka.seed_log._config_of", asked)
    with pytest.raises(LogUnavailable):
        of(nobody).reader("seeds.tasks", compacted=True)
    assert asked.call_args_list == []


# --- What the seed log does while no broker answers


def test_questions_to_missing_servers_raise(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_spider.adapters.kafka.seed_log._ANSWER_SECONDS", 0.5)
    log = of(nobody)
    for question in (lambda: log.progress("topic", "group"), lambda: log.read("topic")):
        with pytest.raises(LogUnavailable, match=nobody):
            question()
    said = f"no answer from Kafka at {nobody} within 1 s; SITE_KAFKA_BROKERS.*SITE_KAFKA_OPTIONS must fit its listener"
    with pytest.raises(LogUnavailable, match=said):
        log.check(1)


def test_a_consumer_waits_for_missing_servers(nobody: str, lock_folder: None, caplog: pytest.LogCaptureFixture) -> None:
    member = Member(of(nobody), "topic", "group")
    poll_until([member], lambda: "does not answer" in caplog.text)
    polls_until = time.monotonic() + 2.5  # longer than the interval of looks
    poll_until([member], lambda: time.monotonic() > polls_until)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1, warnings
    assert nobody in warnings[0].message
    assert "SITE_KAFKA_BROKERS" in warnings[0].message
    member.close()


def test_a_producer_keeps_messages_for_missing_servers(
    nobody: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("site_spider.adapters.kafka.producer._CLOSE_SECONDS", 0.2)
    producer = of(nobody).producer()
    futures = [producer.send("topic", b"k", b"v") for _ in range(10)]
    wait_until(lambda: "does not answer" in caplog.text)
    assert producer.flush(0.2) == 10
    assert not any(future.done() for future in futures)
    producer.close()
    assert {type(future.exception(0)) for future in futures} == {LogUnavailable}


# --- What Kafka says of rights; tests/acceptance/test_secured.py asks one with users

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


def described(*operations: AclOperation) -> Mock:
    """A topic or a group with the operations that are allowed."""
    return Mock(authorized_operations=[*operations] or None)


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


READ, WRITE = AclOperation.READ, AclOperation.WRITE
NO_TOPIC, REFUSED = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("seeds", "letters", "crawlers", "told"),
    [
        pytest.param(described(READ, WRITE), described(WRITE), described(READ), [(), (), ()], id="all is granted"),
        pytest.param(
            *(described(READ), REFUSED, KafkaError.GROUP_AUTHORIZATION_FAILED, [("Write",), ("Write",), ("Read",)]),
            id="some is missing",
        ),
        pytest.param(NO_TOPIC, NO_TOPIC, described(READ), [("Create",), None, ()], id="a missing topic may lack it"),
        pytest.param(
            *(described(), KafkaError.UNSUPPORTED_VERSION, KafkaError._TIMED_OUT, ["not said"] * 3),
            id="servers that are old, or have no coordinator of groups yet, refuse nothing",
        ),
    ],
)
def test_what_is_missing_is_told_of_each(seeds: Any, letters: Any, crawlers: Any, told: list[Any]) -> None:
    """None stands for a topic that does not exist and may be created."""
    admin = Admin(seeds=seeds, letters=letters, crawlers=crawlers, create_seeds=REFUSED, create_letters=None)
    with patch("site_spider.adapters.kafka.seed_log._of_group", admin.positions_of):
        said = granted(admin, KafkaConfig("127.0.0.1:1"), [READS, WRITES, JOINS], 1)  # type: ignore[arg-type]
    assert [one.right for one in said] == [READS, WRITES, JOINS]
    of_each = [one.missing if one.exists or one.missing else None for one in said]
    assert [what if one.is_known else "not said" for one, what in zip(said, of_each, strict=True)] == told
    assert all(one.is_known or one.missing == () for one in said)


def test_a_group_that_may_not_be_seen_names_the_right(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question for its positions has no answer then; the client says why, once it is asked for messages."""
    refusal = Mock(error=lambda: KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    silence = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    client = Mock(committed=Mock(side_effect=silence), poll=lambda _seconds: refusal)
    log = KafkaSeedLog(KafkaConfig(nobody))
    monkeypatch.setattr(KafkaConfig, "made", lambda *_arguments: client)
    with pytest.raises(LogUnavailable, match="Grant the user of SITE_KAFKA_OPTIONS Read on the group replays;"):
        log._committed([Partition("letters", 0)], "replays")
    client.poll = lambda _seconds: None
    with pytest.raises(LogUnavailable, match="did not answer: "):
        log._committed([Partition("letters", 0)], "replays")


@pytest.mark.parametrize(
    ("answer", "is_made", "said"),
    [
        (described(WRITE, AclOperation.DESCRIBE), False, ""),
        (described(AclOperation.DESCRIBE), False, "grant the user of SITE_KAFKA_OPTIONS Write on it"),
        (REFUSED, False, "Describe and Write"),
        (NO_TOPIC, False, "Topic details does not exist"),
        (NO_TOPIC, True, ""),
        (KafkaError._TIMED_OUT, False, ""),
    ],
)
def test_only_what_the_servers_say_of_a_topic_is_its_fault(answer: Any, said: str, *, is_made: bool) -> None:
    log = of("127.0.0.1:1")
    admin = Admin(details=answer, create_details=None)
    with patch.object(log, "_admin", admin), patch.object(log, "_is_made", lambda _topic: is_made):
        found = log.fault_of("details")
    assert (said in found, bool(found)) == (True, bool(said))


@pytest.mark.servers
def test_servers_without_users_refuse_nothing_and_a_question_creates_nothing(kafka_brokers: str) -> None:
    """A topic that servers make by themselves has no fault."""
    name = f"rights-{uuid4().hex[:8]}"
    log = of(kafka_brokers)
    right, group = Right("topic", name, ("Read", "Write")), Right("group", name, ("Read",))
    assert log.granted([right, group]) == [Granted(right, (), exists=False), Granted(group, ())]
    assert log.partitions(name) == 0
    assert log.fault_of(name) == ""
    assert log.partitions(name)


def raw(offset: int, code: int | None = None) -> Any:
    answers = {"error": KafkaError(code) if code else None, "topic": "orders", "partition": 0, "offset": offset}
    answers |= {"key": b"t", "value": b"{}", "headers": None, "timestamp": (1, 1)}
    return Mock(**{name: Mock(return_value=it) for name, it in answers.items()})


@pytest.mark.servers
@pytest.mark.usefixtures("one_partition")
def test_reading_ends_before_a_transaction_that_is_open(case: Case, kafka_brokers: str) -> None:
    """Kafka gives nothing of it, nor of what others have written behind it, until it ends; the lag counts both."""
    values = case.produce(3)
    client = KafkaClient({"bootstrap.servers": kafka_brokers, "transactional.id": case.topic})
    client.init_transactions(PATIENCE_SECONDS)
    client.begin_transaction()
    client.produce(case.topic, b"open")
    assert client.flush(PATIENCE_SECONDS) == 0
    case.produce(2)
    assert [message.value for message in case.log.read(case.topic)] == values
    assert [part.end for part in case.log.progress(case.topic, None)] == [6]
    client.commit_transaction(PATIENCE_SECONDS)
    # the coordinator ends it in the partition when it has answered
    wait_until(lambda: len([*case.log.read(case.topic)]) > len(values), "the end of the transaction")
    assert [message.value for message in case.log.read(case.topic)] == [*values, b"open", *values[:2]]


def test_a_topic_that_may_not_be_read_any_more_is_said_until_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client says it once, and is asked anew; what it has read before is taken."""
    refused = raw(-1, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    client = Mock(consume=Mock(return_value=[]))
    client.poll.side_effect = [raw(0), refused, None, refused, raw(1, KafkaError._PARTITION_EOF), None]
    monkeypatch.setattr("site_spider.adapters.kafka.seed_log.Consumer", lambda _config: client)
    reader = KafkaTopicReader(KafkaConfig("kafka:1"), "orders", {0: (0, 1)})
    assert [message.offset for message in reader.poll(0)] == [0]
    for _ in range(3):
        with pytest.raises(LogUnavailable, match="user of SITE_KAFKA_OPTIONS Read and Describe on the topic orders"):
            reader.poll(0)
    assert (reader.poll(0), reader.poll(0), client.assign.call_count) == ([], [], 4)


# --- A client that closes while an assignment waits for its answer (librdkafka, issue 4884)

HANG_SECONDS = 300.0


@pytest.fixture(params=["close", "close_late"])
def closing(request: pytest.FixtureRequest, case: Case, kafka_brokers: str) -> Iterator[Process]:
    """A process of its own, since one that hangs cannot be interrupted."""
    case.produce(20)
    settings = {"SITE_KAFKA_BROKERS": kafka_brokers, "SITE_KAFKA_OPTIONS": QUICK_KAFKA}
    with process(request.param, CLASS, settings, case.topic, case.group) as made:
        timer = threading.Timer(HANG_SECONDS, made.popen.kill)
        timer.start()
        yield made
        timer.cancel()


@pytest.mark.servers
def test_an_assignment_that_nobody_has_answered_does_not_hold_up_the_close(
    closing: Process, case: Case, kafka_brokers: str
) -> None:
    closing.wait_for("joined")
    admin = AdminClient({"bootstrap.servers": kafka_brokers})

    def is_assigned() -> bool:
        group = admin.describe_consumer_groups([case.group])[case.group].result()
        return group.state == ConsumerGroupState.STABLE

    wait_until(is_assigned)
    assert closing.popen.stdin is not None
    closing.popen.stdin.write("close\n")
    closing.popen.stdin.flush()
    closing.wait_for("closed")  # once in a few times it would hang, for as long as our patience with it
    member = case.member()
    poll_until([member], lambda: len(member.taken) == 20)
