"""The parts of tasks that live as long as the crawl: opened, driven and closed together."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from scrapy import Request

from site_spider import meta_keys, runtime
from site_spider.contracts.seed_log import Message, MessagePlace, Partition, Producer, SeedLog
from site_spider.engine.background import Background, Turns
from site_spider.errors import LogUnavailable, SinkRejected, SiteSpiderError
from site_spider.frontier.scheduler import Queues
from site_spider.frontier.waiter import Waiter, WaitingLink, is_fenced, source_name
from site_spider.ledger import completion
from site_spider.ledger.completion import Job
from site_spider.ledger.ledger import SeedInFlight
from site_spider.outage import Outage
from site_spider.page.url import host_of
from site_spider.seed.seed import Seed
from site_spider.tasks.board import Board, TimeLimits
from site_spider.tasks.control import Control
from site_spider.tasks.control_log import Endings
from site_spider.tasks.ending import EndTold, Noticed, SeedCounts, TaskEnding
from site_spider.tasks.follower import BadRecords, Changed, Follower, TaskTopics
from site_spider.tasks.moving import Leaving, Parking, put_back
from site_spider.tasks.page_counts import BadPages, PageCounts, PageReading, PageTable
from site_spider.tasks.rates import GroupRates
from site_spider.tasks.record import TaskRules
from site_spider.tasks.states import TaskState, TaskStates

# --- gate ------------------------------------------------------------------------------------------------
# Lets begin what its task allows; everything else is parked, cancelled or filtered, in its order.
#
# Theory. What waits is looked at where it enters the frontier (`sort`), where its turn comes (`takes`), and
# all of it when the phase or the rules of its task change (`changed`). What is not to begin joins one line,
# which a task of the event loop works off; what a change finds in the frontier is older and goes first.


class TaskGate:
    """On the event loop's thread only."""

    def __init__(self, states: TaskStates, queues: Queues, leaving: Leaving, background: Background) -> None:
        self.states = states
        self._states_by_id = states.by_id
        self._queues = queues
        self._leaving = leaving
        self._background = background
        self._line: deque[Waiter] = deque()
        self._kept: dict[str, deque[Waiter]] = {}  # by task, until its claim of pages is read back
        self._sweeps: set[str] = set()  # tasks of which all that waits is to be looked at
        self._work: asyncio.Task[None] | None = None

    @property
    def is_needed(self) -> bool:
        """Whether there is a seed of a declared task here."""
        return bool(self._states_by_id)

    # --- what comes ---------------------------------------------------------------------------------

    def sort(self) -> None:
        """Take out of the seed queue what is not to begin."""
        if self._states_by_id and (taken := self._queues.seeds.remove(self._is_unwelcome)):
            self._line.extend(taken)
            self._work_soon()

    def takes(self, waiter: Waiter) -> bool:
        """Whether what was popped is not to begin here; it is this object's then."""
        if not self._states_by_id or (state := self.states.of(_task_id(waiter))) is None:
            return False
        if isinstance(waiter, Request) and meta_keys.STAYS in waiter.meta:
            return False
        if state.phase.name == "running":
            if state.may_begin or not _is_first_attempt(waiter):
                return False
            self._claim(state)
        if state.phase.name == "running":
            self._kept.setdefault(state.task.task_id, deque()).append(waiter)
        else:
            self._line.append(waiter)
            self._work_soon()
        return True

    def begins(self, request: Request, job: Job) -> None:
        """A request is given out."""
        if not self._states_by_id or (state := self.states.of(job.seed.task_id)) is None:
            return
        if not _is_first_attempt(request):
            return
        state.count_begun()
        if job.parent is None and job.seed.spilled is None:
            state.count_host(host_of(request.url))
        self._claim(state)

    def changed(self, task_ids: Collection[str]) -> None:
        """The phase or the rules of these tasks are others."""
        self._sweeps |= set(task_ids)
        self.heard()
        self._work_soon()

    def heard(self) -> None:
        """Claims were read back: so many may begin of what waits for one, or none."""
        for task_id, kept in list(self._kept.items()):
            state = self.states.of(task_id)
            is_bounded = state is not None and state.phase.name == "running" and not state.has_no_budget
            for _ in range(min(len(kept), state.left) if state is not None and is_bounded else len(kept)):
                self._line.append(kept.popleft())
            if not kept:
                del self._kept[task_id]
        if self._line:
            self._work_soon()

    def _claim(self, state: TaskState) -> None:
        """Of the budget of pages, in time; when it is spent, the task pauses at once."""
        if state.claim_more():
            self.states.tell_soon()
        if not state.may_begin and state.look(self.states.board):
            self.changed({state.task.task_id})

    def _is_unwelcome(self, waiting: SeedInFlight) -> bool:
        state = self.states.of(waiting.seed.task_id)
        return state is not None and (state.phase.name != "running" or not _takes_seed(state, waiting.seed))

    # --- what leaves ----------------------------------------------------------------------------------

    def _work_soon(self) -> None:
        if self._work is None or self._work.done():
            self._work = self._background.start(self._work_off(), "tasks")

    async def _work_off(self) -> None:
        turns = Turns.of_running_loop()
        while self._sweeps or self._line:
            if self._sweeps:
                await self._sweep(turns)
                continue
            self._deal(self._line.popleft())
            if not turns.has_time():
                await turns.time()
        self._queues.room.wake()

    async def _sweep(self, turns: Turns) -> None:
        swept, self._sweeps = self._sweeps, set()
        for found in self._queues.take_out(lambda waiter: self._has_to_leave(waiter, swept)):
            for waiter in found:
                self._deal(waiter)
                if not turns.has_time():
                    await turns.time()

    def _has_to_leave(self, waiter: Waiter, swept: Collection[str]) -> bool:
        task_id = _task_id(waiter)
        if task_id not in swept or (state := self.states.of(task_id)) is None:
            return False
        if isinstance(waiter, Request) and meta_keys.STAYS in waiter.meta:
            return False
        return state.phase.name != "running" or not _is_allowed(state, waiter)

    def _deal(self, waiter: Waiter) -> None:
        if is_fenced(waiter):
            self._queues.room.drop(waiter)
            return
        task_id = _task_id(waiter)
        state = self.states.of(task_id)
        if isinstance(waiter, SeedInFlight):
            self.states.adopt(waiter, waiter.seed, waiter.message.headers)
        if state is None:
            self._queues.room.put_back(waiter)
        elif state.phase.name == "paused":
            self._leaving.park(waiter, state)
        elif state.phase.is_over:
            self._leaving.cancel(waiter, state)
        elif not _is_allowed(state, waiter):
            self._leaving.filter(waiter, state)
        else:
            self._queues.room.put_back(waiter)


