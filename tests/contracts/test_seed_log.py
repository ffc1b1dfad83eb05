"""One suite over all seed logs: messages, commits, pausing, members of a group, topics and producers."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from site_spider.contracts.seed_log import Message, Partition, Position, Producer, TopicReader
from site_spider.errors import LogUnavailable, SinkRejected, TopicMissing
from tests.contracts.seed_logs import (
    PARTITIONS,
    PATIENCE_SECONDS,
    Case,
    Member,
    by_partition,
    case,
    kafka_producer,
    one_name,
    poll_until,
    wait_until,
)

__all__ = ["case", "kafka_producer", "one_name"]


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
    assert member.took_all_in_order()
    for messages in by_partition(member.taken).values():
        numbers = [int((message.value or b"").split(b"-")[1]) for message in messages]
        assert numbers == sorted(numbers)


def test_a_key_always_finds_the_same_partition_and_messages_without_one_are_spread(case: Case) -> None:
    """The one that Kafka's Java client computes, also for another producer."""
    hashes = {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}  # from the tests of that client
    for _ in range(2):
        case.send([(key, b"") for key in hashes] * 5)
    places = defaultdict(set)
    for _ in range(20):
        case.send([(None, b"value")] * 10)
    for message in case.member().take(230):
        places[message.key].add(message.partition.number)
    assert len(places.pop(None)) > 1
    assert places == {key: {(value & 0x7FFFFFFF) % PARTITIONS} for key, value in hashes.items()}


def test_everything_a_message_may_hold_comes_back(case: Case) -> None:
    with closing(case.new_producer()) as producer:
        headers = [("error", b"caf\xc3\xa9 \x00\xff"), ("twice", b"1"), ("twice", b"2"), ("\u00fc", b"")]
        started_ms = time.time_ns() // 1_000_000
        plain = [(b"k", None), (b"k", b""), (b"", b"empty key"), (None, b"no key")]
        plain += [(b"%d" % number, bytes([number]) * 900_000) for number in range(8)]
        for key, value in plain:
            producer.send(case.topic, key, value).result(PATIENCE_SECONDS)
        producer.send(case.topic, b"k", bytes(range(256)), headers).result(PATIENCE_SECONDS)
    found = {(message.key, message.value): message for message in case.member().take(13)}
    rich = found.pop((b"k", bytes(range(256))))
    assert found.keys() == set(plain)
    assert all(message.headers == () for message in found.values())
    assert rich.headers == tuple(headers)
    assert started_ms - 1000 <= rich.timestamp_ms <= time.time_ns() // 1_000_000 + 1000


def test_a_message_that_the_log_does_not_take_is_rejected_alone(case: Case) -> None:
    """Too large for the client, or for the server; or for a topic that cannot be. Its neighbours are stored."""
    if case.name == "simulated":  # which takes everything
        return
    producer = case.new_producer()
    before = producer.send(case.topic, b"k", b"before")
    large = [b"x" * 17_000_000, *([os.urandom(2_000_000)] if case.name == "kafka" else [])]
    futures = [producer.send(case.topic, b"k", value) for value in large]
    after = producer.send(case.topic, b"k", b"after")
    assert {type(future.exception(PATIENCE_SECONDS)) for future in futures} == {SinkRejected}

    def is_rejected() -> bool:  # Kafka's client may say before that it does not know the topic
        error = producer.send("no topic!", b"k", b"v").exception(PATIENCE_SECONDS)
        assert isinstance(error, SinkRejected | LogUnavailable)
        return isinstance(error, SinkRejected)

    wait_until(is_rejected)
    before.result(PATIENCE_SECONDS)
    after.result(PATIENCE_SECONDS)
    producer.close()
    assert sorted(message.value or b"" for message in case.log.read(case.topic)) == [b"after", b"before"]


def send_late(producer: Producer, topic: str, key: bytes) -> None:
    time.sleep(0.1)
    producer.send(topic, key, b"lone")


