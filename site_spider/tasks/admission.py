"""What of a task may begin, and whose seeds make way; all else is parked, cancelled or filtered, in its order.

Theory. What waits is looked at where it enters the frontier (`sort`), where its turn comes (`takes`), and
all of it when the phase or the rules of its task change (`changed`). What is not to begin joins one line,
which a task of the event loop works off; what a change finds in the frontier is older and goes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any

from scrapy import Request

from site_spider import meta_keys
from site_spider.bounded import BoundedDict
from site_spider.contracts.seed_log import MessagePlace, Partition
from site_spider.engine.background import Background, Turns
from site_spider.errors import SiteSpiderError
from site_spider.frontier.scheduler import Queues
from site_spider.frontier.waiter import TaskFlow, Waiter, WaitingLink, flow_of, is_fenced, seed_entry, source_name
from site_spider.ledger.completion import ATTEMPTS, Completion, Job, job_of
from site_spider.ledger.ledger import Outcome, SeedInFlight
from site_spider.page.url import host_of
from site_spider.seed.seed import Seed, moved_headers
from site_spider.tasks.board import Board
from site_spider.tasks.budgets import TaskState, TaskStates
from site_spider.tasks.declaration import TaskRules
from site_spider.tasks.parking import Leaving, key_of
from site_spider.tasks.tracker import Group

logger = logging.getLogger(__name__)


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
        if taken := self._queues.seeds.remove(self._has_to_leave):
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
        state = self.states.of(job.seed.task_id)
        if state is None or not _is_counted(request):
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
        """Claim pages of the budget in time; when it is spent, the task pauses at once."""
        if state.claim_more():
            self.states.tell_soon()
        if state.left <= 0 and state.look(self.states.board):
            self.changed({state.task.task_id})

    def _has_to_leave(self, waiter: Waiter) -> bool:
        state = self.states.of(_task_id(waiter))
        if state is None or (isinstance(waiter, Request) and waiter.meta.get(meta_keys.STAYS)):
            return False
        return state.phase.name != "running" or not _is_allowed(state, waiter)

    # --- what leaves ----------------------------------------------------------------------------------

    def _work_soon(self) -> None:
        if self._work is None or self._work.done():
            self._work = self._background.start(self._work_off(), "tasks")

    async def _work_off(self) -> None:
        turns = Turns.of_running_loop()
        while self._sweeps or self._line:
            swept, self._sweeps = self._sweeps, set()
            if swept:
                async for waiter in self._queues.take_out(partial(self._is_swept, swept)):
                    self._deal(waiter)
            else:
                self._deal(self._line.popleft())
                if not turns.has_time():
                    await turns.time()
        self._queues.room.wake()

    def _is_swept(self, swept: Collection[str], waiter: Waiter) -> bool:
        return _task_id(waiter) in swept and self._has_to_leave(waiter)

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


# --- overtaking ------------------------------------------------------------------------------------------
# Lets a task of which nothing was polled overtake those whose seeds fill all that may be in flight.
#
# Theory of operation. Tasks share what was polled. When all that may be in flight is taken, and a task is
# known of which nothing is among it, the tasks with more than their share give seeds away: these go to the
# end of their topic, as spilled links do, and are complete here. So the next seeds are polled, until there
# is one of the task, or the log was read as far as it reached when this began. It ends in any case, since
# what is moved lies behind that end, and a task is looked for once as long as there is no news of it.
#
# The oldest seeds leave: else they would hold the watermark, and a partition pauses when what is polled
# next is too far ahead of it (SITE_MAX_SPAN_OFFSETS).
#
# A task is known to have seeds in the log when its producers have said how far these reach. It is believed
# to have some when it is declared, running, and no process has counted one of them.

_LOOK_SECONDS = 1.0
_IN_VAIN_SECONDS = 3.0  # between two looks at all that waits, when nothing of it can leave
_SEND_SECONDS = 60.0
_PAUSE_SECONDS = 0.05  # while seeds are polled
_MOST_LOOKED_FOR = 10_000
_MOST_LOOKED_AT = 1_000  # tasks, those declared or named last
_KEPT_SHARE = 1 / 2  # of its share, that a task keeps: so many more are polled in one go


@dataclass(eq=False)
class Overtaking:
    """On the event loop's thread only."""

    every_seconds = 0.0

    _group: Group
    _consumer_group: str
    _completion: Completion
    _queues: Queues
    _is_full: Callable[[], bool]  # what may be in flight
    _may_poll: Callable[[], bool]  # false also when the crawl stops
    _work: asyncio.Task[None] | None = None
    _look_at: float = 0.0

    def __post_init__(self) -> None:
        self._log, self._producer, self._topics, self._board, control, _, self._background = self._group
        self._endings, self._put, self._ledger = control.endings, control.put, self._completion.ledger
        self._loop = asyncio.get_running_loop()
        # what was known of a task when that was over
        self._looked_for: BoundedDict[str, object] = BoundedDict(_MOST_LOOKED_FOR)

    def look(self) -> None:
        if not self._is_full() or (self._work is not None and not self._work.done()):
            return
        if self._loop.time() < self._look_at:
            return
        self._look_at = self._loop.time() + _LOOK_SECONDS
        if (task_id := next(self._awaited(), None)) is not None:
            self._work = self._background.start(self._let_overtake(task_id), "overtaking")

    def _awaited(self) -> Iterator[str]:
        """Those of which something is to come, and nothing is here."""
        named = list(self._endings)[-_MOST_LOOKED_AT:]
        declared = islice(reversed(self._board.tasks), _MOST_LOOKED_AT)
        for task_id in {**dict.fromkeys(reversed(named)), **dict.fromkeys(declared)}:
            is_news = self._is_certain(task_id) or self._looked_for.get(task_id) != self._known_of(task_id)
            if is_news and self._is_awaited(task_id):
                yield task_id

    def _is_certain(self, task_id: str) -> bool:
        """Whether its producers have said that seeds of it are to be polled here."""
        ending = self._endings.get(task_id)
        return ending is not None and not ending.is_told and self._is_below(ending.highs)

    def _is_awaited(self, task_id: str) -> bool:
        board, ending = self._board, self._endings.get(task_id)
        if board.phase(task_id).name != "running" or self._is_here(task_id):
            return False
        if self._is_certain(task_id):
            return True
        if ending is not None and ending.is_told:
            return False
        is_unknown = ending is None or bool(ending.sending) or not ending.highs
        return is_unknown and board.task(task_id) is not None and not board.used(task_id).seeds

    def _known_of(self, task_id: str) -> object:
        ending = self._endings.get(task_id)
        return self._board.task(task_id), {} if ending is None else dict(ending.highs)

    def _is_here(self, task_id: str) -> bool:
        flows = self._queues.room.frontier.flows
        return any(TaskFlow(task_id, topic) in flows for topic in self._topics.tiers)

    def _is_below(self, positions: Mapping[Partition, int]) -> bool:
        """Whether something below these positions is to be polled here."""
        return any(
            (self._ledger.next_offset(partition) or 0) < position
            for partition, position in positions.items()
            if self._ledger.epoch(partition) is not None
        )

    async def _let_overtake(self, task_id: str) -> None:
        try:
            ends = await asyncio.to_thread(self._ends)
        except SiteSpiderError as error:
            logger.debug("The ends of the seed topics are not known now: %s", error)
            return
        awaited, moved = {each: self._known_of(each) for each in self._awaited()}, 0
        while self._may_poll() and self._is_awaited(task_id) and self._is_below(ends):
            if self._is_full():
                count = await self._move(task_id)
                moved += count
                if not count:
                    self._look_at = self._loop.time() + _IN_VAIN_SECONDS
                    break
            await asyncio.sleep(_PAUSE_SECONDS)
        if not self._is_below(ends):
            self._looked_for.update(awaited)  # also those that were found last: their counts are told later
        elif task_id in awaited and not self._is_awaited(task_id):  # found
            self._looked_for[task_id] = awaited[task_id]
        if moved:
            logger.info(
                "%d seeds of other tasks were sent to the end of their topic, so that task %s is reached",
                moved,
                task_id,
            )

    def _ends(self) -> dict[Partition, int]:
        topics = {partition.topic for partition in self._ledger.partitions()}
        parts = (part for topic in topics for part in self._log.progress(topic, self._consumer_group))
        return {part.partition: part.end for part in parts}

    async def _move(self, task_id: str) -> int:
        """Send away what other tasks have beyond their share; how many seeds."""
        surplus, ended = await self._surplus(task_id), self._ledger.outcomes[Outcome.SPILLED]
        count = 0
        async for waiter in self._queues.take_out(lambda one: isinstance(one, SeedInFlight) and one in surplus):
            assert isinstance(waiter, SeedInFlight)
            count += 1
            self._send(waiter)
        deadline = self._loop.time() + _SEND_SECONDS  # then they stay in flight, and are repeated
        while self._ledger.outcomes[Outcome.SPILLED] < ended + count and self._loop.time() < deadline:
            if not self._may_poll():
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        return count

    async def _surplus(self, task_id: str) -> set[SeedInFlight]:
        """What each task has beyond its share, the oldest of each partition; nothing if the task is here."""
        found: defaultdict[TaskFlow | None, defaultdict[Partition, list[SeedInFlight]]]
        found = defaultdict(lambda: defaultdict(list))

        def note(waiter: Waiter) -> bool:
            if isinstance(waiter, SeedInFlight) and self._may_leave(waiter):
                found[flow_of(waiter)][waiter.partition].append(waiter)
            return False

        async for _ in self._queues.take_out(note):
            pass
        if any(flow is not None and flow.task_id == task_id for flow in found):
            return set()
        totals = {flow: sum(map(len, of_flow.values())) for flow, of_flow in found.items()}
        share = sum(totals.values()) / (len(totals) + 1)
        surplus: set[SeedInFlight] = set()
        for flow, of_flow in found.items():
            for seeds in of_flow.values() if totals[flow] > share else ():
                kept = int(_KEPT_SHARE * share * len(seeds) / totals[flow])
                surplus.update(sorted(seeds, key=attrgetter("offset"))[: len(seeds) - kept])
        return surplus

    def _may_leave(self, waiting: SeedInFlight) -> bool:
        """A seed that was under way when a process died stays: elsewhere nobody would know of that."""
        return waiting.live and not self._ledger.of_partition(waiting.partition).suspicion.deaths(waiting.offset)

    def _send(self, waiting: SeedInFlight) -> None:
        if is_fenced(waiting):
            self._queues.room.drop(waiting)
            return
        message, headers = waiting.message, moved_headers(waiting.seed, waiting.message)
        self._completion.tell("leaves", waiting)
        sent = self._producer.send(message.partition.topic, key_of(waiting), message.value, headers)
        self._background.when_done(sent, self._sent, waiting)

    def _sent(self, sent: Future[Any], waiting: SeedInFlight) -> None:
        error, task_id = sent.exception(), waiting.seed.task_id
        if error is not None:
            logger.debug("A seed could not be sent to the end of its topic, and stays: %s", error)
            if waiting.live:
                self._queues.room.put(waiting)
            return
        place: MessagePlace | None = sent.result()
        if place is not None and task_id is not None:
            self._put(task_id, place)
        self._completion.end_as(waiting, Outcome.SPILLED)
