"""One suite over all seed logs: pausing, the end of a partition, and members of a group."""

from __future__ import annotations

import pytest

from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import LogUnavailable
from tests.contracts.seed_logs import (
    PARTITIONS,
    Case,
    Member,
    by_partition,
    case,
    kafka_producer,
    poll_until,
)

__all__ = ["case", "kafka_producer"]

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
    for messages in by_partition(member.taken).values():
        assert [message.offset for message in messages] == list(range(len(messages)))


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


# --- One suite over all seed logs: a member that reads several topics


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
    for partition in member.owned:
        offsets = [message.offset for message in member.taken if message.partition == partition]
        assert offsets == list(range(len(offsets)))
    positions = {
        partition: Position(position.offset, "note")
        for partition, position in member.next_positions().items()
    }
    member.consumer.commit(positions)
    for topic in topics:
        found = {
            one.partition: one.committed for one in case.log.progress(topic, case.group) if one.committed
        }
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
