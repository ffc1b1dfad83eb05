"""All that the task topic says: declared tasks, what each process has done for them, what was put back.

Theory. The topic has one partition, so that every process sees its records in one order. The key of a
task's record is its id. What a process tells of a task has the id, a separator that no id holds, and the
name of the process as key; what was put back of parked messages the same with `RETURNED` for a name. So
compaction keeps the latest of each. What processes have told that are gone is added up under the name
`PAST`, and their own records are taken back (`PastUsage`): the number of keys is that of processes at work.

Orders that meet. A record has a version in a header: that of the record which its writer has read, and one
more. The first record of a version counts, any other one is void, and its writer reads again and repeats its
change (tasks.orders). A cancel stays until the task is declared anew: it has a record of its own
(`CANCELLED`) beside that of the task, so that no later record of the task, and no compaction, takes it back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import TypeVar

from pydantic import AwareDatetime, ValidationError

from site_spider import runtime
from site_spider.contracts.seed_log import Message, Producer, SeedLog
from site_spider.errors import SiteSpiderError
from site_spider.outage import Outage
from site_spider.sources.model import Part
from site_spider.tasks.declaration import (
    MAX_RECORD_BYTES,
    NO_TIMES,
    NOTHING,
    BadTask,
    Pace,
    Past,
    Phase,
    Returned,
    Task,
    TaskRecord,
    TaskTimes,
    Total,
    Usage,
    phase_of,
    read_task,
)

SEPARATOR = "\x1f"
RETURNED = "returned"
PAST = "past"
_PACE = f"pace{SEPARATOR}"  # begins the name, before that of the process
_MOST_PACES = 1_000  # of a task
CANCELLED = "cancelled"
TIMES = "times"
VERSION_HEADER = "version"
_MOST_VOID = 1_000
_LONGEST_VERSION = 15  # digits
MOST_TASKS = 100_000
_MOST_LOOKED_AT = 1_000

_NOTHING_RETURNED = Returned()
_NO_TOTAL = Total()  # nothing is added to it

V = TypeVar("V")
K = TypeVar("K", Usage, Past, Returned, Pace, TaskTimes, "Cancelled")


class Cancelled(TaskRecord):
    """The declaration with this start, and any before it, is cancelled."""

    started_at: AwareDatetime | None = None

    def is_about(self, task: Task) -> bool:
        """Whether the task was not declared anew since then."""
        started_at = task.started_at
        return started_at is None or (self.started_at is not None and started_at <= self.started_at)


def note_key(task_id: str, name: str) -> bytes:
    """The key of what a process tells of a task, or of what was put back."""
    return f"{task_id}{SEPARATOR}{name}".encode()


def pace_key(task_id: str, process: str) -> bytes:
    """The key of how fast a process is with a task that has a rate."""
    return note_key(task_id, f"{_PACE}{process}")


class Board:
    """Taken from records, one after the other. One thread changes it; any may read."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}  # by id; to be read only
        self._totals: dict[str, Total] = {}
        self._returned: dict[str, Returned] = {}
        self._cancelled: dict[str, Cancelled] = {}
        self._times: dict[str, TaskTimes] = {}
        self._versions: dict[str, int] = {}
        self.void: deque[int] = deque(maxlen=_MOST_VOID)  # offsets of the last records that do not count
        self._last_claimers: dict[str, str] = {}
        self._paces: dict[str, dict[str, Pace]] = {}
        self._folded: dict[str, frozenset[str]] = {}  # processes of a task that are in the past

    def __iter__(self) -> Iterator[Task]:
        return iter(list(self.tasks.values()))

    def __len__(self) -> int:
        return len(self.tasks)

    def task(self, task_id: str | None) -> Task | None:
        return None if task_id is None else self.tasks.get(task_id)

    def weight_of(self, task_id: str | None) -> float:
        task = self.task(task_id)
        return 1.0 if task is None else task.weight

    def rate_of(self, task_id: str | None) -> float | None:
        """Pages a second of the whole group; None without a limit."""
        task = self.task(task_id)
        return None if task is None else task.rate

    def _total(self, task_id: str) -> Total:
        return self._totals.get(task_id, _NO_TOTAL)

    def used(self, task_id: str) -> Usage:
        """By all processes; hosts apart."""
        return self._total(task_id).used

    def hosts(self, task_id: str) -> Mapping[str, int]:
        """Pages claimed of hosts, by all processes; it changes as they tell."""
        return self._total(task_id).hosts

    def usage(self, task_id: str, process: str) -> Usage | None:
        return self._total(task_id).of.get(process)

    def past(self, task_id: str) -> Past:
        past = self.usage(task_id, PAST)
        return past if isinstance(past, Past) else Past()

    def told_of(self) -> list[str]:
        """Tasks of which processes have told something."""
        return list(self._totals.keys() | self._paces.keys())

    def told(self, task_id: str) -> list[tuple[str, Usage | Pace]]:
        """Each process, with what it has told last: usage, and pace."""
        return [*self._total(task_id).of.items(), *self.paces(task_id).items()]

    def last_claimer(self, task_id: str) -> str:
        return self._last_claimers.get(task_id, "")

    def paces(self, task_id: str) -> dict[str, Pace]:
        """How fast each process is with a task that has a rate, dead ones included; to be read only."""
        return self._paces.get(task_id, {})

    def returned(self, task_id: str) -> Returned:
        return self._returned.get(task_id, _NOTHING_RETURNED)

    def waiting(self, task_id: str) -> int:
        """How many messages were ever parked, and not sent on at once."""
        return self._total(task_id).waiting

    def parked(self, task_id: str) -> int:
        """How many messages were parked and not put back, as far as is known; some may be missing."""
        back = self.returned(task_id)
        return max(0, self.waiting(task_id) - (back.cleared - back.missing) - back.found)

    def was_parked(self, task_id: str) -> bool:
        """Whether a message may be in the parked topic, put back or not."""
        back = self.returned(task_id)
        return bool(back.cleared or back.found or back.by or self.used(task_id).parked)

    def has_parked(self, task_id: str) -> bool:
        """Whether messages were parked that nobody has looked for."""
        return self.waiting(task_id) > self.returned(task_id).cleared

    def times(self, task_id: str) -> TaskTimes:
        return self._times.get(task_id, NO_TIMES)

    def has_running(self) -> bool:
        """Whether seeds of a declared task may be on their way, of those declared last."""
        return any(self.phase(task_id).name == "running" for task_id in islice(reversed(self.tasks), _MOST_LOOKED_AT))

    def version(self, task_id: str) -> int:
        return self._versions.get(task_id, 0)

    def phase(self, task_id: str) -> Phase:
        return phase_of(self.tasks.get(task_id), self.used(task_id), self.times(task_id))

    def take(self, message: Message) -> str:
        """The id of the task that a record is about. Raises BadTask when it is none."""
        try:
            task_id, separator, name = (message.key or b"").decode().partition(SEPARATOR)
        except UnicodeDecodeError:
            raise BadTask("its key is not UTF-8") from None
        value = message.value
        if value is not None and len(value) > MAX_RECORD_BYTES:
            raise BadTask(f"it has {len(value)} bytes, but at most {MAX_RECORD_BYTES} are taken")
        if not separator:
            self._take_task(task_id, message)
        elif name == RETURNED:
            self._keep(self._returned, task_id, _read(Returned, value))
        elif name.startswith(_PACE):
            self._take_pace(task_id, name.removeprefix(_PACE), _read(Pace, value))
        elif name == CANCELLED:
            self._keep(self._cancelled, task_id, _read(Cancelled, value))
            self._merge(task_id)
        elif name == TIMES:
            self._keep(self._times, task_id, _read(TaskTimes, value))
        elif name == PAST:
            self._take_past(task_id, _read(Past, value))
        else:
            usage = _read(Usage, value)
            if name not in self._folded.get(task_id, ()):
                self._use(task_id, name, usage)
        return task_id

    def _take_task(self, task_id: str, message: Message) -> None:
        if message.value is None:
            for known in (self.tasks, self._cancelled, self._versions):
                known.pop(task_id, None)
            return
        version = _version(message)
        if version is not None and version <= self.version(task_id):
            self.void.append(message.offset)
            return
        task = read_task(message.value)
        if task.task_id != task_id:
            raise BadTask(f"its key is {task_id[:100]!r}, but it is about {task.task_id[:100]!r}")
        self._keep(self.tasks, task_id, task)
        self._versions[task_id] = self.version(task_id) if version is None else version
        if task.state == "cancelled" and not self._is_cancelled(task):
            self._cancelled[task_id] = Cancelled(started_at=task.started_at)
        self._merge(task_id)

    def _is_cancelled(self, task: Task) -> bool:
        cancelled = self._cancelled.get(task.task_id)
        return cancelled is not None and cancelled.is_about(task)

    def _merge(self, task_id: str) -> None:
        task = self.tasks.get(task_id)
        if task is not None and task.state != "cancelled" and self._is_cancelled(task):
            self.tasks[task_id] = task.model_copy(update={"state": "cancelled"})

    def _take_past(self, task_id: str, past: Past | None) -> None:
        self._use(task_id, PAST, past)
        self._folded.pop(task_id, None)
        if past is not None and past.folded:
            self._folded[task_id] = frozenset(past.folded)
            for name in past.folded:
                self._use(task_id, name, None)

    def _use(self, task_id: str, name: str, usage: Usage | None) -> None:
        if (total := self._totals.get(task_id)) is None:
            if usage is None:
                return
            total = Total()
            self._keep(self._totals, task_id, total)
        claimed = total.of.get(name, NOTHING).claimed
        total.take(name, usage)
        if usage is not None and usage.claimed > claimed and name != PAST:
            self._last_claimers[task_id] = name
        if not total.of:
            del self._totals[task_id]
            self._last_claimers.pop(task_id, None)

    def _take_pace(self, task_id: str, process: str, pace: Pace | None) -> None:
        paces = self._paces.get(task_id, {})
        self._keep(self._paces, task_id, paces)
        paces.pop(process, None)
        if pace is not None:
            paces[process] = pace
            if len(paces) > _MOST_PACES:
                del paces[next(iter(paces))]  # of who has told nothing for longest
        elif not paces:
            del self._paces[task_id]

    @staticmethod
    def _keep(known: dict[str, V], task_id: str, value: V | None) -> None:
        if value is None:
            known.pop(task_id, None)
        elif len(known) >= MOST_TASKS and task_id not in known:
            raise BadTask(f"there are {MOST_TASKS} tasks already")
        else:
            known[task_id] = value


