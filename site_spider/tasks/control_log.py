"""The records of the control log of tasks, as bytes.

The topic has one partition, so all records of a task are in one order. A key names the task and the kind;
that of a tally the partition and the writer, that of a producer's word the producer. What a later record
carries on is taken back by a tombstone with the header `TAKEN_BACK`; without it all of the task is deleted.
So the number of keys is that of partitions, whatever number of processes have written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, TypeAdapter

from site_spider.contracts.seed_log import Message, Partition, SeedLog
from site_spider.errors import ConfigError, SiteSpiderError
from site_spider.ledger.metadata import ascending_to_text
from site_spider.seed.fields import MAX_ID_BYTES, read_object
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.ending import (
    ALL_PRODUCERS,
    Attempts,
    EndTold,
    Fact,
    Line,
    Moved,
    Noticed,
    Number,
    Numbers,
    Place,
    Producing,
    TakenBack,
    Tally,
    TaskEnding,
    Uncounted,
)
from site_spider.tasks.follower import TopicView

MOST_TASKS = 100_000
_MOST_LOOKED_AT = 1_000
_SEPARATOR = "\x1f"
_MOST_PARTITIONS = 5_000
_MOST_OFFSETS = 1_000_000  # of all tasks, as seeds in flight are: some 70 MB
TAKEN_BACK = "taken_back"  # a header
# of each kind, as keys name it: what it is read as, and who says it of what, which the key names, too
_KINDS: Mapping[str, tuple[type[Fact], tuple[str, ...]]] = {
    "producing": (Producing, ("producer",)),
    "producer": (Producing, ("producer",)),
    "tally": (Tally, ("partition", "writer")),
    "moved": (Moved, ()),
    "uncounted": (Uncounted, ()),
    "ended": (EndTold, ()),
    "noticed": (Noticed, ()),
    "attempts": (Attempts, ()),
}
_PLACES: TypeAdapter[Partition] = TypeAdapter(Place)
_OF_FACTS: Mapping[type[Fact], tuple[str, tuple[str, ...]]] = {
    fact: (kind, owner) for kind, (fact, owner) in _KINDS.items()
}
_BEFORE = ("high", "passed")  # kinds of releases before: of messages that were spilled or put back


class BadRecord(SiteSpiderError):
    """A record of the control log that this version did not write."""


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    """Of its facts, made when it is needed: most crawls need none, and to make all takes a hundredth of a start."""
    return TypeAdapter(_KINDS[kind][0])


def _moment(text: str) -> str:
    datetime.fromisoformat(text)
    return text


class _Event(BaseModel, defer_build=True):
    """What is told of an end: sent on and shown as it is, so all of it is looked at."""

    task_id: str
    generation: Number
    event: Literal["done", "cancelled", "expired"]
    pages: Number = 0
    failures: Number = 0
    bytes: Number = 0
    seeds: Numbers = {}
    moved: Numbers = {}
    reasons: Numbers = {}
    first_at: Annotated[Line, AfterValidator(_moment)] | None = None
    last_at: Annotated[Line, AfterValidator(_moment)] | None = None


def written(task_id: str, fact: Fact) -> tuple[bytes, bytes | None, tuple[tuple[str, bytes], ...]]:
    """Key, value and headers of the record for a fact about a task; one that was taken back has no value."""
    said: Any = None
    if isinstance(fact, TakenBack):
        part = fact.partition
        kind, owner = ("tally", (f"{part.topic}/{part.number}", fact.name)) if part else ("producer", (fact.name,))
    else:
        kind, names = _OF_FACTS[type(fact)]
        said = _adapter(kind).dump_python(fact, mode="json", by_alias=True)
        owner = tuple(said.pop(name) for name in names)
    if isinstance(fact, Tally):
        said["holes"] = ascending_to_text(sorted(fact.holes), fact.passed)
    elif isinstance(fact, Producing | TakenBack) and fact.is_open and owner[0] != ALL_PRODUCERS:
        kind = "producing"
    key = _SEPARATOR.join((task_id, kind, *owner)).encode()
    value = said and json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    return key, value, ((TAKEN_BACK, b""),) if isinstance(fact, TakenBack) else ()


def read(message: Message) -> tuple[str, Fact | None]:
    """The task's id and the fact of a record; None: the task is deleted. Raises BadRecord, whatever the record is."""
    try:
        task_id, kind, *owner = (message.key or b"").decode().split(_SEPARATOR)
        named = dict(zip(_KINDS["tally" if kind in _BEFORE else kind][1], owner, strict=True))
        fact: Fact | None = None
        if message.value is None and any(name == TAKEN_BACK for name, _ in message.headers):
            fact = _gone(kind, **named)
        elif message.value is not None or message.headers:
            fact = _fact(kind, named, read_object(message.value))
        if isinstance(fact, EndTold):
            _look_at(fact, task_id)
    except SiteSpiderError as error:
        raise BadRecord(f"it is no record of a task: {error}") from None
    except Exception as error:  # noqa: BLE001 - the one place where a record is taken apart
        raise BadRecord(f"it is no record of a task: {error!r:.300}") from None
    if not task_id or len(task_id.encode()) > MAX_ID_BYTES:
        raise BadRecord("its key names no task")
    return task_id, fact


