"""The records of the control log of tasks, as bytes.

The topic has one partition, so all records of a task are in one order. A key names the task, the kind, the
partition and the writer, so compaction keeps the last word of each writer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from site_spider.contracts.seed_log import Message, Partition
from site_spider.errors import SiteSpiderError
from site_spider.ledger.varints import ascending_from_text, ascending_to_text
from site_spider.tasks.counts import Counts
from site_spider.tasks.ending import (
    UNKNOWN,
    Attempts,
    EndTold,
    Fact,
    High,
    Noticed,
    Passed,
    Producing,
    Tally,
    TaskEnding,
    WebhookAttempt,
)

MAX_RECORD_BYTES = 1_000_000
MOST_TASKS = 100_000
_MOST_LOOKED_AT = 1_000
_SEPARATOR = "\x1f"
_LARGEST = 2**62


class BadRecord(SiteSpiderError):
    """A record of the control log that this version did not write."""


class Written(NamedTuple):
    """A record of the log."""

    key: bytes
    value: bytes


def written(task_id: str, fact: Fact) -> Written:
    """The record for a fact about a task."""
    kind, owner, fields = _told(fact)
    key = _SEPARATOR.join((task_id, kind, *owner)).encode()
    return Written(key, json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())


def _told(fact: Fact) -> tuple[str, tuple[str, ...], dict[str, Any]]:  # noqa: PLR0911 - a kind each
    if isinstance(fact, Producing):
        said = {"open": fact.is_open, "closes": fact.closes, "highs": _highs(fact.highs)}
        said |= {"messages": fact.messages} if fact.messages else {}
        return "producer", (fact.producer,), said
    if isinstance(fact, High):
        uncounted = {"uncounted": fact.uncounted} if fact.uncounted else {}
        return "high", (_text(fact.partition), fact.writer), {"position": fact.position, **uncounted}
    if isinstance(fact, Passed):
        return "passed", (_text(fact.partition), fact.writer), {"position": fact.position}
    if isinstance(fact, Tally):
        said = {
            "version": fact.version,
            "passed": fact.passed,
            "top": fact.top,
            "holes": ascending_to_text(sorted(fact.holes), fact.passed),
            "counts": fact.counts.fields(),
        }
        return "tally", (_text(fact.partition), fact.writer), said
    if isinstance(fact, EndTold):
        ended = {"generation": fact.generation, "upto": fact.upto, "pages_upto": fact.pages_upto}
        return "ended", (), {**ended, "highs": _highs(fact.highs), "event": dict(fact.event)}
    if isinstance(fact, Attempts):
        return "attempts", (), {"generation": fact.generation, "made": [list(each) for each in fact.made]}
    return "noticed", (), {"generation": fact.generation}


def read(message: Message) -> tuple[str, Fact]:
    """The task's id and the fact of a record. Raises BadRecord."""
    try:
        task_id, kind, *owner = (message.key or b"").decode().split(_SEPARATOR)
        if message.value is None or len(message.value) > MAX_RECORD_BYTES:
            raise BadRecord(f"the value is missing, or has more than {MAX_RECORD_BYTES} bytes")
        fact = _READERS[kind](owner, json.loads(message.value))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise BadRecord(f"it is no record of a task: {error!r}") from None
    if not task_id:
        raise BadRecord("its key names no task")
    return task_id, fact


_OWNERS = {"producer": 1, "high": 2, "tally": 2, "passed": 2, "ended": 0, "noticed": 0, "attempts": 0}


def _deleted(key: bytes) -> str:
    """The task of a record that is taken back. Raises BadRecord."""
    try:
        task_id, kind, *owner = key.decode().split(_SEPARATOR)
    except ValueError as error:
        raise BadRecord(f"it is no record of a task: {error!r}") from None
    if not task_id or _OWNERS.get(kind) != len(owner):
        raise BadRecord("it takes back what is no record of a task")
    return task_id


def _producing(owner: list[str], said: Any) -> Producing:
    found = said.get("messages", 0)
    messages = UNKNOWN if found == UNKNOWN else _number(found)
    return Producing(owner[0], bool(said["open"]), bool(said["closes"]), _read_highs(said["highs"]), messages)


def _high(owner: list[str], said: Any) -> High:
    uncounted = _number(said.get("uncounted", 0))
    return High(_partition(owner[0]), owner[1], _number(said["position"]), uncounted)


