"""One suite over all seed logs: what `site_spider/contracts/seed_log.py` promises."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.errors import LogUnavailable, TopicMissing
from tests.contracts.seed_logs import (
    PARTITIONS,
    PATIENCE_SECONDS,
    Case,
    Member,
    case,
    kafka_producer,
    poll_until,
    wait_until,
)

__all__ = ["case", "kafka_producer"]


def by_partition(messages: list[Message]) -> dict[Partition, list[Message]]:
    parts = defaultdict(list)
    for message in messages:
        parts[message.partition].append(message)
    return parts


# --- messages ------------------------------------------------------------------------------


def test_a_new_group_starts_at_the_beginning_and_gets_everything(case: Case) -> None:
    """Messages that were there before the group are handed out, each once."""
    values = case.produce(100)
    member = case.member()
    member.take(100)
    assert sorted(member.values) == sorted(values)
    assert set(member.listener.owned.values()) == {None}


def test_a_partition_is_read_in_order_without_gaps(case: Case) -> None:
    """Offsets begin at 0 and follow one another, in the order of production."""
    case.produce(100)
    for messages in by_partition(case.member().take(100)).values():
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
    """No partition is left out for ever."""
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


def test_the_limit_is_kept_and_nothing_is_skipped(case: Case) -> None:
    """A poll hands out at most `limit`; the rest comes with the next ones."""
    values = case.produce(50)
    member = case.member()
    member.take(50, limit=7)  # Member.poll checks the limit
    assert sorted(member.values) == sorted(values)


def test_a_poll_without_messages_ends_at_its_timeout(case: Case) -> None:
    """It neither returns before nor much later."""
    case.produce(1)
    member = case.member()
    member.take(1)
    started = time.monotonic()
    assert member.poll(0.5) == []
    assert 0.4 < time.monotonic() - started < 2


def test_a_lone_message_is_handed_out_at_once(case: Case) -> None:
    """A waiting poll does not wait for more, nor for its timeout."""
    case.produce(1)
    member = case.member()
    member.take(1)
    producer = case.new_producer()
    producer.send(case.topic, b"k", b"first").result(PATIENCE_SECONDS)  # connects
    member.take(2)
    waits = []
    for number in range(5):
        timer = threading.Timer(0.1, producer.send, (case.topic, b"%d" % number, b"lone"))
        timer.start()
        started = time.monotonic()
        assert [message.value for message in member.poll(20)] == [b"lone"]
        waits.append(time.monotonic() - started - 0.1)
        timer.join()
    producer.close()
    assert min(waits) < 0.5
    assert max(waits) < 5  # a busy machine


# --- commits -------------------------------------------------------------------------------


def test_a_commit_and_its_metadata_come_back_to_the_next_member(case: Case) -> None:
    """Reading goes on at the committed offset; the metadata is what was given."""
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


def test_what_was_not_committed_is_delivered_again(case: Case) -> None:
    """A member that ends without a commit leaves everything to the next one."""
    values = case.produce(30)
    first = case.member()
    first.take(30)
    case.leave(first)
    second = case.member()
    second.take(30)
    assert sorted(second.values) == sorted(values)


def test_what_is_committed_when_leaving_is_not_delivered_again(case: Case) -> None:
    """`close` asks the listener, commits its answer, and the next member goes on there."""
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
    """Another group has its own positions."""
    case.produce(20)
    first = case.member()
    first.take(20)
    first.consumer.commit(first.next_positions())
    other = Member(case.log, case.topic, case.group + "-other")
    other.take(20)
    other.close()


def test_committing_what_is_not_ours_raises_and_commits_nothing(case: Case) -> None:
    """Neither a partition of somebody else nor one beside it is committed."""
    case.produce(10)
    member = case.member()
    mine = next(iter(member.own(PARTITIONS)))
    with pytest.raises(LogUnavailable, match="not assigned"):
        member.consumer.commit({mine: Position(1), Partition(case.topic, 99): Position(1)})
    assert [one.committed for one in case.log.progress(case.topic, case.group)] == [None] * PARTITIONS


def test_an_empty_commit_does_nothing(case: Case) -> None:
    """Also before anything is assigned."""
    case.member().consumer.commit({})


# --- pause and resume ----------------------------------------------------------------------


def test_paused_partitions_hand_out_nothing_and_lose_nothing(case: Case) -> None:
    """What was prefetched or produced meanwhile comes after `resume`, once and in order."""
    values = case.produce(40)
    member = case.member()
    member.take(5, limit=5)
    member.consumer.pause(list(member.owned))
    values += case.produce(40, first=40)
    assert [member.poll(0.1) for _ in range(5)] == [[]] * 5
    member.consumer.resume(list(member.owned))
    member.take(80)
    assert sorted(member.values) == sorted(values)
    for messages in by_partition(member.taken).values():
        assert [message.offset for message in messages] == list(range(len(messages)))


def test_only_the_paused_partitions_wait(case: Case) -> None:
    """The others go on."""
    case.produce(100)
    member = case.member()
    paused, *others = sorted(member.own(PARTITIONS))
    member.taken.clear()
    before = {one.partition: one.end for one in case.log.progress(case.topic, case.group)}
    member.consumer.pause([paused])
    values = case.produce(100, first=100)
    poll_until([member], lambda: all(member.listener.ends.get(one, 0) > before[one] for one in others))
    assert all(message.offset < before[paused] for message in member.taken if message.partition == paused)
    member.consumer.resume([paused])
    poll_until([member], lambda: set(values) <= set(member.values))


def test_a_partition_that_was_paused_when_it_left_is_read_when_it_returns(case: Case) -> None:
    """A pause belongs to one assignment: it is not remembered over the next."""
    case.produce(20)
    first = case.member()
    first.own(PARTITIONS)
    first.consumer.pause(list(first.owned))
    second = case.member()
    poll_until([first, second], lambda: len(first.owned) == len(second.owned) == 2)
    kept = set(first.owned)
    second.consumer.close()
    poll_until([first], lambda: len(first.owned) == PARTITIONS)
    first.consumer.resume(list(kept))
    values = case.produce(40, first=20)
    poll_until([first], lambda: set(values) <= set(first.values))


def test_a_listener_may_pause_what_it_is_assigned(case: Case) -> None:
    """Nothing of it is handed out before `resume`."""
    case.produce(20)
    member = case.member()
    assigned = member.listener.assigned

    def assigned_and_paused(positions: dict[Partition, Position | None]) -> None:
        assigned(positions)
        member.consumer.pause(list(positions))

    member.listener.assigned = assigned_and_paused  # type: ignore[method-assign, assignment]
    member.own(PARTITIONS)
    assert [member.poll(0.1) for _ in range(5)] == [[]] * 5
    assert member.taken == []
    member.consumer.resume(list(member.owned))
    member.take(20)


def test_pausing_what_is_not_ours_is_ignored(case: Case) -> None:
    """A partition may be revoked between the decision and the call."""
    case.produce(10)
    member = case.member()
    member.own(PARTITIONS)
    member.consumer.pause([Partition(case.topic, 99)])
    member.consumer.resume([Partition(case.topic, 99)])
    member.take(10)


# --- the end ---------------------------------------------------------------------------------


def test_the_end_of_each_partition_is_told_once_it_is_handed_out(case: Case) -> None:
    """Also of empty partitions, and again after new messages."""
    case.send([(b"one key", b"%d" % number) for number in range(5)])
    member = case.member()
    poll_until([member], lambda: sorted(member.listener.ends.values()) == [0, 0, 0, 5])
    case.send([(b"one key", b"more")])
    poll_until([member], lambda: sorted(member.listener.ends.values()) == [0, 0, 0, 6])


def test_the_end_is_never_told_before_the_messages_are_handed_out(case: Case) -> None:
    """Otherwise the watermark would pass what is still in the poll's hands."""
    case.produce(60)
    member = case.member()
    reached = member.listener.reached

    def checked(partition: Partition, offset: int) -> None:
        reached(partition, offset)
        handed_out = [message.offset for message in member.taken if message.partition == partition]
        assert len(handed_out) == offset

    member.listener.reached = checked  # type: ignore[method-assign]
    poll_until([member], lambda: sum(member.listener.ends.values()) == 60, limit=3)


