"""What becomes of one seed, link or request whose task is not to go on with it.

Parks messages of paused tasks, so that none is lost to a task that goes on at the same moment.

Theory (decision 0018). A message is safe when three things have happened in this order: its copy in the
parked topic is durable; this process has told on the task topic that it has parked so many; it has read
that back, and the task is paused still. Whoever resumes the task writes so to the same topic first, and
then looks at the parked topic. If that record comes before what was read back, it is known here, and the
message goes to the seed topic as well. If it comes behind, the copy was durable before, and is found.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from scrapy import Request, Spider

from site_spider import meta_keys
from site_spider.contracts.seed_log import Headers, MessagePlace, Producer
from site_spider.engine.background import Background, Turns
from site_spider.errors import SinkRejected
from site_spider.frontier.politeness import PoliteFrontier
from site_spider.frontier.spill import TRY_AGAIN_SECONDS, Spill, TellPlace
from site_spider.frontier.waiter import Waiter, WaitingLink, as_begun, is_fenced, seed_entry
from site_spider.intake.seed_queue import seed_request
from site_spider.ledger.completion import Completion, Job, is_first_attempt, job_of
from site_spider.ledger.ledger import Outcome, SeedInFlight
from site_spider.outage import Outage
from site_spider.page.url import host_of
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.pipeline import Results
from site_spider.seed.seed import MOVED, carried, moved_headers
from site_spider.tasks.budgets import CANCELLED, TaskState, TaskStates
from site_spider.tasks.declaration import NOTHING, Task
from site_spider.tasks.follower import ORIGIN_HEADER, TASK_HEADER
from site_spider.tasks.tracker import Control


class _Parked(NamedTuple):
    task_id: str
    send_on: Callable[[], Future[MessagePlace]]  # to where it came from
    done: Future[Any]
    task: Task | None  # as declared when it was parked
    number: int = 0
    place: MessagePlace | None = None


def _stays(state: TaskState, parked: _Parked) -> bool:
    """Whether a message waits in the parked topic.

    A budget may have room again because others gave back what they had claimed. Nobody has looked there
    then: it is put back by and by (`ParkedWatch`), and not crawled twice.
    """
    is_same = parked.task is not None and state.task == parked.task
    return state.phase.name == "paused" or (is_same and not state.phase.is_over)


@dataclass
class Parking:
    """Fulfils `ParkedTopic` of frontier.spill. On the event loop's thread only."""

    _producer: Producer
    topic: str
    _states: TaskStates
    _background: Background
    tell_place: TellPlace | None
    _unproved: dict[str, deque[_Parked]] = field(default_factory=dict)  # by task

    def send(self, task_id: str, origin: str, key: bytes | None, value: bytes, headers: Headers) -> Future[Any]:
        send_on = partial(self._producer.send, origin, key, value, ((MOVED, b""), *carried(headers)))
        parked = _Parked(task_id, send_on, Future(), self._states.board.task(task_id))
        whose = (TASK_HEADER, task_id.encode()), (ORIGIN_HEADER, origin.encode())
        sent = self._producer.send(self.topic, key, value, [*whose, *carried(headers)])
        self._background.when_done(sent, self._durable, parked)
        return parked.done

    def _durable(self, sent: Future[Any], parked: _Parked) -> None:
        if (error := sent.exception()) is not None:
            parked.done.set_exception(error)
            return
        state = self._states.of(parked.task_id)
        if state is None:  # it was forgotten meanwhile
            self._background.when_done(parked.send_on(), self._is_back, parked)
            return
        numbered = parked._replace(number=state.count("parked"), place=sent.result())
        self._unproved.setdefault(parked.task_id, deque()).append(numbered)
        self._states.tell_soon()

    def changed(self, task_ids: Collection[str]) -> None:
        """Records have come, and the phases of these tasks are known."""
        for task_id in [each for each in task_ids if each in self._unproved]:
            waiting, state = self._unproved[task_id], self._states.of(task_id)
            mine = NOTHING if state is None else self._states.board.usage(task_id, state.process) or NOTHING
            while waiting and (state is None or waiting[0].number <= mine.parked):
                parked = waiting.popleft()
                if state is not None and _stays(state, parked):
                    self._finish(parked, parked.place)
                else:
                    if state is not None:
                        state.count("sent_on")
                    self._background.when_done(parked.send_on(), self._is_back, parked)
            if not waiting:
                del self._unproved[task_id]

    def _finish(self, parked: _Parked, place: MessagePlace | None) -> None:
        """The end of its task waits for the message where it is."""
        if self.tell_place is not None and place is not None:
            self.tell_place(parked.task_id, place)
        parked.done.set_result(None)

    def _is_back(self, sent: Future[MessagePlace], parked: _Parked) -> None:
        if (error := sent.exception()) is not None:
            parked.done.set_exception(error)
        else:
            self._finish(parked, sent.result())


logger = logging.getLogger(__name__)


def key_of(waiting: SeedInFlight) -> bytes | None:
    """The key with which a seed leaves: its own, or its host."""
    key = waiting.message.key
    return key if key is not None else host_of(waiting.seed.url).encode() or None


