"""What becomes of one seed, link or request whose task is not to go on with it."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future

from scrapy import Request, Spider

from site_spider import meta_keys
from site_spider.engine.background import Background
from site_spider.errors import SinkRejected
from site_spider.frontier.spill import Spill
from site_spider.frontier.waiter import Waiter, WaitingLink, as_request, is_fenced, seed_entry
from site_spider.frontier.waiting_room import WaitingRoom
from site_spider.intake.seed_queue import Waiting, seed_request
from site_spider.ledger import completion as lineage
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Outcome
from site_spider.page.url import host_of
from site_spider.results.results import DeadLetters, Results
from site_spider.tasks.control import Control
from site_spider.tasks.parking import Parking
from site_spider.tasks.state import TaskState
from site_spider.tasks.states import CANCELLED

logger = logging.getLogger(__name__)


class Leaving:
    """On the event loop's thread only. What it is given has left the frontier, and holds its seed."""

    def __init__(  # noqa: PLR0913 - it knows all ways out
        self,
        spider: Spider,
        completion: Completion,
        room: WaitingRoom,
        spill: Spill,
        parking: Parking,
        results: Results,
        dead_letters: DeadLetters,
        background: Background,
        *,
        control: Control | None,
        writes_cancelled: bool,
    ) -> None:
        self._spider = spider
        self._completion = completion
        self._room = room
        self._spill = spill
        self._parking = parking
        self._results = results
        self._dead_letters = dead_letters
        self._guarded = background.guarded
        self._control = control  # None: seeds are not counted
        self._writes_cancelled = writes_cancelled
        self._cancelled: list[tuple[Waiter, TaskState]] = []  # they may have been counted before
        self._loop = asyncio.get_running_loop()

    # --- parked -----------------------------------------------------------------------------------

    def park(self, waiter: Waiter, state: TaskState) -> None:
        """It waits in the parked topic; what no message can say stays, and goes on."""
        if isinstance(waiter, Waiting):
            self._park_seed(waiter, state.task.task_id)
            return
        request, is_link = self._request(waiter), True
        job = lineage.job_of(request)
        assert job is not None
        if isinstance(waiter, Request):
            tries = request.meta.get("retry_times"), request.meta.get("redirect_times")
            is_link = job is not job.root and not any(tries)
        request.meta[meta_keys.TO_TOPIC] = self._parking.topic
        if not self._spill.send(request, job, is_link=is_link):
            del request.meta[meta_keys.TO_TOPIC]
            request.meta[meta_keys.STAYS] = True
            self._room.put_request(request)

    def _park_seed(self, waiting: Waiting, task_id: str) -> None:
        message = waiting.message
        key = message.key if message.key is not None else host_of(waiting.seed.url).encode() or None
        self._completion.leaves(waiting.entry)
        future = self._parking.send(task_id, message.partition.topic, key, message.value or b"")
        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._guarded(self._parked), done, waiting)
        )

    def _parked(self, future: Future[None], waiting: Waiting) -> None:
        error = future.exception()
        if error is None:
            self._completion.end_as(waiting.entry, Outcome.SPILLED)
        elif isinstance(error, SinkRejected):
            reason = f"its task is paused, and it cannot be parked: {error}"
            self._dead_letters.set_aside(waiting.message, reason, waiting.entry)
        else:  # the producer was closed: the crawl ends, and the seed is repeated
            logger.debug("A seed could not be parked: %s", error)

    # --- cancelled, filtered --------------------------------------------------------------------------

    def cancel(self, waiter: Waiter, state: TaskState) -> None:
        """It ends here, and is counted."""
        if not isinstance(waiter, Waiting):
            state.count_cancelled_link()
        if not self._writes_cancelled:
            self._end(waiter, Outcome.CANCELLED, "")
        elif self._control is None:
            self._end(waiter, Outcome.CANCELLED, _why_cancelled(state))
        else:
            self._cancelled.append((waiter, state))
            if len(self._cancelled) == 1:
                self._control.when_read(self._end_cancelled)

    def _end_cancelled(self) -> None:
        """A seed that was counted and not committed comes again; its documents are there, and stay."""
        cancelled, self._cancelled = self._cancelled, []
        for waiter, state in cancelled:
            if is_fenced(waiter):
                self._room.drop(waiter)
            else:
                was_counted = self._was_counted(waiter, state.task.task_id)
                self._end(waiter, Outcome.CANCELLED, "" if was_counted else _why_cancelled(state))

    def _was_counted(self, waiter: Waiter, task_id: str) -> bool:
        entry = seed_entry(waiter)
        ending = None if self._control is None else self._control.get(task_id)
        if entry is None or ending is None or (tally := ending.tallies.get(entry.partition)) is None:
            return False
        return tally.has_counted(entry.offset)

    def filter(self, waiter: Waiter, state: TaskState) -> None:
        """The rules of its task do not let it be fetched."""
        if not isinstance(waiter, Waiting):
            state.count_filtered_link()
        self._end(waiter, Outcome.FILTERED, "")

    def _end(self, waiter: Waiter, outcome: Outcome, description: str) -> None:
        """With a description there is a failure result."""
        if isinstance(waiter, Waiting):
            self._end_seed(waiter, outcome, description)
        elif isinstance(waiter, WaitingLink) and not description:
            self._completion.release(waiter.parent.entry)
        else:
            self._end_request(self._request(waiter), outcome, description)

    def _end_seed(self, waiting: Waiting, outcome: Outcome, description: str) -> None:
        self._completion.ledger.decide(waiting.entry, outcome)
        if description:
            _, root = seed_request(waiting, self._spider)
            root.error = description
            self._results.write_missing(root)
        self._completion.release(waiting.entry)

    def _end_request(self, request: Request, outcome: Outcome, description: str) -> None:
        job = lineage.job_of(request)
        assert job is not None
        if job is job.root:
            self._completion.ledger.decide(job.entry, outcome)
        if description:
            job.error = description
        else:
            job.written = True  # no failure result
        self._completion.ended(request)

    def _request(self, waiter: Waiter) -> Request:
        if isinstance(waiter, WaitingLink):
            request, job = as_request(waiter)
            self._completion.begin_job(request, job)
            return request
        assert isinstance(waiter, Request)
        return waiter


def _why_cancelled(state: TaskState) -> str:
    return f"{CANCELLED}task {state.task.task_id} is {state.phase.name}"
