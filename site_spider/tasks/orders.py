"""Reads and writes the task topic for a person: for commands, without a crawl."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

from site_spider import runtime
from site_spider.contracts.seed_log import MessagePlace, Producer, SeedLog
from site_spider.errors import SeedError, TopicMissing
from site_spider.seed.fields import optional_identifier
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.board import (
    CANCELLED,
    MOST_TASKS,
    RETURNED,
    SEPARATOR,
    VERSION_HEADER,
    Board,
    BrokerClock,
    Cancelled,
    note_key,
)
from site_spider.tasks.closing import TaskProducer
from site_spider.tasks.control_log import Endings, make_ordered, read_endings
from site_spider.tasks.declaration import BadTask, Phase, Returned, Task, changed, usual_task
from site_spider.tasks.ending import SeedCounts, TaskEnding
from site_spider.tasks.follower import read_board

# --- put back --------------------------------------------------------------------------------------------
# Says of dead letters that are put back, and of pages that are checked again, which tasks go on with them.
#
# Of a task whose end was told they begin the next generation. It is closed again when all of them are in
# the topic, if it was closed before.


class PutBackTasks:
    """Of one run of the command. Blocks."""

    def __init__(self, log: SeedLog, producer: Producer, topics: CrawlTopics) -> None:
        self._log, self._producer, self._topics = log, producer, topics
        self._endings = read_endings(log, topics)
        self._going: dict[str, TaskProducer] = {}

    def takes_seeds(self, task_id: str) -> bool:
        """Not if it was cancelled or has expired, told or not yet: its seeds would be cancelled as well."""
        ending = self._endings.get(task_id)
        ended = ending.ended if ending is not None and ending.is_told else None
        if ended is not None:
            return bool(ended.event["event"] == "done")
        task = self._board.task(task_id)
        is_late = task is not None and task.expires_at is not None and task.expires_at <= runtime.now(UTC)
        return not (is_late or self._board.phase(task_id).is_over)

    @cached_property
    def _board(self) -> Board:
        return read_board(self._log, self._topics.tasks)

    def before(self, topic: str, value: bytes | None) -> str | None:
        """A message is about to be sent; its task, if that is known."""
        task_id = _task_of(value) if topic in self._topics.tiers else None
        if task_id is None or self._endings.get(task_id) is None:
            return None
        if task_id not in self._going:
            self._going[task_id] = TaskProducer(self._log, self._producer, self._topics, task_id)
            self._going[task_id].begin()
        return task_id

    def sent(self, task_id: str | None, place: MessagePlace) -> None:
        if task_id is not None:
            self._going[task_id].sent(place)

    def end(self) -> None:
        for producer in self._going.values():
            producer.end(closes=None)  # others may have begun and ended a generation meanwhile
        self._going.clear()


def _task_of(value: bytes | None) -> str | None:
    """What the message says, whether it is a valid seed or not."""
    try:
        document = json.loads(value or b"")
        in_meta = (document.get("meta") or {}).get("task_id")
        return optional_identifier("task_id", document.get("task_id") if in_meta is None else in_meta)
    except (ValueError, TypeError, AttributeError, RecursionError, SeedError):
        return None


# --- overview --------------------------------------------------------------------------------------------
# What is known of each task: the one place that lists, shows, waits, events and the console have it from.
#
# Before the end a task is as the task topic says, and its seeds are those that the control log has counted.
# Once the end of a generation is told, state and numbers are those of its event, up to a new generation.

BUDGETS = ("page_budget", "byte_budget", "time_budget")
_ENDS = ("done", "cancelled", "expired")


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task at a moment; programs are told of it in this order."""

    task_id: str
    declared: Task | None
    state: str  # running, paused, cancelled, expired; done, cancelled or expired once its end was told
    reason: str  # by command, or the budget that is spent
    is_closed: bool  # no more seeds are produced
    is_ended: bool  # the end of its generation was told
    generation: int
    seeds: Mapping[str, int]  # those that producers sent and that have ended, by outcome
    moved: Mapping[str, int]  # messages: spilled, returned, links
    is_partial: bool  # seeds that were done before the task was known are not in these numbers
    pages: int
    bytes: int
    pages_begun: int
    parked: int  # messages
    links_filtered: int
    traps: Mapping[str, int]  # links that were not followed, by the pattern of their URLs
    links_cancelled: int

    @property
    def is_over(self) -> bool:
        """Whether nothing of it begins any more: it has ended, or will as cancelled or expired."""
        return self.is_ended or self.state in _ENDS

    @property
    def weight(self) -> float:
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
        task = (self.declared or usual_task(self.task_id)).model_dump(mode="json")
        facts = {one.name.removeprefix("is_"): getattr(self, one.name) for one in fields(self)}
        return {**task, **facts, **self.numbers(), "traps": dict(self.traps), "declared": self.declared is not None}


