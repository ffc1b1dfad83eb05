"""One suite over all seed logs: a member that reads several topics."""

from __future__ import annotations

from site_spider.contracts.seed_log import Partition, Position
from tests.contracts.seed_logs import PARTITIONS, Case, Member, case, kafka_producer, poll_until

__all__ = ["case", "kafka_producer"]


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
    """Each partition has one owner; what one commits as it leaves, the other goes on from."""
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