@dataclass
class Leaving:
    """On the event loop's thread only. What it is given has left the frontier, and holds its seed."""

    _spider: Spider
    _completion: Completion
    _room: PoliteFrontier
    _spill: Spill
    _parking: Parking
    _results: Results
    _dead_letters: DeadLetters
    _background: Background
    control: Control | None  # None: seeds are not counted
    writes_cancelled: bool
    _cancelled: list[tuple[Waiter, TaskState]] = field(default_factory=list)  # they may have been counted before

    def __post_init__(self) -> None:
        begins = f"{self._parking.topic} takes no seeds of paused tasks, which wait here"
        self._away = Outage(logger, begins, "It takes them")

    def park(self, waiter: Waiter, state: TaskState) -> None:
        """It waits in the parked topic; what no message can say stays, and goes on."""
        if isinstance(waiter, SeedInFlight):
            self._park_seed(waiter, state.task.task_id)
            return
        request, job = as_begun(waiter, self._completion)
        request.meta.pop(meta_keys.STAYS, None)  # it was not taken elsewhere
        request.meta[meta_keys.TO_TOPIC] = self._parking.topic
        if not self._spill.send(request, job, is_link=is_first_attempt(request, job)):
            del request.meta[meta_keys.TO_TOPIC]
            request.meta[meta_keys.STAYS] = True
            self._room.put(request)

    def _park_seed(self, waiting: SeedInFlight, task_id: str) -> None:
        message, headers = waiting.message, moved_headers(waiting.seed, waiting.message)
        self._completion.tell("leaves", waiting)
        future = self._parking.send(task_id, message.partition.topic, key_of(waiting), message.value or b"", headers)
        self._background.when_done(future, self._parked, waiting)

    def _parked(self, future: Future[None], waiting: SeedInFlight) -> None:
        error = future.exception()
        if error is None:
            self._away.is_over()
            self._completion.end_as(waiting, Outcome.SPILLED)
        elif isinstance(error, SinkRejected):
            reason = f"its task is paused, and it cannot be parked: {error}"
            self._dead_letters.set_aside(waiting, reason)
        elif waiting.live and not self._room.is_closed:  # else it is repeated
            self._away.goes_on(error)
            self._room.put_seed(waiting, asyncio.get_running_loop().time() + TRY_AGAIN_SECONDS)

    def cancel(self, waiter: Waiter, state: TaskState) -> None:
        state.count("links_cancelled", _is_link(waiter))
        if not self.writes_cancelled:
            self._end(waiter, Outcome.CANCELLED, "")
        elif self.control is None:
            self._end(waiter, Outcome.CANCELLED, _why_cancelled(state))
        else:
            self._cancelled.append((waiter, state))
            if len(self._cancelled) == 1:
                self.control.when_read(self._end_cancelled)

    def _end_cancelled(self) -> None:
        """A seed that was counted and not committed comes again; its documents are there, and stay."""
        cancelled, self._cancelled = self._cancelled, []
        self._background.start(self._end_all(cancelled), "cancelled seeds")

    async def _end_all(self, cancelled: list[tuple[Waiter, TaskState]]) -> None:
        async for waiter, state in Turns.of_running_loop().through(cancelled):
            if is_fenced(waiter):
                self._room.drop(waiter)
            else:
                was_counted = self._was_counted(waiter, state.task.task_id)
                self._end(waiter, Outcome.CANCELLED, "" if was_counted else _why_cancelled(state))

    def _was_counted(self, waiter: Waiter, task_id: str) -> bool:
        entry = seed_entry(waiter)
        ending = None if self.control is None else self.control.get(task_id)
        if entry is None or ending is None or (tally := ending.tallies.get(entry.partition)) is None:
            return False
        return tally.has_counted(entry.offset)

    def filter(self, waiter: Waiter, state: TaskState) -> None:
        state.count("links_filtered", _is_link(waiter))
        self._end(waiter, Outcome.FILTERED, "")

    def _end(self, waiter: Waiter, outcome: Outcome, description: str) -> None:
        """With a description there is a failure result."""
        if isinstance(waiter, SeedInFlight):
            self._end_seed(waiter, outcome, description)
        else:
            self._end_request(*as_begun(waiter, self._completion), outcome, description)

    def _end_seed(self, waiting: SeedInFlight, outcome: Outcome, description: str) -> None:
        self._completion.ledger.decide(waiting, outcome)
        if description:
            _, job = seed_request(waiting, self._spider)
            job.error = description
            self._results.write_missing(job)
        self._completion.release(waiting)

    def _end_request(self, request: Request, job: Job, outcome: Outcome, description: str) -> None:
        self._spill.give_up(request, job)
        if job.parent is None:
            self._completion.ledger.decide(job.entry, outcome)
        if description:
            job.error = description
        else:
            job.written = True  # no failure result
        self._completion.ended(request)


def _is_link(waiter: Waiter) -> bool:
    """Also one that has been parked, or sent on."""
    if isinstance(waiter, WaitingLink):
        return True
    found = waiter.seed if isinstance(waiter, SeedInFlight) else job_of(waiter)
    return found is not None and found.is_link


def _why_cancelled(state: TaskState) -> str:
    return f"{CANCELLED}task {state.task.task_id} is {state.phase.name}"
