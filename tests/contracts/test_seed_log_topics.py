"""One suite over all seed logs: topics, progress, and producers."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from site_spider.contracts.seed_log import Message, Partition, Position, TopicReader
from site_spider.errors import LogUnavailable, TopicMissing
from tests.contracts.seed_logs import PARTITIONS, PATIENCE_SECONDS, Case, case, kafka_producer, poll_until, wait_until

__all__ = ["case", "kafka_producer"]


# --- topics ------------------------------------------------------------------------------------


def test_a_topic_that_appears_later_is_read(case: Case) -> None:
    """A consumer of a missing topic waits and begins as soon as it is there."""
    member = case.member()
    assert [member.poll(0.1) for _ in range(3)] == [[]] * 3
    with pytest.raises(TopicMissing, match=case.topic):
        case.log.progress(case.topic, case.group)  # polling did not make it
    values = case.produce(10)
    member.take(10)
    assert sorted(member.values) == sorted(values)


def test_a_missing_topic_has_no_progress_or_facts_and_cannot_be_read(case: Case) -> None:
    asks = (
        lambda: case.log.facts(case.topic, case.group, {}),
        lambda: case.log.progress(case.topic, case.group),
        lambda: next(case.log.read(case.topic)),
    )
    for ask in asks * 2:
        with pytest.raises(TopicMissing, match=case.topic):
            ask()


def test_a_topic_tells_how_many_partitions_it_has(case: Case) -> None:
    case.produce(10)
    assert case.log.partitions(case.topic) == PARTITIONS
    assert case.log.partitions(f"{case.topic}-missing") == 0


def test_facts_tell_members_and_when_messages_were_written(case: Case) -> None:
    """Of the first messages from the given offsets on; nothing is known beyond the end."""
    before = time.time()
    case.produce(40)
    first = {Partition(case.topic, number): 0 for number in range(PARTITIONS)}
    found = case.log.facts(case.topic, case.group, first)
    assert found.members == 0
    assert set(found.written_at) == set(first)
    assert all(before - 60 < at < time.time() + 60 for at in found.written_at.values())
    member = case.member()
    member.take(1)
    assert case.log.facts(case.topic, case.group, {}).members == 1
    beyond = {Partition(case.topic, 0): 1_000_000}
    assert case.log.facts(case.topic, case.group, beyond).written_at == {}


def test_progress_tells_what_is_there_and_what_is_committed(case: Case) -> None:
    case.produce(40)
    before = case.log.progress(case.topic, case.group)
    assert [one.partition for one in before] == [Partition(case.topic, number) for number in range(PARTITIONS)]
    assert {(one.start, one.committed) for one in before} == {(0, None)}
    assert sum(one.end for one in before) == 40
    member = case.member()
    member.take(40)
    position = Position(3, "metadata")
    chosen = member.taken[0].partition
    member.consumer.commit({chosen: position})
    after = {one.partition: one.committed for one in case.log.progress(case.topic, case.group)}
    assert after.pop(chosen) == position
    assert set(after.values()) == {None}


def test_reading_yields_everything_up_to_the_present_end_without_a_group(case: Case) -> None:
    """It ends by itself, and begins anew each time; nothing stays open when it is given up."""
    values = case.produce(1200)
    for _ in range(2):
        messages = list(case.log.read(case.topic))
        assert sorted(message.value or b"" for message in messages) == sorted(values)
    started = case.log.read(case.topic)
    next(started)
    more = case.produce(10, first=1200)
    assert not set(more) & {message.value for message in started}
    given_up = case.log.read(case.topic)
    next(given_up)
    given_up.close()  # type: ignore[attr-defined]


def test_reading_may_begin_at_an_offset_or_at_a_time(case: Case) -> None:
    case.produce(20)
    before = list(case.log.read(case.topic))
    next_of = {message.partition: message.offset + 1 for message in before}
    assert list(case.log.read(case.topic, next_of)) == []
    newest = max(message.timestamp_ms for message in before)
    wait_until(lambda: time.time() * 1000 > newest + 1)
    later = case.produce(20, first=20)
    assert {message.value for message in case.log.read(case.topic, next_of)} == set(later)
    assert {message.value for message in case.log.read(case.topic, since_ms=newest + 1)} == set(later)
    assert list(case.log.read(case.topic, since_ms=int(time.time() * 1000) + 60_000)) == []
    one = {before[0].partition: before[0].offset}  # the other partitions are read from their beginning
    assert len(list(case.log.read(case.topic, one))) == 40


def test_a_log_that_is_there_passes_the_check(case: Case) -> None:
    case.log.check(10)
    assert case.log.address


# --- the producer --------------------------------------------------------------------------------


def test_flush_waits_for_everything(case: Case) -> None:
    producer = case.new_producer()
    futures = [producer.send(case.topic, b"%d" % number, b"value") for number in range(2000)]
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert [future.exception(0) for future in futures] == [None] * 2000
    assert producer.flush(0) == 0
    producer.close()


def test_close_sends_what_is_queued(case: Case) -> None:
    """Nothing is lost in an orderly end; what is sent later is refused, so it is not lost silently."""
    producer = case.new_producer()
    futures = [producer.send(case.topic, b"%d" % number, b"value") for number in range(100)]
    producer.close()
    assert [future.exception(0) for future in futures] == [None] * 100
    assert isinstance(producer.send(case.topic, b"k", b"v").exception(1), LogUnavailable)
    assert sum(1 for _ in case.log.read(case.topic)) == 100


def test_threads_may_share_a_producer(case: Case) -> None:
    """Nothing is lost or mixed up, and each thread's messages of a key stay in order."""
    producer = case.new_producer()
    start = threading.Barrier(2)

    def work(name: bytes) -> None:
        start.wait()
        for number in range(500):
            producer.send(case.topic, name, b"%d" % number)

    threads = [threading.Thread(target=work, args=(name,)) for name in (b"one", b"two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert producer.flush(PATIENCE_SECONDS) == 0
    producer.close()
    messages = list(case.log.read(case.topic))
    for name in (b"one", b"two"):
        numbers = [int(one.value or b"") for one in messages if one.key == name]
        assert numbers == list(range(500))


def test_a_callback_of_a_future_may_send(case: Case) -> None:
    """The thread that reports must not wait for itself."""
    producer = case.new_producer()
    ended = []
    first = producer.send(case.topic, b"k", b"first")
    first.add_done_callback(lambda _: ended.append(producer.send(case.topic, b"k", b"second")))
    wait_until(lambda: ended and ended[0].done())
    assert ended[0].exception() is None
    producer.close()


def test_a_topic_that_is_kept_takes_messages_and_keeps_new_ones(case: Case) -> None:
    """Asking again changes nothing, also for a topic that is there already."""
    topic = f"{case.topic}.stats"
    for number in range(3):
        case.log.keep(topic, 3600)
        case.producer.send(topic, b"process", b"%d" % number).result(PATIENCE_SECONDS)
    assert [message.value for message in case.log.read(topic)] == [b"0", b"1", b"2"]
    values = case.produce(3)
    case.log.keep(case.topic, 3600)
    assert sorted(message.value or b"" for message in case.log.read(case.topic)) == sorted(values)


# --- topics that are followed -------------------------------------------------------------------


def taken(reader: TopicReader, count: int) -> list[Message]:
    """So many messages, as they come."""
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        found += reader.poll(0.2)
    return found


def test_a_reader_gives_all_that_is_there_and_then_what_comes(case: Case) -> None:
    """In one order, from a topic of one partition; and it says when it is at the end of what was there."""
    case.log.make_topic(case.topic, 1, compacted=True)
    case.log.make_topic(case.topic, 1, compacted=True)
    assert case.log.partitions(case.topic) == 1
    producer = case.log.producer()
    for number in range(20):
        producer.send(case.topic, b"k%d" % number, b"%d" % number).result(PATIENCE_SECONDS)
    with closing(case.log.reader(case.topic, compacted=True)) as reader:
        assert not reader.is_at_end
        assert [message.value for message in taken(reader, 20)] == [b"%d" % number for number in range(20)]
        assert reader.is_at_end
        producer.send(case.topic, b"k0", b"new").result(PATIENCE_SECONDS)
        assert [message.value for message in taken(reader, 1)] == [b"new"]
    producer.close()


def test_a_reader_waits_for_a_topic_that_does_not_exist(case: Case) -> None:
    """It is at its end, and does not make it."""
    with closing(case.log.reader(case.topic, compacted=True)) as reader:
        assert reader.is_at_end
        assert reader.poll(0.1) == []
        assert case.log.partitions(case.topic) == 0
        case.log.make_topic(case.topic, 1, compacted=True)
        producer = case.log.producer()
        producer.send(case.topic, b"k", b"v").result(PATIENCE_SECONDS)
        producer.close()
        assert [message.value for message in taken(reader, 1)] == [b"v"]


def test_partitions_that_no_member_has_are_told(case: Case) -> None:
    """All before anybody joins and when everybody has left, none while members have them."""
    case.produce(1)
    everything = frozenset(Partition(case.topic, number) for number in range(PARTITIONS))
    wait_until(lambda: case.log.unowned(case.topic, case.group) == everything)
    first, second = case.member(), case.member()
    poll_until([first, second], lambda: len(first.owned) == len(second.owned) == PARTITIONS / 2)
    poll_until([first, second], lambda: case.log.unowned(case.topic, case.group) == frozenset())
    for member in (first, second):
        member.consumer.close(for_good=True)
        case.members.remove(member)
    wait_until(lambda: case.log.unowned([case.topic], case.group) == everything)
