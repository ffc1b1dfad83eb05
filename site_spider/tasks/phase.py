"""What is to be done with the seeds of a task at a moment. No clock is asked: see tasks.clock."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import AwareDatetime

from site_spider.sources.model import Part
from site_spider.tasks.record import Count, Task
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


class TaskTimes(Part):
    """Which limits of time have passed, by the broker's clock: one record, written by one process."""

    started_at: AwareDatetime | None = None  # of the declaration that this is about
    first_at: AwareDatetime | None = None  # when its first seed had begun
    expired: AwareDatetime | None = None  # the latest `expires_at` that has passed
    spent_seconds: Count | None = None  # the longest `max_seconds` that were spent

    def of(self, task: Task) -> TaskTimes:
        """The same, or nothing when it is about a declaration before this one."""
        return self if self.started_at == task.started_at else TaskTimes(started_at=task.started_at)


NO_TIMES = TaskTimes()


def phase_of(task: Task | None, used: Usage, times: TaskTimes, left: int = 0) -> Phase:
    """The phase; `left` is what this process may still begin of what it has claimed."""
    if task is None:
        return RUNNING
    if task.state == "cancelled":
        return Phase("cancelled")
    if task.expires_at is not None and times.expired is not None and times.expired >= task.expires_at:
        return Phase("expired")
    reason = "by command" if task.state == "paused" else _spent(task, used, times, left)
    return Phase("paused", reason) if reason else RUNNING


def _spent(task: Task, used: Usage, times: TaskTimes, left: int) -> str:
    if task.max_pages is not None and used.claimed - left >= task.max_pages:
        return "page_budget"
    if task.max_bytes is not None and used.bytes >= task.max_bytes:
        return "byte_budget"
    if task.max_seconds is not None and (times.of(task).spent_seconds or 0) >= task.max_seconds:
        return "time_budget"
    return ""
