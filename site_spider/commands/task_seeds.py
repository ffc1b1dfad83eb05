"""The seeds of a task that wait in the topics, by reading these."""

from __future__ import annotations

from collections.abc import Iterator

from site_spider.contracts.seed_log import SeedLog
from site_spider.errors import TopicMissing
from site_spider.ledger.metadata import DoneOffsets
from site_spider.seed.seed import Seed
from site_spider.seed.tiers import CrawlTopics
from site_spider.tasks.board import Board
from site_spider.tasks.control_log import seed_of


def in_seed_topic(log: SeedLog, topic: str, group: str, task_id: str) -> Iterator[Seed]:
    """Those that the group has not completed, as far as it has committed. Raises LogUnavailable."""
    try:
        done = {part.partition: DoneOffsets(part.committed) for part in log.progress(topic, group)}
        messages = log.read(topic)
    except TopicMissing:
        return
    for message in messages:
        is_done = message.offset in done.get(message.partition, ())
        if not is_done and (seed := seed_of(message, task_id)) is not None:
            yield seed


def in_parked_topic(log: SeedLog, topics: CrawlTopics, board: Board, task_id: str) -> Iterator[Seed]:
    """Those that were not put back. Raises LogUnavailable."""
    offsets = board.returned(task_id).offsets
    try:
        messages = log.read(topics.parked)
    except TopicMissing:
        return
    for message in messages:
        is_back = message.offset < offsets.get(str(message.partition.number), 0)
        if not is_back and (seed := seed_of(message, task_id)) is not None:
            yield seed
