"""The thread that owns the consumer: polls, parses, commits, answers rebalances.

Everything is handed to the event loop with call_soon_threadsafe, in order: an assignment
arrives there before its first message, a revocation after its last. The loop never waits for
this thread; this thread waits for the loop only while partitions are being revoked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from scrapy.core.engine import ExecutionEngine

from site_spider import runtime
from site_spider.bounded import NameCounts
from site_spider.contracts.seed_log import Consumer, ForeignPosition, Listener, Message, Partition, Position, SeedLog
from site_spider.engine import flow as engine_hooks
from site_spider.engine.background import Background
from site_spider.errors import LedgerError, SeedError, SiteSpiderError
from site_spider.intake.room import PollRoom
from site_spider.intake.seed_queue import SeedQueue
from site_spider.intake.suspects import Quarantine
from site_spider.ledger.completion import Completion, job_of
from site_spider.ledger.ledger import Outcome, SeedInFlight
from site_spider.results.commits import Commits
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.pipeline import Sinks
from site_spider.seed.seed import Seed

# --- loop calls: calls functions on the event loop's thread from other threads ---------------------------


class LoopCalls:
    """A function that can say whether it is of use. A call that fails ends the crawl."""

    def __init__(self, background: Background) -> None:
        self._loop = asyncio.get_running_loop()
        self._guarded = background.guarded
        self.are_over = False  # the loop has closed: the process is ending

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Have `call(*arguments)` made on the loop, in the order of asking."""
        try:
            self._loop.call_soon_threadsafe(self._guarded(call), *arguments)
        except RuntimeError:
            self.are_over = True


# --- intake ----------------------------------------------------------------------------------------------

Arrival = tuple[Message, Seed | SeedError]  # a polled message, and what it says or why that is not valid
logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_QUICK_POLL_SECONDS = 0.02  # while something waits for a commit, or for room
_BATCH = 200  # messages handed over at once: small enough not to hold up the loop


