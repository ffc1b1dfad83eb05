"""Messages that Kafka deletes before the group has read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from site_spider.adapters.kafka.consumer import Gaps
from site_spider.contracts.seed_log import Partition, Position, Producer
from site_spider.observe.progress import of_partition, total
from tests.contracts.seed_logs import Case, kafka_case, kafka_producer, make_kafka_topic, poll_until
from tests.in_process.engine import crawl

__all__ = ["kafka_producer"]

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


def test_a_gap_below_the_start_of_the_log_is_told(gaps: Gaps, told: Told) -> None:
    told.start = 8
    gaps.saw(P, 8, 9, 1, 3)
    gaps.look(0.0)
    assert told == [(P, 3, 8)]


def test_gaps_of_compaction_and_of_transactions_are_none(gaps: Gaps, told: Told) -> None:
    gaps.saw(P, 8, 9, 1, 3)
    gaps.look(0.0)
    for offset in range(10, 100, 2):
        gaps.saw(P, offset, offset + 1, 1, 3)
        gaps.look(1.0)
    assert told == []
    assert told.asked == 1  # not at each of them


def test_nothing_is_missing_where_nothing_was_committed(gaps: Gaps, told: Told) -> None:
    told.start = 8
    gaps.saw(P, 8, 9, 1, None)
    gaps.saw(P, 8, 9, 2, 8)
    gaps.look(0.0)
    assert told == []


def test_servers_that_do_not_answer_are_asked_again(gaps: Gaps, told: Told) -> None:
    told.start = None
    gaps.saw(P, 8, 9, 1, 3)
    gaps.look(0.0)
    told.start = 6
    gaps.look(1.0)
    assert told == []
    gaps.look(11.0)
    assert told == [(P, 3, 6)]


@pytest.fixture
def case(
    kafka_producer: Producer, kafka_brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Case]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with kafka_case(kafka_producer, kafka_brokers) as case:
        make_kafka_topic(kafka_brokers, case.topic, 1)
        yield case


def delete_up_to(brokers: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(300)


@pytest.mark.servers
@pytest.mark.parametrize("deleted_up_to", [8, 10])
def test_a_member_hears_of_what_was_deleted(case: Case, kafka_brokers: str, deleted_up_to: int) -> None:
    """Also when nothing is left to be read."""
    case.produce(10)
    first = case.member()
    first.own(1)
    at = Partition(case.topic, 0)
    first.consumer.commit({at: Position(3)})
    case.leave(first)
    delete_up_to(kafka_brokers, case.topic, deleted_up_to)
    progress = total(map(of_partition, case.log.progress(case.topic, case.group)))
    assert (progress.deleted, progress.lag) == (deleted_up_to - 3, 10 - deleted_up_to)
    second = case.member()
    poll_until([second], lambda: second.listener.gone and len(second.taken) == 10 - deleted_up_to, "the gap")
    assert [message.offset for message in second.taken] == list(range(deleted_up_to, 10))
    assert second.listener.gone == [(at, 3, deleted_up_to)]


@pytest.mark.servers
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
