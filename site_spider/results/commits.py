"""Commits: plain, or with results in one transaction.

There are two implementations of `Commits`, between which the wiring chooses: `OffsetCommits`, where sinks
acknowledge results and offsets follow, and `ExactlyOnce`, where Kafka stores both in one transaction.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from site_spider import runtime
from site_spider.contracts.seed_log import Consumer, Headers, Listener, Partition, Position, Producer, SeedLog
from site_spider.contracts.sink import Record
from site_spider.errors import GroupRebalances, LogSilent, LogUnavailable
from site_spider.ledger.completion import Completion, Job
from site_spider.ledger.ledger import SeedInFlight
from site_spider.outage import Outage

Tell = Callable[..., None]  # calls on the event loop's thread
First = tuple[frozenset[Partition], Callable[[], None]]  # a commit that something waits for


class Member(NamedTuple):
    """What this process is a member of."""

    topics: tuple[str, ...]
    group: str


class Commits(ABC):
    """The event loop calls these, but for the last four, which the intake's thread calls.

    Any thread may ask `is_taking` and `is_cut_off`. What is said here of results is so where sinks store them.
    """

    stores_records = False  # whether `keep` stores what it is given, so that no sink need do it

    def __init__(self, completion: Completion, member: Member, tell: Tell) -> None:
        self._completion = completion
        self._member = member
        self._tell = tell
        self._silence = Silence()
        self._leaves = 0  # counted by the intake
        self.outcomes = dict.fromkeys(("succeeded", "failed"), 0)  # of commits; any thread may read them
        self.last_at: float | None = None  # Unix time of the last one that succeeded

    @abstractmethod
    def tick(self) -> None:
        """Look what is safe to commit; to be called now and then."""

    @abstractmethod
    def commit_first(self, positions: Mapping[Partition, Position], then: Callable[[], None]) -> None:
        """Commit now, and call `then` when that is done; retried for as long as it takes."""

    def keep(self, job: Job | None, record: Record) -> None:  # noqa: B027 - sinks have stored it
        """A result has been acknowledged by every sink."""

    @abstractmethod
    def spill(self, entry: SeedInFlight, topic: str, key: bytes | None, value: bytes, headers: Headers) -> Future[Any]:
        """Send a request of this seed to a seed topic; done once durable or kept for its tree.

        The result is its place, if it has one already.
        """

    def is_taking(self) -> bool:
        """False while results cannot be stored, or too many wait for that."""
        return True

    @property
    def is_cut_off(self) -> bool:
        """Whether the seed log has not answered for so long that others may own our partitions."""
        return self._silence.is_long

    @property
    def is_crowded(self) -> bool:
        """Whether seeds that are not complete hold so many results that no other may begin."""
        return False

    @property
    def sink_away(self) -> str:
        """The name of the sink that results are stored in with their offsets, while it is away."""
        return ""

    @property
    def backlog(self) -> tuple[int, int]:
        """How many seeds wait to be stored with their results, and the bytes of these."""
        return 0, 0

    async def close(self, timeout_seconds: float) -> int:  # noqa: ARG002
        """Store what is ready; returns how many seeds are left, which are repeated."""
        return 0  # the intake commits when it leaves

    def _count(self, *, succeeded: bool) -> None:
        self.outcomes["succeeded" if succeeded else "failed"] += 1
        self.last_at = runtime.time() if succeeded else self.last_at

    @property
    @abstractmethod
    def is_awaited(self) -> bool:
        """Whether something waits for a commit."""

    def join(self, log: SeedLog, listener: Listener) -> Consumer:
        """Become a member of the group. Raises ConfigError, LogUnavailable."""
        consumer = log.consumer(*self._member, listener, with_results=self.stores_records)
        self._silence.joined(consumer.session_seconds)
        return consumer

    @abstractmethod
    def look(self, consumer: Any, mine: Set[Partition]) -> None:
        """Commit what is to be committed, of these partitions."""

    @abstractmethod
    def forget(self, partitions: Sequence[Partition]) -> None:
        """These have left, and the loop is being told."""


# --- silence: how long a commit has waited for an answer of the seed log ---------------------------------
# When a group does not hear of a member for a session's length, others take its partitions over, and the
# member cannot know. So it begins nothing new from shortly before then: hosts would be asked by two
# processes, and what it fetched could not be committed.

_SAID_SECONDS = 3.0
_FORGOTTEN_SECONDS = 60.0
_SHARE = 0.8  # of the session; what begins at its end would still run when others own the partition


class Silence:
    """The intake's thread says what happens; any thread may ask."""

    def __init__(self) -> None:
        self._limit_seconds = float("inf")
        self._since: float | None = None
        self._is_said = False

    def joined(self, session_seconds: float) -> None:
        self._limit_seconds = session_seconds * _SHARE

    @property
    def is_long(self) -> bool:
        """Whether others may own our partitions soon, or own them already."""
        return self._since is not None and self.seconds >= self._limit_seconds

    @property
    def seconds(self) -> float:
        """Since the log was asked, without an answer."""
        since = self._since
        return 0.0 if since is None else runtime.monotonic() - since

    def asked(self) -> None:
        """A commit was begun, for the first time or again."""
        if self._since is None:
            self._since = runtime.monotonic()

    def look(self) -> None:
        """Say that the log is silent, once."""
        if not self._is_said and self.seconds >= min(_SAID_SECONDS, self._limit_seconds):
            self._is_said = True
            logger.warning(
                "The seed log has not answered a commit for %.0f s. After %.0f s nothing new begins until it "
                "answers, because other members may own the partitions then",
                self.seconds,
                self._limit_seconds,
            )

    def look_without_partitions(self) -> None:
        """Nothing is asked any more that could be answered: others have the partitions, which is no news."""
        if self.seconds > _FORGOTTEN_SECONDS:
            self._since, self._is_said = None, False

    def over(self) -> None:
        """It has answered, or nothing waits for an answer any more."""
        if self._is_said:
            logger.info("The seed log answers again after %.1f s", self.seconds)
        self._since, self._is_said = None, False


