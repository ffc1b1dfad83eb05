"""What is known of each task: the one place that lists, shows, waits, events and the console have it from.

Before the end a task is as the task topic says, and its seeds are those that the control log has counted.
Once the end of a generation is told, state and numbers are those of its event, up to a new generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from site_spider.tasks.board import Board
from site_spider.tasks.control_log import Endings
from site_spider.tasks.counts import SeedCounts
from site_spider.tasks.ending import TaskEnding
from site_spider.tasks.phase import Phase
from site_spider.tasks.record import Task, usual_task

BUDGETS = ("page_budget", "byte_budget", "time_budget")
_ENDS = ("done", "cancelled", "expired")


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task at a moment."""

    task_id: str
    state: str  # running, paused, cancelled, expired; done, cancelled or expired once its end was told
    reason: str  # by command, or the budget that is spent
    is_ended: bool  # the end of its generation was told
    is_closed: bool  # no more seeds are produced
    generation: int
    seeds: Mapping[str, int]  # those that producers sent and that have ended, by outcome
    moved: Mapping[str, int]  # messages: spilled, returned, links
    is_partial: bool  # seeds that were done before the task was known are not in these numbers
    pages: int
    bytes: int
    parked: int  # messages
    pages_begun: int
    links_filtered: int
    links_cancelled: int
    declared: Task | None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it begins any more: it has ended, or will as cancelled or expired."""
        return self.is_ended or self.state in _ENDS

    @property
    def weight(self) -> float:
        """Its share beside others."""
        return 1.0 if self.declared is None else self.declared.weight

    @property
    def is_spent(self) -> bool:
        """Whether it waits for a larger budget."""
        return self.state == "paused" and self.reason in BUDGETS

    def said(self) -> str:
        """Its numbers, for people."""
        seeds = ", ".join(f"{count} {name}" for name, count in self.seeds.items())
        moved = ", ".join(f"{count} {name}" for name, count in self.moved.items())
        return (
            f"seeds: {seeds or 'none'}; {f'moved: {moved}; ' if moved else ''}pages: {self.pages}"
            f"{' (partial)' if self.is_partial else ''}"
        )

    def numbers(self) -> dict[str, Any]:
        """Its counts, for programs."""
        return {
            "seeds": dict(self.seeds),
            "moved": dict(self.moved),
            "partial": self.is_partial,
            "pages": self.pages,
            "bytes": self.bytes,
        }

    def document(self) -> dict[str, Any]:
        """For programs: what was declared, and all of this."""
        task = self.declared or usual_task(self.task_id)
        return {
            **task.model_dump(mode="json"),
            "declared": self.declared is not None,
            "state": self.state,
            "reason": self.reason,
            "closed": self.is_closed,
            "ended": self.is_ended,
            "generation": self.generation,
            **self.numbers(),
            "pages_begun": self.pages_begun,
            "parked": self.parked,
            "links_filtered": self.links_filtered,
            "links_cancelled": self.links_cancelled,
        }


class TaskOverview:
    """Of what was read of the task topic and of the control log; it copies nothing."""

    def __init__(self, board: Board, endings: Endings) -> None:
        self._board = board
        self._endings = endings

    def __iter__(self) -> Iterator[TaskFacts]:
        """All tasks that somebody declared, closed or began to produce, by name."""
        return (self.of(task_id) for task_id in sorted({*self._board.tasks, *self._endings}))

    def knows(self, task_id: str) -> bool:
        """Whether somebody declared it, closed it or began to produce it."""
        return task_id in self._board.tasks or self._endings.get(task_id) is not None

    def of(self, task_id: str) -> TaskFacts:
        """One task; of one that nobody knows there is nothing."""
        board, ending = self._board, self._endings.get(task_id) or TaskEnding()
        used, phase = board.used(task_id), self._phase(task_id, ending)
        counts, is_partial = ending.counts(), ending.is_partial
        pages, size_bytes = max(used.pages, counts.pages), max(used.bytes, counts.size_bytes)
        seeds = SeedCounts.of(counts.seeds if ending.tallies else used.seeds)
        if (ended := ending.ended) is not None and ending.is_told:
            event = ended.event
            phase = Phase(str(event.get("event")))
            pages, size_bytes = _number(event.get("pages")), _number(event.get("bytes"))
            seeds, is_partial = _seeds_of(event), event.get("partial") is True
        return TaskFacts(
            task_id=task_id,
            state=phase.name,
            reason=phase.reason,
            is_ended=ending.is_told,
            is_closed=ending.is_closed,
            generation=ending.generation,
            seeds=seeds.seeds,
            moved=seeds.moved,
            is_partial=is_partial,
            pages=pages,
            bytes=size_bytes,
            parked=board.parked(task_id),
            pages_begun=used.begun,
            links_filtered=used.links_filtered,
            links_cancelled=used.links_cancelled,
            declared=board.task(task_id),
        )

    def _phase(self, task_id: str, ending: TaskEnding) -> Phase:
        """A closed task that has just begun its last page is about to end, and waits for no budget."""
        phase = self._board.phase(task_id)
        is_ending = phase.reason in BUDGETS and ending.is_closed and not self._board.has_parked(task_id)
        return Phase("running") if is_ending else phase


def _seeds_of(event: Mapping[str, Any]) -> SeedCounts:
    """As told; a release before had what moved among the seeds."""
    seeds, moved = _numbers(event.get("seeds")), _numbers(event.get("moved"))
    seeds.pop("total", None)
    found = SeedCounts.of(seeds)
    return SeedCounts(found.seeds, {**found.moved, **moved})


def _numbers(given: object) -> dict[str, int]:
    named = given.items() if isinstance(given, dict) else ()
    return {str(name): _number(count) for name, count in named}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
