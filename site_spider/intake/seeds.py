"""Takes polled messages into the ledger and the seed queue, and answers rebalances."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from typing import Any, Protocol

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.errors import LedgerError, SeedError
from site_spider.intake.intake import Arrival, Handover
from site_spider.intake.room import PollRoom
from site_spider.intake.seed_queue import SeedQueue
from site_spider.intake.suspects import Quarantine
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Outcome, SeedInFlight
from site_spider.results.failures import NameCounts
from site_spider.results.results import DeadLetters
from site_spider.seed.seed import Seed

logger = logging.getLogger(__name__)


class Waiters(Protocol):
    """All that waits in memory."""

    def fenced(self) -> None:
        """Some of it may wait for seeds that are another process's now."""


class Seeds:
    """Receiver of the intake: what it hands over is taken into the ledger here."""

    def __init__(
        self,
        completion: Completion,
        queue: SeedQueue,
        quarantine: Quarantine,
        dead_letters: DeadLetters,
        poll_room: PollRoom,
        handover: Handover,
        waiters: Waiters,
        has_died: Callable[[], bool],  # by an error of our own: its partitions are not left in good order
    ) -> None:
        self.unknown_fields = NameCounts()
        self.deleted_unread = 0  # by the log's retention
        self._completion = completion
        self._ledger = completion.ledger
        self._queue = queue
        self._quarantine = quarantine
        self._dead_letters = dead_letters
        self._poll_room = poll_room
        self._handover = handover
        self._waiters = waiters
        self._has_died = has_died

    # --- Receiver of the intake, on its thread: reads only -----------------------------------------

    def room(self) -> int:
        """How many more seeds may be polled."""
        return 0 if self._quarantine.is_closed else self._poll_room.now()

    def capacity(self) -> int:
        """How many seeds may be polled while none is in flight."""
        return self._poll_room.capacity()

    def too_wide(self) -> Set[Partition]:
        """Partitions of which no more may be polled for now."""
        return self._poll_room.closed()

    # --- Receiver of the intake, on the event loop's thread ----------------------------------------

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Messages were polled. Of a partition whose owner died, they begin when that is committed."""
        taken = [self._take(message, seed) for message, seed in arrivals]
        self._quarantine.let_begin([waiting for waiting in taken if waiting is not None])
        self.look()
        self._queue.wake()

    def _take(self, message: Message, seed: Seed | SeedError) -> SeedInFlight | None:
        try:
            entry = self._entry(message, seed)
        except LedgerError as error:
            # polled in the moment in which its partition went elsewhere: its new owner has it
            logger.info("Not taken: %s", error)
            return None
        if entry is None:
            return None
        if (outcome := self._completion.repeats.outcome(message)) is not None:
            self._completion.end_as(entry, outcome)  # done here before its partition left and came back
            return None
        try:
            if isinstance(seed, SeedError):
                raise seed
            self._queue.read(entry, seed)
        except SeedError as error:
            self._dead_letters.set_aside(message, error.reason, entry)
            return None
        if entry.is_suspected and self._quarantine.takes_culprit(message, entry):
            return None
        for name in entry.seed.unknown_fields:
            self.unknown_fields.add(name)
        goes_on = self._completion.repeats.wait(message, lambda outcome: self._repeated(entry, outcome))
        return None if goes_on else entry

    def _repeated(self, waiting: SeedInFlight, outcome: Outcome | None) -> None:
        if not waiting.live:
            return
        if outcome is None:
            self._quarantine.let_begin([waiting])
            self._queue.wake()
        else:
            self._completion.end_as(waiting, outcome)

    def _entry(self, message: Message, seed: Seed | SeedError) -> SeedInFlight | None:
        partition, position = message.partition, self._ledger.next_offset(message.partition)
        if position is not None and message.offset < position:
            logger.warning(
                "%s/%d starts again at offset %d, below the position %d: the topic was created again, or its "
                "retention has passed the committed offset",
                *partition,
                message.offset,
                position,
            )
            self.lost([partition])
            self.assigned({partition: None})
        return self._completion.take(message, seed)

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in Listener. What was not known to have left ends now."""
        if stale := [partition for partition in positions if self._ledger.epoch(partition) is not None]:
            self.lost(stale)
        self._completion.assigned(positions)
        self._quarantine.assigned(list(positions))
        self.look()

    def revoked(self, partitions: Sequence[Partition]) -> Coroutine[Any, Any, Mapping[Partition, Position]]:
        """As in Receiver."""
        return self._revoked({partition: self._ledger.epoch(partition) for partition in partitions})

    async def _revoked(self, epochs: Mapping[Partition, int | None]) -> Mapping[Partition, Position]:
        await self._handover.prepare(epochs)
        # without those that the intake has given up waiting for, and that may be back
        leaving = [partition for partition, epoch in epochs.items() if self._ledger.epoch(partition) == epoch]
        positions = self._completion.positions(leaving, leaving=not self._has_died())
        self.lost(leaving)
        return positions

    def lost(self, partitions: Sequence[Partition]) -> None:
        """As in Listener."""
        self._completion.lost(partitions)
        self._waiters.fenced()
        self._queue.remove(lambda waiting: not waiting.live)
        self._quarantine.lost(partitions)
        self.look()

    def reached(self, partition: Partition, offset: int) -> None:
        """As in Listener."""
        if partition in self._ledger.partitions():
            self._ledger.reached(partition, offset)

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        """As in Listener: those that were not complete are lost, and counted."""
        count = self._ledger.unread(partition, first, beyond)
        self.deleted_unread += count
        if count:
            logger.warning(
                "%s/%d: %d seeds were deleted unread, from offset %d to before %d: the topic's retention is "
                "shorter than its backlog. Produce them again, and raise retention.ms or retention.bytes",
                *partition,
                count,
                first,
                beyond,
            )

    def look(self) -> None:
        """See how far the partitions have come; to be called now and then."""
        self._poll_room.look()
        self._quarantine.proceed()
