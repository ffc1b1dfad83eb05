"""Reads the snapshot of a process, which comes from a topic or a socket, into a ProcessState.

Whoever may write to the topic may write anything, and other releases leave fields out or add some. So every
value is checked and bounded; what is missing or odd counts as empty. Only a document without a name or
a time is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from math import isfinite
from typing import Any, Final, NamedTuple

from site_spider.console.model.fleet import (
    Counts,
    FailureState,
    HostState,
    ProcessState,
    Seconds,
    SinkState,
    TaskFigures,
)
from site_spider.contracts.seed_log import Message, Partition, PartitionProgress, Position
from site_spider.errors import SeedError, SiteSpiderError
from site_spider.observe.progress import DoneOffsets
from site_spider.page.url import canonical_url, host_of, url_id
from site_spider.seed.seed import seed_message
from site_spider.seed.tiers import partition_of

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
_KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(("process", "at", "group", "topic", "spider", "slot", "host_name", "started_at"), str),
    **dict.fromkeys(
        ("seeds", "downloads", "reasons", "queues", "hosts", "pause", "paused_seconds", "seeds_in_flight",
         "memory"),
        dict,
    ),
    **dict.fromkeys(("largest_hosts", "sinks"), list),
    **dict.fromkeys(("pid", "waiting", "requests_out"), int),
    **dict.fromkeys(("interval_seconds", "loop_lag_max_seconds"), (int, float)),
    "tasks": dict,
    "newest_failures": list,
    "log_is_away": bool,
}  # fmt: skip
_MISSING: Final = object()
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


def checked(document: Mapping[str, Any], now: float) -> Mapping[str, Any]:
    """The document, as strictly as processes write it to a topic. Raises OddSnapshot."""
    for name, kind in _KINDS.items():
        value = document.get(name, _MISSING)
        is_odd_bool = isinstance(value, bool) and kind is not bool
        if value is not _MISSING and (is_odd_bool or not isinstance(value, kind)):
            raise OddSnapshot(f"its field {name} is of another type")
    for name in ("seeds", "reasons"):
        counts = document.get(name, {}).values()
        if not all(type(count) is int and 0 <= count <= _LARGEST for count in counts):
            raise OddSnapshot(f"its field {name} holds what is no count")
    at = _moment(document.get("at"))
    if at is None or at > now + _MOST_AHEAD_SECONDS:
        raise OddSnapshot("its field at is no time up to now")
    return document


def state_of(document: Mapping[str, Any], interval_seconds: float = _USUAL_INTERVAL_SECONDS) -> ProcessState:
    """The state that a snapshot tells of. Raises OddSnapshot."""
    name, at = _text(document.get("process")), _moment(document.get("at"))
    if not name or at is None:
        raise OddSnapshot("a snapshot has no fields process and at")
    return ProcessState(
        name=name,
        at=at,
        started_at=_moment(document.get("started_at")) or at,
        interval_seconds=_number(document.get("interval_seconds")) or interval_seconds,
        is_ended=document.get("moment") == "close",
        **_identity(document),
        **_done(document),
        **_waiting(document),
        **_held_up(document),
    )


def _identity(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "machine": _text(document.get("host_name")),
        "pid": _count(document.get("pid")),
        **{name: _text(document.get(name)) for name in ("slot", "group", "topic", "spider")},
    }


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
        "clock_ahead_seconds": _signed(document.get("clock_ahead_seconds")),
    }


def _signed(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return float(value) if is_number else 0.0  # type: ignore[arg-type]


def _hosts(value: object) -> Iterator[HostState]:
    for host in _objects(value, MOST_HOSTS):
        until = host.get("next_in_seconds")
        yield HostState(
            _text(host.get("host")),
            _count(host.get("waiting")),
            _count(host.get("out")),
            _text(host.get("reason")),
            None if until is None else _number(until),
        )


def _sinks(value: object) -> Iterator[SinkState]:
    for sink in _objects(value, _MOST_SINKS):
        yield SinkState(
            _text(sink.get("name")),
            sink.get("available") is True,
            _count(sink.get("backlog")),
            _count(sink.get("backlog_bytes")),
            _count(sink.get("backlog_limit_bytes")),
            _moment(sink.get("last_accept_at")),
        )


def _tasks(value: object) -> Iterator[TaskFigures]:
    tasks = _mapping(value)
    for task in _objects(tasks.get("largest"), _MOST_TASKS):
        yield _task(_text(task.get("task_id")) or NO_TASK, task)
    others = _mapping(tasks.get("others"))
    if _count(others.get("tasks")):
        yield _task(OTHER_TASKS, others)


def _task(task_id: str, task: Mapping[str, Any]) -> TaskFigures:
    return TaskFigures(
        task_id,
        _count(task.get("pages")),
        _count(task.get("bytes")),
        _counts(task.get("outcomes")),
        _counts(task.get("reasons")),
    )


def _examples(value: object) -> Iterator[FailureState]:
    for failure in _objects(value, _MOST_EXAMPLES):
        url = _text(failure.get("url"), _LONGEST_TEXT)
        yield FailureState(
            _moment(failure.get("at")) or 0.0,
            url,
            host_of(url),
            _text(failure.get("task_id")),
            _text(failure.get("reason")),
            _text(failure.get("description"), _LONGEST_TEXT),
        )


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


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return 0.0
    return float(min(max(value, 0), _LARGEST))


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


# --- lookup ----------------------------------------------------------------------------------------------
# Where one URL is: what it would be as a seed, and what its messages in the log say.


_MOST_FOUND = 20


class Sought(NamedTuple):
    """A URL as a seed."""

    url: str
    canonical: str
    host: str
    key: bytes
    url_id: str
    task_id: str | None


class Found(NamedTuple):
    """A message of the seed topic that names the URL; `state` is waiting, in flight or done."""

    place: str
    state: str
    before: int  # messages of its partition that come first and are not complete


def sought(url: str, task_id: str | None, *, by_task: bool) -> Sought:
    """As a seed with this URL would be. Raises SeedError."""
    key, value = seed_message(url, task_id=task_id)
    plain = str(json.loads(value)["url"])
    try:
        canonical, identifier = canonical_url(plain), url_id(plain, task_id if by_task else None)
    except ValueError as error:
        raise SeedError(f"url: {error}") from error
    return Sought(plain, canonical, host_of(plain), key, identifier, task_id)


def partition_for(key: bytes, topic: str, partitions: int) -> Partition | None:
    """Where a seed with this key lies."""
    return Partition(topic, partition_of(key, partitions)) if partitions else None


def found_in(messages: Iterable[Message], wanted: Sought, progress: PartitionProgress) -> list[Found]:
    """The messages that name this URL, and what became of each."""
    done = DoneOffsets(progress.committed or Position(progress.start))
    found = []
    for message in _naming(messages, wanted):
        if message.offset in done:
            state = "done"
        else:
            state = "in flight" if message.offset < done.position else "waiting"
        before = max(0, message.offset - done.watermark) if state == "waiting" else 0
        place = f"{message.partition.topic}/{message.partition.number}@{message.offset}"
        found.append(Found(place, state, before))
    return found[-_MOST_FOUND:]


def _naming(messages: Iterable[Message], wanted: Sought) -> Iterator[Message]:
    host = wanted.host.encode()
    for message in messages:
        value = message.value or b""
        is_likely = host in value or message.key == wanted.key
        if is_likely and _canonical_in(value) == wanted.canonical:
            yield message


def _canonical_in(value: bytes) -> str | None:
    try:
        document = json.loads(value)
        url = document.get("url") if isinstance(document, dict) else None
        return canonical_url(url) if isinstance(url, str) else None
    except (ValueError, RecursionError):
        return None


# --- tasks -----------------------------------------------------------------------------------------------
# The tasks of a fleet.


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
