"""The pages of tasks: all of them, one of them, and what an operator is about to order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from site_spider.console.model.reading import NO_TASK, OTHER_TASKS
from site_spider.console.model.state import TaskFigures
from site_spider.console.model.tasks import tasks as tasks_of
from site_spider.console.pages.view import Document, View, matches
from site_spider.tasks.desk import TaskFacts
from site_spider.tasks.record import SETTABLE

MOST_ROWS = 1_000
_MOST_REASONS = 5
_OF_ANY = ("pause", "cancel", "set", "close")  # what can be ordered of a task that was not declared
_NOTHING = TaskFigures("", 0, 0, {}, {})
_NO_NAMES = (NO_TASK, OTHER_TASKS)
_ORDER = {"running": 0, "paused": 1}  # what goes on comes first


def tasks(view: View, wanted: str = "") -> Document:
    """All that somebody declared, closed or produced, and the largest others that processes tell of."""
    figures = {task.task_id: task for task in _figures(view)}
    known = sorted(view.tasks, key=lambda task: (_ORDER.get(task.state, 2), -task.parked, task.task_id))
    named = {task.task_id for task in known}
    rows = [
        _row(task, figures.get(task.task_id, _NOTHING)) for task in known if matches(wanted, task.task_id)
    ]
    rows += [
        _undeclared(each)
        for each in figures.values()
        if each.task_id not in named and matches(wanted, each.task_id)
    ]
    return view.heading("tasks") | {
        "wanted": wanted,
        "count": len(rows),
        "states": states(view.tasks),
        "parked": sum(task.parked for task in view.tasks),
        "tasks": rows[:MOST_ROWS],
    }


def task(view: View, task_id: str, said: str = "") -> Document:
    """All of `scrapy task show`, and what processes tell of it."""
    found = next((task for task in view.tasks if task.task_id == task_id), None)
    figures = next((each for each in _named(view) if each.task_id == task_id), _NOTHING)
    shown = None if found is None else found.document()
    return view.heading("task") | {
        "task_id": task_id,
        "said": said,
        "task": shown,
        "outcomes": dict(figures.outcomes),
        "reasons": _largest(figures.reasons),
        "verbs": verbs(found) if found is not None else [*_OF_ANY] if figures is not _NOTHING else [],
        "settable": list(SETTABLE),
    }


def order(view: View, verb: str, task_id: str, words: Sequence[str]) -> Document:
    """What is asked before it is done."""
    found = next((task for task in view.tasks if task.task_id == task_id), None)
    return view.heading("order") | {
        "task_id": task_id,
        "verb": verb,
        "words": list(words),
        "parked": 0 if found is None else found.parked,
        "state": "not known here" if found is None else found.state,
    }


def verbs(found: TaskFacts) -> list[str]:
    """What can be ordered of it; the end of a task is not taken back."""
    if found.is_ended or found.state in ("cancelled", "expired"):
        return []
    possible = ["resume" if found.state == "paused" else "pause", "cancel", "set"]
    return possible if found.is_closed else [*possible, "close"]


def states(tasks: Iterable[TaskFacts]) -> dict[str, int]:
    """How many are in which state."""
    return dict(Counter(task.state for task in tasks))


def _figures(view: View) -> list[TaskFigures]:
    return tasks_of([seen.state for seen in view.fleet.seen.values()])


def _named(view: View) -> list[TaskFigures]:
    return [each for each in _figures(view) if each.task_id not in _NO_NAMES]


def is_told_of(view: View, task_id: str) -> bool:
    """Whether a process has done something for it."""
    return any(each.task_id == task_id for each in _named(view))


def _row(task: TaskFacts, figures: TaskFigures) -> Document:
    budget = None if task.declared is None else task.declared.max_pages
    return {
        "task_id": task.task_id,
        "is_known": True,
        "state": task.state,
        "reason": task.reason,
        "closed": task.is_closed,
        "ended": task.is_ended,
        "weight": task.weight,
        "max_pages": budget,
        "seeds": sum(task.seeds.values()),
        "parked": task.parked,
        "pages": task.pages,
        "bytes": task.bytes,
        "outcomes": dict(task.seeds),
        "moved": dict(task.moved),
        "partial": task.is_partial,
        "reasons": _largest(figures.reasons),
        "verbs": verbs(task),
    }


def _undeclared(figures: TaskFigures) -> Document:
    return {
        "task_id": figures.task_id,
        "is_known": False,
        "state": "",
        "reason": "",
        "closed": False,
        "ended": False,
        "weight": 1.0,
        "max_pages": None,
        "seeds": sum(figures.outcomes.values()),
        "parked": 0,
        "pages": figures.pages,
        "bytes": figures.bytes,
        "outcomes": dict(figures.outcomes),
        "moved": {},
        "partial": True,
        "reasons": _largest(figures.reasons),
        "verbs": [] if figures.task_id in _NO_NAMES else [*_OF_ANY],
    }


def _largest(counts: Any) -> dict[str, int]:
    return dict(Counter(counts).most_common(_MOST_REASONS))
