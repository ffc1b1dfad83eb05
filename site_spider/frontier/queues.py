"""Everything that waits in a crawl: frontier, seed queue, requests being spilled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from scrapy import Request

from site_spider.engine.turns import Turns
from site_spider.frontier.levels import queue_lengths
from site_spider.frontier.spill.spill import Spill
from site_spider.frontier.waiter import Waiter
from site_spider.frontier.waiting_room import WaitingRoom
from site_spider.intake.seed_queue import SeedQueue, Waiting
from site_spider.ledger.completion import Completion, Job
from site_spider.ledger.ledger import Entry
from site_spider.results.results import DeadLetters

logger = logging.getLogger(__name__)


class Queues:
    """On the event loop's thread only."""

    def __init__(
        self,
        seeds: SeedQueue,  # level 0: never reclaimed
        room: WaitingRoom,
        spill: Spill,
        completion: Completion,
        dead_letters: DeadLetters,
        may_begin: Callable[[Entry], bool],
        next_suspect: Callable[[], None],
    ) -> None:
        self.seeds = seeds
        self.room = room
        self._spill = spill
        self._completion = completion
        self._dead_letters = dead_letters
        self._may_begin = may_begin
        self._next_suspect = next_suspect  # begins, if it may, when nothing else is under way
        self._withdrawn: list[Waiting] = []  # not in `seeds`: what was compared once would be a duplicate

    def __len__(self) -> int:
        return len(self.room) + len(self.seeds)

    def put(self, request: Request, job: Job | None, *, is_link: bool) -> None:
        """A request waits, or goes to the seed topic; it holds its seed in either case."""
        if job is None:
            self.room.put_request(request)
            return
        if self._spill.wants(request, job, is_link=is_link):
            self._completion.accept(request, job)
            if not self._spill.send(request, job, is_link=is_link):
                self.room.put_request(request)
            return
        if is_link:
            job.root.grows()
        if is_link and self.room.put_link(request, job):
            self._completion.accept_link(job.entry)
        else:
            self._completion.accept(request, job)
            self.room.put_request(request)

    def admit_seeds(self) -> None:
        """Let the seeds that may begin wait among the requests, each for its host."""
        withdrawn, self._withdrawn = [*self._withdrawn, *self.room.take_kept_back()], []
        for waiting in withdrawn:
            if not waiting.entry.live:
                continue
            if self._may_begin(waiting.entry):
                self._admit(waiting)
            else:
                self._withdrawn.append(waiting)
        while (next_one := self.seeds.pop()) is not None:
            self._admit(next_one)
        self._next_suspect()

    def _admit(self, waiting: Waiting) -> None:
        try:
            self.room.put_seed(waiting)
        except Exception as error:  # of this one alone: settings for its host, say
            logger.exception("A seed could not be queued: %s", waiting.seed.url)
            reason = f"the seed could not be queued: {error!r}"
            self._dead_letters.set_aside(waiting.message, reason, waiting.entry)

    def take_out(self, unwanted: Callable[[Waiter], bool]) -> Iterator[list[Waiter]]:
        """Take out what `unwanted` picks of all that waits, some at a time; the oldest seeds first."""
        yield from self.room.remove(unwanted)
        kept_back = [*self._withdrawn, *self.room.take_kept_back()]
        picked = {id(waiting) for waiting in kept_back if unwanted(waiting)}
        self._withdrawn = [waiting for waiting in kept_back if id(waiting) not in picked]
        yield [waiting for waiting in kept_back if id(waiting) in picked]
        yield [*self.seeds.remove(unwanted)]

    def withdraw_seeds(self) -> None:
        """Those that wait among the requests and have not begun are kept back until `admit_seeds`."""
        self._withdrawn += self.room.remove_seeds()

    async def look(self) -> None:
        """To be called now and then; what takes long shares the turns of the event loop."""
        self.room.load.look()
        if self.room.has_fenced:
            await self._drop_fenced()
        await self._spill.look()

    def lengths(self) -> dict[str, int]:
        """How many requests wait by level, how many are being spilled, and what all of them weigh."""
        load = self.room.load
        lengths = queue_lengths(self.room.frontier.lengths())
        return {**lengths, "spilling": load.spilling, "bytes": load.bytes}

    def fenced(self) -> None:
        """Some of what waits may be for seeds that are another process's now: it is dropped, soon."""
        self.room.fenced()

    async def _drop_fenced(self) -> None:
        turns = Turns.of_running_loop()
        for removed in self.room.remove_fenced():
            for waiter in removed:
                self.room.drop(waiter)
            if not turns.has_time():
                await turns.time()
