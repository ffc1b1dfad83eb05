"""The interface of commits: plain, or with results in one transaction.

`Commits` is the event loop's half, `ThreadCommits` that of the intake's thread. There are two
implementations, between which the wiring chooses: `at_least_once`, where sinks acknowledge results
and offsets follow, and `exactly_once.keeper`, where Kafka stores both in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, Self

from site_spider.contracts.seed_log import Consumer, Listener, Partition, Position, SeedLog
from site_spider.contracts.sink import Record
from site_spider.ledger.completion import Job
from site_spider.results.tally import CommitTally

Tell = Callable[..., None]  # calls on the event loop's thread


class Member(NamedTuple):
    """What this process is a member of."""

    topic: str
    group: str
    other_topics: tuple[str, ...] = ()

    @classmethod
    def of(cls, topics: Sequence[str], group: str) -> Self:
        """Of all these, of which the first is the main one."""
        return cls(topics[0], group, tuple(topics[1:]))

    @property
    def topics(self) -> tuple[str, ...]:
        """All that it reads."""
        return (self.topic, *self.other_topics)


class ThreadCommits(Protocol):
    """All of it on the intake's thread."""

    @property
    def is_awaited(self) -> bool:
        """Whether something waits for a commit."""

    def join(self, log: SeedLog, listener: Listener) -> Consumer:
        """Become a member of the group. Raises ConfigError, LogUnavailable."""

    def look(self, consumer: Any, mine: Set[Partition]) -> None:
        """Commit what is to be committed, of these partitions."""

    def forget(self, partitions: Sequence[Partition]) -> None:
        """These have left, and the loop is being told."""


class Commits(Protocol):
    """All of it on the event loop's thread; any thread may ask `is_taking` and `is_cut_off`."""

    @property
    def tally(self) -> CommitTally:
        """How many commits there were. Any thread may read it."""

    @property
    def thread(self) -> ThreadCommits:
        """The other half."""

    def tick(self) -> None:
        """Look what is safe to commit; to be called now and then."""

    def commit_first(self, positions: Mapping[Partition, Position], then: Callable[[], None]) -> None:
        """Commit now, and call `then` when that is done; retried for as long as it takes."""

    def keep(self, job: Job | None, record: Record) -> None:
        """A result has been acknowledged by every sink."""

    def spill(self, job: Job, key: bytes | None, value: bytes, topic: str | None = None) -> Future[Any]:
        """Send a request of this job to a seed topic (None: its own); done once durable or kept for its tree.

        The result is its place, if it has one already.
        """

    @property
    def stores_records(self) -> bool:
        """Whether `keep` stores what it is given, so that no sink need do it."""

    def is_taking(self) -> bool:
        """False while results cannot be stored, or too many wait for that."""

    @property
    def is_cut_off(self) -> bool:
        """Whether the seed log has not answered for so long that others may own our partitions."""

    @property
    def is_crowded(self) -> bool:
        """Whether seeds that are not complete hold so many results that no other may begin."""

    async def close(self, timeout_seconds: float) -> int:
        """Store what is ready; returns how many seeds are left, which are repeated."""
