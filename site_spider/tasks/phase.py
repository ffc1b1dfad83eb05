"""What is to be done with the seeds of a task at a moment."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from site_spider.tasks.record import Task
from site_spider.tasks.usage import Usage


class Phase(NamedTuple):
    """running, paused, cancelled or expired; and why, where that is not said by its name."""

    name: str
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Whether what has not begun ends as cancelled."""
        return self.name in ("cancelled", "expired")


RUNNING = Phase("running")


def phase_of(task: Task | None, used: Usage, now: float, left: int = 0) -> Phase:
    """The phase at a Unix time; `left` is what this process may still begin of what it has claimed."""
    if task is None:
        return RUNNING
    if task.state == "cancelled":
        return Phase("cancelled")
    if task.expires_at is not None and now >= task.expires_at.timestamp():
        return Phase("expired")
    reason = "by command" if task.state == "paused" else _spent(task, used, now, left)
    return Phase("paused", reason) if reason else RUNNING


def ends_at(task: Task) -> float:
    """When its time budget is spent, as a Unix time."""
    if task.max_seconds is None or task.started_at is None:
        return inf
    return task.started_at.timestamp() + task.max_seconds


def _spent(task: Task, used: Usage, now: float, left: int) -> str:
    if task.max_pages is not None and used.claimed - left >= task.max_pages:
        return "page_budget"
    if task.max_bytes is not None and used.bytes >= task.max_bytes:
        return "byte_budget"
    return "time_budget" if now >= ends_at(task) else ""
