"""Progress: the arithmetic from commits to done, in flight and lag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from site_spider.contracts.seed_log import Message, Partition, PartitionProgress, Position
from site_spider.ledger.metadata import Ahead, encode
from site_spider.observe import progress
from site_spider.observe.progress import Progress, Rate, of_partition, total
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.board import RETURNED, Board, note_key
from site_spider.tasks.declaration import Returned

SEEDS = Partition("seeds", 0)


def partition(start: int, end: int, offset: int | None = None, ahead: Ahead | None = None) -> PartitionProgress:
    if offset is None:
        return PartitionProgress(SEEDS, start, end, None)
    metadata = encode(offset, ahead) if ahead else ""
    return PartitionProgress(SEEDS, start, end, Position(offset, metadata))


def test_commits_are_counted_within_what_is_kept() -> None:
    """What retention has removed is neither done nor lag; what of it was not done is counted as deleted."""
    nothing_committed = of_partition(partition(4, 10))
    below_the_start = of_partition(partition(6, 10, 2, Ahead(8, ((4, 7),))))
    behind = of_partition(partition(10, 12, 2, Ahead(8, ((4, 7),))))  # also what was handed out
    beyond_the_end = of_partition(partition(0, 10, 12, Ahead(15, ((13, 14),))))  # went on between the two questions
    unreadable = of_partition(PartitionProgress(SEEDS, 0, 10, Position(4, "something else")))
    assert nothing_committed == Progress(0, 0, 6, 10)
    assert behind == Progress(0, 0, 2, 12, deleted_unread=5)
    assert below_the_start == Progress(1, 1, 3, 10, deleted_unread=2)
    assert beyond_the_end == Progress(10, 0, 0, 10)
    assert unreadable == Progress(4, 0, 6, 10)


class _Log:
    """Ten seeds of a task in each topic, of which offset 8 is done ahead of the watermark."""

    handed_out = 0

    def progress(self, _topic: str, _group: str) -> list[PartitionProgress]:
        return [partition(0, 10, 7, Ahead(10, ((8, 9),)))]

    def read(self, topic: str, start: Mapping[Partition, int]) -> Iterator[Message]:
        for offset in range(start[Partition(topic, 0)], 10):
            self.handed_out += 1
            seed = b'{"url":"http://a.test/%d","meta":{"task_id":"t"}}' % offset
            yield Message(Partition(topic, 0), offset, None, seed)


def test_what_waits_is_looked_for_where_it_can_be() -> None:
    """A topic of years is not read from its start: below what is committed, or put back, nothing waits."""
    log: Any = _Log()
    assert [seed.url[-1] for seed in progress.in_seed_topic(log, "seeds", "g", "t")] == ["7", "9"]
    assert log.handed_out == 3
    topics, board = CrawlTopics.of({"SITE_SEED_TOPIC": "seeds"}), Board()
    back = Returned(offsets={"0": 8}).value()
    board.take(Message(Partition(topics.tasks, 0), 0, note_key("t", RETURNED), back))
    assert [seed.url[-1] for seed in progress.in_parked_topic(log, topics, board, "t")] == ["8", "9"]
    assert log.handed_out == 3 + 2


def test_a_total_is_the_sum_of_its_partitions() -> None:
    """Every number adds up, and it is done only when nothing is left anywhere."""
    parts = [Progress(1, 2, 3, 4), Progress(10, 20, 30, 40)]
    assert total(parts) == Progress(11, 22, 33, 44)
    assert not total(parts).is_done
    assert total([]).is_done


def test_the_rate_is_measured_over_the_window() -> None:
    """Older moments are forgotten, but for one to measure from. Without a rate the time left is not known."""
    rate = Rate(window_seconds=10)
    assert (rate.per_second, rate.seconds_left(0), rate.seconds_left(1)) == (None, 0, None)
    for now, passed in ((0, 0), (5, 500), (10, 510), (20, 610)):
        rate.add(now, passed)
    assert (rate.per_second, rate.seconds_left(100)) == (10, 10)
    rate.add(40, 610)
    rate.add(50, 610)
    assert rate.seconds_left(1) is None
