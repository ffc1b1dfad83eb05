"""Parks messages of paused tasks, so that none is lost to a task that goes on at the same moment.

Theory (decision 0018). A message is safe when three things have happened in this order: its copy in the
parked topic is durable; this process has told on the task topic that it has parked so many; it has read that
back, and the task is paused still. Whoever resumes the task writes so to the same topic first, and then looks
at the parked topic. If that record comes before what was read back, it is known here, and the message goes
to the seed topic as well. If it comes behind, the copy was durable before, and is found.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future
from typing import Any, NamedTuple

from site_spider.contracts.seed_log import MessagePlace, Producer
from site_spider.engine.background import Background
from site_spider.frontier.spill import Highs
from site_spider.tasks.counts import MOVED
from site_spider.tasks.record import Task
from site_spider.tasks.state import TaskState
from site_spider.tasks.states import TaskStates
from site_spider.tasks.topics import ORIGIN_HEADER, TASK_HEADER, TaskTopics


class _Parked(NamedTuple):
    task_id: str
    origin: str
    key: bytes | None
    value: bytes
    done: Future[Any]
    task: Task | None  # as declared when it was parked
    number: int = 0
    place: MessagePlace | None = None


def _stays(state: TaskState, parked: _Parked) -> bool:
    """Whether a message waits in the parked topic.

    A budget may have room again because others gave back what they had claimed. Nobody has looked there
    then: it is put back by and by (`ReturnWatch`), and not crawled twice.
    """
    is_same = parked.task is not None and state.task == parked.task
    return state.phase.name == "paused" or (is_same and not state.phase.is_over)


class Parking:
    """Fulfils `ParkedTopic` of frontier.spill. On the event loop's thread only."""

    def __init__(
        self,
        producer: Producer,
        topics: TaskTopics,
        states: TaskStates,
        background: Background,
        highs: Highs | None = None,
    ) -> None:
        self._highs = highs
        self.topic = topics.parked
        self._producer = producer
        self._states = states
        self._guarded = background.guarded
        self._unproved: dict[str, deque[_Parked]] = {}  # by task
        self._loop = asyncio.get_running_loop()

    def send(self, task_id: str, origin: str, key: bytes | None, value: bytes) -> Future[Any]:
        """As in ParkedTopic."""
        parked = _Parked(task_id, origin, key, value, Future(), self._states.board.task(task_id))
        headers = [(TASK_HEADER, task_id.encode()), (ORIGIN_HEADER, origin.encode())]
        sent = self._producer.send(self.topic, key, value, headers)
        sent.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._guarded(self._durable), done, parked)
        )
        return parked.done

    def _durable(self, sent: Future[Any], parked: _Parked) -> None:
        if (error := sent.exception()) is not None:
            parked.done.set_exception(error)
            return
        state = self._states.of(parked.task_id)
        if state is None:  # it was forgotten meanwhile
            self._send_on(parked)
            return
        numbered = parked._replace(number=state.count_parked(), place=sent.result())
        self._unproved.setdefault(parked.task_id, deque()).append(numbered)
        self._states.tell_soon()

    def changed(self, task_ids: Collection[str]) -> None:
        """Records have come, and the phases of these tasks are known."""
        for task_id in task_ids:
            waiting = self._unproved.get(task_id)
            if not waiting:
                continue
            mine = self._states.board.usage(task_id, self._states.process)
            state = self._states.of(task_id)
            while waiting and mine is not None and waiting[0].number <= mine.parked:
                parked = waiting.popleft()
                if state is not None and _stays(state, parked):
                    self._finish(parked, parked.place)
                else:
                    if state is not None:
                        state.count_sent_on()
                    self._send_on(parked)
            if not waiting:
                del self._unproved[task_id]

    def _finish(self, parked: _Parked, place: MessagePlace | None) -> None:
        """The end of its task waits for the message where it is, before its seed is complete."""
        if self._highs is None or place is None:
            parked.done.set_result(None)
        else:
            self._highs.put(parked.task_id, place, lambda: parked.done.set_result(None))

    def _send_on(self, parked: _Parked) -> None:
        def sent(done: Future[Any]) -> None:
            if (error := done.exception()) is not None:
                parked.done.set_exception(error)
                return
            self._finish(parked, done.result())

        self._producer.send(parked.origin, parked.key, parked.value, MOVED).add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._guarded(sent), done)
        )