class TaskOverview:
    """Of what was read of the task topic and of the control log; it copies nothing."""

    def __init__(self, board: Board, endings: Endings) -> None:
        self._board = board
        self._endings = endings

    def __iter__(self) -> Iterator[TaskFacts]:
        """All tasks that somebody declared, closed or began to produce, by name."""
        return (self.of(task_id) for task_id in sorted({*self._board.tasks, *self._endings}))

    def knows(self, task_id: str) -> bool:
        return task_id in self._board.tasks or self._endings.get(task_id) is not None

    def untold(self) -> Iterator[str]:
        """Tasks with an end that a process is about to tell."""
        return (facts.task_id for facts in self if self.is_untold(facts))

    def is_untold(self, facts: TaskFacts) -> bool:
        """Whether its end is about to be told: as an event, or for the first time to the webhook."""
        task, ending = facts.declared, self._endings.get(facts.task_id)
        if ending is not None and (ended := ending.ended) is not None:
            has_webhook = task is not None and task.webhook is not None
            if ending.noticed < ended.generation or (has_webhook and not ending.made):
                return True
        return (facts.is_closed or facts.is_over) and not facts.is_ended and facts.state != "paused"

    def of(self, task_id: str) -> TaskFacts:
        """One task; of one that nobody knows there is nothing."""
        board, ending = self._board, self._endings.get(task_id) or TaskEnding()
        used, phase = board.used(task_id), self._phase(task_id, ending)
        counts, is_partial = ending.counts(), ending.is_partial
        pages, size_bytes = max(used.pages, counts.pages), max(used.bytes, counts.size_bytes)
        seeds = SeedCounts.of(counts.seeds if ending.tallies else used.seeds)
        if (ended := ending.ended) is not None and ending.is_told:
            event = ended.event  # which was looked at when it was read
            phase, is_partial = Phase(event["event"]), event.get("partial") is True
            pages, size_bytes = event.get("pages", 0), event.get("bytes", 0)
            of_seeds = {name: count for name, count in event.get("seeds", {}).items() if name != "total"}
            seeds = SeedCounts(of_seeds, event.get("moved", {}))
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
            traps=max(used.traps, counts.traps, key=lambda traps: sum(traps.values())),  # as pages are
            links_cancelled=used.links_cancelled,
            declared=board.task(task_id),
        )

    def _phase(self, task_id: str, ending: TaskEnding) -> Phase:
        """A closed task that has just begun its last page is about to end, and waits for no budget."""
        phase = self._board.phase(task_id)
        is_ending = phase.reason in BUDGETS and ending.is_closed and not self._board.has_parked(task_id)
        return Phase("running") if is_ending else phase


_MOST_TRIES = 20


def _as_it_is(task: Task | None) -> Task:
    if task is None:
        raise BadTask("it was deleted meanwhile, and stays so")
    return task


