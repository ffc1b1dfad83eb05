"""Results and the offsets of their seeds in one Kafka transaction.

It owns results that wait for their seed, and the transactions under way. It never stores a result whose
seed is not complete.

Theory. The rules stand in results.transaction_queue. Here they meet the crawl: a seed whose results are kept has
one hold, so it is complete when its transaction is committed. Every commit goes this way while it is on,
those that isolate a suspect included, so that no commit of an older state can undo a later one.

Transactions run on the thread that polls, so none runs while partitions come or go. One that was
put together before a partition left must not run after that: its positions are those of an earlier epoch.
So both sides count the leaves, and one is refused unless the loop had heard of all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from operator import call
from typing import Any, NamedTuple

from site_spider import runtime
from site_spider.contracts.seed_log import Headers, Partition, Position, TransactionalConsumer
from site_spider.contracts.sink import Record
from site_spider.engine.background import Background
from site_spider.errors import CommitInDoubt, LogUnavailable, SinkRejected
from site_spider.ledger.completion import Completion, Job, SeedListener
from site_spider.ledger.ledger import SeedInFlight
from site_spider.outage import Outage
from site_spider.results.batches_and_retries import BatchLimits
from site_spider.results.commits import Commits, First, Member, Tell
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.document import refusal_of
from site_spider.results.transaction_queue import Item, Link, Transaction, TransactionQueue, Tree

logger = logging.getLogger(__name__)

_ASK_SECONDS = 0.5  # between two questions after a transaction in doubt
_COMMIT_SECONDS = 0.5  # between commits that carry no results
_RETRY_SECONDS = 1.0  # when the servers could not be had
_PAUSE_SECONDS = 0.05  # when a transaction has to be put together anew
_CLOSE_STEP_SECONDS = 0.05

Nothing: Mapping[int, str] = {}


class TransactionOutcome(NamedTuple):
    """What became of a transaction: committed, or nothing of it is stored.

    `refused` names items by number that the servers refuse; `trouble` says why the servers
    could not be had.
    """

    committed: bool
    refused: Mapping[int, str] = Nothing
    trouble: str = ""


class ExactlyOnce(SeedListener, Commits):
    """Keeps results until their seeds are complete."""

    stores_records = True

    def __init__(  # noqa: PLR0913, PLR0917 - it stands between all of them
        self,
        completion: Completion,
        dead_letters: DeadLetters,
        limits: BatchLimits,
        backlog_bytes: int,
        member: Member,
        tell: Tell,
        urgent: Sequence[Callable[[], bool]],
        on_change: Callable[[], None],
        fault_of: Callable[[str], str],
        background: Background,
    ) -> None:
        """`fault_of` a topic says why nothing can be sent to it; it may block."""
        super().__init__(completion, member, tell)
        self._held = TransactionQueue(completion.ledger, limits)
        self._fault_of, self._background = fault_of, background
        self._sound: set[str] = set()  # topics that links may go to
        self._asked: dict[str, list[tuple[SeedInFlight, Link, Future[Any]]]] = {}  # by topics not known yet
        self._dead_letters = dead_letters
        self._urgent = urgent  # reasons, of which one is enough
        self._on_change = on_change
        self._outage = Outage(logger, "Sink kafka is away; transactions wait", "Sink kafka is back")
        self._backlog_bytes = backlog_bytes  # may wait for it
        self._firsts: list[First] = []
        self._running: list[First] = []  # those that the transaction under way is for
        self._loop = asyncio.get_running_loop()
        self._not_before = 0.0
        self._commit_at = 0.0
        self._hurried = False
        self._is_settling = False
        self._waiting: tuple[Transaction, int] | None = None  # and the leaves that the loop had heard of
        self._heard_leaves = 0
        # of the intake's thread
        self._doubtful: Transaction | None = None
        self._left_since: set[Partition] = set()  # while a transaction is in doubt
        self._ask_at = 0.0

    # --- what is kept -------------------------------------------------------------------------

    @property
    def sink_away(self) -> str:
        return "kafka" if self._outage.is_on else ""

    @property
    def backlog(self) -> tuple[int, int]:
        return self._held.ready_count, self._held.ready_bytes

    def is_taking(self) -> bool:
        return not self._outage.is_on and self._held.ready_bytes < self._backlog_bytes

    @property
    def is_crowded(self) -> bool:
        """Whether trees that are not complete hold so much that they should end soon."""
        return self._held.size_bytes - self._held.ready_bytes >= self._backlog_bytes

    def keep(self, job: Job | None, record: Record) -> None:
        if job is None:
            self._held.keep_alone(record, self._loop.time())
        else:
            self._keep(job.entry, record)

    def spill(self, entry: SeedInFlight, topic: str, key: bytes | None, value: bytes, headers: Headers) -> Future[Any]:
        """Keep a link that becomes a seed when the tree it leaves is complete; the future fails if it cannot."""
        kept: Future[Any] = Future()
        link = Link(topic, key, value, headers)
        if topic == entry.partition.topic or topic in self._sound:
            self._keep(entry, link)
            kept.set_result(None)
        elif topic in self._asked:
            self._asked[topic].append((entry, link, kept))
        else:
            self._asked[topic] = [(entry, link, kept)]
            self._background.start(self._ask(topic), "topic of links")
        return kept

    async def _ask(self, topic: str) -> None:
        """One transaction holds the results of many seeds, so what would make it fail is not kept."""
        try:
            fault = await asyncio.to_thread(self._fault_of, topic)
        except Exception:  # of a log of somebody's own, say: else its seeds would never end
            logger.exception("Topic %s could not be asked for", topic)
            fault = ""
        if not fault:
            self._sound.add(topic)
        for entry, link, kept in self._asked.pop(topic):
            if fault:
                kept.set_exception(SinkRejected(fault))
            else:
                self._keep(entry, link)
                kept.set_result(None)

    def _keep(self, entry: SeedInFlight, item: Item) -> None:
        if not entry.live:
            self._completion.repeats.broken(entry)  # stored by whoever has the partition now
        elif self._held.keep(entry, item):
            self._completion.hold_to_close(entry)

    # --- SeedListener ---------------------------------------------------------------------------

    def last_hold(self, entry: SeedInFlight) -> None:
        """The results of its tree are all that is left: they can go."""
        if entry.live and self._held.is_open(entry):
            self._held.end(entry, self._loop.time())
            self.tick()

    def ended(self, entry: SeedInFlight) -> None:
        """It was set aside, or nothing was kept of it."""
        if self._held.forget(entry):
            self._drop([entry])

    fenced = ended  # its next owner stores its results

    def _drop(self, entries: Sequence[SeedInFlight]) -> None:
        for entry in entries:
            self._completion.repeats.broken(entry)  # should it come back, it has to be done anew
            self._completion.release(entry)

    # --- commits (see results.commits) ------------------------------------------------------------

    def commit_first(self, positions: Mapping[Partition, Position], then: Callable[[], None]) -> None:
        """Commit now, and call `then` when that is done.

        The positions are worked out again when their turn comes: those given may be older by then than
        what a transaction under way commits.
        """
        self._firsts.append((frozenset(positions), then))
        self.tick()

    def tick(self) -> None:
        now = self._loop.time()
        if self._is_settling or self._held.under_way is not None or now < self._not_before:
            return
        at_once = self._hurried or any(map(call, self._urgent))
        with_trees = self._held.ready_count > 0 and (at_once or self._held.is_due(now))
        if not with_trees and not self._firsts and (now < self._commit_at or self._held.ready_count):
            return
        firsts, self._firsts = self._awaited(), []
        anyway = frozenset[Partition]().union(*(partitions for partitions, _ in firsts))
        transaction = self._held.commit(with_trees=with_trees, anyway=anyway)
        self._commit_at = now + _COMMIT_SECONDS
        if transaction is None:
            self._firsts = firsts  # there was no room to say all that is complete; nothing may begin before
            if self._outage.is_on:  # it lets nothing begin, so only a commit would show its end, and there is none
                self._outage.is_over()
                self._on_change()
            return
        self._running = firsts
        self._waiting = transaction, self._heard_leaves

    def _awaited(self) -> list[First]:
        """Commits that something waits for, but for partitions that have left: those seeds are fenced."""
        mine = set(self._completion.ledger.partitions())
        return [first for first in self._firsts if first[0] & mine]

    def _heard(self, partitions: Sequence[Partition]) -> None:
        self._held.forget_positions(partitions)
        self._heard_leaves += 1

    def _settled(self, outcome: TransactionOutcome) -> None:
        # the end of one seed may let others begin, which asks for a commit: not while the ledger knows of
        # some of a transaction's seeds only, or the next position would undo the others
        self._is_settling = True
        try:
            self._count(succeeded=outcome.committed)
            if outcome.committed:
                self._committed()
            else:
                self._not_committed(outcome)
        finally:
            self._is_settling = False
        if outcome.trouble:
            self._outage.goes_on(outcome.trouble)
        else:
            self._outage.is_over()
        self.tick()
        self._on_change()

    def _committed(self) -> None:
        assert self._held.under_way is not None
        self._completion.committed(self._held.under_way.positions)
        for tree in self._held.committed():
            if tree.entry is not None:
                self._completion.release(tree.entry)
        running, self._running = self._running, []
        for _, then in running:
            then()

    def _not_committed(self, outcome: TransactionOutcome) -> None:
        self._sound.clear()
        self._firsts = [*self._running, *self._firsts]
        self._running = []
        if outcome.refused:
            assert self._held.under_way is not None
            items = self._held.under_way.items
            opened, dropped = self._held.refused(outcome.refused.keys())
            for tree, number in opened.items():
                guilty, reason = items[number], outcome.refused[number]
                self._give_up(tree, refusal_of(guilty, reason) if isinstance(guilty, Record) else reason)
        else:
            dropped = self._held.not_committed()
        self._drop(dropped)
        pause = _RETRY_SECONDS if outcome.trouble else _PAUSE_SECONDS
        self._not_before = 0.0 if outcome.refused else self._loop.time() + pause

    def _give_up(self, tree: Tree, reason: str) -> None:
        logger.warning("Sink kafka rejected a result: %s", reason)
        entry = tree.entry
        if entry is None or not entry.live:
            return
        self._dead_letters.give_up(entry, reason)
        if entry.holds == 1:  # it was set aside before
            self.last_hold(entry)

    async def close(self, timeout_seconds: float) -> int:
        self._hurried = True
        deadline = self._loop.time() + timeout_seconds
        while self._held.ready_count or self._held.under_way is not None:
            if self._loop.time() >= deadline:
                break
            self.tick()
            await asyncio.sleep(_CLOSE_STEP_SECONDS)
        return self._held.ready_count

    # --- on the thread of the intake ----------------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        return self._doubtful is not None or self._waiting is not None

    def look(self, consumer: TransactionalConsumer, mine: Set[Partition]) -> None:
        self._silence.look()
        if runtime.monotonic() < self._ask_at:
            return
        if self._doubtful is not None:
            self._clear_up(consumer, self._doubtful)
        if self._doubtful is None and self._waiting is not None:
            (transaction, leaves), self._waiting = self._waiting, None
            if leaves != self._leaves or not transaction.positions.keys() <= mine:
                self._tell(self._settled, TransactionOutcome(committed=False))
            else:
                self._run(consumer, transaction)

    def forget(self, partitions: Sequence[Partition]) -> None:
        self._leaves += 1
        self._left_since.update(partitions)
        self._tell(self._heard, list(partitions))

    def _run(self, consumer: TransactionalConsumer, transaction: Transaction) -> None:
        self._silence.asked()
        try:
            refused = consumer.commit_with(transaction.items, transaction.positions)
        except CommitInDoubt as error:
            logger.warning("It is not known whether a transaction was committed, asking: %s", error)
            self._doubtful, self._left_since = transaction, set()
        except LogUnavailable as error:
            refused = self._without_topic(transaction)
            self._tell(
                self._settled,
                TransactionOutcome(committed=False, refused=refused, trouble="" if refused else str(error)),
            )
        else:
            self._tell(self._settled, TransactionOutcome(committed=not refused, refused=refused))
        finally:
            if self._doubtful is None:
                self._silence.over()  # when it failed, the keeper waits

    def _without_topic(self, transaction: Transaction) -> Mapping[int, str]:
        """Links to one topic that is gone, or may not be written: no server says so of a transaction."""
        own = {tree.entry.partition.topic for tree in transaction.trees if tree.entry is not None}
        links = {number: one.topic for number, one in enumerate(transaction.items) if isinstance(one, Link)}
        for topic in {*links.values()} - own:
            if fault := self._fault_of(topic):
                return {number: fault for number, its_topic in links.items() if its_topic == topic}
        return Nothing

    def _clear_up(self, consumer: TransactionalConsumer, transaction: Transaction) -> None:
        # for those that have left others may have committed since, and nothing here depends on it
        positions = {p: at for p, at in transaction.positions.items() if p not in self._left_since}
        try:
            committed = consumer.was_committed(positions)
        except LogUnavailable:
            self._ask_at = runtime.monotonic() + _ASK_SECONDS
            return
        logger.info("The transaction in doubt was %s", "committed" if committed else "not committed")
        self._doubtful = None
        self._silence.over()
        self._tell(self._settled, TransactionOutcome(committed))