def test_a_lone_message_is_handed_out_at_once(case: Case) -> None:
    case.produce(1)
    member = case.member()
    member.take(1)
    started = time.monotonic()
    assert member.poll(0.5) == []
    assert time.monotonic() - started > 0.4
    with closing(case.new_producer()) as producer:
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
    assert min(waits) < 30


# --- commits -------------------------------------------------------------------------------


def test_a_commit_and_its_metadata_come_back_to_the_next_member(case: Case) -> None:
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
    with closing(Member(case.log, case.topic, case.group + "-other")) as other:
        other.take(40)


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


def test_committing_what_is_not_ours_raises_and_commits_nothing(case: Case) -> None:
    case.produce(10)
    member = case.member()
    member.consumer.commit({})  # also before anything is assigned
    mine = next(iter(member.own(PARTITIONS)))
    with pytest.raises(LogUnavailable, match="not assigned"):
        member.consumer.commit({mine: Position(1), Partition(case.topic, 99): Position(1)})
    assert [one.committed for one in case.log.progress(case.topic, case.group)] == [None] * PARTITIONS


def test_a_commit_that_was_begun_is_answered_in_a_later_poll(case: Case) -> None:
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
    assert {p.committed for p in case.log.progress(case.topic, None)} == {None}  # needs no right to a group
    member.consumer.begin_commit({Partition(case.topic, 99): Position(1)}, answers.append)
    poll_until([member], lambda: len(answers) == 2, "a refusal")
    assert isinstance(answers[1], LogUnavailable)
    member.consumer.begin_commit({}, answers.append)
    poll_until([member], lambda: len(answers) == 3, "an answer to nothing")
    assert answers[2] is None


# --- pause and resume ----------------------------------------------------------------------


def test_paused_partitions_hand_out_nothing_and_lose_nothing(case: Case) -> None:
    """What was prefetched or produced meanwhile comes when they go on, once and in order.

    A partition may be revoked between the decision and the call, so one that is not ours does no harm.
    """
    values = case.produce(40)
    member = case.member()
    member.take(5, limit=5)
    some = [*member.owned, Partition(case.topic, 99)]
    member.consumer.pause(some)
    values += case.produce(40, first=40)
    assert [member.poll(0.1) for _ in range(5)] == [[]] * 5
    member.consumer.pause([])
    member.take(80)
    assert sorted(member.values) == sorted(values)
    assert member.took_all_in_order()


def test_a_partition_that_was_paused_when_it_left_is_read_when_it_returns(case: Case) -> None:
    """A pause belongs to one assignment: it is not remembered over the next."""
    case.produce(20)
    first = case.member()
    first.own(PARTITIONS)
    first.consumer.pause(list(first.owned))
    second = case.member()
    poll_until([first, second], lambda: len(first.owned) == len(second.owned) == 2)
    kept, taken = set(first.owned), len(first.taken)
    second.consumer.close(for_good=True)
    poll_until([first], lambda: len(first.owned) == PARTITIONS)
    case.produce(40, first=20)
    back = set(first.owned) - kept
    poll_until([first], lambda: {message.partition for message in first.taken[taken:]} == back)


def test_a_listener_may_pause_what_it_is_assigned(case: Case) -> None:
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
    member.consumer.pause([])
    member.take(20)


# --- the end ---------------------------------------------------------------------------------


def test_the_end_of_each_partition_is_told_once_it_is_handed_out(case: Case) -> None:
    """Also of empty partitions, and again after new messages.

    Never before: otherwise the watermark would pass what is still in the poll's hands.
    """
    case.send([(key, b"%d" % number) for number in range(30) for key in (b"21", b"abc")])
    member = case.member()
    reached = member.listener.reached

    def checked(partition: Partition, offset: int) -> None:
        reached(partition, offset)
        handed_out = [message.offset for message in member.taken if message.partition == partition]
        assert len(handed_out) == offset

    member.listener.reached = checked  # type: ignore[method-assign]
    poll_until([member], lambda: sorted(member.listener.ends.values()) == [0, 0, 30, 30], limit=3)
    case.send([(b"abc", b"more")])
    poll_until([member], lambda: sorted(member.listener.ends.values()) == [0, 0, 30, 31])