class TaskDesk:
    """With all that the topic says at the moment in which it was opened. Raises LogUnavailable."""

    def __init__(self, log: SeedLog, topics: CrawlTopics) -> None:
        self.log = log
        self.topics = topics
        self.board = Board()
        self.read()

    def read(self) -> None:
        self.board = read_board(self.log, self.topics.tasks)

    def overview(self) -> TaskOverview:
        """What is known of each task, by the task topic as it was read and the control log of now."""
        return TaskOverview(self.board, read_endings(self.log, self.topics))

    def now(self) -> datetime:
        """By the clock of the broker."""
        with closing(self.log.producer()) as producer:
            clock = BrokerClock(self.log, producer, self.topics.clock)
            clock.measure()
        return datetime.fromtimestamp(clock.now(), UTC)

    def order(self, task_id: str, change: Callable[[Task | None], Task]) -> Task:
        """Change what is declared. It is repeated on what others have written meanwhile, so nothing is lost.

        Raises BadTask when others are always quicker, and what `change` raises.
        """
        for attempt in range(_MOST_TRIES):
            before = self.board.task(task_id)
            try:
                task = change(before)
            except BadTask:
                if attempt and before is not None:  # or compaction would keep our void record alone, which counts then
                    with suppress(BadTask):
                        self.order(task_id, _as_it_is)
                raise
            if before is None and len(self.board) >= MOST_TASKS:  # no process takes one more
                raise BadTask(f"{task_id!r} is not declared: there are {MOST_TASKS} tasks already; delete some")
            if before is None and not self._pass_parked(task_id):
                continue
            offset = self.write(task, self.board.version(task_id) + 1)
            self.read()
            if offset not in self.board.void:
                return task
        raise BadTask(f"{task_id!r} is being changed by others all the time; try again")

    def _pass_parked(self, task_id: str) -> bool:
        """What is parked under its name is that of a task that was deleted; False if others have declared it.

        What they had parked since is not passed: the ends are of a moment at which nobody had.
        """
        if self.board.was_parked(task_id):
            return True
        parts = self.log.progress(self.topics.parked, None) if self.log.partitions(self.topics.parked) else ()
        if ends := {str(part.partition.number): part.end for part in parts if part.end}:
            self.read()
            if self.board.task(task_id) is not None:
                return False
            note = Returned(offsets=ends, topic_id=self.log.topic_id(self.topics.parked))
            with closing(self.log.producer()) as producer:
                producer.send(self.topics.tasks, note_key(task_id, RETURNED), note.value()).result()
        return True

    def write(self, task: Task, version: int = 0) -> int:
        """Write a record; without a version over whatever is there. Durable when it returns; its offset."""
        make_ordered(self.log, self.topics, self.topics.tasks)
        self.log.make_topic(self.topics.parked, self.log.partitions(self.topics.seeds), compacted=False)
        headers = [(VERSION_HEADER, str(version).encode())] if version else []
        with closing(self.log.producer()) as producer:
            sent = producer.send(self.topics.tasks, task.task_id.encode(), task.value(), headers)
            if task.state == "cancelled":
                value = Cancelled(started_at=task.started_at).value()
                producer.send(self.topics.tasks, note_key(task.task_id, CANCELLED), value).result()
            return sent.result().offset

    def forget(self, task_id: str) -> None:
        with closing(self.log.producer()) as producer:
            forget_tasks(self.log, producer, self.topics, [task_id])

    def make_known(self, task_id: str) -> None:
        """From now on its seeds are counted. It is a new generation, if it has ended."""
        with closing(self.log.producer()) as producer:
            declaring = TaskProducer(self.log, producer, self.topics, task_id)
            declaring.begin()
            declaring.end(closes=False)

    def put_back(self, task_id: str) -> int:
        """Put the parked messages of a task back; how many. To be called when its new state is written."""
        from site_spider.tasks.returning import put_back  # noqa: PLC0415 - it imports what a crawl needs

        count = put_back(self.log, self.topics, [task_id])
        self.read()
        return count


def forget_tasks(log: SeedLog, producer: Producer, topics: CrawlTopics, task_ids: Collection[str]) -> None:
    """Delete all records of tasks. Blocks. Raises LogUnavailable."""
    wanted = {task_id.encode() for task_id in task_ids}
    for topic in (topics.tasks, topics.pages, topics.control):
        for sent in [producer.send(topic, key, None) for key in _keys(log, topic, wanted)]:
            sent.result()


def _keys(log: SeedLog, topic: str, task_ids: Collection[bytes]) -> list[bytes]:
    found: dict[bytes, bool] = {}  # whether it has a value
    try:
        for message in log.read(topic):
            if message.key is not None and message.key.partition(SEPARATOR.encode())[0] in task_ids:
                found[message.key] = message.value is not None
    except TopicMissing:
        return []
    return [key for key, has_value in found.items() if has_value]


# --- orders ----------------------------------------------------------------------------------------------
# What people order of a task: for the commands and the console, in the same words.