def _task_id(waiter: Waiter) -> str | None:
    if isinstance(waiter, SeedInFlight):
        return waiter.seed.task_id
    job = waiter.parent if isinstance(waiter, WaitingLink) else completion.job_of(waiter)
    return None if job is None else job.seed.task_id


def _is_first_attempt(waiter: Waiter) -> bool:
    if isinstance(waiter, SeedInFlight):
        return waiter.seed.spilled is None or waiter.seed.spilled.is_link
    if isinstance(waiter, WaitingLink):
        return True
    return not (waiter.meta.get("retry_times") or waiter.meta.get("redirect_times"))


def _is_allowed(state: TaskState, waiter: Waiter) -> bool:
    if isinstance(waiter, SeedInFlight):
        return _takes_seed(state, waiter.seed)
    if isinstance(waiter, WaitingLink):
        return state.rules.takes_link(waiter.url, waiter.depth)
    job = completion.job_of(waiter)
    if job is None or job.parent is None or not _is_first_attempt(waiter):
        return True  # it has begun
    return takes_request(state.rules, waiter, job)


def takes_request(rules: TaskRules, request: Request, job: Job) -> bool:
    """Whether the rules of a task take the request of a link."""
    return rules.takes_link(request.url, job.depth, partial(request.meta.get, meta_keys.SITEMAP))


def _takes_seed(state: TaskState, seed: Seed) -> bool:
    """A link that another process sent on is a link still; an attempt that goes on has begun."""
    if seed.spilled is None:
        return state.rules.takes_seed(seed.url)
    return not seed.spilled.is_link or state.rules.takes_link(
        seed.url, seed.depth, lambda: seed.extra.get("sitemap")
    )