# --- the group -------------------------------------------------------------------------------


def test_members_share_the_partitions_and_hand_them_over_in_order(case: Case) -> None:
    """A third member gets its share; a partition is given up before another has it; nothing is read twice."""
    events: list[tuple[str, str, Partition]] = []
    values = case.produce(200)
    first = case.member(events)
    first.commit_when_leaving()
    first.take(40, limit=10)
    second = case.member(events)
    second.commit_when_leaving()
    poll_until([first, second], lambda: len(first.owned) == len(second.owned) == 2, limit=10)
    values += case.produce(200, first=200)
    third = case.member(events)
    third.commit_when_leaving()
    members = [first, second, third]
    poll_until(members, lambda: sorted(len(one.owned) for one in members) == [1, 1, 2], limit=10)
    assert len(first.owned | second.owned | third.owned) == PARTITIONS
    values += case.produce(100, first=400)
    poll_until(members, lambda: sum(len(one.taken) for one in members) >= 500)
    assert sorted(value or b"" for one in members for value in one.values) == sorted(values)

    owner: dict[Partition, str] = {}
    for name, what, partition in events:
        if what == "assigned":
            assert partition not in owner
            owner[partition] = name
        else:
            assert owner.pop(partition) == name
    assert "lost" not in {what for _, what, _ in events}


