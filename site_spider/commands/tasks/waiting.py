"""The seeds of a task that wait in the topics, by reading these."""

from __future__ import annotations

from collections.abc import Iterator

from site_spider.contracts.seed_log import Message, Partition, Position, SeedLog
from site_spider.errors import TopicMissing
from site_spider.ledger import metadata as commit_metadata
from site_spider.seed.seed import Seed
from site_spider.tasks.board import Board
from site_spider.tasks.control_log import seed_of
from site_spider.tasks.follower import TaskTopics


def in_seed_topic(log: SeedLog, topic: str, group: str, task_id: str) -> Iterator[Seed]:
    """Those that the group has not completed, as far as it has committed. Raises LogUnavailable."""
    try:
        committed = {part.partition: part.committed for part in log.progress(topic, group)}
        messages = log.read(topic)
    except TopicMissing:
        return
    done = {partition: _done(position) for partition, position in committed.items() if position is not None}
    for message in messages:
        if not _is_done(message, committed.get(message.partition), done):
            yield from _one(seed_of(message, task_id))


def in_parked_topic(log: SeedLog, topics: TaskTopics, board: Board, task_id: str) -> Iterator[Seed]:
    """Those that were not put back. Raises LogUnavailable."""
    offsets = board.returned(task_id).offsets
    try:
        messages = log.read(topics.parked)
    except TopicMissing:
        return
    for message in messages:
        if message.offset >= offsets.get(str(message.partition.number), 0):
            yield from _one(seed_of(message, task_id))


def _one(seed: Seed | None) -> Iterator[Seed]:
    if seed is not None:
        yield seed


def _done(position: Position) -> list[tuple[int, int]]:
    return list(commit_metadata.decode(*position).complete)


def _is_done(
    message: Message, position: Position | None, done: dict[Partition, list[tuple[int, int]]]
) -> bool:
    if position is None:
        return False
    ahead = done[message.partition]
    while ahead and ahead[0][1] <= message.offset:  # offsets ascend in a partition
        ahead.pop(0)
    return message.offset < position.offset or (bool(ahead) and ahead[0][0] <= message.offset)
