"""The source of a task, for seeds that name none."""

from __future__ import annotations

from dataclasses import replace

from site_spider.frontier.waiter import source_name
from site_spider.seed.seed import Seed
from site_spider.tasks.board import Board


def with_source(seed: Seed, board: Board) -> Seed:
    """The seed, with the source of its task where it names none itself. Any thread may ask."""
    if not board.tasks:
        return seed
    task = board.task(seed.task_id)
    if task is None or task.source is None or source_name(seed) is not None:
        return seed
    return replace(seed, task_source=task.source)
