"""The seeds of this process: taken from the intake, kept in the ledger, given to the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from typing import Any

from scrapy import Request, Spider

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.errors import LedgerError, SeedError
from site_spider.frontier.weight import seed_bytes
from site_spider.intake.handover import Handover
from site_spider.intake.load import Load
from site_spider.intake.owner import Arrival
from site_spider.intake.poll_limit import PollLimit
from site_spider.intake.quarantine.few_at_a_time import Care, CommitFirst
from site_spider.intake.quarantine.one_by_one import Isolation, culprit_reason
from site_spider.intake.seed_queue import SeedQueue, Waiting, seed_request
from site_spider.intake.shares import Shares, reserve
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Entry, Outcome
from site_spider.observe.document import NameCounts
from site_spider.results.dead_letters import DeadLetters
from site_spider.seed.seed import Seed
from site_spider.service.service_settings import SeedLimits

logger = logging.getLogger(__name__)


class Seeds:
    """Owner of the intake: what it hands over is taken into the ledger here."""

    def __init__(
        self,
        queue: SeedQueue,
        completion: Completion,
        dead_letters: DeadLetters,
        limits: SeedLimits,
        spider: Spider,
    ) -> None:
        self.queue = queue
        self.completion = completion
        self.ledger = completion.ledger
        self.unknown_fields = NameCounts()
        # set by the assembly:
        self.load: Load  # what is in memory, which a seed adds to until it is complete
        self.may_poll: Callable[[], bool] = lambda: True  # read on the intake's thread
        self.on_arrival: Callable[[], None] = lambda: None  # wakes the engine
        self.on_failure: Callable[[BaseException], None]
        self.commit_first: CommitFirst
        self.handover: Handover
        self.care = Care(self.ledger, self._begin, self._commit_first)
        wake = lambda: self.on_arrival()  # noqa: E731, PLW0108 - it is set later
        self.isolation = Isolation(self.ledger, self._is_idle, self._begin, self._commit_first, wake)
        self._dies = False  # by an error of our own: its partitions are not left in good order
        self._dead_letters = dead_letters
        self._limits = limits
        self._spider = spider
        self._fresh: set[Partition] = set()  # assigned, and nothing committed by us
        self._poll_limit = PollLimit(limits.seeds)
        # of one partition: it is seen to have its share before the others' reserve is gone
        self._most_at_once = max(1, reserve(limits.seeds) // 2)
        self._too_wide: Set[Partition] = frozenset()
        self._left_alone: Set[Partition] = frozenset()
        self._shares = Shares()
        self._sizes: dict[Entry, int] = {}  # of seeds in flight, in bytes
        completion.on_seed_ended.append(self._ended)

    # --- for the scheduler --------------------------------------------------------------------

    def begin(self, waiting: Waiting) -> Request | None:
        """The first request of a seed; None when there can be none, and it is set aside."""
        try:
            request, root = seed_request(waiting, self._spider)
        except Exception as error:  # noqa: BLE001 - whatever Scrapy dislikes about this seed, the next one comes
            self._set_aside(waiting, f"Scrapy refuses the request: {error}")
            return None
        self.completion.begin(request, root)
        return request

    def refuse(self, waiting: Waiting, error: Exception) -> None:
        """A seed cannot wait for its turn."""
        logger.error("A seed could not be queued: %s", waiting.seed.url, exc_info=error)
        self._set_aside(waiting, f"the seed could not be queued: {error!r}")

    def _set_aside(self, waiting: Waiting, reason: str) -> None:
        self._dead_letters.set_aside(waiting.message, reason, waiting.entry)

    def _commit_first(self, positions: Mapping[Partition, Position], then: Callable[[], None]) -> None:
        self.commit_first(positions, then)

    def _begin(self, waiting: Waiting) -> None:
        if waiting.entry.live:
            self.queue.push(waiting)
            self.on_arrival()

    def _is_idle(self) -> bool:
        return self.completion.is_idle

    def starved(self) -> None:
        """Nothing of what waits can be downloaded now: seeds for other hosts may lie behind."""
        self._poll_limit.starved(self.ledger.in_flight)

    # --- Owner of the intake, on its thread: reads only -----------------------------------------

    def room(self) -> int:
        """How many more seeds may be polled."""
        if self.isolation.active or not self.may_poll():
            return 0
        room = self._poll_limit.now - self.ledger.in_flight
        return min(room, self.load.seed_room(), self._most_at_once)

    @property
    def is_cautious(self) -> bool:
        """Whether seeds should be through soon: others wait for them, or the next death may not be far."""
        return self.isolation.active or self.care.is_active

    def capacity(self) -> int:
        """How many seeds may be polled while none is in flight."""
        return min(self._poll_limit.now, self.load.seed_capacity(), self._most_at_once)

    def too_wide(self) -> Set[Partition]:
        """Partitions whose slowest seed is too far behind, or that have more than their share."""
        return self._left_alone

    # --- Owner of the intake, on the event loop's thread ----------------------------------------

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Messages were polled. Of a partition whose owner died, they begin when that is committed."""
        taken = [self._take(message, seed) for message, seed in arrivals]
        self._let_begin([waiting for waiting in taken if waiting is not None])
        self.look()
        self.on_arrival()

    def _let_begin(self, taken: Sequence[Waiting]) -> None:
        fresh: list[Waiting] = []
        for waiting in taken:
            if self.isolation.takes(waiting) or self.care.takes(waiting):
                continue
            if waiting.entry.partition in self._fresh:
                fresh.append(waiting)
            else:
                self.queue.push(waiting)
        if fresh:
            positions = self.completion.positions({waiting.entry.partition for waiting in fresh})
            self.commit_first(positions, lambda: self._committed(fresh))
        self.care.proceed()

    def _committed(self, fresh: list[Waiting]) -> None:
        for waiting in fresh:
            if waiting.entry.live:
                self._fresh.discard(waiting.entry.partition)
                self._begin(waiting)

    def _take(self, message: Message, seed: Seed | SeedError) -> Waiting | None:
        try:
            entry = self._entry(message)
        except LedgerError as error:
            # polled in the moment in which its partition went elsewhere: its new owner has it
            logger.info("Not taken: %s", error)
            return None
        if entry is None:
            return None
        if (outcome := self.completion.replays.outcome(message)) is not None:
            self.completion.end_as(entry, outcome)  # done here before its partition left and came back
            return None
        self._weigh(entry, message, seed)
        if isinstance(seed, SeedError):
            self._dead_letters.set_aside(message, seed.reason, entry)
            return None
        if self.ledger.suspicion(entry.partition).is_culprit(entry.offset):
            self.isolation.await_end(entry)
            self._dead_letters.set_aside(message, culprit_reason(), entry)
            self.ledger.clear_suspicion(entry.partition)
            self.care.look_again()
            return None
        for name in seed.unknown_fields:
            self.unknown_fields.add(name)
        waiting = Waiting(entry, message, seed)
        goes_on = self.completion.replays.wait(message, lambda outcome: self._replayed(waiting, outcome))
        return None if goes_on else waiting

    def _replayed(self, waiting: Waiting, outcome: Outcome | None) -> None:
        if not waiting.entry.live:
            return
        if outcome is None:
            self._let_begin([waiting])
            self.on_arrival()
        else:
            self.completion.end_as(waiting.entry, outcome)

    def _weigh(self, entry: Entry, message: Message, seed: Seed | SeedError) -> None:
        self._sizes[entry] = size_bytes = seed_bytes(message, seed)
        self.load.seed_bytes += size_bytes

    def _ended(self, entry: Entry) -> None:
        self.load.seed_bytes -= self._sizes.pop(entry, 0)
        self.care.ended(entry)

    def _entry(self, message: Message) -> Entry | None:
        partition, position = message.partition, self.ledger.next_offset(message.partition)
        if position is not None and message.offset < position:
            logger.warning(
                "%s/%d begins anew at offset %d, below the position %d: the topic was made anew or its "
                "retention has passed the committed offset",
                *partition,
                message.offset,
                position,
            )
            self.lost([partition])
            self.assigned({partition: None})
        return self.completion.take(message)

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in Listener. What was not known to have left ends now."""
        if stale := [partition for partition in positions if self.ledger.epoch(partition) is not None]:
            self.lost(stale)
        self.completion.assigned(positions)
        self._fresh |= set(positions)
        self.look()

    def revoked(self, partitions: Sequence[Partition]) -> Coroutine[Any, Any, Mapping[Partition, Position]]:
        """As in Owner."""
        return self._revoked({partition: self.ledger.epoch(partition) for partition in partitions})

    async def _revoked(self, epochs: Mapping[Partition, int | None]) -> Mapping[Partition, Position]:
        await self.handover.prepare(epochs)
        # without those that the intake has given up waiting for, and that may be back
        leaving = [partition for partition, epoch in epochs.items() if self.ledger.epoch(partition) == epoch]
        positions = self.completion.positions(leaving, leaving=not self._dies)
        self.lost(leaving)
        return positions

    def lost(self, partitions: Sequence[Partition]) -> None:
        """As in Listener."""
        self.completion.lost(partitions)
        self.queue.remove(lambda waiting: not waiting.entry.live)
        self.isolation.forget_fenced()
        self.care.look_again()
        self._fresh -= set(partitions)
        self.look()

    def reached(self, partition: Partition, offset: int) -> None:
        """As in Listener."""
        if partition in self.ledger.partitions():
            self.ledger.reached(partition, offset)

    def failed(self, error: BaseException) -> None:
        """As in Owner."""
        self.on_failure(error)

    def die(self) -> None:
        """The process ends by an error of our own: the next owner is to take it for a death."""
        self._dies = True

    def look(self) -> None:
        """See how far the partitions have come; to be called now and then."""
        ledger, limit = self.ledger, self._limits.span_offsets
        mine = ledger.partitions()
        self._poll_limit.look(ledger.in_flight)
        wide = frozenset(partition for partition in mine if ledger.span(partition) >= limit)
        for partition in wide - self._too_wide:
            logger.warning(
                "%s/%d: %d offsets are not committed behind a seed that takes long; no more are polled there "
                "until it ends (SITE_MAX_SPAN_OFFSETS)",
                *partition,
                ledger.span(partition),
            )
        self._too_wide = wide
        in_flight = {partition: ledger.open_count(partition) for partition in mine}
        self._left_alone = wide | self._shares.over(in_flight, self._limits.seeds)
        self.care.proceed()
        if self.isolation.active:
            self.on_arrival()  # the next one may begin when the last is complete, which wakes nobody