# --- the group -------------------------------------------------------------------------------


def test_members_share_the_partitions_and_hand_them_over_in_order(case: Case) -> None:
    """A third member gets its share; a partition is given up before another has it; nothing is read twice.

    Who has given one up cannot commit there any more: the progress of its new owner is not overwritten.
    """
    events: list[tuple[str, str, Partition]] = []
    values = case.produce(200)
    first = case.member(events)
    first.commit_when_leaving()
    first.take(40, limit=10)
    before = set(first.own(PARTITIONS))
    second = case.member(events)
    second.commit_when_leaving()
    poll_until([first, second], lambda: len(first.owned) == len(second.owned) == 2, limit=10)
    with pytest.raises(LogUnavailable, match="not assigned"):
        first.consumer.commit({(before - first.owned).pop(): Position(1)})
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


def test_a_member_takes_the_place_of_one_of_its_name_which_joins_again(
    case: Case, one_name: Callable[[], None]
) -> None:
    """At once, as who is started again, and no other hears of it. Who lives is fenced: it has lost all, and is new."""
    if case.name == "local":  # its members have no names
        return
    case.produce(1)
    beside = case.member()
    beside.commit_when_leaving()
    beside.take(1)
    one_name()
    older = case.member()
    poll_until([beside, older], lambda: len(beside.owned) == len(older.owned) == 2)
    mine, heard = older.owned, len(beside.listener.events)
    case.produce(20, first=1)
    poll_until([beside, older], lambda: len(beside.taken) + len(older.taken) == 21)
    committed = older.next_positions()
    older.consumer.commit(committed)
    newer = case.member()
    poll_until([newer], lambda: newer.owned == mine)  # no rebalance: it would wait for the other one
    assert committed.items() <= newer.listener.owned.items()
    case.leave(newer)
    poll_until([older], lambda: older.listener.told("lost"))
    assert set(older.listener.told("lost")) == mine
    poll_until([older], lambda: older.owned == mine)
    assert committed.items() <= older.listener.owned.items()
    values = case.produce(20, first=21)
    taken = [*beside.taken, *older.taken]
    poll_until([beside, older], lambda: len(beside.taken) + len(older.taken) == len(taken) + 20)
    assert {message.value for message in taken}.union(values) == {*beside.values, *older.values}
    older.consumer.commit(older.next_positions())
    assert len(beside.listener.events) == heard


def test_an_error_of_the_listener_reaches_the_caller(case: Case) -> None:
    case.produce(1)
    member = case.member()
    assigned = member.listener.assigned

    def broken(positions: dict[Partition, Position | None]) -> None:
        assigned(positions)
        raise ZeroDivisionError("in the listener")

    member.listener.assigned = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(ZeroDivisionError, match="in the listener"):
        poll_until([member], lambda: False)


def test_a_member_without_a_partition_is_a_member_all_the_same(case: Case) -> None:
    case.produce(PARTITIONS)
    members = [case.member() for _ in range(PARTITIONS + 1)]
    assert not any(member.owned for member in members)
    poll_until(members, lambda: all(member.consumer.is_member for member in members))
    poll_until(members, lambda: sum(len(member.owned) for member in members) == PARTITIONS)
    assert any(not member.owned for member in members)


# --- a member that reads several topics -----------------------------------------------------


def of_tiers(case: Case, *, first: int = 20, second: int = 20) -> tuple[str, str]:
    """Two topics with messages; their names."""
    topics = case.topic, f"{case.topic}-bulk"
    for topic, count in zip(topics, (first, second), strict=True):
        case.make_topic(topic, PARTITIONS)
        for number in range(count):
            case.producer.send(topic, b"key-%d" % number, b"%s %d" % (topic.encode(), number))
    assert case.producer.flush(300) == 0
    return topics


def member_of(case: Case, topics: tuple[str, ...]) -> Member:
    member = Member(case.log, topics, case.group)
    case.members.append(member)
    return member


