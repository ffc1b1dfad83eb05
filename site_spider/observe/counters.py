"""Everybody's counters as fields of a document: Scrapy's, ours, and those of spiders and extensions.

An index makes a field of each name, with one type for ever. So names are bounded in number and length and
hold no dots, and numbers and texts are apart: a value that is a number today and a text tomorrow is in
two fields, and no document is refused for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nlargest
from itertools import islice
from numbers import Real
from typing import Any, Final, NamedTuple

from site_spider import runtime
from site_spider.bounded import Histogram, NameCounts
from site_spider.contracts.seed_log import Message
from site_spider.errors import SeedError
from site_spider.intake.room import LOG_IS_AWAY, Pause, PollRoom
from site_spider.ledger.completion import Job, SeedListener
from site_spider.ledger.ledger import SeedInFlight
from site_spider.results.failures import REASONS, failure_name, reason_of
from site_spider.seed.seed import Seed

MOST_NUMBERS: Final = 300
MOST_TEXTS: Final = 50
LONGEST_NAME: Final = 150  # characters
LONGEST_TEXT: Final = 256
_MOST_LOOKED_AT: Final = 2_000  # keys; 1 ms
_LARGEST: Final = 2.0**63  # beyond it JSON numbers are not the same everywhere


class Counters(NamedTuple):
    """By field names; `left_out` counts what was too much, or neither a number nor a text."""

    numbers: dict[str, float]
    texts: dict[str, str]
    left_out: int


def counters(stats: Mapping[Any, Any]) -> Counters:
    """The first of each kind, in the order in which they were counted first."""
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    left_out = max(0, len(stats) - _MOST_LOOKED_AT)
    # taken at once: a thread of the user's own may count meanwhile
    for key, value in list(islice(stats.items(), _MOST_LOOKED_AT)):
        number, text = _number(value), _text(value)
        if number is not None and len(numbers) < MOST_NUMBERS:
            numbers[_free(field_name(key), numbers)] = number
        elif number is None and text is not None and len(texts) < MOST_TEXTS:
            texts[_free(field_name(key), texts)] = text
        elif value is not None:
            left_out += 1
    return Counters(numbers, texts, left_out)


def field_name(key: object) -> str:
    """A name that an index takes: `my/custom` as it is, dots and what cannot be printed as underscores."""
    name = str(key)[:LONGEST_NAME].strip().replace(".", "_")
    return "".join(sign if sign.isprintable() else "_" for sign in name) or "_"


def _free(name: str, taken: Mapping[str, object]) -> str:
    """The name, or with a number when another key has become the same."""
    if name not in taken:
        return name
    return next(other for number in range(2, len(taken) + 3) if (other := f"{name}_{number}") not in taken)


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and abs(value) < _LARGEST:
        return value
    if not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError, TypeError):
        return None
    return number if math.isfinite(number) else None


def _text(value: object) -> str | None:
    if isinstance(value, datetime):
        return value.isoformat()
    return value[:LONGEST_TEXT] if isinstance(value, str) else None


OUTCOMES: Final = {  # of seeds, by their names in a snapshot
    "completed_with_result": "result",
    "completed_with_failure": "failure",
    "filtered": "filtered",
    "dead_lettered": "dead_letter",
    "spilled": "spilled",
    "cancelled": "cancelled",
}
LAG_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BYTES: Final = (100.0, 1e3, 1e4, 5e4, 1e5, 2.5e5, 5e5, 1e6, 2.5e6, 1e7, 1e8)


# --- loop lag: measures how late the event loop is, ten times a second -----------------------------------

_WINDOW_SECONDS = 10.0
_PERIOD_SECONDS = 0.1


class LoopLag:
    """A timer that notes by how much it is late. The lag of a turn counts however long the turn took."""

    def __init__(self, lags: Histogram) -> None:
        self._lags = lags
        self._recent: deque[tuple[float, float]] = deque(maxlen=round(_WINDOW_SECONDS / _PERIOD_SECONDS) + 1)
        self._timer: asyncio.Handle | None = None  # uvloop gives no TimerHandle for a moment that has come
        self._due = 0.0

    def start(self) -> None:
        self._turned(asyncio.get_running_loop().time())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turned(self, now: float) -> None:
        self._due = now + _PERIOD_SECONDS
        self._timer = asyncio.get_running_loop().call_at(self._due, self._ring)

    def _ring(self) -> None:
        now = asyncio.get_running_loop().time()
        lag = max(0.0, now - self._due)
        self._lags.observe(lag)
        self._recent.append((now, lag))
        self._turned(now)

    def max_seconds(self) -> float:
        since = asyncio.get_running_loop().time() - _WINDOW_SECONDS
        return max((lag for at, lag in self._recent if at >= since), default=0.0)


# --- pauses: why nothing is polled now, and for how long which cause has kept the crawl ------------------

CAUSES: Final = ("sink", "frontier", "span", "suspicion", "kafka", "memory", "stop")


@dataclass
class Pauses:
    """Looked at some times a second. One cause counts at a time: the first that applies."""

    _poll_room: PollRoom
    _is_log_away: Callable[[], bool]

    def __post_init__(self) -> None:
        self._looked_at = runtime.monotonic()
        self.seconds = dict.fromkeys(CAUSES, 0.0)  # since the start, by cause

    def look(self) -> None:
        now = runtime.monotonic()
        of_partitions = {closed.cause for closed in self._poll_room.closed.values()}
        cause = self.now().cause or max(of_partitions, default="")  # that one is slow, before that one has its share
        if cause:
            self.seconds[cause] += now - self._looked_at
        self._looked_at = now

    def now(self) -> Pause:
        """As the room says; while the log is away, polls go on in vain."""
        pause = self._poll_room.pause()
        return LOG_IS_AWAY if self._is_log_away() and pause.cause not in ("suspicion", "sink") else pause


# --- tasks: counts of pages, bytes, outcomes and reasons by task, bounded in memory ----------------------
# Theory: a process may see any number of tasks, one a seed at worst. Counts are exact while it has seen at
# most MOST_TASKS. Beyond that the smaller half is added to the sum of the others and forgotten; a task of
# these that comes again begins at 0, so its own counts are too low while the sum of all stays right.

MOST_TASKS: Final = 2_000  # with counts of their own, about 1 KB each
MOST_SHOWN: Final = 200


@dataclass(slots=True)
class TaskCounts:
    """Of one task, or of several in sum."""

    tasks: int = 1
    pages: int = 0  # results written, failures included
    bytes: int = 0  # of their bodies
    outcomes: Counter[str] = field(default_factory=Counter)  # of seeds
    reasons: Counter[str] = field(default_factory=Counter)  # of failures

    def page(self, size_bytes: int) -> None:
        self.pages += 1
        self.bytes += size_bytes

    def add(self, other: TaskCounts) -> None:
        self.tasks += other.tasks
        self.pages += other.pages
        self.bytes += other.bytes
        self.outcomes.update(other.outcomes)
        self.reasons.update(other.reasons)

    def document(self) -> dict[str, Any]:
        return {
            "pages": self.pages,
            "bytes": self.bytes,
            "outcomes": dict(self.outcomes),
            "reasons": dict(self.reasons),
        }


class TaskSums:
    """Of one process. Seeds without a task_id count under None."""

    def __init__(self) -> None:
        self._counts: dict[str | None, TaskCounts] = {}
        self._others = TaskCounts(tasks=0)

    def of(self, task_id: str | None) -> TaskCounts:
        """The counts of one task, to be added to at once: they may be those of the others later."""
        found = self._counts.get(task_id)
        if found is None:
            if len(self._counts) >= MOST_TASKS:
                self._counts, self._others = self._split(MOST_TASKS // 2)
            found = self._counts[task_id] = TaskCounts()
        return found

    def _split(self, most: int) -> tuple[dict[str | None, TaskCounts], TaskCounts]:
        largest = dict(nlargest(most, self._counts.items(), key=_size))
        others = TaskCounts(tasks=0)
        others.add(self._others)
        for task_id, counts in self._counts.items():
            if task_id not in largest:
                others.add(counts)
        return largest, others

    def document(self) -> dict[str, Any]:
        largest, others = self._split(MOST_SHOWN)
        return {
            "largest": [{"task_id": task_id, **counts.document()} for task_id, counts in largest.items()],
            "others": {"tasks": others.tasks, **others.document()},
        }


def _size(item: tuple[str | None, TaskCounts]) -> tuple[int, int]:
    _, counts = item
    return counts.pages, sum(counts.outcomes.values())


MOST_NEWEST: Final = 20
_LONGEST_URL: Final = 500  # characters
_LONGEST_SAID: Final = 300
_LARGEST_BYTES: Final = 2**50


class FailedPage(NamedTuple):
    """A page that could not be fetched or read."""

    url: str
    reason: str  # one of REASONS
    description: str
    at: float  # Unix time
    task_id: str | None
    seed: SeedInFlight | None

    def document(self) -> dict[str, Any]:
        return {**self._asdict(), "at": iso(self.at), "seed": self.seed and self.seed.position}


class PageTally:
    """Counts result documents as they are handed to the sinks: by task, by reason, and the newest failures.

    On the event loop's thread only."""

    def __init__(self, tasks: TaskSums, sizes: Histogram) -> None:
        self._tasks = tasks
        self._sizes = sizes
        self.reasons: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.names = NameCounts()  # by the name of the error or status, without host and numbers
        self.items = 0
        self.newest: deque[FailedPage] = deque(maxlen=MOST_NEWEST)

    def page(self, document: Mapping[str, Any], job: Job | None, *, is_again: bool = False) -> None:
        task_id = None if job is None else job.seed.task_id
        counts = self._tasks.of(task_id)
        if not is_again:
            self._count(counts, document.get("response_size"))
        if document.get("description") is not None:
            failed = _failed(document, job, task_id)
            counts.reasons[failed.reason] += 1
            self.reasons[failed.reason] += 1
            self.names.add(str(document.get("reason") or failure_name(str(document["description"]))))
            self.newest.append(failed)

    def item(self) -> None:
        self.items += 1

    def _count(self, counts: TaskCounts, size: object) -> None:
        if type(size) is int and 0 <= size < _LARGEST_BYTES:  # a spider of the user's own may say anything
            self._sizes.observe(size)
            counts.page(size)
        else:
            counts.page(0)

    def document(self) -> dict[str, Any]:
        return {
            "items": self.items,
            "reasons": dict(self.reasons),
            "failures": dict(self.names.counts),
            "newest_failures": [failed.document() for failed in reversed(self.newest)],
        }