# --- return watch ----------------------------------------------------------------------------------------
# Puts parked messages back where no command does: their task has expired, or the command was killed.
#
# The same where the end of a task waits for the parked topic although nothing of it waits there: who closed
# the task saw a message that its process had parked, and not yet that the process sent it on.


logger = logging.getLogger(__name__)

_QUIET_SECONDS = 10.0  # without news of a task: a command that puts back tells of it
_MOST_AT_ONCE = 1_000  # tasks


class ReturnWatch:
    """In the process that has the first partition of the seed topic. On the event loop's thread."""

    def __init__(
        self,
        log: SeedLog,
        topics: TaskTopics,
        board: Board,
        partitions: Callable[[], Collection[Partition]],
        endings: Endings,
        background: Background,
    ) -> None:
        self._log = log
        self._topics = topics
        self._board = board
        self._partitions = partitions  # that this process has
        self._endings = endings
        self._look_at = 0.0
        self._background = background
        self._news: dict[str, float] = {}  # when something was heard of a task that has parked messages
        self._work: asyncio.Task[None] | None = None

    def heard(self, task_ids: Collection[str]) -> None:
        """Records of these tasks have come."""
        now = asyncio.get_running_loop().time()
        for task_id in task_ids:
            if self._board.has_parked(task_id):
                self._news[task_id] = now
            else:
                self._news.pop(task_id, None)

    def look(self) -> None:
        """To be called now and then."""
        now = asyncio.get_running_loop().time()
        if now >= self._look_at:
            self._look_at = now + _QUIET_SECONDS
            for task_id in self._endings.waiting_for(self._topics.parked):
                self._news.setdefault(task_id, now)
        if not self._news or (self._work is not None and not self._work.done()):
            return
        if Partition(self._topics.seeds, 0) not in self._partitions():
            return
        before = now - _QUIET_SECONDS
        quiet = (task_id for task_id, heard in self._news.items() if heard < before)
        due = [task_id for task_id in quiet if self._board.phase(task_id).name != "paused"]
        if due:
            self._work = self._background.start(self._put_back(due[:_MOST_AT_ONCE]), "parked messages")

    async def _put_back(self, task_ids: Collection[str]) -> None:
        said = "task " + ", ".join(list(task_ids)[:3]) + (", ..." if len(task_ids) > 3 else "")
        try:
            count = await asyncio.to_thread(put_back, self._log, self._topics, task_ids)
        except SiteSpiderError as error:
            logger.warning("Parked messages of %s cannot be put back now: %s", said, error)
        else:
            logger.info("Put back %d parked messages of %s", count, said)
        self.heard(task_ids)


class Tasks:
    """On the event loop's thread, but for `open` and `close`, which block."""

    def __init__(
        self,
        states: TaskStates,
        parking: Parking,
        gate: TaskGate,
        watch: ReturnWatch,
        limits: TimeLimits,
        rates: GroupRates,
        looks: Sequence[Callable[[], None]],
        follower: Callable[[Changed], Follower],
    ) -> None:
        self._states = states
        self._parking = parking
        self._gate = gate
        self._watch = watch
        self._limits = limits
        self._rates = rates
        self._looks = looks  # of others, to be called now and then
        self._follower = follower(self._heard)

    def open(self, timeout_seconds: float) -> None:
        """Read what was declared before. Raises LogUnavailable."""
        self._follower.open(timeout_seconds)
        self._limits.open()

    def start(self) -> None:
        """Follow what is declared from now on."""
        self._watch.heard([task.task_id for task in self._states.board])
        self._follower.start()

    def look(self) -> None:
        """To be called now and then."""
        self._states.look()
        self._limits.look()
        self._watch.look()
        self._rates.look(asyncio.get_running_loop().time())
        for look in self._looks:
            look()

    def tell(self) -> None:
        """Tell the other processes the rest."""
        self._rates.close()
        self._states.close()

    def close(self) -> None:
        """Follow no more."""
        self._follower.close()

    def _heard(self, task_ids: Collection[str]) -> None:
        changed = self._states.changed(task_ids)
        self._parking.changed(task_ids)
        self._watch.heard(task_ids)
        if changed:
            self._gate.changed(changed)
        self._gate.heard()