def test_members_have_the_partitions_of_all_their_topics(case: Case) -> None:
    topics = of_tiers(case)
    member = member_of(case, topics)
    member.take(40)
    assert member.owned == {Partition(topic, number) for topic in topics for number in range(PARTITIONS)}
    assert member.took_all_in_order()
    positions = {one: Position(position.offset, "note") for one, position in member.next_positions().items()}
    member.consumer.commit(positions)
    for topic in topics:
        found = {one.partition: one.committed for one in case.log.progress(topic, case.group) if one.committed}
        assert found == {partition: at for partition, at in positions.items() if partition.topic == topic}
    second = member_of(case, topics)
    poll_until([member, second], lambda: len(second.owned) == PARTITIONS == len(member.owned), "even shares")
    assert not member.owned & second.owned
    member.consumer.close(for_good=True)
    second.own(2 * PARTITIONS)
    assert second.taken == []


def test_the_pause_of_one_topic_leaves_the_other_alone(case: Case) -> None:
    topics = of_tiers(case, first=3, second=2_000)
    member = member_of(case, topics)
    member.own(2 * PARTITIONS)
    bulk = [partition for partition in member.owned if partition.topic == topics[1]]
    member.consumer.pause(bulk)
    taken = len(member.taken)
    for number in range(50):
        case.producer.send(topics[0], b"late-%d" % number, b"late")
    poll_until([member], lambda: member.values.count(b"late") == 50, "what came late")
    assert all(message.partition.topic == topics[0] for message in member.taken[taken:])
    member.consumer.pause([])
    member.take(2_053)


def test_a_topic_that_comes_later_is_read_beside_the_other(case: Case) -> None:
    case.produce(10)
    member = member_of(case, [case.topic, f"{case.topic}-later"])
    member.take(10)
    case.make_topic(f"{case.topic}-later", PARTITIONS)
    for number in range(10):
        case.producer.send(f"{case.topic}-later", b"%d" % number, b"later")
    member.take(20)
    assert member.values.count(b"later") == 10


# --- topics ------------------------------------------------------------------------------------


def test_a_topic_that_appears_later_is_read(case: Case) -> None:
    """A consumer of a missing topic waits and begins as soon as it is there. Neither it nor a question makes it."""
    member = case.member()
    assert [member.poll(0.1) for _ in range(3)] == [[]] * 3
    asks = (
        lambda: case.log.facts(case.topic, case.group, {}),
        lambda: case.log.progress(case.topic, case.group),
        lambda: next(case.log.read(case.topic)),
    )
    for ask in asks * 2:
        with pytest.raises(TopicMissing, match=case.topic):
            ask()
    assert case.log.partitions(case.topic) == 0
    values = case.produce(10)
    assert case.log.partitions(case.topic) == PARTITIONS
    member.take(10)
    assert sorted(member.values) == sorted(values)


def test_progress_tells_what_is_committed_and_facts_tell_members_and_when_messages_were_written(case: Case) -> None:
    began = time.time()
    case.log.check(10)
    assert case.log.address
    case.produce(40)
    before = case.log.progress(case.topic, case.group)
    first = {Partition(case.topic, number): 0 for number in range(PARTITIONS)}
    assert [one.partition for one in before] == list(first)
    assert {(one.start, one.committed) for one in before} == {(0, None)}
    assert sum(one.end for one in before) == 40
    found = case.log.facts(case.topic, case.group, first)
    assert found.members == 0
    assert set(found.written_at) == set(first)
    assert all(began - 60 < at < time.time() + 60 for at in found.written_at.values())
    member = case.member()
    chosen = member.take(40)[0].partition
    member.consumer.commit({chosen: Position(3, "metadata")})
    after = {one.partition: one.committed for one in case.log.progress(case.topic, case.group)}
    assert after == dict.fromkeys(first) | {chosen: Position(3, "metadata")}
    assert case.log.facts(case.topic, case.group, {}).members == 1
    beyond = {Partition(case.topic, 0): 1_000_000}
    assert case.log.facts(case.topic, case.group, beyond).written_at == {}