def test_a_commit_after_the_partition_has_left_raises(case: Case) -> None:
    """The new owner's progress is not overwritten."""
    case.produce(20)
    first = case.member()
    before = set(first.own(PARTITIONS))
    second = case.member()
    poll_until([first, second], lambda: len(first.owned) == len(second.owned) == 2)
    gone = (before - first.owned).pop()
    with pytest.raises(LogUnavailable, match="not assigned"):
        first.consumer.commit({gone: Position(1)})
    second.consumer.commit({gone: Position(2)})


def test_an_error_of_the_listener_reaches_the_caller(case: Case) -> None:
    """It is raised by `poll`, not swallowed."""
    case.produce(1)
    member = case.member()

    assigned = member.listener.assigned

    def broken(positions: dict[Partition, Position | None]) -> None:
        assigned(positions)
        raise ZeroDivisionError("in the listener")

    member.listener.assigned = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError, match="in the listener"):
        poll_until([member], lambda: False)


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


def test_a_missing_topic_has_no_progress_and_cannot_be_read(case: Case) -> None:
    """And asking does not make it."""
    for _ in range(2):
        with pytest.raises(TopicMissing, match=case.topic):
            case.log.progress(case.topic, case.group)
        with pytest.raises(TopicMissing, match=case.topic):
            next(case.log.read(case.topic))


def test_a_topic_tells_how_many_partitions_it_has(case: Case) -> None:
    """None while it does not exist; as many as messages are spread over."""
    case.produce(10)
    assert case.log.partitions(case.topic) == PARTITIONS
    assert case.log.partitions(f"{case.topic}-missing") == 0


def test_progress_tells_what_is_there_and_what_is_committed(case: Case) -> None:
    """Per partition, in order, before and after a commit."""
    case.produce(40)
    before = case.log.progress(case.topic, case.group)
    assert [one.partition for one in before] == [
        Partition(case.topic, number) for number in range(PARTITIONS)
    ]
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
    """It ends by itself, and begins anew each time."""
    values = case.produce(1200)
    for _ in range(2):
        messages = list(case.log.read(case.topic))
        assert sorted(message.value or b"" for message in messages) == sorted(values)
    started = case.log.read(case.topic)
    next(started)
    more = case.produce(10, first=1200)
    assert not set(more) & {message.value for message in started}


def test_reading_may_be_given_up(case: Case) -> None:
    """Nothing stays open."""
    case.produce(10)
    messages = case.log.read(case.topic)
    next(messages)
    messages.close()  # type: ignore[attr-defined]


def test_a_log_that_is_there_passes_the_check(case: Case) -> None:
    """And tells where it is."""
    case.log.check(10)
    assert case.log.address


# --- the producer --------------------------------------------------------------------------------


def test_flush_waits_for_everything(case: Case) -> None:
    """Afterwards every future has ended well."""
    producer = case.new_producer()
    futures = [producer.send(case.topic, b"%d" % number, b"value") for number in range(2000)]
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert [future.exception(0) for future in futures] == [None] * 2000
    assert producer.flush(0) == 0
    producer.close()


def test_close_sends_what_is_queued(case: Case) -> None:
    """Nothing is lost in an orderly end."""
    producer = case.new_producer()
    futures = [producer.send(case.topic, b"%d" % number, b"value") for number in range(100)]
    producer.close()
    assert [future.exception(0) for future in futures] == [None] * 100
    assert sum(1 for _ in case.log.read(case.topic)) == 100


def test_a_closed_producer_refuses_by_the_future(case: Case) -> None:
    """So a late message is not lost silently."""
    producer = case.log.producer()
    producer.close()
    assert isinstance(producer.send(case.topic, b"k", b"v").exception(1), LogUnavailable)


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