@dataclass(eq=False)
class Intake(Listener):
    """Polls while there is room, pauses while there is none."""

    _log: SeedLog
    _receiver: Seeds
    _parse: Callable[[bytes | None], Seed]  # raises SeedError
    _revoke_wait_seconds: float  # for the receiver to let partitions go
    _commits: Commits
    _tell: LoopCalls
    _on_failure: Callable[[BaseException], None]
    _answering: asyncio.Future[None] | None = None
    _leaves_for_good: bool = False
    _mine: set[Partition] = field(default_factory=set)
    _handed_over: int = 0  # messages, by the intake's thread
    _arrived: int = 0  # of these, on the loop's
    _full: bool = False
    looked_at: float = -inf  # when the last poll began that has found nothing; monotonic
    has_failed: bool = False  # it commits nothing any more
    _consumer: Consumer | None = None

    def __post_init__(self) -> None:
        self._thread = runtime.Thread(target=self._run, name="site-intake", daemon=True)
        self._stopping = runtime.Event()
        self.rebalances = dict.fromkeys(("assigned", "revoked", "lost"), 0)

    # --- on any thread ----------------------------------------------------------------------

    @property
    def member_name(self) -> str:
        """As of Consumer; empty before the group is joined."""
        return "" if self._consumer is None else self._consumer.member_name

    @property
    def is_member(self) -> bool:
        try:
            return self._consumer is not None and self._consumer.is_member
        except RuntimeError:  # it is closed
            return False

    @property
    def is_away(self) -> bool:
        return self._consumer is not None and self._consumer.is_away

    @property
    def hands_over(self) -> bool:
        """Whether messages were polled of which the receiver has not heard yet."""
        return self._handed_over != self._arrived

    # --- on the event loop's thread ---------------------------------------------------------

    def start(self) -> None:
        """Join the group and begin to poll."""
        self._thread.start()

    def stop(self, *, for_good: bool = False) -> None:
        """Poll no more; commit, leave the group, end. Returns at once.

        Partitions of a member that leaves for good go to others at once.
        """
        self._leaves_for_good = for_good
        self._stopping.set()

    async def stopped(self, timeout_seconds: float) -> bool:
        """Wait until the thread has ended; False when it has not in time."""
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, timeout_seconds)
        return not self._thread.is_alive()

    def _arrive(self, arrivals: list[Arrival]) -> None:
        self._arrived += len(arrivals)
        self._receiver.arrived(arrivals)

    # --- on the intake's thread -------------------------------------------------------------

    def _run(self) -> None:
        with self._guarded():
            consumer = self._consumer = self._commits.join(self._log, self)
            with self._guarded():  # it has failed before the consumer asks what is to be committed
                self._work(consumer)
            consumer.close(for_good=self._leaves_for_good)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a thread that dies silently would stall the crawl
            if self._stopping.is_set() or self.has_failed:
                is_known = isinstance(error, SiteSpiderError)
                logger.warning("Leaving the consumer group failed: %s", error, exc_info=None if is_known else error)
            else:
                self.has_failed = True
                self._tell(self._on_failure, error)

    def _work(self, consumer: Consumer) -> None:
        while not (self._stopping.is_set() or self._tell.are_over):
            room = min(_BATCH, self._receiver.poll_room.now() - (self._handed_over - self._arrived))
            self._pause_or_resume(consumer, room)
            is_awaited = self._full or self._commits.is_awaited
            timeout_seconds = _QUICK_POLL_SECONDS if is_awaited else _POLL_SECONDS
            began = runtime.monotonic()
            messages = consumer.poll(timeout_seconds, max(1, room))
            if messages:
                self._hand_over(messages)
            else:
                self.looked_at = began
            self._commits.look(consumer, self._mine)

    def _pause_or_resume(self, consumer: Consumer, room: int) -> None:
        # some room before it goes on: each resume makes the client fetch anew what it had fetched
        enough = min(_BATCH, self._receiver.poll_room.capacity()) // 4
        self._full = room <= 0 or (self._full and room < enough)
        consumer.pause(self._mine if self._full else self._mine & self._receiver.poll_room.closed.keys())

    def _hand_over(self, messages: list[Message]) -> None:
        arrivals = [(message, self._read(message)) for message in messages]
        self._handed_over += len(arrivals)
        self._tell(self._arrive, arrivals)

    def _read(self, message: Message) -> Seed | SeedError:
        try:
            return self._parse(message.value)
        except SeedError as error:
            return error
        except Exception as error:
            logger.exception("A message could not be read: %s offset %d", message.partition, message.offset)
            return SeedError(f"the message could not be read: {error!r}")

    def _ask(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position] | None:
        """What the receiver says is to be committed before partitions leave; None when it is late."""
        answer: Future[Mapping[Partition, Position]] = Future()

        async def wait_for(positions: Awaitable[Mapping[Partition, Position]]) -> None:
            try:
                answer.set_result(await positions)
            except Exception as error:  # noqa: BLE001 - raised again where it was asked
                answer.set_exception(error)

        def begin() -> None:
            self._answering = asyncio.ensure_future(wait_for(self._receiver.revoked(partitions)))

        self._tell(begin)
        try:
            return answer.result(0 if self._tell.are_over else self._revoke_wait_seconds)
        except TimeoutError:
            logger.warning("The event loop did not answer a rebalance in time; nothing is committed for it")
            return None

    # --- Listener ---------------------------------------------------------------------------

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        logger.info("Assigned: %s", _said(positions))
        self.rebalances["assigned"] += 1
        self._mine |= set(positions)
        self._tell(self._receiver.assigned, dict(positions))

    def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position]:
        logger.info("Revoked: %s", _said(partitions))
        self.rebalances["revoked"] += 1
        positions = self._ask(partitions)
        if positions is None:  # they leave now, whenever the answer comes: they may be back before it
            self._tell(self._receiver.lost, list(partitions))
        self._forget(partitions)
        return positions or {}

    def lost(self, partitions: Sequence[Partition]) -> None:
        logger.warning("Lost without a revocation, nothing is committed: %s", _said(partitions))
        self.rebalances["lost"] += 1
        self._tell(self._receiver.lost, list(partitions))
        self._forget(partitions)

    def reached(self, partition: Partition, offset: int) -> None:
        self._tell(self._receiver.reached, partition, offset)

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        self._tell(self._receiver.deleted, partition, first, beyond)

    def _forget(self, partitions: Sequence[Partition]) -> None:
        self._mine -= set(partitions)
        self._commits.forget(partitions)


