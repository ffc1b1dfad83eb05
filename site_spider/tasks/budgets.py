"""What this process may begin of each declared task: budgets, shared by claims and told to others; limits of time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from math import inf
from typing import Any

from site_spider.contracts.seed_log import Headers, Message, MessagePlace, Producer
from site_spider.engine.background import Background
from site_spider.errors import LogUnavailable, SeedError
from site_spider.ledger.completion import Job, SeedListener
from site_spider.ledger.ledger import SeedInFlight
from site_spider.page.url import UrlForm
from site_spider.seed.seed import Seed
from site_spider.tasks.board import REFRESH_SECONDS, TIMES, Board, BrokerClock, note_key
from site_spider.tasks.declaration import MOST, NOTHING, RUNNING, Phase, Task, TaskRules, TaskTimes, Usage, phase_of
from site_spider.tasks.ending import prefix_of
from site_spider.tasks.page_log import is_answered

# --- state -----------------------------------------------------------------------------------------------
# One declared task in this process: its rules, its phase, and what was counted for it here.
#
# A budget of pages is shared by processes in blocks that each claims before it begins a page. A process tells
# how many pages it claims, as a running total, and begins no more than that. A claim counts when it was read
# back from the task topic, whose order is the same for all: what others had claimed before it is known by
# then. Claims that go beyond the budget together are lowered by the process that raised its own last. So no
# more pages begin than the budget says, however many processes there are and whenever they claim. What a
# process that died had claimed and not begun is lost: two blocks at most.

_BLOCKS, _LARGEST_BLOCK = 20, 500  # of a budget, and pages
_MOST_HOSTS_TOLD = 1_000
_MOST_TRAPS = 20


class TaskState:
    """Changed on the event loop's thread only."""

    def __init__(self, task: Task, process: str) -> None:
        self.rules = TaskRules(task)
        self.phase: Phase = RUNNING
        self.open_seeds = 0
        self.idle_since = 0.0
        self.counts: Counter[str] = Counter()  # numbers of Usage, by name
        self.seeds: Counter[str] = Counter()
        self.traps: Counter[str] = Counter()
        self.is_news = False  # that the others were not told
        self.claim = 0  # as told last
        self.process = process  # the name under which it is told
        self.told_at = 0.0  # at a time of the event loop
        self._hosts: Counter[str] = Counter()
        self._hosts_told: Mapping[str, int] = {}  # of this process, as read back
        self._hosts_of_all: Mapping[str, int] = {}  # as read: it changes
        self._claimed = 0  # of it, what was read back
        self._claimed_by_others = 0

    @property
    def task(self) -> Task:
        return self.rules.task

    def is_told(self, board: Board) -> bool:
        """Whether all of it was told, and what waits for that has read it back."""
        told = board.usage(self.task.task_id, self.process) or NOTHING
        return not self.is_news and told.parked >= self.counts["parked"]

    def heard(self, board: Board) -> None:
        """Processes have told what they did, this one included."""
        task_id, budget = self.task.task_id, self.task.max_pages
        mine = board.usage(task_id, self.process) or NOTHING
        self._claimed = mine.claimed
        self._claimed_by_others = board.used(task_id).claimed - mine.claimed
        if self.task.max_pages_host is not None:
            self._hosts_told, self._hosts_of_all = mine.hosts, board.hosts(task_id)
        if budget is not None and board.last_claimer(task_id) == self.process and self._claimed == self.claim:
            self._lower(budget)

    def look(self, board: Board) -> bool:
        """Find out its phase; True when that has changed."""
        before, task_id = self.phase, self.task.task_id
        self.phase = phase_of(self.task, board.used(task_id), board.times(task_id), self.left)
        return self.phase != before

    @property
    def left(self) -> int:
        """How many pages may begin."""
        budget, begun = self.task.max_pages, self.counts["begun"]
        if budget is None:
            return MOST
        return max(0, min(self._claimed, budget - self._claimed_by_others) - begun)

    def claim_more(self) -> bool:
        """Claim the next pages; True when there is something to tell at once."""
        budget, begun = self.task.max_pages, self.counts["begun"]
        if budget is None or self.claim - begun > (block := max(1, min(_LARGEST_BLOCK, budget // _BLOCKS))):
            return False
        return self._claim(max(self.claim, begun, min(begun + 2 * block, budget - self._claimed_by_others)))

    def give_back(self, *, at_the_end: bool = False) -> None:
        """Nothing of it is here: others may have what was claimed.

        But when all of the budget is claimed, only what is beyond it, before the process ends: others have
        parked their seeds by then, all of which would come back for these few pages, again and again.
        """
        budget = self.task.max_pages
        if at_the_end or budget is None or self._claimed + self._claimed_by_others < budget:
            self._claim(min(self.claim, self.counts["begun"]))
        else:
            self._lower(budget)

    def _lower(self, budget: int) -> None:
        """To what others leave, but not below what has begun."""
        left = max(self.counts["begun"], budget - self._claimed_by_others)
        self._claim(min(self.claim, left))

    def _claim(self, pages: int) -> bool:
        is_other = pages != self.claim
        self.claim, self.is_news = pages, self.is_news or is_other
        return is_other

    def has_room_on(self, host: str) -> bool:
        most = self.task.max_pages_host
        of_others = self._hosts_of_all.get(host, 0) - self._hosts_told.get(host, 0)
        return most is None or self._hosts[host] + of_others < most

    def count_host(self, host: str) -> None:
        if self.task.max_pages_host is not None:
            self._hosts[host] += 1
            self.is_news = True

    def count(self, name: str, number: int = 1) -> int:
        self.is_news = True
        self.counts[name] += number
        return self.counts[name]

    def count_page(self, document: Mapping[str, Any]) -> bool:
        """A document is written; True when the budget of bytes is spent here alone."""
        self.count("pages", is_answered(document))  # as the event of its end counts them
        size_bytes = self.count("bytes", document.get("response_size") or 0)
        return self.task.max_bytes is not None and size_bytes >= self.task.max_bytes

    def count_filtered_link(self, trap: str | None = None) -> None:
        """By a rule, the budget of its host, or as it leads into a trap."""
        self.count("links_filtered")
        if trap is not None:
            self.traps[trap if trap in self.traps or len(self.traps) < _MOST_TRAPS else "other"] += 1

    def told(self) -> Usage:
        """What the others are to know; they are being told."""
        self.is_news = False
        half = (self.task.max_pages_host or 0) // 2
        hosts = {host: count for host, count in self._hosts.most_common(_MOST_HOSTS_TOLD) if count >= half}
        return Usage(claimed=self.claim, seeds=self.seeds, traps=self.traps, hosts=hosts, **self.counts)


CANCELLED = "CancelledError: "  # begins the description of what was never fetched
_SOON_SECONDS = 0.03
_MOST_TOLD = 200  # tasks in one go
_IDLE_SECONDS = 2.0  # then claims are given back
_MOST_STATES = 5_000


class TaskStates(SeedListener):
    """On the event loop's thread only. Of a task that was not declared it has nothing."""

    every_seconds = 1.0

    def __init__(
        self, board: Board, process: str, send: Callable[[bytes, bytes], object], background: Background
    ) -> None:
        self.board = board
        self.process = process
        self._send = send
        self._guarded = background.guarded
        self.by_id: dict[str, TaskState] = {}  # to be read only
        self._declared = board.tasks
        self._born = 0  # states
        self._of: dict[SeedInFlight, tuple[TaskState, str]] = {}  # with the prefix of its counts
        self._soon: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    def __bool__(self) -> bool:
        return bool(self.by_id)

    def of(self, task_id: str | None) -> TaskState | None:
        if task_id is None:
            return None
        state = self.by_id.get(task_id)
        if state is None and (task := self._declared.get(task_id)) is not None:
            self._born += 1
            state = self.by_id[task.task_id] = TaskState(task, f"{self.process}.{self._born}")
            state.told_at = self._loop.time()
            state.heard(self.board)
            state.look(self.board)
        return state

    def form_of(self, task_id: str | None, usual: UrlForm | None) -> UrlForm | None:
        """What links of a task are compared as."""
        state = self.of(task_id) if self._declared else None
        return usual if state is None or state.task.drop_params is None else state.rules.form

    def changed(self, task_ids: Collection[str]) -> set[str]:
        """Records have come; returns the tasks whose phase or rules are others now."""
        return {task_id for task_id in task_ids if self._has_changed(task_id)}

    def _has_changed(self, task_id: str) -> bool:
        task, state = self.board.task(task_id), self.by_id.get(task_id)
        if task is None:  # deleted, with all that was told: a later one of this name begins at nothing
            return self.by_id.pop(task_id, None) is not None
        if state is None:
            is_stopped = self.board.phase(task_id).name != "running"
            return is_stopped and self.of(task_id) is not None
        is_other = task != state.task
        if is_other:
            state.rules = TaskRules(task)
        state.heard(self.board)
        return state.look(self.board) or is_other

    def look(self) -> None:
        """Tell the others; to be called now and then, as `every_seconds` says."""
        self._give_back_claims()
        before = self._loop.time() - REFRESH_SECONDS
        for state in self.by_id.values():  # what nobody tells of for long is that of a process that is gone
            state.is_news = state.is_news or (state.told_at < before and state.open_seeds > 0)
        self._tell()
        self._forget_idle()

    def tell_soon(self) -> None:
        """Something waits for the others to know."""
        if self._soon is None:
            self._soon = self._loop.call_later(_SOON_SECONDS, self._guarded(self._tell))

    def close(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
        self._give_back_claims(at_the_end=True)
        self._tell(len(self.by_id))

    def _tell(self, most: int = _MOST_TOLD) -> None:
        self._soon = None
        news = [state for state in self.by_id.values() if state.is_news]
        for state in news[:most]:
            key, state.told_at = note_key(state.task.task_id, state.process), self._loop.time()
            self._send(key, state.told().value())
        if len(news) > most:
            self.tell_soon()

    def _give_back_claims(self, *, at_the_end: bool = False) -> None:
        before = self._loop.time() - _IDLE_SECONDS
        for state in self.by_id.values():
            if state.open_seeds == 0 and (at_the_end or state.idle_since <= before):
                state.give_back(at_the_end=at_the_end)

    def _forget_idle(self) -> None:
        """What was told of it stays; if its seeds come again, they are told under another name."""
        before = self._loop.time() - (0.0 if len(self.by_id) > _MOST_STATES else REFRESH_SECONDS)
        for state in list(self.by_id.values()):
            is_idle = not state.open_seeds and max(state.told_at, state.idle_since) <= before
            if is_idle and state.is_told(self.board):
                del self.by_id[state.task.task_id]

    # --- SeedListener -------------------------------------------------------------------------------

    def arrived(self, entry: SeedInFlight, message: Message, seed: Seed | SeedError) -> None:
        if self._declared and not isinstance(seed, SeedError):
            self.adopt(entry, seed, message.headers)

    def adopt(self, entry: SeedInFlight, seed: Seed, headers: Headers = ()) -> None:
        """A seed is counted, if its task is declared; no matter if it was before."""
        state = self.of(seed.task_id)
        if state is not None and entry not in self._of:
            self._of[entry] = state, prefix_of(seed, headers)
            state.open_seeds += 1

    def began(self, job: Job) -> None:
        if self._declared:
            self.adopt(job.entry, job.seed, job.entry.message.headers)

    def written(self, job: Job, document: Mapping[str, Any]) -> None:
        state = self.of(job.seed.task_id) if self._declared else None
        if state is None or str(document.get("description")).startswith(CANCELLED):
            return
        if state.count_page(document):
            self.tell_soon()

    def ended(self, entry: SeedInFlight) -> None:
        if self._of and (found := self._left(entry)) is not None and entry.outcome is not None:
            state, prefix = found
            state.seeds[prefix + entry.outcome.value] += 1
            state.is_news = True

    def fenced(self, entry: SeedInFlight) -> None:
        self._left(entry)

    def _left(self, entry: SeedInFlight) -> tuple[TaskState, str] | None:
        if (found := self._of.pop(entry, None)) is not None:
            state = found[0]
            state.open_seeds, state.idle_since = state.open_seeds - 1, self._loop.time()
        return found


# --- limits of time: when tasks expire, and their budgets of time are spent -------------------------------
# Theory of operation. Clocks of machines differ. So no process compares a limit with its own clock: the
# owner of the first partition of the seed topic does, by the broker's time, and writes what has passed as
# one record of the task topic (TaskTimes). Every process follows that record, which is as true for
# whoever reads it later. A process that starts judges once before it polls seeds, because there may be no
# owner yet.

_ANSWER_SECONDS = 5.0
_MOST_JUDGED = 2_000  # tasks, in one look: many may expire at the same moment


@dataclass
class TimeLimits:
    """Writes which limits of time have passed. On the event loop's thread, but for `open`, which blocks.

    A task is judged when its next moment is due, so tasks without a limit, or long before it, cost nothing.
    """

    every_seconds = 1.0

    _clock: BrokerClock
    _board: Board
    _topic: str
    _producer: Producer
    _has_first: Callable[[], bool]  # the first partition of the seed topic

    def __post_init__(self) -> None:
        self._due: dict[str, float] = {}  # of tasks with a limit to come: Unix times by the broker's clock
        self._first_due = inf  # nothing before it
        self._sent: dict[str, Future[MessagePlace]] = {}

    def open(self) -> None:
        """Judge what has expired before any seed is polled. Raises LogUnavailable."""
        self._clock.measure()
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        for task in self._board:
            times = passed(task, self._board.times(task.task_id), now, has_begun=False)
            if times.expired != self._board.times(task.task_id).expired:
                try:
                    place = self._send(task, times).result(_ANSWER_SECONDS)
                except TimeoutError:
                    raise LogUnavailable(f"the seed log does not answer within {_ANSWER_SECONDS:.0f} s") from None
                self._board.take(Message(place.partition, place.offset, *_record(task, times)))
            self._plan(task.task_id)

    def heard(self, task_ids: Collection[str]) -> None:
        for task_id in task_ids:
            self._plan(task_id)

    def look(self) -> None:
        now = self._clock.now()
        if now < self._first_due or not self._has_first():
            return
        due = (task_id for task_id, due in self._due.items() if due <= now)
        for task_id in list(islice(due, _MOST_JUDGED)):
            del self._due[task_id]  # from now on it stands behind the others
            self._judge(task_id, now)
            self._plan(task_id, now + self.every_seconds)
        self._first_due = min(self._due.values(), default=inf)

    def _plan(self, task_id: str, earliest: float = 0.0) -> None:
        """When there is news of a task, if nothing else comes."""
        task, has_begun = self._board.task(task_id), self._board.used(task_id).begun > 0
        coming = _coming(task, self._board.times(task_id).of(task), has_begun=has_begun) if task else ()
        if (due := min((moment for moment, *_ in coming), default=None)) is None:
            self._due.pop(task_id, None)
            self._sent.pop(task_id, None)
        else:
            self._due[task_id] = max(due, earliest)
            self._first_due = min(self._first_due, self._due[task_id])

    def _judge(self, task_id: str, now: float) -> None:
        task, known, sent = self._board.tasks[task_id], self._board.times(task_id), self._sent.get(task_id)
        has_begun = self._board.used(task_id).begun > 0
        times = passed(task, known, datetime.fromtimestamp(now, UTC), has_begun=has_begun)
        if times != known and (sent is None or sent.done()):
            self._sent[task_id] = self._send(task, times)  # what does not arrive is sent again

    def _send(self, task: Task, times: TaskTimes) -> Future[MessagePlace]:
        return self._producer.send(self._topic, *_record(task, times))


def passed(task: Task, known: TaskTimes, now: datetime, *, has_begun: bool) -> TaskTimes:
    """What has passed at a moment; the same object when there is no news."""
    times, now_seconds = known.of(task), now.timestamp()
    coming = _coming(task, times, has_begun=has_begun)
    changes = {name: value or now for moment, name, value in coming if moment <= now_seconds}
    return times.model_copy(update=changes) if changes else known


def _coming(task: Task, times: TaskTimes, *, has_begun: bool) -> Iterator[tuple[float, str, object]]:
    """What is to be noted in the times of a task, each from a Unix time on; without a value that time itself."""
    if task.expires_at is not None and (times.expired is None or task.expires_at > times.expired):
        yield task.expires_at.timestamp(), "expired", task.expires_at
    if times.first_at is None and has_begun:
        yield 0.0, "first_at", None
    elif times.first_at is not None and task.max_seconds and task.max_seconds > (times.spent_seconds or 0):
        yield times.first_at.timestamp() + task.max_seconds, "spent_seconds", task.max_seconds


def _record(task: Task, times: TaskTimes) -> tuple[bytes, bytes]:
    return note_key(task.task_id, TIMES), times.value()
