"""Reads the snapshot of a process, which comes from a topic or a socket, into a ProcessState.

Whoever may write to the topic may write anything, and other releases leave fields out or add some. So every
value is checked and bounded; what is missing or odd counts as empty. Only a document without a name or
a time is refused.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from math import inf, isfinite
from typing import Any

from site_spider.console.fleet import (
    Counts,
    FailureState,
    HostState,
    ProcessState,
    Seconds,
    SinkState,
    TaskFigures,
)
from site_spider.errors import SiteSpiderError
from site_spider.page.url import host_of

LARGEST_BYTES = 2_000_000  # of one snapshot as JSON
MOST_HOSTS = 1_000
OTHER_TASKS = "(other tasks)"
NO_TASK = "(no task)"
_MOST_NAMES = 200  # of a mapping
_MOST_TASKS = 201
_MOST_PARTITIONS = 1_000
_MOST_EXAMPLES = 100
_MOST_SINKS = 50
_LONGEST_NAME = 300
_LONGEST_TEXT = 2_000
_LARGEST = 10**18
_USUAL_INTERVAL_SECONDS = 10.0
_NO_OUTCOMES = ("consumed", "completed", "in_flight", "handed_back", "deleted_unread")
_MOST_AHEAD_SECONDS = 86_400.0  # clocks may be wrong, but not so
_OUTCOMES = {
    "completed_with_result": "result",
    "completed_with_failure": "failure",
    "dead_lettered": "dead_letter",
}


class OddSnapshot(SiteSpiderError):
    """What came is no snapshot of a process."""


def parsed(raw: bytes) -> dict[str, Any]:
    """The document in these bytes. Raises OddSnapshot."""
    if len(raw) > LARGEST_BYTES:
        raise OddSnapshot(f"a snapshot has {len(raw)} bytes, but must have at most {LARGEST_BYTES}")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise OddSnapshot("a snapshot cannot be read as JSON") from error
    if not isinstance(document, dict):
        raise OddSnapshot("a snapshot is no JSON object")
    return document


def state_of(
    document: Mapping[str, Any], interval_seconds: float = _USUAL_INTERVAL_SECONDS, now: float = inf
) -> ProcessState:
    """The state that a snapshot tells of, which was taken up to now. Raises OddSnapshot."""
    name, at = _text(document.get("process")), _moment(document.get("at"))
    if not name or at is None:
        raise OddSnapshot("a snapshot has no fields process and at")
    if at > now + _MOST_AHEAD_SECONDS:
        raise OddSnapshot("its field at is no time up to now")
    return ProcessState(
        name=name,
        at=at,
        started_at=_moment(document.get("started_at")) or at,
        interval_seconds=_number(document.get("interval_seconds")) or interval_seconds,
        is_ended=document.get("moment") == "close",
        machine=_text(document.get("host_name")),
        pid=_count(document.get("pid")),
        slot=_text(document.get("slot")),
        group=_text(document.get("group")),
        topic=_text(document.get("topic")),
        spider=_text(document.get("spider")),
        **_done(document),
        **_waiting(document),
        **_held_up(document),
    )


def _done(document: Mapping[str, Any]) -> dict[str, Any]:
    seeds = _counts(document.get("seeds"))
    page = _mapping(_mapping(document.get("downloads")).get("page"))
    return {
        **{name: seeds.get(name, 0) for name in ("consumed", "in_flight", "handed_back")},
        "outcomes": {_OUTCOMES.get(key, key): n for key, n in seeds.items() if key not in _NO_OUTCOMES},
        "pages": _count(page.get("answers")),
        "bytes": _count(page.get("response_bytes")),
        "failures": _counts(document.get("reasons")),
        "tasks": tuple(_tasks(document.get("tasks"))),
        "examples": tuple(_examples(document.get("newest_failures"))),
    }


def _waiting(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "queues": _counts(document.get("queues")),
        "waiting": _count(document.get("waiting")),
        "host_reasons": _counts(document.get("hosts")),
        "hosts": tuple(_hosts(document.get("largest_hosts"))),
        "partitions": tuple(islice(map(_text, _mapping(document.get("seeds_in_flight"))), _MOST_PARTITIONS)),
        "requests_out": _count(document.get("requests_out")),
    }


def _held_up(document: Mapping[str, Any]) -> dict[str, Any]:
    pause = _mapping(document.get("pause"))
    cause = _text(pause.get("cause"))
    return {
        "paused": _seconds(document.get("paused_seconds")),
        "pausing": (cause,) if cause else (),
        "pause_said": _text(pause.get("said"), _LONGEST_TEXT),
        "log_is_away": document.get("log_is_away") is True,
        "sinks": tuple(_sinks(document.get("sinks"))),
        "memory_bytes": _count(_mapping(document.get("memory")).get("rss_bytes")),
        "loop_lag_seconds": _number(document.get("loop_lag_max_seconds")),
        "clock_ahead_seconds": _number(document.get("clock_ahead_seconds"), least=-_LARGEST),
    }


def _fields(part: Mapping[str, Any], **readers: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: read(part.get(name)) for name, read in readers.items()}


def _hosts(value: object) -> Iterator[HostState]:
    for host in _objects(value, MOST_HOSTS):
        until = host.get("next_in_seconds")
        known = _fields(host, host=_text, waiting=_count, out=_count, reason=_text)
        yield HostState(**known, next_in_seconds=None if until is None else _number(until))


def _sinks(value: object) -> Iterator[SinkState]:
    for sink in _objects(value, _MOST_SINKS):
        known = _fields(sink, name=_text, backlog=_count, backlog_bytes=_count, last_accept_at=_moment)
        limit_bytes = _count(sink.get("backlog_limit_bytes"))
        yield SinkState(available=sink.get("available") is True, limit_bytes=limit_bytes, **known)


def _tasks(value: object) -> Iterator[TaskFigures]:
    tasks = _mapping(value)
    for task in _objects(tasks.get("largest"), _MOST_TASKS):
        yield _task(_text(task.get("task_id")) or NO_TASK, task)
    others = _mapping(tasks.get("others"))
    if _count(others.get("tasks")):
        yield _task(OTHER_TASKS, others)


def _task(task_id: str, task: Mapping[str, Any]) -> TaskFigures:
    return TaskFigures(
        task_id, **_fields(task, pages=_count, bytes=_count, outcomes=_counts, reasons=_counts)
    )


def _examples(value: object) -> Iterator[FailureState]:
    for failure in _objects(value, _MOST_EXAMPLES):
        url, said = (_text(failure.get(name), _LONGEST_TEXT) for name in ("url", "description"))
        names = _fields(failure, task_id=_text, reason=_text)
        at = _moment(failure.get("at")) or 0.0
        yield FailureState(at=at, url=url, host=host_of(url), description=said, **names)


# --- values ----------------------------------------------------------------------------------------


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object, most: int) -> Iterator[Mapping[str, Any]]:
    return islice(map(_mapping, value), most) if isinstance(value, list) else iter(())


def _text(value: object, longest: int = _LONGEST_NAME) -> str:
    """Of strings, and halves of surrogate pairs, which no page could be encoded with, made visible."""
    if not isinstance(value, str):
        return ""
    return value[:longest].encode("utf-8", "backslashreplace").decode()


def _number(value: object, least: float = 0) -> float:
    is_odd = isinstance(value, float) and not isfinite(value)  # of an int it would fail if that is too large
    if is_odd or isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(min(max(value, least), _LARGEST))


def _count(value: object) -> int:
    return min(max(value, 0), _LARGEST) if type(value) is int else 0


def _counts(value: object) -> Counts:
    return {_text(name): _count(count) for name, count in islice(_mapping(value).items(), _MOST_NAMES)}


def _seconds(value: object) -> Seconds:
    return {_text(name): _number(spent) for name, spent in islice(_mapping(value).items(), _MOST_NAMES)}


def _moment(value: object) -> float | None:
    """A Unix time, of ISO 8601."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if found is None or not 1970 < found.year < 9000:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


# --- The tasks of a fleet --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sum:
    """Of one task, over processes. Plain sums: a fleet has some 20,000 of these parts at a time."""

    pages: int = 0
    bytes: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, part: TaskFigures) -> None:
        self.pages += part.pages
        self.bytes += part.bytes
        _add(self.outcomes, part.outcomes)
        _add(self.reasons, part.reasons)


def tasks(states: Iterable[ProcessState]) -> list[TaskFigures]:
    """The tasks of all processes, summed up, the largest first."""
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for state in states:
        for part in state.tasks:
            sums[part.task_id].add(part)
    whole = [TaskFigures(name, s.pages, s.bytes, s.outcomes, s.reasons) for name, s in sums.items()]
    return sorted(whole, key=lambda task: (-sum(task.outcomes.values()), -task.pages, task.task_id))


def _add(sums: dict[str, int], counts: Counts) -> None:
    for name, count in counts.items():
        sums[name] = sums.get(name, 0) + count
