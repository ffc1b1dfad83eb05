"""Messages that Kafka deletes before the group has read them, and those that wait in a member."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from site_spider.adapters.kafka.consumer import FEW_MESSAGES, MOST_BYTES, MOST_MESSAGES, Gaps, KafkaPrefetch
from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.observe.progress import of_partition, total
from tests.contracts.seed_logs import Case, poll_until
from tests.in_process.engine import crawl

P = Partition("t", 0)


class Told(list[tuple[Partition, int, int]]):
    """What the listener hears, and a log that begins at `start`."""

    start: int | None = 0
    asked = 0

    def start_of(self, _partition: Partition) -> int | None:
        self.asked += 1
        return self.start

    def tell(self, *what: object) -> None:
        self.append(what)  # type: ignore[arg-type]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def gaps(told: Told) -> Gaps:
    return Gaps(told.start_of, told.tell)


def test_gaps_of_compaction_and_of_transactions_are_none(gaps: Gaps, told: Told) -> None:
    gaps.saw(P, 8, 9, 3)
    gaps.look(0.0)
    for offset in range(10, 100, 2):
        gaps.saw(P, offset, offset + 1, 3)
        gaps.look(1.0)
    assert told == []
    assert told.asked == 1  # not at each of them


def test_nothing_is_missing_where_nothing_was_committed(gaps: Gaps, told: Told) -> None:
    told.start = 8
    gaps.saw(P, 8, 9, None)
    gaps.drop([P])
    gaps.saw(P, 8, 9, 8)
    gaps.look(0.0)
    assert told == []


def test_servers_that_do_not_answer_are_asked_again(gaps: Gaps, told: Told) -> None:
    told.start = None
    gaps.saw(P, 8, 9, 3)
    gaps.look(0.0)
    told.start = 6
    gaps.look(1.0)
    assert told == []
    gaps.look(11.0)
    assert told == [(P, 3, 6)]


def test_gaps_in_many_partitions_are_asked_about_some_at_a_time(gaps: Gaps, told: Told) -> None:
    """Within one poll: who produces in transactions leaves a gap in each partition."""
    for number in range(1_000):
        gaps.saw(Partition("t", number), 8, 9, 3)
    told.start = 6
    for look in range(1, 11):
        gaps.look(0.0)
        assert told.asked <= 100 * look
    assert {(partition.number, first, beyond) for partition, first, beyond in told} == {(n, 3, 6) for n in range(1_000)}


def test_servers_that_do_not_answer_are_asked_about_one_partition(gaps: Gaps, told: Told) -> None:
    """Each question takes a second then, in which the member hears of no rebalance, and commits nothing."""
    told.start = None
    for number in range(50):
        gaps.saw(Partition("t", number), 8, 9, 3)
    for tenth in range(100):
        gaps.look(tenth / 10)
    assert told.asked == 1
    told.start = 6
    gaps.look(10.0)
    assert [partition.number for partition, *_ in told] == [*range(1, 50), 0]  # its leader may be away for long


def delete_up_to(brokers: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(300)


@pytest.mark.servers
@pytest.mark.usefixtures("one_partition")
@pytest.mark.parametrize("deleted_up_to", [8, 10])
def test_a_member_hears_of_what_was_deleted(case: Case, kafka_brokers: str, deleted_up_to: int) -> None:
    case.produce(10)
    first = case.member()
    first.own(1)
    at = Partition(case.topic, 0)
    first.consumer.commit({at: Position(3)})
    case.leave(first)
    delete_up_to(kafka_brokers, case.topic, deleted_up_to)
    progress = total(map(of_partition, case.log.progress(case.topic, case.group)))
    assert (progress.deleted_unread, progress.lag) == (deleted_up_to - 3, 10 - deleted_up_to)
    second = case.member()
    poll_until([second], lambda: second.listener.gone and len(second.taken) == 10 - deleted_up_to, "the gap")
    assert [message.offset for message in second.taken] == list(range(deleted_up_to, 10))
    assert second.listener.gone == [(at, 3, deleted_up_to)]


@pytest.mark.servers
@pytest.mark.usefixtures("one_partition")
@pytest.mark.parametrize(("committed", "begins"), [(None, 0), (3, 3), (8, 5)])
def test_where_a_log_was_cut_a_member_reads_again_what_was_not_committed_before(
    case: Case, kafka_brokers: str, committed: int | None, begins: int
) -> None:
    """Who listens begins anew there, and knows nothing of what was in flight before."""
    case.produce(10)
    at, begun = Partition(case.topic, 0), 0 if committed is None else 1
    member = case.member()
    member.own(1)
    if committed is not None:
        member.consumer.commit({at: Position(begun)})
        case.leave(member)
        member = case.member()
    member.take(10 - begun)
    if committed is not None:
        member.consumer.commit({at: Position(committed)})
        delete_up_to(kafka_brokers, case.topic, 2)
    poll_until([member], lambda: at in member.listener.ends, "the end")
    member.consumer._client.seek(TopicPartition(*at, 5))  # type: ignore[attr-defined] # as the client does by itself
    member.take(10 - begun + 10 - begins)
    assert [message.offset for message in member.taken[10 - begun :]] == list(range(begins, 10))
    assert member.listener.gone == []  # what was deleted had been read


@pytest.mark.servers
@pytest.mark.usefixtures("one_partition")
def test_a_crawl_counts_seeds_that_were_deleted_unread(
    case: Case, kafka_brokers: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "SITE_KAFKA_BROKERS": kafka_brokers, "SITE_SEED_TOPIC": case.topic, "SITE_CONSUMER_GROUP": case.group,
    }  # fmt: skip
    seeds = [{"url": f"http://h.test/{number}"} for number in range(10)]
    assert crawl(tmp_path, seeds[:3], **settings).seeds["deleted_unread"] == 0
    case.send([(None, b'{"url": "http://h.test/x"}')] * 10)
    delete_up_to(kafka_brokers, case.topic, 9)
    found = crawl(tmp_path, [], **settings)
    assert found.seeds["deleted_unread"] == 6
    assert found.seeds["completed"] == 4
    assert found.exit_code == 0
    assert "6 seeds were deleted unread, from offset 3 to before 9" in caplog.text


# --- messages between the client and whoever polls ------------------------------------------------

A, B = Partition("seeds", 0), Partition("seeds", 1)


class Client:
    """What the prefetch does to the client."""

    def __init__(self) -> None:
        self.stopped: set[Partition] = set()
        self.prefetch = KafkaPrefetch(self._stop, self.stopped.remove)

    def _stop(self, partition: Partition) -> None:
        assert partition not in self.stopped
        self.stopped.add(partition)

    def give(self, partition: Partition, offsets: range, value: bytes = b"v") -> None:
        for offset in offsets:
            self.prefetch.put(Message(partition, offset, b"k", value))

    def take(self, limit: int = 1_000_000) -> list[tuple[int, int]]:
        return [(message.partition.number, message.offset) for message in self.prefetch.take(limit)]


@pytest.fixture
def client() -> Client:
    return Client()


def test_messages_come_in_order_up_to_the_limit_and_partitions_take_turns(client: Client) -> None:
    client.give(A, range(3))
    client.give(B, range(2))
    assert A in client.prefetch
    assert client.take(1) == [(0, 0)]
    assert client.take(1) == [(1, 0)]
    assert client.take(2) == [(0, 1), (0, 2)]
    assert A not in client.prefetch
    assert client.take() == [(1, 1)]
    assert client.take() == []


def test_a_paused_partition_gives_nothing_until_it_is_resumed(client: Client) -> None:
    client.give(A, range(2))
    client.give(B, range(1))
    client.prefetch.pause([A])
    assert client.take() == [(1, 0)]
    client.give(A, range(2, 3))
    assert client.take() == []
    client.prefetch.pause([])
    assert client.take() == [(0, 0), (0, 1), (0, 2)]


def test_what_came_in_an_earlier_assignment_is_dropped(client: Client) -> None:
    client.give(A, range(2))
    client.prefetch.pause([A])
    client.prefetch.drop([A, B])
    assert A not in client.prefetch
    client.give(A, range(1))
    assert client.take() == [(0, 0)]


def test_the_client_stops_where_much_waits_and_goes_on_where_little_is_left(client: Client) -> None:
    client.prefetch.pause([A])
    client.give(A, range(MOST_MESSAGES))
    client.give(B, range(1))
    assert client.take() == [(1, 0)]
    assert client.stopped == {A}
    client.prefetch.pause([])
    assert len(client.take(MOST_MESSAGES - FEW_MESSAGES)) == MOST_MESSAGES - FEW_MESSAGES
    assert client.stopped == {A}
    client.take(1)
    assert client.stopped == set()


def test_the_client_stops_when_many_bytes_wait(client: Client) -> None:
    client.prefetch.pause([A])
    client.give(A, range(2), b"v" * (MOST_BYTES // 2))
    assert client.take() == []
    assert client.stopped == {A}
    client.prefetch.pause([])
    assert client.take(1) == [(0, 0)]
    assert client.stopped == set()


def test_a_new_assignment_finds_the_client_going_on(client: Client) -> None:
    client.prefetch.pause([A])
    client.give(A, range(MOST_MESSAGES))
    client.take()
    client.prefetch.drop([A])
    client.stopped.clear()
    client.give(A, range(MOST_MESSAGES))
    client.prefetch.pause([A])
    client.take()
    assert client.stopped == {A}
