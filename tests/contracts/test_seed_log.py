"""One suite over all seed logs: what `site_spider/contracts/seed_log.py` promises."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest

from site_spider.contracts.seed_log import Partition, Position, Producer
from site_spider.errors import LogUnavailable
from tests.contracts.seed_logs import (
    PARTITIONS,
    PATIENCE_SECONDS,
    Case,
    Member,
    by_partition,
    case,
    kafka_producer,
    poll_until,
)

__all__ = ["case", "kafka_producer"]


# --- messages ------------------------------------------------------------------------------


def test_a_new_group_starts_at_the_beginning_and_gets_everything(case: Case) -> None:
    """Messages that were there before the group are handed out, each once, and in order without gaps.

    A poll hands out at most `limit`; the rest comes with the next ones.
    """
    values = case.produce(100)
    member = case.member()
    member.take(100, limit=7)  # Member.poll checks the limit
    assert sorted(member.values) == sorted(values)
    assert set(member.listener.owned.values()) == {None}
    for messages in by_partition(member.taken).values():
        assert [message.offset for message in messages] == list(range(len(messages)))
        numbers = [int((message.value or b"").split(b"-")[1]) for message in messages]
        assert numbers == sorted(numbers)


def test_a_key_always_finds_the_same_partition(case: Case) -> None:
    """The one that Kafka's Java client computes, also for another producer."""
    hashes = {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}  # from the tests of that client
    for _ in range(2):
        case.send([(key, b"") for key in hashes] * 5)
    places = defaultdict(set)
    for message in case.member().take(30):
        places[message.key].add(message.partition.number)
    assert places == {key: {(value & 0x7FFFFFFF) % PARTITIONS} for key, value in hashes.items()}


def test_messages_without_a_key_are_spread(case: Case) -> None:
    for _ in range(20):
        case.send([(None, b"value")] * 10)
    assert len(by_partition(case.member().take(200))) > 1


def test_everything_a_message_may_hold_comes_back(case: Case) -> None:
    """Tombstones, empty keys and values, headers in order and twice, any bytes."""
    producer = case.new_producer()
    headers = [("error", b"caf\xc3\xa9 \x00\xff"), ("twice", b"1"), ("twice", b"2"), ("\u00fc", b"")]
    started_ms = time.time_ns() // 1_000_000
    producer.send(case.topic, b"k", None).result(PATIENCE_SECONDS)
    producer.send(case.topic, b"k", b"").result(PATIENCE_SECONDS)
    producer.send(case.topic, b"", b"empty key").result(PATIENCE_SECONDS)
    producer.send(case.topic, None, b"no key").result(PATIENCE_SECONDS)
    producer.send(case.topic, b"k", bytes(range(256)), headers).result(PATIENCE_SECONDS)
    producer.close()
    found = {(message.key, message.value): message for message in case.member().take(5)}
    rich = found.pop((b"k", bytes(range(256))))
    assert set(found) == {(b"k", None), (b"k", b""), (b"", b"empty key"), (None, b"no key")}
    assert all(message.headers == () for message in found.values())
    assert rich.headers == tuple(headers)
    assert started_ms - 1000 <= rich.timestamp_ms <= time.time_ns() // 1_000_000 + 1000


def test_big_messages_pass(case: Case) -> None:
    """900 KB each."""
    values = [bytes([number]) * 900_000 for number in range(8)]
    case.send([(b"%d" % number, value) for number, value in enumerate(values)])
    assert sorted(message.value or b"" for message in case.member().take(8)) == values


def test_a_poll_without_messages_ends_at_its_timeout(case: Case) -> None:
    case.produce(1)
    member = case.member()
    member.take(1)
    started = time.monotonic()
    assert member.poll(0.5) == []
    assert time.monotonic() - started > 0.4


def send_late(producer: Producer, topic: str, key: bytes) -> None:
    time.sleep(0.1)
    producer.send(topic, key, b"lone")


def test_a_lone_message_is_handed_out_at_once(case: Case) -> None:
    case.produce(1)
    member = case.member()
    member.take(1)
    producer = case.new_producer()
    producer.send(case.topic, b"k", b"first").result(PATIENCE_SECONDS)  # connects
    member.take(2)
    waits = []
    for number in range(5):
        timer = threading.Thread(target=send_late, args=(producer, case.topic, b"%d" % number))
        timer.start()
        started = time.monotonic()
        assert [message.value for message in member.poll(60)] == [b"lone"]
        waits.append(time.monotonic() - started - 0.1)
        timer.join()
    producer.close()
    assert min(waits) < 30


# --- commits -------------------------------------------------------------------------------


def test_a_commit_and_its_metadata_come_back_to_the_next_member(case: Case) -> None:
    """Reading goes on at the committed offset, so what was not committed comes again."""
    case.produce(40)
    first = case.member()
    first.take(40)
    metadata = "1;7;r:" + "x" * 3_900
    committed = {one: Position(2, metadata + str(one.number)) for one in by_partition(first.taken)}
    first.consumer.commit(committed)
    first.consumer.commit(committed)  # harmless to repeat
    case.leave(first)
    second = case.member()
    second.take(40 - 2 * len(committed))
    assert second.listener.owned == committed
    assert all(messages[0].offset == 2 for messages in by_partition(second.taken).values())


def test_what_is_committed_when_leaving_is_not_delivered_again(case: Case) -> None:
    case.produce(30)
    first = case.member()
    first.commit_when_leaving()
    first.take(30)
    case.leave(first)
    assert set(first.listener.told("revoked")) == set(first.listener.told("assigned"))
    values = case.produce(10, first=30)
    second = case.member()
    second.take(10)
    assert sorted(second.values) == sorted(values)


def test_groups_do_not_disturb_each_other(case: Case) -> None:
    case.produce(20)
    first = case.member()
    first.take(20)
    first.consumer.commit(first.next_positions())
    other = Member(case.log, case.topic, case.group + "-other")
    other.take(20)
    other.close()


def test_committing_what_is_not_ours_raises_and_commits_nothing(case: Case) -> None:
    """Neither a partition of somebody else nor one beside it is committed; an empty commit does nothing."""
    case.produce(10)
    member = case.member()
    member.consumer.commit({})  # also before anything is assigned
    mine = next(iter(member.own(PARTITIONS)))
    with pytest.raises(LogUnavailable, match="not assigned"):
        member.consumer.commit({mine: Position(1), Partition(case.topic, 99): Position(1)})
    assert [one.committed for one in case.log.progress(case.topic, case.group)] == [None] * PARTITIONS


def test_a_commit_that_was_begun_is_answered_in_a_later_poll(case: Case) -> None:
    """Once, and the next owner begins there; one of a partition that is not assigned says so."""
    case.produce(20)
    member = case.member()
    member.take(20)
    answers: list[LogUnavailable | None] = []
    wanted = member.next_positions()
    member.consumer.begin_commit(wanted, answers.append)
    poll_until([member], lambda: answers, "an answer")
    member.poll()
    assert answers == [None]
    found = {p.partition: p.committed for p in case.log.progress(case.topic, case.group)}
    assert {partition: found[partition] for partition in wanted} == wanted
    member.consumer.begin_commit({Partition(case.topic, 99): Position(1)}, answers.append)
    poll_until([member], lambda: len(answers) == 2, "a refusal")
    assert isinstance(answers[1], LogUnavailable)
    member.consumer.begin_commit({}, answers.append)
    poll_until([member], lambda: len(answers) == 3, "an answer to nothing")
    assert answers[2] is None
