"""The tasks of a fleet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from site_spider.console.model.fleet import summed
from site_spider.console.model.state import ProcessState, TaskState


def tasks(states: Iterable[ProcessState]) -> list[TaskState]:
    """The tasks of all processes, summed up, the largest first."""
    by_id: dict[str, list[TaskState]] = defaultdict(list)
    for state in states:
        for task in state.tasks:
            by_id[task.task_id].append(task)
    whole = [
        TaskState(
            task_id,
            sum(part.pages for part in parts),
            sum(part.bytes for part in parts),
            summed(part.outcomes for part in parts),
            summed(part.reasons for part in parts),
        )
        for task_id, parts in by_id.items()
    ]
    return sorted(whole, key=lambda task: (-sum(task.outcomes.values()), -task.pages, task.task_id))