def process_name() -> str:
    """Of this process among all that write to the task topic."""
    return f"{socket.gethostname()}-{os.getpid()}-{runtime.token_hex(4)}"


# --- teller ----------------------------------------------------------------------------------------------
# Tells the end of tasks: one record to the topic of events for each generation.
#
# The process that has the first partition of the seed topic does it. The end is written to the control log
# first, with the text of the event: the first one of a generation counts. Whoever has the first partition
# then sends the event and notes that. A crash in between sends the same bytes once more; `task_id` and
# `generation` name an event.
#
# Before that the pages of the task are counted: a thread reads what is new in the page log, once for all
# tasks that end meanwhile. All pages are in it, because no seed is complete before its pages are. If the
# control log says more of the task when the pages are counted, they are counted again.


_PAUSE_SECONDS = 0.5  # while pages cannot be counted
_TRAP = "trap "  # begins what the reasons say of links that were not followed


class Teller:
    """On the event loop's thread only."""

    def __init__(
        self,
        log: SeedLog,
        producer: Producer,
        topics: TaskTopics,
        control: Control,
        board: Board,
        has_first: Callable[[], bool],
        background: Background,
        bad: BadRecords,
    ) -> None:
        self._log = log
        self._producer = producer
        self._topics = topics
        self._control = control
        self._board = board
        self._has_first = has_first  # the first partition of the seed topic
        self._background = background
        self._busy: set[str] = set()  # tasks of which something is on its way
        self._over: set[str] = set()  # of these, those whose pages are to be counted
        self._is_counting = False
        self._table: PageTable | None = None  # once something has ended here
        self._bad = bad  # records of the page log
        self._away = Outage(logger, "The pages of tasks cannot be counted, trying again", "They are counted")
        self._has_topic = False
        self._loop = asyncio.get_running_loop()

    def look(self) -> None:
        """To be called now and then."""
        unfinished = self._control.endings.unfinished
        if self._over and not self._is_counting:
            self._is_counting = True
            self._background.start(self._tell_all(), "counting pages")
        if not self._has_first():
            self._forget_pages()
            return
        silent: dict[str, EndTold] = {}
        over: set[str] = set()
        for task_id in unfinished - self._busy:
            if (ending := self._control.get(task_id)) is None:
                continue
            if ending.ended is not None and ending.noticed < ending.ended.generation:
                silent[task_id] = ending.ended
            elif ending.is_over and not ending.is_told:
                over.add(task_id)
        self._busy |= over | silent.keys()
        if over:
            self._control.when_read(lambda: self._over.update(over))
        if silent:
            self._background.start(self._send_all(silent), "task events")

    def close(self) -> None:
        """Release what pages were read with. Blocks for a moment."""
        if self._table is not None:
            self._table.close()

    def _forget_pages(self) -> None:
        if self._table is not None and not self._is_counting:
            table, self._table = self._table, None
            self._background.start(asyncio.to_thread(table.close), "closing the table of pages")

    async def _tell_all(self) -> None:
        """The log is read to its end, where the rule holds."""
        over, self._over = self._over, set()
        ends = {task_id: ending for task_id in over if (ending := self._is_over(task_id)) is not None}
        read_to = {task_id: ending.read_to for task_id, ending in ends.items()}
        self._busy -= over - ends.keys()
        if self._table is None:
            self._table = PageTable(self._log, self._topics.pages)
        told = self._control.endings.pages_told()
        try:
            reading = await asyncio.to_thread(self._table.read, tuple(ends), told, self._skipped)
        except LogUnavailable as error:
            self._away.goes_on(error)
            await asyncio.sleep(_PAUSE_SECONDS)
            self._busy -= over
            return
        finally:
            self._is_counting = False
        self._away.is_over()
        turns = Turns.of_running_loop()
        for task_id, ending in ends.items():
            if not turns.has_time():
                await turns.time()
            if ending.read_to == read_to[task_id] and self._is_over(task_id) is ending:
                with self._control.guarded(task_id):
                    self._tell(task_id, ending, reading)
            else:
                self._busy.discard(task_id)
        for key in reading.stale:
            with suppress(SiteSpiderError):  # the next owner finds them again
                self._producer.send(self._topics.pages, key, None)

    def _is_over(self, task_id: str) -> TaskEnding | None:
        ending = self._control.get(task_id)
        return ending if ending is not None and ending.is_over and not ending.is_told else None

    def _skipped(self, message: Message, error: BadPages) -> None:
        self._bad.skip(message, str(error))

    def _tell(self, task_id: str, ending: TaskEnding, reading: PageReading) -> None:
        pages = pages_before(ending).plus(reading.counts[task_id])
        traps = {f"{_TRAP}{pattern}": count for pattern, count in self._board.traps(task_id).items()}
        kept = {name: count for name, count in pages.reasons.items() if not name.startswith(_TRAP)}
        pages = pages._replace(reasons={**kept, **traps})  # of all generations
        event = event_of(task_id, ending, self._board.end_of(task_id), pages)
        ended = EndTold(ending.generation, ending.read_to, event, reading.end, pages.came_back)
        self._control.write(task_id, ended, lambda _: self._when_settled(task_id))

    def _when_settled(self, task_id: str) -> None:
        """What was written is read back before the next look at the task."""
        self._control.when_read(lambda: self._busy.discard(task_id))

    async def _send_all(self, silent: Mapping[str, EndTold]) -> None:
        try:
            if not self._has_topic:
                await asyncio.to_thread(self._log.make_topic, self._topics.events, 1, compacted=False)
                self._has_topic = True
        except LogUnavailable as error:
            logger.warning("The end of tasks cannot be told now, trying again: %s", error)
            self._busy -= silent.keys()
            return
        turns = Turns.of_running_loop()
        sent: dict[str, Future[MessagePlace]] = {}
        for task_id, ended in silent.items():
            if not turns.has_time():
                await turns.time()
            with self._control.guarded(task_id):
                value = json.dumps(ended.event, ensure_ascii=False, separators=(",", ":")).encode()
                sent[task_id] = self._producer.send(self._topics.events, task_id.encode(), value)
        for task_id, future in sent.items():
            await self._when_sent(task_id, silent[task_id], future)

    async def _when_sent(self, task_id: str, ended: EndTold, future: Future[MessagePlace]) -> None:
        try:
            await asyncio.wrap_future(future)
        except SinkRejected as error:
            self._control.set_aside(task_id, error)
            return
        except LogUnavailable as error:
            logger.warning("The end of task %s cannot be told now, trying again: %s", task_id, error)
            self._busy.discard(task_id)
            return
        logger.info(
            "Task %s has ended (%s, generation %d)", task_id, ended.event.get("event"), ended.generation
        )
        if (ending := self._control.get(task_id)) is not None:
            self._control.take_back(task_id, ending.carried_words(ended.upto))
        self._control.write(task_id, Noticed(ended.generation), lambda _: self._when_settled(task_id))