def _failed(document: Mapping[str, Any], job: Job | None, task_id: str | None) -> FailedPage:
    said = str(document["description"])
    url = str(document.get("url") or (job.url if job is not None else ""))[:_LONGEST_URL]
    seed = None if job is None else job.entry
    return FailedPage(url, reason_of(said), said[:_LONGEST_SAID], runtime.time(), task_id, seed)


class SeedTimes(SeedListener):
    """How long seeds are in flight, and their outcomes by task. The exemplar of a duration is the place of its seed."""

    def __init__(self, tasks: TaskSums, durations: Histogram) -> None:
        self._tasks = tasks
        self._durations = durations
        self._open: dict[SeedInFlight, tuple[float, str | None]] = {}
        self.last_completion_at: float | None = None  # monotonic

    def arrived(self, entry: SeedInFlight, message: Message, seed: Seed | SeedError) -> None:  # noqa: ARG002
        self._open[entry] = runtime.monotonic(), None if isinstance(seed, SeedError) else seed.task_id

    def ended(self, entry: SeedInFlight) -> None:
        now = self.last_completion_at = runtime.monotonic()
        began, task_id = self._open.pop(entry, (now, None))
        self._durations.observe(now - began, (entry.partition, entry.offset))
        if entry.outcome is not None:
            self._tasks.of(task_id).outcomes[entry.outcome.value] += 1

    def fenced(self, entry: SeedInFlight) -> None:
        self._open.pop(entry, None)

    def seconds_open(self, entry: SeedInFlight | None) -> float:
        found = None if entry is None else self._open.get(entry)
        return 0.0 if found is None else runtime.monotonic() - found[0]

    def seconds_since_completion(self) -> float | None:
        return None if self.last_completion_at is None else runtime.monotonic() - self.last_completion_at