def _version(message: Message) -> int | None:
    """None for a record of a producer that knows nothing of versions; it counts."""
    text = dict(message.headers).get(VERSION_HEADER, b"")
    return int(text) if text.isdigit() and len(text) <= _LONGEST_VERSION else None


def _read(kind: type[K], value: bytes | None) -> K | None:
    try:
        return None if value is None else kind.model_validate_json(value)
    except ValidationError as error:
        raise BadTask(f"it is no {kind.__name__.lower()}: {error.errors()[0]['msg']}") from None


# --- past ------------------------------------------------------------------------------------------------
# Adds up what processes have told that are gone.
#
# Theory. A process that has seeds of a task tells of it at least each minute, and never goes on under a name
# that it has not used for so long (tasks.budgets). So a name that says nothing for much longer is that of a
# process that is gone. Its counts go to a record of the past that names it; from then on its own record
# counts no more, so that nothing counts twice or not at all in between. That is taken back when the record of
# the past has stood for a while: of two owners of the first partition the later word holds for both.
#
# A process that stands still for longer than that, and goes on, is counted twice: a budget is spent sooner.
#
# Tasks may be many, those that have ended among them. So a look is at some, and a round has as many as it takes.

REFRESH_SECONDS = 60.0
_GONE_SECONDS = 600.0
_MOST_FOLDED = 500
_MOST_AT_ONCE = 200  # tasks, in one look: some 25 ms if all of them have something to be added up


