"""The tasks of a fleet."""

from __future__ import annotations

from collections.abc import Iterable

from site_spider.console.model.state import Counts, ProcessState, TaskFigures


class _Sum:
    """Of one task, over processes. Plain sums: a fleet has some 20,000 of these parts at a time."""

    __slots__ = ("bytes", "outcomes", "pages", "reasons")

    def __init__(self) -> None:
        self.pages = 0
        self.bytes = 0
        self.outcomes: dict[str, int] = {}
        self.reasons: dict[str, int] = {}

    def add(self, part: TaskFigures) -> None:
        self.pages += part.pages
        self.bytes += part.bytes
        _add(self.outcomes, part.outcomes)
        _add(self.reasons, part.reasons)


def tasks(states: Iterable[ProcessState]) -> list[TaskFigures]:
    """The tasks of all processes, summed up, the largest first."""
    sums: dict[str, _Sum] = {}
    for state in states:
        for part in state.tasks:
            found = sums.get(part.task_id)
            if found is None:
                found = sums[part.task_id] = _Sum()
            found.add(part)
    whole = [TaskFigures(name, s.pages, s.bytes, s.outcomes, s.reasons) for name, s in sums.items()]
    return sorted(whole, key=lambda task: (-sum(task.outcomes.values()), -task.pages, task.task_id))


def _add(sums: dict[str, int], counts: Counts) -> None:
    for name, count in counts.items():
        sums[name] = sums.get(name, 0) + count
