"""What of a task may begin; everything else is parked, cancelled or filtered, in its order.

Theory. What waits is looked at where it enters the frontier (`sort`), where its turn comes (`takes`), and
all of it when the phase or the rules of its task change (`changed`). What is not to begin joins one line,
which a task of the event loop works off; what a change finds in the frontier is older and goes first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from functools import partial

from scrapy import Request

from site_spider import meta_keys
from site_spider.engine.background import Background, Turns
from site_spider.frontier.scheduler import Queues
from site_spider.frontier.waiter import Waiter, WaitingLink, is_fenced, seed_entry, source_name
from site_spider.ledger.completion import ATTEMPTS, Job, job_of
from site_spider.ledger.ledger import SeedInFlight
from site_spider.page.url import host_of
from site_spider.seed.seed import Seed
from site_spider.tasks.board import Board
from site_spider.tasks.budgets import TaskState, TaskStates
from site_spider.tasks.declaration import TaskRules
from site_spider.tasks.parking import Leaving


class TaskAdmission:
    """On the event loop's thread only."""

    def __init__(self, states: TaskStates, queues: Queues, leaving: Leaving, background: Background) -> None:
        self.states = states
        self.tasks = states.by_id
        self._queues = queues
        self._leaving = leaving
        self._background = background
        self._line: deque[Waiter] = deque()
        self._kept: dict[str, deque[Waiter]] = {}  # by task, until its claim of pages is read back
        self._sweeps: set[str] = set()  # tasks of which all that waits is to be looked at
        self._work: asyncio.Task[None] | None = None

    # --- what comes ---------------------------------------------------------------------------------

    def sort(self) -> None:
        """Take out of the seed queue what is not to begin."""
        if taken := self._queues.seeds.remove(self._is_unwelcome):
            self._line.extend(taken)
            self._work_soon()

    def takes(self, waiter: Waiter) -> bool:
        """Whether what was popped is not to begin here; it is this object's then."""
        if (state := self.states.of(_task_id(waiter))) is None:
            return False
        if isinstance(waiter, Request) and waiter.meta.get(meta_keys.STAYS):
            return False
        if state.phase.name == "running":
            if state.left > 0 or not _is_counted(waiter):
                return False
            self._claim(state)
        if state.phase.name == "running":
            self._kept.setdefault(state.task.task_id, deque()).append(waiter)
        else:
            self._line.append(waiter)
            self._work_soon()
        return True

    def begins(self, request: Request, job: Job) -> None:
        if (state := self.states.of(job.seed.task_id)) is None:
            return
        if not _is_counted(request):
            return
        state.count("begun")
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
            is_running = state is not None and state.phase.name == "running"
            for _ in range(min(len(kept), state.left) if state is not None and is_running else len(kept)):
                self._line.append(kept.popleft())
            if not kept:
                del self._kept[task_id]
        if self._line:
            self._work_soon()

    def _claim(self, state: TaskState) -> None:
        """Of the budget of pages, in time; when it is spent, the task pauses at once."""
        if state.claim_more():
            self.states.tell_soon()
        if state.left <= 0 and state.look(self.states.board):
            self.changed({state.task.task_id})

    def _is_unwelcome(self, waiting: SeedInFlight) -> bool:
        state = self.states.of(waiting.seed.task_id)
        return state is not None and (state.phase.name != "running" or not state.rules.takes(waiting.seed))

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
        if isinstance(waiter, Request) and waiter.meta.get(meta_keys.STAYS):
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
            self._queues.room.put(waiter)
        elif state.phase.name == "paused":
            self._leaving.park(waiter, state)
        elif state.phase.is_over:
            self._leaving.cancel(waiter, state)
        elif not _is_allowed(state, waiter):
            self._leaving.filter(waiter, state)
        else:
            self._queues.room.put(waiter)


def _task_id(waiter: Waiter) -> str | None:
    entry = seed_entry(waiter)
    return None if entry is None else entry.seed.task_id


def _is_first_attempt(waiter: Waiter) -> bool:
    if isinstance(waiter, SeedInFlight):
        return waiter.seed.spilled is None or waiter.seed.spilled.is_link
    if isinstance(waiter, WaitingLink):
        return True
    return not any(map(waiter.meta.get, ATTEMPTS))


def _is_counted(waiter: Waiter) -> bool:
    """Whether it spends the budget of pages."""
    return _is_first_attempt(waiter) and not asks_robots(waiter)


def asks_robots(waiter: Waiter) -> bool:
    """Whether it fetches a robots.txt for its sitemaps, for the first time or as it was spilled."""
    if isinstance(waiter, WaitingLink):
        return False
    listed = None if isinstance(waiter, SeedInFlight) else waiter.meta.get(meta_keys.SITEMAP)
    if listed is None:
        job = job_of(waiter) if isinstance(waiter, Request) else None
        seed = waiter.seed if isinstance(waiter, SeedInFlight) else job.seed if job and job.parent is None else None
        is_spilled = seed is not None and seed.spilled is not None and b'"robots"' in seed.extra_json
        listed = seed.extra.get("sitemap") if seed is not None and is_spilled else None
    return isinstance(listed, dict) and listed.get("robots") is True


def _is_allowed(state: TaskState, waiter: Waiter) -> bool:
    if isinstance(waiter, SeedInFlight):
        return state.rules.takes(waiter.seed)
    if isinstance(waiter, WaitingLink):
        return state.rules.takes_link(waiter.url, waiter.depth)
    job = job_of(waiter)
    if job is None or job.parent is None or not _is_first_attempt(waiter):
        return True  # it has begun
    return takes_request(state.rules, waiter, job)


def takes_request(rules: TaskRules, request: Request, job: Job) -> bool:
    """Whether the rules of a task take the request of a link."""
    return rules.takes_link(request.url, job.depth, partial(request.meta.get, meta_keys.SITEMAP))


def with_source(seed: Seed, board: Board) -> Seed:
    """The seed, with the source of its task where it names none itself. Any thread may ask."""
    task = board.task(seed.task_id)
    if task is None or task.source is None or source_name(seed) is not None:
        return seed
    return replace(seed, task_source=task.source)
