"""What people order of a task: for the commands and the console, in the same words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC
from typing import NamedTuple

from site_spider import runtime
from site_spider.tasks.changes import changed, in_state
from site_spider.tasks.closing import TaskProducer
from site_spider.tasks.desk import TaskDesk
from site_spider.tasks.overview import TaskFacts
from site_spider.tasks.phase import Phase
from site_spider.tasks.record import BadTask, Task, usual_task


class Ordered(NamedTuple):
    """What became of an order, in one sentence; `returned` counts parked messages that were put back."""

    said: str
    phase: Phase
    returned: int = 0
    task: Task | None = None  # as it was changed


class TaskOrders:
    """About one task. Every method blocks, and raises BadTask, ConfigError and LogUnavailable.

    `may_be_new`: the order also goes for a task that nobody knows yet.
    """

    def __init__(self, desk: TaskDesk, task_id: str, *, may_be_new: bool = False) -> None:
        self._desk = desk
        self._task_id = task_id
        self._may_be_new = may_be_new

    def known(self, *, may_be_new: bool = True) -> TaskFacts:
        """What is known of the task. Raises BadTask for one that nobody knows."""
        overview = self._desk.overview()
        if not overview.knows(self._task_id) and not (may_be_new and self._may_be_new):
            hint = "; with --new the order also goes for a task that comes later" if may_be_new else ""
            raise BadTask(
                f"{self._task_id!r} is not known: it was never declared, closed, or produced with --task-id. "
                f"scrapy task list names those that were{hint}"
            )
        return overview.of(self._task_id)

    def pause(self) -> Ordered:
        """Nothing of it begins any more."""
        self._put("paused")
        return Ordered(f"task {self._task_id} is paused", Phase("paused"))

    def resume(self) -> Ordered:
        """What was parked comes back."""
        self._put("running")
        back = self._desk.put_back(self._task_id)
        phase = self._desk.board.phase(self._task_id)
        but = f", but {phase.name}: {phase.reason}" if phase.name == "paused" else ""
        said = f"task {self._task_id} is resumed, {back} parked messages put back{but}"
        return Ordered(said, phase, back)

    def cancel(self) -> Ordered:
        """What has not begun ends."""
        self._put("cancelled")
        back = self._desk.put_back(self._task_id)
        said = f"task {self._task_id} is cancelled, {back} parked messages put back"
        return Ordered(said, Phase("cancelled"), back)

    def close(self, *, again: bool = False) -> Ordered:
        """No more seeds of it are produced; `again`: of a task that has ended, for seeds produced since."""
        desk, task_id, facts = self._desk, self._task_id, self.known()
        phase = Phase(facts.state, facts.reason)
        if facts.is_ended and not again:
            said = f"task {task_id} has ended already ({facts.state}); --again begins its next generation"
            return Ordered(said, phase)
        with closing(desk.log.producer()) as producer:
            TaskProducer(desk.log, producer, desk.topics, task_id).close_for_all(self._has_parked)
        return Ordered(f"task {task_id} is closed: its end comes when all its seeds are complete", phase)

    def change(self, words: Sequence[str]) -> Ordered:
        """Fields, each as NAME=VALUE."""
        change = self.changing(words)
        change(self._desk.board.task(self._task_id))  # refuses what cannot be used before anything else
        self.known()
        task = self._desk.order(self._task_id, change)
        back = 0 if task.state == "paused" else self._desk.put_back(self._task_id)
        said = f"task {self._task_id} is changed, {back} parked messages put back"
        return Ordered(said, self._desk.board.phase(self._task_id), back, task)

    def changing(self, words: Sequence[str]) -> Callable[[Task | None], Task]:
        """What `change` does to a task that is declared, or is not. Raises BadTask."""
        if not words:
            raise BadTask("set needs a change, such as weight=2")
        is_limit = any(word.startswith("expires=") for word in words)
        now = self._desk.now() if is_limit else runtime.now(UTC)
        return lambda before: changed(before or usual_task(self._task_id), words, now)

    def _put(self, state: str) -> None:
        facts = self.known()
        if facts.is_ended:
            raise BadTask(
                f"{self._task_id!r} has ended ({facts.state}), and nothing changes that; more seeds of it, "
                "or scrapy task start, begin its next generation"
            )

        def change(task: Task | None) -> Task:
            if task is not None and task.state == "cancelled" != state:
                raise BadTask(f"{self._task_id!r} is cancelled; declare it anew with: scrapy task start")
            return in_state(task or usual_task(self._task_id), state)

        self._desk.order(self._task_id, change)

    def _has_parked(self) -> bool:
        self._desk.read()
        return self._desk.board.has_parked(self._task_id)