def pages_before(ending: TaskEnding) -> PageCounts:
    """What was told of the generations before."""
    event = {} if ending.ended is None else ending.ended.event
    numbers = [int(event.get(name) or 0) for name in ("pages", "failures", "bytes")]
    came_back = {} if ending.ended is None else ending.ended.came_back
    return PageCounts(numbers[0], numbers[1], numbers[2], dict(event.get("reasons") or {}), came_back)


def event_of(task_id: str, ending: TaskEnding, kind: str, pages: PageCounts) -> dict[str, Any]:
    """What is told of the end of a task: the counts of all its generations."""
    counts = ending.counts()
    return {
        "task_id": task_id,
        "generation": ending.generation,
        "event": kind,
        "first_at": _time(counts.first_ms),
        "last_at": _time(counts.last_ms),
        **SeedCounts.of(counts.seeds, pages.came_back).fields(),
        "partial": ending.is_partial,
        "pages": pages.pages,
        "failures": pages.failures,
        "bytes": pages.size_bytes,
        "reasons": dict(pages.reasons),
    }


def _time(milliseconds: int) -> str | None:
    if not milliseconds:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


# --- sourced ---------------------------------------------------------------------------------------------
# The source of a task, for seeds that name none.


def with_source(seed: Seed, board: Board) -> Seed:
    """The seed, with the source of its task where it names none itself. Any thread may ask."""
    if not board.tasks:
        return seed
    task = board.task(seed.task_id)
    if task is None or task.source is None or source_name(seed) is not None:
        return seed
    return replace(seed, task_source=task.source)