class Ordered(NamedTuple):
    """What became of an order, in one sentence; `returned` counts parked messages that were put back."""

    said: str
    returned: int = 0
    task: Task | None = None  # as it was changed


def not_known(task_id: str, hint: str = "") -> BadTask:
    """What is said of a task of which there is no record."""
    return BadTask(
        f"{task_id!r} is not known: it was never declared, closed, or produced with --task-id. "
        f"scrapy task list names those that were{hint}"
    )


class TaskOrders:
    """About one task. Every method blocks, and raises BadTask, ConfigError and LogUnavailable.

    `may_be_new`: the order also goes for a task that nobody knows yet.
    """

    def __init__(self, desk: TaskDesk, task_id: str, *, may_be_new: bool = False) -> None:
        self._desk = desk
        self._task_id = task_id
        self._may_be_new = may_be_new

    def known(self, *, may_be_new: bool = True) -> TaskFacts:
        overview = self._desk.overview()
        if not overview.knows(self._task_id) and not (may_be_new and self._may_be_new):
            hint = "; with --new the order also goes for a task that comes later" if may_be_new else ""
            raise not_known(self._task_id, hint)
        return overview.of(self._task_id)

    def pause(self) -> Ordered:
        self._put("paused")
        return Ordered(f"task {self._task_id} is paused")

    def resume(self) -> Ordered:
        self._put("running")
        back = self._desk.put_back(self._task_id)
        phase = self._desk.board.phase(self._task_id)
        but = f", but {phase.name}: {phase.reason}" if phase.name == "paused" else ""
        said = f"task {self._task_id} is resumed, {back} parked messages put back{but}"
        return Ordered(said, back)

    def cancel(self) -> Ordered:
        self._put("cancelled")
        back = self._desk.put_back(self._task_id)
        said = f"task {self._task_id} is cancelled, {back} parked messages put back"
        return Ordered(said, back)

    def close(self, *, again: bool = False) -> Ordered:
        """No more seeds of it are produced; `again`: of a task that has ended, for seeds produced since."""
        desk, task_id, facts = self._desk, self._task_id, self.known()
        if facts.is_ended and not again:
            said = f"task {task_id} has ended already ({facts.state}); --again begins its next generation"
            return Ordered(said)
        with closing(desk.log.producer()) as producer:
            TaskProducer(desk.log, producer, desk.topics, task_id).close_for_all()
        return Ordered(f"task {task_id} is closed: its end comes when all its seeds are complete")

    def change(self, words: Sequence[str]) -> Ordered:
        """Fields, each as NAME=VALUE."""
        change = self.changing(words)
        change(self._desk.board.task(self._task_id))  # refuses what cannot be used before anything else
        if any(word.partition("=")[0] != "webhook" for word in words):  # that may be sent once more
            self._not_ended()
        else:
            self.known()
        task = self._desk.order(self._task_id, change)
        is_paused = self._desk.board.phase(self._task_id).name == "paused"  # all of it would be parked again
        back = 0 if is_paused else self._desk.put_back(self._task_id)
        said = f"task {self._task_id} is changed, {back} parked messages put back"
        return Ordered(said, back, task)

    def changing(self, words: Sequence[str]) -> Callable[[Task | None], Task]:
        """What `change` does to a task that is declared, or is not. Raises BadTask."""
        if not words:
            raise BadTask("set needs a change, such as weight=2")
        is_limit = any(word.startswith("expires=") for word in words)
        now = self._desk.now() if is_limit else runtime.now(UTC)
        return lambda before: changed(before or usual_task(self._task_id), words, now)

    def _not_ended(self) -> None:
        facts = self.known()
        if facts.is_ended:
            raise BadTask(
                f"{self._task_id!r} has ended ({facts.state}), and nothing changes that; more seeds of it, "
                "or scrapy task start, begin its next generation"
            )

    def _put(self, state: str) -> None:
        self._not_ended()

        def change(task: Task | None) -> Task:
            if task is not None and task.state == "cancelled" != state:
                raise BadTask(f"{self._task_id!r} is cancelled; declare it anew with: scrapy task start")
            return (task or usual_task(self._task_id)).model_copy(update={"state": state})

        self._desk.order(self._task_id, change)