# --- at least once: commits an offset after every sink has acknowledged the results of its seed ----------
# A crash in between repeats seeds, which leaves the same documents.
#
# The loop says what is wanted, and may not have heard yet that partitions have left. One of them can be
# back by then, and another process may have committed more meanwhile. So both sides count the leaves, and
# what the loop wanted is committed only when it had heard of all of them.

logger = logging.getLogger(__name__)

_COMMIT_SECONDS = 0.15  # from one to the next, if there is news
_REBALANCE_SECONDS = 30.0  # more than members have to give partitions up


class _Wanted(NamedTuple):
    """Positions that are safe to commit, and how many leaves the loop had heard of."""

    positions: Mapping[Partition, Position]
    leaves: int


class OffsetCommits(Commits):
    """Commits what is wanted and differs from what was committed last, some times a second."""

    def __init__(self, completion: Completion, producer: Producer, member: Member, tell: Tell) -> None:
        super().__init__(completion, member, tell)
        self._producer = producer
        self._wanted = _Wanted({}, 0)  # replaced as a whole by the loop
        self._committed: dict[Partition, Position] = {}
        self._outage = Outage(
            logger, "Offsets cannot be committed for now, trying again", "Offsets are committed again"
        )
        self._refused_since = 0.0  # monotonic; 0: the last commit was none that was refused
        self._is_under_way = False  # one commit at a time
        self._firsts: SimpleQueue[First] = SimpleQueue()
        self._awaited: list[First] = []  # by the commit under way, or by the next one
        self._commit_at = 0.0

    # --- on the event loop's thread ---------------------------------------------------------------

    def tick(self) -> None:
        self._wanted = _Wanted(self._completion.ledger.positions(), self._wanted.leaves)

    def commit_first(self, positions: Mapping[Partition, Position], then: Callable[[], None]) -> None:
        # what is wanted never falls behind it: a commit of an older state would undo this one
        self._wanted = self._wanted._replace(positions={**self._wanted.positions, **positions})
        self._firsts.put((frozenset(positions), then))

    def spill(self, entry: SeedInFlight, topic: str, key: bytes | None, value: bytes, headers: Headers) -> Future[Any]:  # noqa: ARG002 - nothing waits for its end
        return self._producer.send(topic, key, value, headers)

    # --- on the intake's thread -------------------------------------------------------------------

    @property
    def is_awaited(self) -> bool:
        return bool(self._awaited) or self._is_under_way

    def look(self, consumer: Consumer, mine: Set[Partition]) -> None:
        self._silence.look()
        if self._is_under_way or self._wanted.leaves != self._leaves:
            return
        if self._firsts.empty() and runtime.monotonic() < self._commit_at:
            return
        self._commit_at = runtime.monotonic() + _COMMIT_SECONDS
        while not self._firsts.empty():  # what they wait for is wanted by now
            self._awaited.append(self._firsts.get_nowait())
        self._commit(consumer, mine)

    def forget(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self._committed.pop(partition, None)
        self._leaves += 1
        self._is_under_way = False  # its answer says nothing of what is ours now
        self._tell(self._heard)

    def _heard(self) -> None:
        self._wanted = _Wanted(self._completion.ledger.positions(), self._wanted.leaves + 1)

    def _commit(self, consumer: Consumer, mine: Set[Partition]) -> None:
        wanted, committed = self._wanted.positions, self._committed
        anyway = frozenset[Partition]().union(*(partitions for partitions, _ in self._awaited))
        positions = {p: w for p, w in wanted.items() if p in mine and (p in anyway or committed.get(p) != w)}
        if positions or self._awaited:
            self._is_under_way = True
            self._silence.asked()
            consumer.begin_commit(positions, partial(self._answered, positions, self._leaves))
        elif not mine:
            self._silence.look_without_partitions()
        else:  # without partitions it may have lost them in the silence, and has yet to hear of others
            self._silence.over()

    def _answered(self, positions: Mapping[Partition, Position], leaves: int, error: LogUnavailable | None) -> None:
        if leaves != self._leaves:
            return
        self._is_under_way = False
        if not isinstance(error, LogSilent):
            self._silence.over()
        if error is None:
            self._note_committed(positions)
        else:
            self._say_failed(error)

    def _note_committed(self, positions: Mapping[Partition, Position]) -> None:
        self._committed.update(positions)
        self._refused_since = 0.0
        self._count(succeeded=True)
        self._tell(self._completion.committed, positions)
        if self._outage.is_on:
            self._outage.is_over()
        awaited, self._awaited = self._awaited, []
        for _, then in awaited:
            self._tell(then)

    def _say_failed(self, error: LogUnavailable) -> None:
        now = runtime.monotonic()
        self._refused_since = self._refused_since or now
        # a rebalance is no trouble, unless it does not end
        if isinstance(error, GroupRebalances) and now - self._refused_since < _REBALANCE_SECONDS:
            return
        self._count(succeeded=False)
        self._outage.goes_on(error)