class Counted:
    """What is counted while a crawl goes on; nothing yet."""

    def __init__(self) -> None:
        self.download_seconds = Histogram()  # a page's attempt, answered or not
        self.kept_waiting_seconds = Histogram()  # a request whose host is free
        self.seed_seconds = Histogram()  # from the poll to the completion
        self.response_bytes = Histogram(BYTES)  # of results
        self.loop_lag_seconds = Histogram(LAG_SECONDS)
        self.loop_lag = LoopLag(self.loop_lag_seconds)
        self.tasks = TaskSums()
        self.pages = PageTally(self.tasks, self.response_bytes)
        self.seed_times = SeedTimes(self.tasks, self.seed_seconds)

    def latency(self) -> dict[str, Any]:
        """Histograms by name, but for what metrics alone need."""
        names = ("download_seconds", "seed_seconds", "response_bytes", "loop_lag_seconds")
        return {name: getattr(self, name).document() for name in names}


# --- log tally: counts warnings and errors by the logger that said them ----------------------------------

MOST_LOGGERS: Final = 10
_LONGEST: Final = 60  # characters of a name
_OTHER: Final = "other"


class LogTally(logging.Handler):
    """Of all loggers, from `open` to `close`. Any thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._counts: Counter[tuple[str, str]] = Counter({("warning", _OTHER): 0, ("error", _OTHER): 0})
        self._names: set[str] = set()

    def open(self) -> None:
        logging.getLogger().addHandler(self)

    def close(self) -> None:
        logging.getLogger().removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        level = "warning" if record.levelno < logging.ERROR else "error"
        self._counts[level, self._named(record.name[:_LONGEST])] += 1

    def _named(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= MOST_LOGGERS:
            return _OTHER
        self._names.add(name)
        return name

    def document(self) -> list[dict[str, Any]]:
        counts = sorted(self._counts.copy().items())
        return [{"level": level, "logger": logger, "count": count} for (level, logger), count in counts]


def iso(unix_seconds: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds")
