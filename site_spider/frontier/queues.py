"""All that waits in a crawl: the frontier, seeds that may begin, requests on their way to the seed topic."""

from __future__ import annotations

from collections.abc import Callable

from scrapy import Request
from scrapy.crawler import Crawler

from site_spider.engine.background import Background
from site_spider.engine.turns import Turns
from site_spider.frontier.links_in_hand import LinksInHand
from site_spider.frontier.spill.hosts import Ownership
from site_spider.frontier.spill.spill import Send, SentPages, Spill, SpillRules
from site_spider.frontier.spill.writer import SeedWriter
from site_spider.frontier.waiting_room import Waiter, WaitingRoom
from site_spider.intake.seed_queue import SeedQueue, Waiting
from site_spider.ledger.completion import Completion
from site_spider.ledger.lineage import Job
from site_spider.observe.document import queue_lengths


class Queues:
    """On the event loop's thread only. `wake` has the engine ask again."""

    def __init__(self, crawler: Crawler, completion: Completion, wake: Callable[[], None]) -> None:
        self.seeds = SeedQueue()  # level 0: made with the scheduler, never reclaimed
        self.links_in_hand = LinksInHand()
        self.spill: Spill | None = None  # set as the spider opens
        self.may_begin: Callable[[Waiting], bool] = lambda _waiting: True  # set by the assembly
        self.refuse: Callable[[Waiting, Exception], None]  # sets a seed aside; set likewise
        self._withdrawn: list[Waiting] = []  # not in `seeds`: what was compared once would be a duplicate
        self._crawler = crawler
        self._completion = completion
        self._wake = wake
        self._room: WaitingRoom | None = None

    @property
    def room(self) -> WaitingRoom:
        """Where requests and seeds wait for their turn; made at the first call. Raises ConfigError."""
        if self._room is None:
            self._room = WaitingRoom.from_crawler(self._crawler, self._wake)
            self._room.keeps_back = self._keeps_back
            self._room.drop = self._drop
            self._completion.on_fenced = self._room.fenced
        return self._room

    def open_spill(
        self,
        rules: SpillRules,
        send: Send,
        writer: SeedWriter,
        pages: SentPages | None,
        count: Callable[[str], None],
    ) -> Spill:
        """From now on requests can go to the seed topic."""
        self.spill = Spill(rules, send, writer, self._completion, self.room, pages)
        self.spill.count = count
        self.spill.guarded = Background.of(self._crawler).guarded
        return self.spill

    async def share_hosts(self, topic: str, count_partitions: Callable[[str], int]) -> None:
        """From now on what is for a host of another process goes there by the seed topic."""
        assert self.spill is not None
        background = Background.of(self._crawler)
        self.spill.ownership = Ownership(topic, self._completion.ledger, count_partitions, background)
        await self.spill.ownership.ask()

    def put(self, request: Request, job: Job | None, *, is_link: bool) -> None:
        """A request waits, or goes to the seed topic; it holds its seed in either case."""
        if job is None:
            self.room.put_request(request)
        elif self.spill is not None and self.spill.wants(request, job, is_link=is_link):
            self._completion.accept(request, job)
            if not self.spill.send(request, job, is_link=is_link):
                self.room.put_request(request)
        elif is_link and self.room.put_link(request, job):
            self._completion.accept_link(job.entry)
        else:
            self._completion.accept(request, job)
            self.room.put_request(request)

    def admit_seeds(self) -> None:
        """Let the seeds that may begin wait among the requests, each for its host."""
        withdrawn, self._withdrawn = self._withdrawn, []
        for waiting in withdrawn:
            if not waiting.entry.live:
                continue
            if self.may_begin(waiting):
                self._admit(waiting)
            else:
                self._withdrawn.append(waiting)
        while (next_one := self.seeds.pop()) is not None:
            self._admit(next_one)

    def _admit(self, waiting: Waiting) -> None:
        try:
            self.room.put_seed(waiting)
        except Exception as error:  # noqa: BLE001 - of this one alone: settings for its host, say
            self.refuse(waiting, error)

    def withdraw_seeds(self) -> None:
        """Those that wait among the requests and have not begun are kept back until `admit_seeds`."""
        self._withdrawn += self.room.remove_seeds()

    async def look(self) -> None:
        """To be called now and then; what takes long shares the turns of the event loop."""
        self.room.load.look()
        if self.room.has_fenced:
            await self._drop_fenced()
        if self.spill is not None:
            await self.spill.look()

    def lengths(self) -> dict[str, int]:
        """How many requests wait, by the names of the levels; how many are leaving, and what all weighs."""
        load = self.room.load
        lengths = queue_lengths(self.room.frontier.lengths())
        return {**lengths, "leaving": load.sending, "bytes": load.bytes}

    def close(self) -> None:
        """Wake nobody any more."""
        if self._room is not None:
            self._room.close()

    def _keeps_back(self, waiting: Waiting) -> bool:
        """Whether a seed whose turn it is waits on here."""
        if self.may_begin(waiting):
            return False
        self._withdrawn.append(waiting)
        return True

    async def _drop_fenced(self) -> None:
        turns = Turns.of_running_loop()
        for removed in self.room.remove_fenced():
            for waiter in removed:
                self._drop(waiter)
            if not turns.has_time():
                await turns.time()

    def _drop(self, waiter: Waiter) -> None:
        if not isinstance(waiter, Waiting):
            self._completion.drop(waiter)
