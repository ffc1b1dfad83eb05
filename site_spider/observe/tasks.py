"""Counts of pages, bytes, outcomes and reasons by task, bounded in memory.

Theory: a process may see any number of tasks, one a seed at worst. Counts are exact while it has seen at most
MOST_TASKS. Beyond that the smaller half is added to the sum of the others and forgotten; a task of these
that comes again begins at 0, so its own counts are too low while the sum of all stays right.
"""

from __future__ import annotations

from collections import Counter
from heapq import nlargest
from typing import Any, Final

MOST_TASKS: Final = 2_000  # with counts of their own, about 1 KB each
MOST_SHOWN: Final = 200


class TaskCounts:
    """Of one task, or of several in sum."""

    __slots__ = ("bytes", "outcomes", "pages", "reasons", "tasks")

    def __init__(self, tasks: int = 1) -> None:
        self.tasks = tasks
        self.pages = 0  # results written, failures included
        self.bytes = 0  # of their bodies
        self.outcomes: Counter[str] = Counter()  # of seeds
        self.reasons: Counter[str] = Counter()  # of failures

    def page(self, size_bytes: int) -> None:
        """One more page."""
        self.pages += 1
        self.bytes += size_bytes

    def ended(self, outcome: str) -> None:
        """One of its seeds is complete."""
        self.outcomes[outcome] += 1

    def add(self, other: TaskCounts) -> None:
        """Those of other tasks, too."""
        self.tasks += other.tasks
        self.pages += other.pages
        self.bytes += other.bytes
        self.outcomes.update(other.outcomes)
        self.reasons.update(other.reasons)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "pages": self.pages,
            "bytes": self.bytes,
            "outcomes": dict(self.outcomes),
            "reasons": dict(self.reasons),
        }


class TaskSums:
    """Of one process. Seeds without a task_id count under None."""

    def __init__(self, most: int = MOST_TASKS) -> None:
        self._most = max(2, most)
        self._counts: dict[str | None, TaskCounts] = {}
        self._others = TaskCounts(tasks=0)

    def of(self, task_id: str | None) -> TaskCounts:
        """The counts of one task, to be added to at once: they may be those of the others later."""
        found = self._counts.get(task_id)
        if found is None:
            if len(self._counts) >= self._most:
                self._forget_small()
            found = self._counts[task_id] = TaskCounts()
        return found

    def _forget_small(self) -> None:
        kept = dict(self._largest(self._most // 2))
        for task_id, counts in self._counts.items():
            if task_id not in kept:
                self._others.add(counts)
        self._counts = kept

    def _largest(self, most: int) -> list[tuple[str | None, TaskCounts]]:
        return nlargest(most, self._counts.items(), key=_size)

    def document(self, most: int = MOST_SHOWN) -> dict[str, Any]:
        """The largest, each with its name, and all others in sum."""
        largest = self._largest(most)
        others = TaskCounts(tasks=0)
        others.add(self._others)
        shown = {task_id for task_id, _ in largest}
        for task_id, counts in self._counts.items():
            if task_id not in shown:
                others.add(counts)
        return {
            "largest": [{"task_id": task_id, **counts.document()} for task_id, counts in largest],
            "others": {"tasks": others.tasks, **others.document()},
        }


def _size(item: tuple[str | None, TaskCounts]) -> tuple[int, int]:
    _, counts = item
    return counts.pages, sum(counts.outcomes.values())
