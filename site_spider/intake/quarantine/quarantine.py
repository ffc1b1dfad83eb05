"""Decides which seeds may not begin at once after a death of the process.

In this order: a culprit (see ledger.suspicion) is set aside; a suspect is done alone (one_by_one); a
seed that was in flight at a death begins with few others (few_at_a_time); and what is polled first
of a partition begins when a commit has said that this process has it, so that the next owner
knows of a death.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from site_spider.contracts.seed_log import Message, Partition
from site_spider.intake.quarantine.few_at_a_time import Care, CommitFirst
from site_spider.intake.quarantine.one_by_one import Isolation, culprit_reason
from site_spider.intake.seed_queue import SeedQueue, Waiting
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Entry
from site_spider.results.results import DeadLetters


class Quarantine:
    """On the event loop's thread only, but for `is_closed`."""

    def __init__(
        self,
        completion: Completion,
        queue: SeedQueue,
        dead_letters: DeadLetters,
        commit_first: CommitFirst,
        wake: Callable[[], None],
    ) -> None:
        ledger = completion.ledger
        self.care = Care(ledger, queue.let_begin, commit_first)
        self.isolation = Isolation(ledger, lambda: completion.is_idle, queue.let_begin, commit_first, wake)
        self._completion = completion
        self._queue = queue
        self._dead_letters = dead_letters
        self._commit_first = commit_first
        self._wake = wake
        self._fresh: set[Partition] = set()  # assigned, and nothing committed by us

    @property
    def is_closed(self) -> bool:
        """Whether no more seeds are to be polled. Any thread may ask."""
        return self.isolation.active

    @property
    def suspects(self) -> int:
        """How many seeds in flight were under way at a death, and are begun with care."""
        return len(self.care) + len(self.isolation)

    def is_cautious(self) -> bool:
        """Whether seeds should be through soon: others wait for them, or the next death may not be far."""
        return self.isolation.active or self.care.is_active

    def takes_culprit(self, message: Message, entry: Entry) -> bool:
        """Whether a seed has killed its process often enough, and is set aside."""
        ledger = self._completion.ledger
        if not ledger.suspicion(entry.partition).is_culprit(entry.offset):
            return False
        self.isolation.await_end(entry)
        self._dead_letters.set_aside(message, culprit_reason(), entry)
        ledger.clear_suspicion(entry.partition)
        self.care.look_again()
        return True

    def let_begin(self, taken: Sequence[Waiting]) -> None:
        """Let these begin, each at its time."""
        fresh: list[Waiting] = []
        for waiting in taken:
            if self.isolation.takes(waiting) or self.care.takes(waiting):
                continue
            if waiting.entry.partition in self._fresh:
                fresh.append(waiting)
            else:
                self._queue.push(waiting)
        if fresh:
            positions = self._completion.positions({waiting.entry.partition for waiting in fresh})
            self._commit_first(positions, lambda: self._committed(fresh))
        self.care.proceed()

    def proceed(self) -> None:
        """Let begin what may; to be called now and then."""
        self.care.proceed()
        if self.isolation.active:
            self._wake()  # the next one may begin when the last is complete, which wakes nobody

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """These have come."""
        self._fresh |= set(partitions)

    def lost(self, partitions: Sequence[Partition]) -> None:
        """These have left; their seeds are fenced."""
        self.isolation.forget_fenced()
        self.care.look_again()
        self._fresh -= set(partitions)

    def _committed(self, fresh: list[Waiting]) -> None:
        for waiting in fresh:
            self._fresh.discard(waiting.entry.partition)
            self._queue.let_begin(waiting)
