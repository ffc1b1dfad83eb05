"""The declared tasks of which this process has seeds; tells the other processes what it did for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from scrapy.crawler import Crawler

from site_spider.contracts.seed_log import Headers, Message
from site_spider.engine.background import Background
from site_spider.engine.scrapy_parts import part_of
from site_spider.errors import SeedError
from site_spider.ledger.completion import Job, Root, SeedListener
from site_spider.ledger.ledger import Entry
from site_spider.seed.seed import Seed
from site_spider.tasks.board import Board, note_key
from site_spider.tasks.counts import prefix_of
from site_spider.tasks.rules import TaskRules
from site_spider.tasks.state import TaskState
from site_spider.tasks.usage import Usage

logger = logging.getLogger(__name__)

CANCELLED = "CancelledError: "  # begins the description of what was never fetched
_TELL_SECONDS = 1.0
_SOON_SECONDS = 0.03
_MOST_TOLD = 200  # tasks in one go
_IDLE_SECONDS = 2.0  # then claims are given back
_MOST_STATES = 5_000

Send = Callable[[bytes, bytes], "Future[Any]"]


def rules_of(crawler: Crawler, job: Job | None) -> TaskRules | None:
    """Those of the task of a job, if that is declared."""
    states = part_of(crawler, TaskStates)
    state = states.of(job.root.seed.task_id) if states and job is not None else None
    return None if state is None else state.rules


class TaskStates(SeedListener):
    """On the event loop's thread only. Of a task that was not declared it has nothing."""

    def __init__(self, board: Board, process: str, send: Send, background: Background) -> None:
        self.board = board
        self.process = process
        self._send = send
        self._guarded = background.guarded
        self.by_id: dict[str, TaskState] = {}  # to be read only
        self._declared = board.tasks
        self._dropped: dict[str, Usage] = {}  # of tasks that this process had
        self._of: dict[Entry, tuple[TaskState, str]] = {}  # with the prefix of its counts
        self._tell_at = 0.0
        self._soon: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.by_id)

    def __iter__(self) -> Iterator[TaskState]:
        return iter(list(self.by_id.values()))

    def of(self, task_id: str | None) -> TaskState | None:
        """The one of a task; None when it was not declared."""
        if task_id is None:
            return None
        state = self.by_id.get(task_id)
        if state is None and (task := self._declared.get(task_id)) is not None:
            state = self.by_id[task.task_id] = TaskState(task, self.process)
            if (told := self._dropped.pop(task.task_id, None)) is not None:
                state.resume(told)
            state.heard(self.board)
            state.look(self.board)
        return state

    def changed(self, task_ids: Collection[str]) -> set[str]:
        """Records have come; returns the tasks whose phase or rules are others now."""
        return {task_id for task_id in task_ids if self._has_changed(task_id)}

    def _has_changed(self, task_id: str) -> bool:
        task, state = self.board.task(task_id), self.by_id.get(task_id)
        if task is None:  # deleted, with all that was told: a later one of this name begins at nothing
            self._dropped.pop(task_id, None)
            return self.by_id.pop(task_id, None) is not None
        if state is None:
            is_stopped = self.board.phase(task_id).name != "running"
            return is_stopped and self.of(task_id) is not None
        is_other = task != state.task
        if is_other:
            state.declare(task)
        state.heard(self.board)
        return state.look(self.board) or is_other

    def look(self) -> None:
        """Tell the others; to be called now and then."""
        if self._loop.time() >= self._tell_at:
            self._tell_at = self._loop.time() + _TELL_SECONDS
            self._give_back_claims()
            self._tell()
            self._forget_idle()

    def tell_soon(self) -> None:
        """Something waits for the others to know."""
        if self._soon is None:
            self._soon = self._loop.call_later(_SOON_SECONDS, self._guarded(self._tell))

    def close(self) -> None:
        """Tell the rest."""
        if self._soon is not None:
            self._soon.cancel()
        self._give_back_claims(idle_seconds=0)
        self._tell()

    def _tell(self) -> None:
        self._soon = None
        news = [state for state in self.by_id.values() if state.is_news]
        for state in news[:_MOST_TOLD]:
            key = note_key(state.task.task_id, self.process)
            self._send(key, state.told().model_dump_json(exclude_defaults=True).encode())
        if len(news) > _MOST_TOLD:
            self.tell_soon()

    def _give_back_claims(self, idle_seconds: float = _IDLE_SECONDS) -> None:
        now = self._loop.time()
        for state in self.by_id.values():
            if state.open_seeds == 0 and now - state.idle_since >= idle_seconds:
                state.give_back()

    def _forget_idle(self) -> None:
        if len(self.by_id) > _MOST_STATES:
            for state in list(self.by_id.values()):
                if not (state.open_seeds or state.is_news):
                    self._drop(state)

    def _drop(self, state: TaskState) -> bool:
        """What is told of a task goes on where it was, if its seeds come again."""
        del self.by_id[state.task.task_id]
        self._dropped[state.task.task_id] = state.usage()
        return True

    # --- SeedListener -------------------------------------------------------------------------------

    def arrived(self, entry: Entry, message: Message, seed: Seed | SeedError) -> None:
        """As in SeedListener."""
        if self._declared and not isinstance(seed, SeedError) and seed.task_id is not None:
            self.adopt(entry, seed, message.headers)

    def adopt(self, entry: Entry, seed: Seed, headers: Headers = ()) -> None:
        """A seed is counted, if its task is declared; no matter if it was before."""
        state = self.of(seed.task_id)
        if state is not None and entry not in self._of:
            self._of[entry] = state, prefix_of(seed, headers)
            state.seed_came()

    def began(self, root: Root) -> None:
        """As in SeedListener."""
        if self._declared and root.seed.task_id is not None:
            self.adopt(root.seed_entry, root.seed, root.message.headers)

    def written(self, job: Job, document: Mapping[str, Any]) -> None:
        """As in SeedListener."""
        state = self.of(job.root.seed.task_id) if self._declared else None
        if state is None or str(document.get("description")).startswith(CANCELLED):
            return
        if state.count_page(document):
            self.tell_soon()

    def ended(self, entry: Entry) -> None:
        """As in SeedListener."""
        if self._of and (found := self._of.pop(entry, None)) is not None:
            state, prefix = found
            if entry.outcome is not None:
                state.count_ended(prefix + entry.outcome.value)
            state.seed_left(self._loop.time())

    def fenced(self, entry: Entry) -> None:
        """As in SeedListener."""
        if (found := self._of.pop(entry, None)) is not None:
            found[0].seed_left(self._loop.time())