def test_reading_yields_everything_up_to_the_present_end_without_a_group(case: Case) -> None:
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
    before = list(case.log.read(case.topic, since_ms=-600_000))  # as of a clock that began anew, in 1970
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


# --- the producer --------------------------------------------------------------------------------


def test_flush_waits_for_everything_and_close_sends_what_is_queued(case: Case) -> None:
    with closing(case.new_producer()) as producer:
        futures = [producer.send(case.topic, b"%d" % number, b"value") for number in range(2000)]
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert [future.exception(0) for future in futures] == [None] * 2000
        assert producer.flush(0) == 0
        futures = [producer.send(case.topic, b"%d" % number, b"value") for number in range(100)]
    assert [future.exception(0) for future in futures] == [None] * 100
    assert isinstance(producer.send(case.topic, b"k", b"v").exception(1), LogUnavailable)
    assert sum(1 for _ in case.log.read(case.topic)) == 2100


def test_threads_may_share_a_producer(case: Case) -> None:
    producer = case.new_producer()
    start = threading.Barrier(2)

    def work(name: bytes) -> None:
        start.wait()
        for number in range(500):
            producer.send(case.topic, name, b"%d" % number)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (b"one", b"two")))
    assert producer.flush(PATIENCE_SECONDS) == 0
    producer.close()
    messages = list(case.log.read(case.topic))
    for name in (b"one", b"two"):
        numbers = [int(one.value or b"") for one in messages if one.key == name]
        assert numbers == list(range(500))


def test_a_callback_of_a_future_may_send(case: Case) -> None:
    """The thread that reports must not wait for itself."""
    with closing(case.new_producer()) as producer:
        ended = []
        first = producer.send(case.topic, b"k", b"first")
        first.add_done_callback(lambda _: ended.append(producer.send(case.topic, b"k", b"second")))
        wait_until(lambda: ended and ended[0].done())
        assert ended[0].exception() is None


def test_a_topic_that_is_kept_takes_messages_and_keeps_new_ones(case: Case) -> None:
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
    case.log.make_topic(case.topic, 1, compacted=True)
    case.log.make_topic(case.topic, 1, compacted=True)
    assert case.log.partitions(case.topic) == 1
    with closing(case.log.producer()) as producer:
        for number in range(20):
            producer.send(case.topic, b"k%d" % number, b"%d" % number).result(PATIENCE_SECONDS)
        with closing(case.log.reader(case.topic, compacted=True)) as reader:
            assert not reader.is_at_end
            assert [message.value for message in taken(reader, 20)] == [b"%d" % number for number in range(20)]
            assert reader.is_at_end
            producer.send(case.topic, b"k0", b"new").result(PATIENCE_SECONDS)
            assert [message.value for message in taken(reader, 1)] == [b"new"]


def test_a_reader_waits_for_a_topic_that_does_not_exist(case: Case) -> None:
    with closing(case.log.reader(case.topic, compacted=True)) as reader:
        assert reader.is_at_end
        assert reader.poll(0.1) == []
        assert case.log.partitions(case.topic) == 0
        case.log.make_topic(case.topic, 1, compacted=True)
        with closing(case.log.producer()) as producer:
            producer.send(case.topic, b"k", b"v").result(PATIENCE_SECONDS)
        assert [message.value for message in taken(reader, 1)] == [b"v"]


def test_partitions_that_no_member_has_are_told(case: Case) -> None:
    case.produce(1)
    everything = frozenset(Partition(case.topic, number) for number in range(PARTITIONS))
    wait_until(lambda: case.log.unowned((case.topic,), case.group) == everything)
    first, second = case.member(), case.member()
    poll_until([first, second], lambda: len(first.owned) == len(second.owned) == PARTITIONS / 2)
    poll_until([first, second], lambda: case.log.unowned((case.topic,), case.group) == frozenset())
    for member in (first, second):
        member.consumer.close(for_good=True)
        case.members.remove(member)
    wait_until(lambda: case.log.unowned((case.topic,), case.group) == everything)
