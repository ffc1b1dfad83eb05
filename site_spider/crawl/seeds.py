"""The seeds of this process: taken from the intake, kept in the ledger, given to the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from scrapy import Request, Spider

from site_spider.core.seed_log import Message, Partition, Position
from site_spider.core.statistics import NameCounts
from site_spider.crawl.completion import Completion
from site_spider.crawl.dead_letters import DeadLetters
from site_spider.crawl.intake import Arrival
from site_spider.crawl.seed_queue import SeedQueue, Waiting, seed_request
from site_spider.errors import LedgerError, SeedError

logger = logging.getLogger(__name__)


class Seeds:
    """Owner of the intake: what it hands over is taken into the ledger here."""

    def __init__(
        self,
        queue: SeedQueue,
        completion: Completion,
        dead_letters: DeadLetters,
        limit: int,
        spider: Spider,
    ) -> None:
        self.queue = queue
        self.completion = completion
        self.unknown_fields = NameCounts()
        self.may_poll: Callable[[], bool] = lambda: True  # set by the assembly; read on the intake's thread
        self.on_arrival: Callable[[], None] = lambda: None  # wakes the engine; set by the assembly
        self.on_failure: Callable[[BaseException], None]
        self._dead_letters = dead_letters
        self._limit = limit
        self._spider = spider

    def next_request(self) -> Request | None:
        """The first request of the next seed; None when no seed waits."""
        while (waiting := self.queue.pop()) is not None:
            try:
                request, root = seed_request(waiting, self._spider)
            except Exception as error:  # noqa: BLE001 - whatever Scrapy dislikes about this seed, the next one comes
                reason = f"Scrapy refuses the request: {error}"
                self._dead_letters.set_aside(waiting.message, reason, waiting.entry)
                continue
            self.completion.begin(request, root)
            return request
        return None

    def set_aside(self, message: Message, reason: str) -> None:
        """A message is not a valid seed: it becomes a dead letter and completes with that."""
        entry = self.completion.take(message)
        if entry is not None:
            self._dead_letters.set_aside(message, reason, entry)

    # --- Owner of the intake ----------------------------------------------------------------

    def room(self) -> int:
        """How many more seeds may be polled (read on the intake's thread)."""
        return self._limit - self.completion.ledger.in_flight if self.may_poll() else 0

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Messages were polled."""
        for message, seed in arrivals:
            try:
                if isinstance(seed, SeedError):
                    self.set_aside(message, seed.reason)
                elif (entry := self.completion.take(message)) is not None:
                    self.queue.push(Waiting(entry, message, seed))
                    for name in seed.unknown_fields:
                        self.unknown_fields.add(name)
            except LedgerError as error:
                # polled in the moment in which its partition went elsewhere: its new owner has it
                logger.info("Not taken: %s", error)
        self.on_arrival()

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in Listener."""
        self.completion.assigned(positions)

    def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position]:
        """As in Listener."""
        positions = self.completion.positions(partitions)
        self.lost(partitions)
        return positions

    def lost(self, partitions: Sequence[Partition]) -> None:
        """As in Listener."""
        self.completion.lost(partitions)
        self.queue.remove(lambda waiting: not waiting.entry.live)

    def reached(self, partition: Partition, offset: int) -> None:
        """As in Listener."""
        if partition in self.completion.ledger.partitions():
            self.completion.ledger.reached(partition, offset)

    def failed(self, error: BaseException) -> None:
        """As in intake.Owner."""
        self.on_failure(error)