def _look_at(end: EndTold, task_id: str) -> None:
    """The event stays as it was written: whoever sends it once more sends the same bytes."""
    event = _Event.model_validate(end.event)
    if (event.task_id, event.generation) != (task_id, end.generation):
        raise BadRecord("its event is that of another task or generation")


def _gone(kind: str, producer: str = "", partition: str = "", writer: str = "") -> TakenBack:
    if kind == "tally":
        return TakenBack(writer, _PLACES.validate_python(partition))
    if kind not in ("producing", "producer"):
        raise ValueError(f"{kind!r:.40} is not taken back")
    return TakenBack(producer, None, kind == "producing")


def _fact(kind: str, named: dict[str, str], said: dict[str, Any]) -> Fact:
    if kind in _BEFORE:
        if said.get("uncounted"):
            kind, said = "uncounted", {"seeds": said["uncounted"]}
        else:
            highs = {named["partition"]: said["position"]}
            kind, said = "moved", {"passed" if kind == "passed" else "highs": highs}
    fact: Fact = _adapter(kind).validate_python({**said, **named})
    return fact


class Endings:
    """What the log says of all tasks."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only  # the task that is asked for
        self._endings: dict[str, TaskEnding] = {}
        self._ended: dict[str, None] = {}  # whose end was told, the one that was told first at the head
        self._aside: set[str] = set()
        self._offsets = 0
        # whose records are gone, and up to where each partition was passed by then; who asks takes them out
        self.deleted: dict[str, dict[Partition, int]] = {}
        self.told: set[str] = set()  # of whose end there is news; the same
        self.unfinished: set[str] = set()  # closed, and the end was not told or its event is not out

    def get(self, task_id: str) -> TaskEnding | None:
        return self._endings.get(task_id)

    def __len__(self) -> int:
        return len(self._endings)

    def have_seeds(self) -> bool:
        """Whether seeds of a task are on their way, of those named last."""
        return any(self._endings[task_id].has_seeds for task_id in islice(reversed(self._endings), _MOST_LOOKED_AT))

    def __iter__(self) -> Iterator[str]:
        return iter(self._endings)

    def ended(self) -> Iterator[str]:
        """Tasks whose end was told, the first one first."""
        return iter(list(self._ended))

    def pages_told(self) -> dict[str, int]:
        """Of each task that has ended: below what offset the page log is told."""
        ended = ((task_id, ending.ended) for task_id, ending in self._endings.items())
        return {task_id: end.pages_upto for task_id, end in ended if end is not None}

    def take(self, message: Message) -> str:
        """The next record; returns its task's id. Raises BadRecord."""
        task_id, fact = read(message)
        if fact is None:
            return self._forget(task_id)
        if self._only not in (None, task_id) or task_id in self._aside:
            return task_id
        ending = self._endings.get(task_id)
        if ending is None:
            if isinstance(fact, TakenBack):
                return task_id
            if len(self._endings) >= MOST_TASKS:  # tasks.end_events deletes those that have ended long before
                raise BadRecord(f"there are {MOST_TASKS} tasks already")
            ending = self._endings[task_id] = TaskEnding()
        before = _offsets_of(ending)
        ending.read(message.offset, fact)
        self._offsets += _offsets_of(ending) - before
        while self._offsets > _MOST_OFFSETS:
            self.set_aside(heaviest := max(self._endings, key=lambda each: _offsets_of(self._endings[each])))
            if heaviest == task_id:
                raise BadRecord(f"{_MOST_OFFSETS} offsets are known of all tasks, most of task {task_id}: set aside")
        if len(ending.highs) > _MOST_PARTITIONS:
            self.set_aside(task_id)
            raise BadRecord(f"task {task_id} has seeds in more than {_MOST_PARTITIONS} partitions: set aside")
        self._note(task_id, ending)
        return task_id

    def _forget(self, task_id: str) -> str:
        ending = self._endings.get(task_id) or TaskEnding()
        self.deleted.setdefault(task_id, {partition: ending.passed(partition) for partition in ending.highs})
        self._drop(task_id)
        return task_id

    def _drop(self, task_id: str) -> None:
        self._offsets -= _offsets_of(self._endings.pop(task_id, None))
        self._ended.pop(task_id, None)
        self.told.discard(task_id)
        self.unfinished.discard(task_id)

    def waiting_for(self, topic: str) -> list[str]:
        """Tasks that are closed, and whose end waits for positions of this topic."""
        return [task_id for task_id in self.unfinished if self._endings[task_id].is_waiting_for(topic)]

    def set_aside(self, task_id: str) -> None:
        """From now on it is a task that the log does not name."""
        self._aside.add(task_id)
        self._drop(task_id)

    def is_aside(self, task_id: str) -> bool:
        return task_id in self._aside

    def _note(self, task_id: str, ending: TaskEnding) -> None:
        is_told = ending.is_told and ending.noticed >= ending.generation
        is_silent = ending.ended is not None and ending.noticed < ending.ended.generation
        if ending.ended is not None and not is_silent:
            self.told.add(task_id)
        if is_silent or (ending.is_closed and not is_told):
            self.unfinished.add(task_id)
        else:
            self.unfinished.discard(task_id)
        self._ended.pop(task_id, None)
        if is_told:
            self._ended[task_id] = None


def _offsets_of(ending: TaskEnding | None) -> int:
    tallies = () if ending is None else ending.tallies.values()
    return sum(len(tally.holes) + len(tally.left) for tally in tallies)


def make_ordered(log: SeedLog, topics: CrawlTopics, topic: str) -> None:
    """Make a topic of tasks, unless it is there. Raises ConfigError, LogUnavailable."""
    log.make_topic(topic, 1, compacted=True)
    partitions = log.partitions(topic)
    if partitions > 1:  # 0: the server that was asked has not heard of it yet
        raise ConfigError(
            f"Topic {topic} has {partitions} partitions, but must have one, so that all processes see its "
            f"records in one order. SITE_TASK_TOPIC is {topics.tasks!r}: name another topic."
        )


def read_endings(log: SeedLog, topics: CrawlTopics, only: str | None = None) -> Endings:
    """What the control log says at this moment, of all tasks or one. Raises LogUnavailable."""
    endings = Endings(only)
    with closing(TopicView(log, topics.control, endings.take)) as view:
        view.read_on()
    return endings
