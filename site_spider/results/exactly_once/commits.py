"""Passes transactions to the intake's thread, and their outcome back.

Theory. Transactions run on the thread that polls, so none runs while partitions come or go. One
that was put together before a partition left must not run after that: its positions are those of
an earlier epoch. The loop may put such a one into the queue until it has heard of the leave, so
`forget` has it put a mark there, and all that stands before the mark is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from queue import SimpleQueue
from typing import NamedTuple

from site_spider import runtime
from site_spider.contracts.seed_log import Consumer, Listener, Partition, SeedLog, TransactionalConsumer
from site_spider.errors import CommitInDoubt, LogUnavailable
from site_spider.results.commits import Member, Tell
from site_spider.results.exactly_once.held import Transaction
from site_spider.results.silence import Silence

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5

Nothing: Mapping[int, str] = {}


class TransactionOutcome(NamedTuple):
    """What became of a transaction: committed, or nothing of it is stored.

    `refused` names items by number that the servers refuse; `trouble` says why the servers
    could not be had.
    """

    committed: bool
    refused: Mapping[int, str] = Nothing
    trouble: str = ""


class TransactionCommits:
    """The thread's half of the keeper, which is told outcomes by `settled` and leaves by `left`."""

    def __init__(
        self,
        member: Member,
        tell: Tell,
        settled: Callable[[TransactionOutcome], None],
        left: Callable[[Sequence[Partition]], None],
    ) -> None:
        self._member = member
        self._to_loop = tell
        self._settled = settled
        self._left = left
        self._queue: SimpleQueue[Transaction | None] = SimpleQueue()  # None: the mark
        self._marks_to_come = 0
        self._doubtful: Transaction | None = None
        self._left_since: set[Partition] = set()  # while a transaction is in doubt
        self._not_before = 0.0
        self.silence = Silence()

    def put(self, transaction: Transaction) -> None:
        """Have it committed. On the loop's thread."""
        self._queue.put(transaction)

    def join(self, log: SeedLog, listener: Listener) -> Consumer:
        """As in ThreadCommits."""
        consumer = log.transactional_consumer(self._member.topics, self._member.group, listener)
        self.silence.joined(consumer.session_seconds)
        return consumer

    @property
    def is_awaited(self) -> bool:
        """Whether a transaction waits. On the intake's thread."""
        return self._doubtful is not None or not self._queue.empty()

    def look(self, consumer: TransactionalConsumer, mine: Set[Partition]) -> None:
        """Run what waits. On the intake's thread."""
        if runtime.monotonic() < self._not_before:
            return
        if self._doubtful is not None:
            self._clear_up(consumer, self._doubtful)
        while self._doubtful is None and not self._queue.empty():
            transaction = self._queue.get_nowait()
            if transaction is None:
                self._marks_to_come -= 1
            elif self._marks_to_come or not transaction.positions.keys() <= mine:
                self._tell(TransactionOutcome(committed=False))
            else:
                self._run(consumer, transaction)

    def forget(self, partitions: Sequence[Partition]) -> None:
        """These have left; the loop is being told. On the intake's thread."""
        self._marks_to_come += 1
        self._left_since.update(partitions)
        self._to_loop(self._heard, list(partitions))

    def _heard(self, partitions: Sequence[Partition]) -> None:
        self._left(partitions)
        self._queue.put(None)

    def _run(self, consumer: TransactionalConsumer, transaction: Transaction) -> None:
        self.silence.asked()
        try:
            refused = consumer.commit_with(transaction.items, transaction.positions)
        except CommitInDoubt as error:
            logger.warning("It is not known whether a transaction was committed, asking: %s", error)
            self._doubtful, self._left_since = transaction, set()
        except LogUnavailable as error:
            self._tell(TransactionOutcome(committed=False, trouble=str(error)))
        else:
            self._tell(TransactionOutcome(committed=not refused, refused=refused))
        finally:
            self.silence.over()  # when it failed, the keeper waits

    def _clear_up(self, consumer: TransactionalConsumer, transaction: Transaction) -> None:
        # for those that have left others may have committed since, and nothing here depends on it
        positions = {p: at for p, at in transaction.positions.items() if p not in self._left_since}
        try:
            committed = consumer.was_committed(positions)
        except LogUnavailable:
            self._not_before = runtime.monotonic() + _RETRY_SECONDS
            return
        logger.info("The transaction in doubt was %s", "committed" if committed else "not committed")
        self._doubtful = None
        self._tell(TransactionOutcome(committed))

    def _tell(self, outcome: TransactionOutcome) -> None:
        self._to_loop(self._settled, outcome)