def _said(partitions: Mapping[Partition, object] | Sequence[Partition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "nothing"


# --- handover: lets downloads and sinks finish before partitions are revoked -----------------------------
# When the group asks for partitions back, their next owner repeats whatever is not committed. So nothing
# new is begun, the downloads of these partitions get a few seconds to end, and then the sinks as long as
# they need to take the results: a page that was fetched is not fetched again because its result waits for a
# slow sink, or for an index that is just being created. What is complete then is committed. Downloads that
# take longer are repeated, and so is what a sink that is away does not take.

SINK_SECONDS = 30.0  # for sinks to take results; one that needs longer is as good as away
COUNT_SECONDS = 3.0  # for the log to take dead letters and counts of tasks; the rest is repeated
_LOOK_SECONDS = 0.02


@dataclass(eq=False)
class Handover:
    """The pause before partitions leave. On the event loop's thread; `active` may be read by any."""

    _engine: ExecutionEngine
    _sinks: Sinks
    _grace_seconds: float
    _is_telling: Callable[[], bool]  # the log of dead letters, or of seeds of tasks that are done
    active: bool = False  # nothing may be begun
    _closed: bool = False

    async def prepare(self, partitions: Collection[Partition]) -> None:
        """Return when nothing of these partitions is under way any more, or there is no more time."""
        self.active = True
        try:
            self._sinks.flush()
            await self._while(lambda: self._is_downloading(partitions), self._grace_seconds)
            await self._while(lambda: self._sinks.are_writing, SINK_SECONDS)
            await self.told()
        finally:
            self.active = False
            engine_hooks.wake(self._engine)

    async def told(self) -> None:
        """Return when dead letters are durable and seeds of tasks counted, or there is no more time."""
        await self._while(self._is_telling, COUNT_SECONDS)

    def close(self) -> None:
        """The crawl has ended: nothing is waited for any more."""
        self._closed = True

    async def _while(self, is_under_way: Callable[[], bool], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # looked at again and again, for requests and records end in many places
        while not self._closed and loop.time() < deadline and is_under_way():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)

    def _is_downloading(self, partitions: Collection[Partition]) -> bool:
        jobs = map(job_of, engine_hooks.requests_in_progress(self._engine))
        return any(job is not None and job.entry.live and job.entry.partition in partitions for job in jobs)


# --- seeds: takes polled messages into the ledger and the seed queue, and answers rebalances -------------


@dataclass(eq=False)
class Seeds:
    """What the intake hands over is taken into the ledger here, on the event loop's thread."""

    _completion: Completion
    _queue: SeedQueue
    _quarantine: Quarantine
    _dead_letters: DeadLetters
    poll_room: PollRoom
    _handover: Handover
    _fenced: Callable[[], None]  # some of what waits may be for seeds that are another process's now
    _has_died: Callable[[], bool]  # by an error of our own: its partitions are not left in good order
    unknown_fields: NameCounts = field(default_factory=NameCounts)
    deleted_unread: int = 0  # by the log's retention

    def __post_init__(self) -> None:
        self._ledger = self._completion.ledger

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Messages were polled. Of a partition whose owner died, they begin when that is committed."""
        first = {message.partition: message for message, _seed in reversed(arrivals)}
        # together: each time all partitions are looked at
        self._start_again([message for message in first.values() if self._is_below(message)])
        taken = [self._take(message, seed) for message, seed in arrivals]
        self._quarantine.let_begin([waiting for waiting in taken if waiting is not None])
        self.look()
        self._queue.wake()

    def _take(self, message: Message, seed: Seed | SeedError) -> SeedInFlight | None:
        if self._is_below(message):
            self._start_again([message])
        entry = None
        try:
            entry = self._completion.take(message, seed)
        except LedgerError as error:
            # polled in the moment in which its partition went elsewhere: its new owner has it
            logger.info("Not taken: %s", error)
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
            self._dead_letters.set_aside(entry, error.reason)
            return None
        if entry.is_suspected and self._quarantine.takes_culprit(entry):
            return None
        for name in entry.seed.unknown_fields:
            self.unknown_fields.add(name)
        repeats = self._completion.repeats
        if repeats.under_way and repeats.wait(message, partial(self._repeated, entry)):
            return None
        return entry

    def _repeated(self, waiting: SeedInFlight, outcome: Outcome | None) -> None:
        if not waiting.live:
            return
        if outcome is None:
            self._quarantine.let_begin([waiting])
            self._queue.wake()
        else:
            self._completion.end_as(waiting, outcome)

    def _is_below(self, message: Message) -> bool:
        position = self._ledger.next_offset(message.partition)
        return position is not None and message.offset < position

    def _start_again(self, first: Sequence[Message]) -> None:
        for message in first:
            logger.warning(
                "%s/%d starts again at offset %d, below the position %d: the topic was created again, its retention "
                "has passed the committed offset, or a leader that lacked messages was elected",
                *message.partition,
                message.offset,
                self._ledger.next_offset(message.partition),
            )
        if partitions := [message.partition for message in first]:
            self.lost(partitions)
            self.assigned(dict.fromkeys(partitions))

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in Listener. What was not known to have left ends now."""
        if stale := [partition for partition in positions if self._ledger.epoch(partition) is not None]:
            self.lost(stale)
        self._completion.assigned(positions)
        for partition, position in positions.items():
            if isinstance(position, ForeignPosition):
                self._completion.deleted(partition, 0, position.offset)
        self._quarantine.assigned(list(positions))
        self.look()

    def revoked(self, partitions: Sequence[Partition]) -> Coroutine[Any, Any, Mapping[Partition, Position]]:
        """As in Listener; may take a while. The assignment that ends is that of the moment of the call."""
        return self._revoked({partition: self._ledger.epoch(partition) for partition in partitions})

    async def _revoked(self, epochs: Mapping[Partition, int | None]) -> Mapping[Partition, Position]:
        await self._handover.prepare(epochs)
        # without those that the intake has given up waiting for, and that may be back
        leaving = [partition for partition, epoch in epochs.items() if self._ledger.epoch(partition) == epoch]
        positions = self._ledger.positions(leaving, leaving=not self._has_died())
        self.lost(leaving)
        return positions

    def lost(self, partitions: Sequence[Partition]) -> None:
        self._completion.lost(partitions)
        self._fenced()
        self._queue.remove(lambda waiting: not waiting.live)
        self._quarantine.lost(partitions)
        self.look()

    def reached(self, partition: Partition, offset: int) -> None:
        if self._ledger.epoch(partition) is not None:
            self._ledger.reached(partition, offset)

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        """As in Listener: those that were not complete are lost, and counted."""
        count = self._ledger.unread(partition, first, beyond)
        self.deleted_unread += count
        if count:
            self._completion.deleted(partition, first, beyond)
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
        self.poll_room.look()
        self._quarantine.proceed()