@dataclass
class PastUsage:
    """On the event loop's thread only."""

    every_seconds = 1.0

    _board: Board
    _topic: str
    _producer: Producer
    _has_first: Callable[[], bool]  # the first partition of the seed topic

    def __post_init__(self) -> None:
        self._since: dict[tuple[str, str, type], tuple[Part, float]] = {}  # when what was told was new
        self._before = self._since  # the same of the round before
        self._left: list[str] = []  # tasks of this round
        self._next_at = -inf

    def look(self) -> None:
        now = runtime.monotonic()
        if not self._left and now >= self._next_at:
            self._next_at = now + REFRESH_SECONDS
            self._left, self._before, self._since = self._board.told_of(), self._since, {}
        for task_id in self._left[-_MOST_AT_ONCE:]:
            silent = list(self._silent(task_id, now))
            if silent and self._has_first():
                self._fold(task_id, silent)
        del self._left[-_MOST_AT_ONCE:]

    def _silent(self, task_id: str, now: float) -> Iterator[str]:
        """Names under which nothing was told for long."""
        for name, told in self._board.told(task_id):
            key = task_id, name, type(told)
            known = self._before.get(key)
            self._since[key] = since = known if known is not None and known[0] is told else (told, now)
            if now - since[1] >= (REFRESH_SECONDS if name == PAST else _GONE_SECONDS):
                yield name if isinstance(told, Usage) else f"{_PACE}{name}"

    def _fold(self, task_id: str, names: list[str]) -> None:
        past = self._board.past(task_id)
        for name in (each for each in names if each.startswith(_PACE)):
            self._send(task_id, name, None)
        if past.folded:
            if PAST not in names:
                return
            for name in past.folded:
                self._send(task_id, name, None)
        usages = ((name, self._board.usage(task_id, name)) for name in names if name != PAST)
        gone = dict(islice(((name, usage) for name, usage in usages if usage is not None), _MOST_FOLDED))
        if gone or past.folded:
            self._send(task_id, PAST, Past.of(past, gone).value())

    def _send(self, task_id: str, name: str, value: bytes | None) -> None:
        self._producer.send(self._topic, note_key(task_id, name), value)


