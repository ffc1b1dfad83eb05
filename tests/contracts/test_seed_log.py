"""One suite over all seed logs: messages, commits, pausing, and members of a group."""

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
    assert member.took_all_in_order()
    for messages in by_partition(member.taken).values():
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
    plain = [(b"k", None), (b"k", b""), (b"", b"empty key"), (None, b"no key")]
    for key, value in plain:
        producer.send(case.topic, key, value).result(PATIENCE_SECONDS)
    producer.send(case.topic, b"k", bytes(range(256)), headers).result(PATIENCE_SECONDS)
    producer.close()
    found = {(message.key, message.value): message for message in case.member().take(5)}
    rich = found.pop((b"k", bytes(range(256))))
    assert found.keys() == set(plain)
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


# --- pause and resume ----------------------------------------------------------------------


def test_paused_partitions_hand_out_nothing_and_lose_nothing(case: Case) -> None:
    """What was prefetched or produced meanwhile comes after `resume`, once and in order.

    A partition may be revoked between the decision and the call, so one that is not ours is ignored.
    """
    values = case.produce(40)
    member = case.member()
    member.take(5, limit=5)
    some = [*member.owned, Partition(case.topic, 99)]
    member.consumer.pause(some)
    values += case.produce(40, first=40)
    assert [member.poll(0.1) for _ in range(5)] == [[]] * 5
    member.consumer.resume(some)
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
    """A spare process is ready, too."""
    case.produce(PARTITIONS)
    members = [case.member() for _ in range(PARTITIONS + 1)]
    assert not any(member.owned for member in members)
    poll_until(members, lambda: all(member.consumer.is_member for member in members))
    poll_until(members, lambda: sum(len(member.owned) for member in members) == PARTITIONS)
    assert any(not member.owned for member in members)


# --- a member that reads several topics -----------------------------------------------------


def of_tiers(case: Case, *, first: int = 20, second: int = 20) -> list[str]:
    """Two topics with messages; their names."""
    topics = [case.topic, f"{case.topic}-bulk"]
    for topic, count in zip(topics, (first, second), strict=True):
        case.make_topic(topic, PARTITIONS)
        for number in range(count):
            case.producer.send(topic, b"key-%d" % number, b"%s %d" % (topic.encode(), number))
    assert case.producer.flush(300) == 0
    return topics


def member_of(case: Case, topics: list[str]) -> Member:
    member = Member(case.log, topics, case.group)  # type: ignore[arg-type]
    case.members.append(member)
    return member


def test_a_member_has_the_partitions_of_all_its_topics(case: Case) -> None:
    """And hands out the messages of each in order; a commit of several is found again."""
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


def test_the_pause_of_one_topic_leaves_the_other_alone(case: Case) -> None:
    """However much of the first is waiting."""
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
    member.consumer.resume(bulk)
    member.take(2_053)


def test_two_members_share_the_partitions_of_all_topics(case: Case) -> None:
    topics = of_tiers(case)
    first = member_of(case, topics)
    first.take(40)
    first.commit_when_leaving()
    second = member_of(case, topics)
    poll_until([first, second], lambda: len(second.owned) == PARTITIONS == len(first.owned), "even shares")
    assert not first.owned & second.owned
    case.leave(first)
    second.own(2 * PARTITIONS)
    assert second.taken == []


def test_a_topic_that_comes_later_is_read_beside_the_other(case: Case) -> None:
    """The tier that exists does not wait for it."""
    case.produce(10)
    member = member_of(case, [case.topic, f"{case.topic}-later"])
    member.take(10)
    case.make_topic(f"{case.topic}-later", PARTITIONS)
    for number in range(10):
        case.producer.send(f"{case.topic}-later", b"%d" % number, b"later")
    member.take(20)
    assert member.values.count(b"later") == 10
