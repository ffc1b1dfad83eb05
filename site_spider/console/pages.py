"""The pages of the console as documents, which are also its JSON; pure.

It owns what each page says and in which order. It never asks anybody: all it shows is given.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from site_spider.console.diagnosis import causes, verdict
from site_spider.console.fleet import (
    BYTES,
    DONE,
    NOW_SECONDS,
    PAGES,
    STEP_SECONDS,
    WINDOW_SECONDS,
    Life,
    View,
    Weight,
    rates,
    spoken,
    summed,
    time_left,
)
from site_spider.console.process_state import OTHER_TASKS, HostState, ProcessState, SinkState, TaskFigures
from site_spider.console.process_state import tasks as tasks_of
from site_spider.dead_letter_replay import Letter, beginning
from site_spider.observe.counters import OUTCOMES
from site_spider.observe.metrics.catalogue import NO_TASK
from site_spider.observe.progress import Progress
from site_spider.tasks.declaration import SETTABLE
from site_spider.tasks.orders import TaskFacts

Document = dict[str, Any]


def heading(view: View, page: str) -> Document:
    """What each document begins with."""
    return {
        "page": page,
        "at": moment(view.now),
        "group": view.group,
        "topic": view.topic,
        "log": view.address,
        "troubles": list(view.troubles),
    }


def moment(at: float | None) -> str | None:
    """ISO 8601 in UTC, to the second; None for a time that is not known."""
    if not at:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def matches(wanted: str, *values: str) -> bool:
    """Whether one of the values contains the text that somebody looks for."""
    return not wanted or any(wanted.lower() in value.lower() for value in values)


# --- Failures: by reason, the newest examples, and the dead letters --------------------------------------

_MOST_EXAMPLES = 100
_SHOWN_CHARACTERS = 300
_MOST_ERROR = 500


def failures(view: View, dead_letters: Sequence[Letter], topic: str, reason: str = "", wanted: str = "") -> Document:
    """The document; `reason` and `wanted` choose examples."""
    states = [seen.state for seen in view.fleet.seen.values()]
    examples = [
        example
        for state in states
        for example in state.examples
        if (not reason or example.reason == reason)
        and matches(wanted, example.url, example.task_id, example.description)
    ]
    examples.sort(key=lambda example: -example.at)
    return heading(view, "failures") | {
        "reason": reason,
        "wanted": wanted,
        "reasons": {name: count for name, count in summed(s.failures for s in states).most_common() if count},
        "examples": [asdict(example) | {"at": moment(example.at)} for example in examples[:_MOST_EXAMPLES]],
        "dead_letter_topic": topic,
        "dead_letters": [_letter(letter) for letter in dead_letters],
    }


def _letter(letter: Letter) -> Document:
    message = letter.message
    return {
        "place": f"{message.partition.number}:{message.offset}",
        "origin": letter.origin,
        "failed_at": letter.headers.get("failed_at"),
        "error": (letter.headers.get("error") or "")[:_MOST_ERROR],
        "key": beginning(message.key, _SHOWN_CHARACTERS),
        "value": beginning(message.value, _SHOWN_CHARACTERS),
        "replayed": letter.replayed,
    }


# --- The pages of tasks: all of them, one of them, and what an operator is about to order ----------------

MOST_ROWS = 1_000
_MOST_REASONS = 5
_OF_ANY = ("pause", "cancel", "set", "close")  # what can be ordered of a task that was not declared
_NO_TASKS = TaskFigures("", 0, 0, {}, {})
_NO_NAMES = (NO_TASK, OTHER_TASKS)
_NOT_KNOWN: Document = {
    **{"task_id": "", "is_known": False, "state": "", "reason": "", "closed": False, "ended": False},
    **{"weight": 1.0, "max_pages": None, "parked": 0, "moved": {}, "partial": True},
}
_ORDER = {"running": 0, "paused": 1}  # what goes on comes first


def tasks(view: View, wanted: str = "") -> Document:
    """All that somebody declared, closed or produced, and the largest others that processes tell of."""
    figures = {task.task_id: task for task in _figures(view)}
    named = {task.task_id for task in view.tasks}
    known = [task for task in view.tasks if matches(wanted, task.task_id)]
    others = [each for each in figures.values() if each.task_id not in named and matches(wanted, each.task_id)]
    known.sort(key=lambda task: (_ORDER.get(task.state, 2), -task.parked, task.task_id))
    rows = [_row(task, figures.get(task.task_id, _NO_TASKS)) for task in known[:MOST_ROWS]]
    return heading(view, "tasks") | {
        "wanted": wanted,
        "count": len(known) + len(others),
        "states": states(view.tasks),
        "parked": view.parked,
        "tasks": [*rows, *map(_undeclared, others)][:MOST_ROWS],
    }


def task(view: View, task_id: str, said: str = "") -> Document:
    """All of `scrapy task show`, and what processes tell of it."""
    found = next((task for task in view.tasks if task.task_id == task_id), None)
    figures = next((each for each in _named(view) if each.task_id == task_id), _NO_TASKS)
    shown = None if found is None else found.document()
    return heading(view, "task") | {
        "task_id": task_id,
        "said": said,
        "task": shown,
        "outcomes": dict(figures.outcomes),
        "reasons": _largest(figures.reasons),
        "verbs": verbs(found) if found is not None else [*_OF_ANY] if figures is not _NO_TASKS else [],
        "settable": list(SETTABLE),
    }


def order(view: View, verb: str, task_id: str, words: Sequence[str]) -> Document:
    """What is asked before it is done."""
    found = next((task for task in view.tasks if task.task_id == task_id), None)
    return heading(view, "order") | {
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
        **task.numbers(),
        "seeds": sum(task.seeds.values()),
        "parked": task.parked,
        "outcomes": dict(task.seeds),
        "reasons": _largest(figures.reasons),
        "verbs": verbs(task),
    }


def _undeclared(figures: TaskFigures) -> Document:
    return _NOT_KNOWN | {
        "task_id": figures.task_id,
        "seeds": sum(figures.outcomes.values()),
        "pages": figures.pages,
        "bytes": figures.bytes,
        "outcomes": dict(figures.outcomes),
        "reasons": _largest(figures.reasons),
        "verbs": [] if figures.task_id in _NO_NAMES else [*_OF_ANY],
    }


def _largest(counts: Any) -> dict[str, int]:
    return dict(Counter(counts).most_common(_MOST_REASONS))


# --- The overview: are all seeds accounted for, how fast is it, how long will it take, and why is it slow

_COUNTED = (DONE, PAGES, BYTES)
_GAUGES = ("in_flight", "waiting", "lag", "memory_bytes")
_MOST_CAUSES = 12
_NOTHING = Progress(0, 0, 0, 0)  # of a topic that does not exist yet


def overview(view: View) -> Document:
    """The document."""
    found = causes(view)
    return {
        **heading(view, "overview"),
        "conservation": conservation(view),
        "verdict": verdict(view, found),
        "causes": [
            {"weight": cause.weight.name.lower(), "text": cause.text, "page": cause.page}
            for cause in found[:_MOST_CAUSES]
        ],
        "progress": _progress(view, is_held_up=any(cause.weight <= Weight.STOP for cause in found)),
        "rates": _rates(view),
        "processes": lives(view),
        "tasks": {"count": len(view.tasks), "states": states(view.tasks), "parked": view.parked},
        "other_groups": list(view.others),
        "curves": curves(view),
    }


def conservation(view: View) -> Document:
    """Rule 10, over all processes that are known: consumed = outcomes + in flight.

    What an ended process had in flight is begun anew by others, and counts there.
    """
    states = [seen.state for seen in view.fleet.seen.values()]
    outcomes = dict.fromkeys(OUTCOMES.values(), 0) | summed(state.outcomes for state in states)
    missing = [state for state in states if state.missing]
    return {
        "conserved": not missing,
        "consumed": sum(state.consumed - state.in_flight * state.is_ended for state in states),
        "outcomes": outcomes,
        "in_flight": sum(state.in_flight for state in states if not state.is_ended),
        "missing": sum(state.missing for state in states),
        "processes_with_missing": [state.name for state in missing],
        "processes": len(states),
    }


def lives(view: View) -> dict[str, int]:
    """How many processes run, are silent, have ended."""
    counts = Counter(seen.life(view.now) for seen in view.fleet.seen.values())
    return {life.value: counts[life] for life in Life}


def _progress(view: View, *, is_held_up: bool) -> Document | None:
    if view.log is None:
        return None
    whole, until = view.log.total, view.until
    left = None if is_held_up else time_left(view.fleet.curves, until, whole.lag)
    return {
        "at": moment(view.log.at),
        **whole._asdict(),
        "partitions": len(view.log.partitions),
        "tiers": {topic: view.log.tiers.get(topic, _NOTHING)._asdict() for topic in view.topic.split(",")},
        "seconds_left": None if left is None else [round(seconds, 1) for seconds in left],
        "time_left": spoken(left),
    }


def _rates(view: View) -> Document:
    found: Document = {}
    for name, seconds in (("now", NOW_SECONDS), ("average", WINDOW_SECONDS)):
        rate = rates(view.fleet.curves, view.until, seconds)
        found[name] = rate and {field: round(value, 3) for field, value in rate.items()}
    return found


def curves(view: View) -> Document:
    """For each stretch of ten seconds of the last hour: rates per second, and what was held."""
    steps = list(view.fleet.curves.between(view.until - WINDOW_SECONDS, view.until))
    found: dict[str, list[Any]] = {"time": [step.number * STEP_SECONDS for step in steps]}
    for name in _COUNTED:
        found[name] = [round(step.counts[name] / STEP_SECONDS, 3) for step in steps]
    for name in _GAUGES:
        found[name] = [step.gauges.get(name) for step in steps]
    return found


# --- The pages that are tables: processes, hosts, sinks --------------------------------------------------

_AS_THEY_ARE = (  # of a process
    "machine", "pid", "slot", "spider", "consumed", "completed", "in_flight", "missing", "waiting", "requests_out",
    "memory_bytes", "loop_lag_seconds", "log_is_away",
)  # fmt: skip


def processes(view: View, wanted: str = "") -> Document:
    """All that are known; those that are silent come first."""
    order = {Life.SILENT: 0, Life.RUNNING: 1, Life.ENDED: 2}
    known = sorted(view.fleet.seen.values(), key=lambda seen: (order[seen.life(view.now)], seen.state.name))
    found = [seen for seen in known if matches(wanted, seen.state.name, seen.state.machine)]
    rows = [
        {
            **_process(seen.state),
            "life": seen.life(view.now).value,
            "last_seen": moment(seen.at),
            "seconds_since": round(max(0.0, view.now - seen.at)),
        }
        for seen in found[:MOST_ROWS]
    ]
    return heading(view, "processes") | {
        "wanted": wanted,
        "count": len(found),
        "lives": lives(view),
        "processes": rows,
        "other_groups": list(view.others),
    }


def _process(state: ProcessState) -> Document:
    return {
        "process": state.name,
        **{name: getattr(state, name) for name in _AS_THEY_ARE},
        "started_at": moment(state.started_at),
        "partitions": list(state.partitions),
        "pause": state.pause_said or state.pausing,
        "paused_seconds": {cause: spent for cause, spent in state.paused.items() if spent},
    }


def hosts(view: View, wanted: str = "", reason: str = "") -> Document:
    """The largest hosts over all running processes."""
    living = view.living
    by_name: dict[str, list[tuple[ProcessState, HostState]]] = defaultdict(list)
    for state in living:
        for host in state.hosts:
            by_name[host.host].append((state, host))
    rows = [_host(name, found) for name, found in by_name.items() if matches(wanted, name)]
    rows = [row for row in rows if not reason or reason in row["reasons"]]
    rows.sort(key=lambda row: (-row["waiting"], row["host"]))
    whole = summed(state.host_reasons for state in living)
    return heading(view, "hosts") | {
        "wanted": wanted,
        "reason": reason,
        "reasons": dict(whole),
        "waits_for": {name: count for name, count in whole.items() if name != "waiting"},
        "waiting": sum(state.waiting for state in living),
        "count": len(rows),
        "hosts": rows[:MOST_ROWS],
    }


def _host(name: str, found: list[tuple[ProcessState, HostState]]) -> Document:
    turns = [host.next_in_seconds for _, host in found if host.next_in_seconds is not None]
    return {
        "host": name,
        "waiting": sum(host.waiting for _, host in found),
        "out": sum(host.out for _, host in found),
        "reasons": sorted({host.reason for _, host in found}),
        "next_in_seconds": min(turns, default=None),
        "processes": [state.name for state, _ in found],
    }


def sinks(view: View) -> Document:
    """Each sink with what its processes say."""
    by_name: dict[str, list[tuple[ProcessState, SinkState]]] = defaultdict(list)
    for state in view.living:
        for sink in state.sinks:
            by_name[sink.name].append((state, sink))
    rows = [_sink(name, found) for name, found in sorted(by_name.items())]
    return heading(view, "sinks") | {"sinks": rows}


def _sink(name: str, found: list[tuple[ProcessState, SinkState]]) -> Document:
    away = [state.name for state, sink in found if not sink.available]
    accepts = [sink.last_accept_at for _, sink in found if sink.last_accept_at is not None]
    return {
        "sink": name,
        "processes": len(found),
        "away_for": away,
        "backlog": sum(sink.backlog for _, sink in found),
        "backlog_bytes": sum(sink.backlog_bytes for _, sink in found),
        "backlog_limit_bytes": sum(sink.limit_bytes for _, sink in found),
        "last_accept_at": moment(max(accepts, default=None)),
    }