def _passed(owner: list[str], said: Any) -> Passed:
    return Passed(_partition(owner[0]), owner[1], _number(said["position"]))


def _tally(owner: list[str], said: Any) -> Tally:
    passed = _number(said["passed"])
    return Tally(
        _partition(owner[0]),
        owner[1],
        _number(said["version"]),
        passed,
        _number(said["top"]),
        frozenset(ascending_from_text(said["holes"], passed)),
        Counts.read(said["counts"]),
    )


def _ended(_owner: list[str], said: Any) -> EndTold:
    event = {str(name): value for name, value in said["event"].items()}
    numbers = [_number(said[name]) for name in ("generation", "upto", "pages_upto")]
    return EndTold(numbers[0], numbers[1], _read_highs(said["highs"]), event, numbers[2])


def _noticed(_owner: list[str], said: Any) -> Noticed:
    return Noticed(_number(said["generation"]))


def _attempts(_owner: list[str], said: Any) -> Attempts:
    made = tuple(
        WebhookAttempt(_number(at_ms), _number(status), str(error)) for at_ms, status, error in said["made"]
    )
    return Attempts(_number(said["generation"]), made)


_READERS: Mapping[str, Callable[[list[str], Any], Fact]] = {
    "producer": _producing, "high": _high, "tally": _tally, "passed": _passed,
    "ended": _ended, "noticed": _noticed, "attempts": _attempts,
}  # fmt: skip


def _number(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r:.40} is no count")
    return value


def _text(partition: Partition) -> str:
    return f"{partition.topic}/{partition.number}"


def _partition(text: str) -> Partition:
    topic, _, number = text.rpartition("/")
    return Partition(topic, _number(int(number)))


def _highs(highs: Mapping[Partition, int]) -> dict[str, int]:
    return {_text(partition): position for partition, position in highs.items()}


def _read_highs(said: Any) -> dict[Partition, int]:
    return {_partition(text): _number(position) for text, position in said.items()}


class Endings:
    """What the log says of all tasks."""

    def __init__(self) -> None:
        self._endings: dict[str, TaskEnding] = {}
        self.unfinished: set[str] = set()  # closed, and the end was not told or its event is not out

    def get(self, task_id: str) -> TaskEnding | None:
        """None for a task that the log does not name."""
        return self._endings.get(task_id)

    def __len__(self) -> int:
        return len(self._endings)

    def have_seeds(self) -> bool:
        """Whether seeds of a task are on their way, of those named last."""
        return any(
            self._endings[task_id].has_seeds for task_id in islice(reversed(self._endings), _MOST_LOOKED_AT)
        )

    def __iter__(self) -> Iterator[str]:
        """The ids of all tasks that the log names."""
        return iter(self._endings)

    def pages_told(self) -> dict[str, int]:
        """Of each task that has ended: below what offset the page log is told."""
        ended = ((task_id, ending.ended) for task_id, ending in self._endings.items())
        return {task_id: end.pages_upto for task_id, end in ended if end is not None}

    def take(self, message: Message) -> str:
        """The next record; returns its task's id. Raises BadRecord."""
        if message.value is None:
            return self._forget(message)
        task_id, fact = read(message)
        ending = self._endings.get(task_id)
        if ending is None:
            if len(self._endings) >= MOST_TASKS:
                raise BadRecord(f"there are {MOST_TASKS} tasks already")
            ending = self._endings[task_id] = TaskEnding()
        ending.read(message.offset, fact)
        self._note(task_id, ending)
        return task_id

    def _forget(self, message: Message) -> str:
        """Somebody deletes all records of a task."""
        task_id = _deleted(message.key or b"")
        self._endings.pop(task_id, None)
        self.unfinished.discard(task_id)
        return task_id

    def take_all(self, messages: Iterable[Message]) -> list[tuple[Message, BadRecord]]:
        """One after the other; returns those that cannot be read."""
        bad = []
        for message in messages:
            try:
                self.take(message)
            except BadRecord as error:
                bad.append((message, error))
        return bad

    def _note(self, task_id: str, ending: TaskEnding) -> None:
        is_told = ending.is_told and ending.noticed >= ending.generation
        is_silent = ending.ended is not None and ending.noticed < ending.ended.generation
        if is_silent or (ending.is_closed and not is_told):
            self.unfinished.add(task_id)
        else:
            self.unfinished.discard(task_id)