# --- clock -----------------------------------------------------------------------------------------------
# The time by which tasks expire, and their budgets of time are spent (tasks.budgets): that of the broker.
#
# It is learnt from the time at which it stores a record of a topic that is dated by the
# server, and goes on from there with a clock that does not jump.

logger = logging.getLogger(__name__)

MOST_SECONDS = 10.0  # that a clock may differ without a word
_ANSWER_SECONDS = 5.0
_SURE_SECONDS = 1.0  # an answer that took longer says too little of the time
_KEY = b"clock"


class BrokerClock:
    """How far the clock of this machine is ahead of the broker's, as measured last."""

    every_seconds = 60.0

    def __init__(self, log: SeedLog, producer: Producer, topic: str) -> None:
        self.ahead_seconds = 0.0  # negative when it is behind
        self._log = log
        self._began = runtime.time() - runtime.monotonic()  # by the broker's time, as measured last
        self._producer = producer
        self._topic = topic
        self._has_topic = False
        self._away = Outage(
            logger,
            "The broker's time cannot be learnt, so that of this machine is taken for the expiry of tasks",
            "The broker's time is known",
        )

    def now(self) -> float:
        """The broker's time, as a Unix time."""
        return self._began + runtime.monotonic()

    def measure(self) -> None:
        """Blocks for some seconds at most. Says it when the clocks differ."""
        if not self._log.has_own_clock:
            self._began = runtime.time() - runtime.monotonic()
            return
        try:
            self._ask()
        except (SiteSpiderError, TimeoutError) as error:
            self._away.goes_on(str(error) or f"no answer within {_ANSWER_SECONDS:g} s")
            return
        self._away.is_over()
        if abs(self.ahead_seconds) > MOST_SECONDS:
            logger.warning(
                "The clock of this machine is %.0f s %s that of the broker at %s. "
                "Correct it (timedatectl, NTP). Tasks expire by the broker's.",
                abs(self.ahead_seconds),
                "ahead of" if self.ahead_seconds > 0 else "behind",
                self._log.address,
            )

    def _ask(self) -> None:
        if not self._has_topic:
            self._log.make_topic(self._topic, 1, compacted=True, dated=True)
            self._has_topic = True
        before = runtime.monotonic()
        place = self._producer.send(self._topic, _KEY, b"").result(_ANSWER_SECONDS)
        took = runtime.monotonic() - before
        if not place.written_ms:
            raise SiteSpiderError(
                f"topic {self._topic} is not dated by the server; set its message.timestamp.type=LogAppendTime"
            )
        if took <= _SURE_SECONDS:
            self._began = place.written_ms / 1000 - before - took / 2
            self.ahead_seconds = runtime.time() - self.now()
