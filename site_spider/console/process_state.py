"""What a snapshot of a process, which comes from a topic or a socket, says: each field with how it is read.

Whoever may write to the topic may write anything, and other releases leave fields out or add some. So every
value is checked and bounded; what is missing or odd counts as empty. Only a document without a name or
a time is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from itertools import islice
from math import inf, isfinite
from typing import Any, TypeVar

from site_spider.observe.counters import OUTCOMES
from site_spider.observe.frontier_socket import OddSnapshot
from site_spider.observe.metrics.catalogue import NO_TASK, at, mappings, moment
from site_spider.page.url import host_of
from site_spider.seed.fields import MAX_ID_BYTES

OTHER_TASKS = "(other tasks)"
_MOST_NAMES = 200  # of a mapping
_MOST_TASKS = 201
_MOST_PARTITIONS = 1_000
_MOST_HOSTS = 1_000
_MOST_EXAMPLES = 100
_MOST_SINKS = 50
_LONGEST_NAME = 300
_LONGEST_TEXT = 2_000
_LARGEST = 10**18
_USUAL_INTERVAL_SECONDS = 10.0
_NO_OUTCOMES = ("consumed", "completed", "in_flight", "handed_back", "deleted_unread")
_MOST_AHEAD_SECONDS = 86_400.0  # clocks may be wrong, but not so

S = TypeVar("S")


# --- values ----------------------------------------------------------------------------------------------


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object, longest: int = _LONGEST_NAME) -> str:
    """The text, with halves of surrogate pairs made visible: no page could be encoded with them."""
    if not isinstance(value, str):
        return ""
    return value[:longest].encode("utf-8", "backslashreplace").decode()


_long = partial(_text, longest=_LONGEST_TEXT)
_identifier = partial(_text, longest=MAX_ID_BYTES)


def _names(value: object) -> tuple[str, ...]:
    return tuple(islice(map(_text, _mapping(value)), _MOST_PARTITIONS))


def _flag(value: object) -> bool:
    return value is True


def _number(value: object, least: float = 0) -> float:
    is_odd = isinstance(value, float) and not isfinite(value)  # of an int it would fail if that is too large
    if is_odd or isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(min(max(value, least), _LARGEST))


def _count(value: object) -> int:
    return min(max(value, 0), _LARGEST) if type(value) is int else 0


def _by_name(read: Callable[[object], S]) -> Callable[[object], dict[str, S]]:
    return lambda value: {_text(name): read(one) for name, one in islice(_mapping(value).items(), _MOST_NAMES)}


_counts, _seconds = _by_name(_count), _by_name(_number)


def _outcomes(value: object) -> dict[str, int]:
    return {OUTCOMES.get(name, name): n for name, n in _counts(value).items() if name not in _NO_OUTCOMES}


# --- fields: where each lies in a document, and how it is read -------------------------------------------


def said(read: Callable[[Any], Any], *path: str) -> Any:
    """A field that lies there; by default under its own name."""
    return field(metadata={"read": read, "path": path})


@cache
def _table(kind: Any) -> tuple[tuple[str, tuple[str, ...], Callable[[Any], Any]], ...]:
    rows = ((row.name, row.metadata) for row in fields(kind) if row.metadata)
    return tuple((name, row["path"] or (name,), row["read"]) for name, row in rows)


def _read(kind: Callable[..., S], document: Mapping[str, Any], **more: Any) -> S:
    for name, path, read in _table(kind):
        more[name] = read(at(document, *path))
    return kind(**more)


def _all(kind: Callable[..., S], most: int) -> Callable[[Any], tuple[S, ...]]:
    return lambda value: tuple(_read(kind, each) for each in islice(mappings(value), most))


@dataclass(frozen=True, slots=True)
class HostState:
    """A host of which something waits."""

    host: str = said(_text)
    waiting: int = said(_count)
    out: int = said(_count)
    reason: str = said(_text)
    next_in_seconds: float | None = said(lambda value: None if value is None else _number(value))


@dataclass(frozen=True, slots=True)
class SinkState:
    """A sink as one process sees it."""

    name: str = said(_text)
    available: bool = said(_flag)
    backlog: int = said(_count)
    backlog_bytes: int = said(_count)
    limit_bytes: int = said(_count, "backlog_limit_bytes")
    last_accept_at: float | None = said(moment)


@dataclass(frozen=True, slots=True)
class FailureState:
    """One page that failed."""

    at: float = said(lambda value: moment(value) or 0.0)
    url: str = said(_long)
    host: str = said(lambda value: host_of(_long(value)), "url")
    task_id: str = said(_identifier)
    reason: str = said(_text)
    description: str = said(_long)


@dataclass(slots=True)
class TaskFigures:
    """What one process did for a task; `outcomes` and `reasons` count its seeds and failures."""

    task_id: str
    pages: int = said(_count)
    bytes: int = said(_count)
    outcomes: dict[str, int] = said(_counts)  # noqa: RUF009 - a field
    reasons: dict[str, int] = said(_counts)  # noqa: RUF009 - a field


def _tasks(value: object) -> tuple[TaskFigures, ...]:
    others, largest = _mapping(at(value, "others")), islice(mappings(value, "largest"), _MOST_TASKS)
    tasks = [_read(TaskFigures, each, task_id=_identifier(each.get("task_id")) or NO_TASK) for each in largest]
    if _count(others.get("tasks")):
        tasks.append(_read(TaskFigures, others, task_id=OTHER_TASKS))
    return tuple(tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """One snapshot. Counts are totals since the start; times are Unix times."""

    name: str = said(_text, "process")
    at: float
    started_at: float
    interval_seconds: float
    is_ended: bool = said(lambda value: value == "close", "moment")  # of a process that has closed
    machine: str = said(_text, "host_name")
    pid: int = said(_count)
    slot: str = said(_text)
    group: str = said(_text)
    topic: str = said(_text)
    spider: str = said(_text)
    consumed: int = said(_count, "seeds", "consumed")
    in_flight: int = said(_count, "seeds", "in_flight")
    outcomes: Mapping[str, int] = said(_outcomes, "seeds")
    pages: int = said(_count, "downloads", "page", "answers")
    bytes: int = said(_count, "downloads", "page", "response_bytes")
    failures: Mapping[str, int] = said(_counts, "reasons")  # pages by reason
    waiting: int = said(_count)  # requests
    host_reasons: Mapping[str, int] = said(_counts, "hosts")
    hosts: tuple[HostState, ...] = said(_all(HostState, _MOST_HOSTS), "largest_hosts")
    paused: Mapping[str, float] = said(_seconds, "paused_seconds")  # by cause
    pausing: str = said(_text, "pause", "cause")  # what holds it now
    pause_said: str = said(_long, "pause", "said")
    log_is_away: bool = said(_flag)
    sinks: tuple[SinkState, ...] = said(_all(SinkState, _MOST_SINKS))
    tasks: tuple[TaskFigures, ...] = said(_tasks)
    examples: tuple[FailureState, ...] = said(_all(FailureState, _MOST_EXAMPLES), "newest_failures")
    partitions: tuple[str, ...] = said(_names, "seeds_in_flight")  # topic/number
    requests_out: int = said(_count)
    memory_bytes: int = said(_count, "memory", "rss_bytes")
    loop_lag_seconds: float = said(_number, "loop_lag_max_seconds")
    clock_ahead_seconds: float = said(partial(_number, least=-_LARGEST))  # of the broker's; negative: behind

    @property
    def completed(self) -> int:
        return sum(self.outcomes.values())

    @property
    def missing(self) -> int:
        """Seeds consumed and nowhere to be found: 0 unless there is a bug (rule 10)."""
        return self.consumed - self.completed - self.in_flight


def state_of(
    document: Mapping[str, Any], interval_seconds: float = _USUAL_INTERVAL_SECONDS, now: float = inf
) -> ProcessState:
    """The state that a snapshot tells of, which was taken up to now. Raises OddSnapshot."""
    at = moment(document, "at")
    if not _text(document.get("process")) or at is None:
        raise OddSnapshot("a snapshot has no fields process and at")
    if at > now + _MOST_AHEAD_SECONDS:
        raise OddSnapshot("its field at is no time up to now")
    started_at = moment(document, "started_at") or at
    interval_seconds = _number(document.get("interval_seconds")) or interval_seconds
    return _read(ProcessState, document, at=at, started_at=started_at, interval_seconds=interval_seconds)


# --- The tasks of a fleet --------------------------------------------------------------------------------


def tasks(states: Iterable[ProcessState]) -> list[TaskFigures]:
    """The tasks of all processes, summed up, the largest first."""
    sums: dict[str, TaskFigures] = {}  # a fleet has some 20,000 of these parts at a time
    for part in (part for state in states for part in state.tasks):
        if (whole := sums.get(part.task_id)) is None:
            whole = sums[part.task_id] = TaskFigures(part.task_id, 0, 0, {}, {})
        whole.pages += part.pages
        whole.bytes += part.bytes
        _add(whole.outcomes, part.outcomes)
        _add(whole.reasons, part.reasons)
    return sorted(sums.values(), key=lambda task: (-sum(task.outcomes.values()), -task.pages, task.task_id))


def _add(sums: dict[str, int], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        sums[name] = sums.get(name, 0) + count
