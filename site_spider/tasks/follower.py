"""Follows the task topic: reads it to its end before seeds are polled, and what comes later as it comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import NamedTuple, Self, TypeVar

from site_spider import runtime
from site_spider.contracts.seed_log import Message, SeedLog, TopicReader
from site_spider.errors import LogUnavailable, SiteSpiderError
from site_spider.options import SettingsView
from site_spider.outage import Outage
from site_spider.seed.tiers import CrawlTopics
from site_spider.tasks.board import Board

# --- bad records -----------------------------------------------------------------------------------------
# What becomes of a record that cannot be taken: it is counted, said and skipped, and ends nothing.
#
# Others may write to the topics of tasks, too. So each topic has one strict reader, and each record is
# taken behind this guard.


logger = logging.getLogger(__name__)

_MOST_SAID = 20  # of a topic

T = TypeVar("T")


class BadRecords:
    """Of one topic."""

    def __init__(self, topic: str, count: Callable[[str], None] | None = None) -> None:
        self._topic = topic
        self._count = count  # in Scrapy's statistics
        self._said = 0

    def taken(self, take: Callable[[Message], T], message: Message) -> T | None:
        """What `take` returns; None where it raises."""
        try:
            return take(message)
        except SiteSpiderError as error:
            self.skip(message, str(error))
        except Exception as error:  # noqa: BLE001 - whatever a record holds, it ends no process
            self.skip(message, f"it cannot be taken: {error!r:.300}")
        return None

    def skip(self, message: Message, why: str) -> None:
        """One cannot be taken."""
        self._said += 1
        if self._count is not None:
            self._count("tasks/records_skipped")
        if self._said <= _MOST_SAID:
            place = f"{self._topic}/{message.partition.number} offset {message.offset}"
            logger.warning("Skipped in %s: %s", place, why)
        if self._said == _MOST_SAID:
            logger.warning("Further malformed records of %s are not said", self._topic)


_POLL_SECONDS = 0.2
_PAUSE_SECONDS = 0.5  # while the log does not answer
_READ_SECONDS = 30.0

Changed = Callable[[Collection[str]], None]  # is told the ids of tasks
Tell = Callable[..., None]  # calls on the event loop's thread


class Follower:
    """`open` and the thread read; the board changes on the thread that opens, then on the event loop's."""

    def __init__(
        self,
        log: SeedLog,
        topic: str,
        board: Board,
        tell: Tell,
        changed: Changed,
        count: Callable[[str], None] | None = None,
    ) -> None:
        self._log = log
        self._topic = topic
        self._board = board
        self._tell = tell
        self._changed = changed
        self._bad = BadRecords(topic, count)
        self._reader: TopicReader | None = None
        self._stopping = runtime.Event()
        self._away = Outage(logger, "The task topic cannot be read, trying again", "It is read again")
        self._thread = runtime.Thread(target=self._run, name="site-tasks", daemon=True)

    def open(self, timeout_seconds: float) -> None:
        """Read all that is there. Blocks; raises LogUnavailable."""
        self._reader = reader = self._log.reader(self._topic, compacted=True)
        deadline = runtime.monotonic() + timeout_seconds
        while not reader.is_at_end:
            self._take(reader.poll(_POLL_SECONDS))
            if runtime.monotonic() > deadline and not reader.is_at_end:
                raise LogUnavailable(
                    f"The task topic {self._topic} at {self._log.address} could not be read to its end "
                    f"within {timeout_seconds:g} s (SITE_STARTUP_WAIT_SECONDS)."
                )

    def start(self) -> None:
        """Follow from now on."""
        self._thread.start()

    def close(self) -> None:
        """Follow no more. Blocks for a moment."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._reader is not None:
            self._reader.close()

    def _run(self) -> None:
        assert self._reader is not None
        while not self._stopping.is_set():
            try:
                messages = self._reader.poll(_POLL_SECONDS)
            except LogUnavailable as error:
                self._away.goes_on(error)
                self._stopping.wait(_PAUSE_SECONDS)
                continue
            self._away.is_over()
            if messages:
                self._tell(self._arrive, messages)

    def _arrive(self, messages: list[Message]) -> None:
        self._changed(self._take(messages))

    def _take(self, messages: list[Message]) -> set[str]:
        found = {self._bad.taken(self._board.take, message) for message in messages}
        return {task_id for task_id in found if task_id is not None}


def read_board(log: SeedLog, topic: str) -> Board:
    """All that the task topic says at this moment. Blocks; raises LogUnavailable."""
    board = Board()
    follower = Follower(log, topic, board, _nobody, _nobody)
    try:
        follower.open(_READ_SECONDS)
    finally:
        follower.close()
    return board


def _nobody(*_arguments: object) -> None:
    """Nobody is told: the board is asked."""


# --- topics ----------------------------------------------------------------------------------------------
# The topics of tasks beside a seed topic.


TASK_HEADER = "task_id"  # of a parked message
ORIGIN_HEADER = "origin_topic"  # of a parked message: the seed topic that it comes back to


class TaskTopics(NamedTuple):
    """Their names, and that of the seed topic."""

    seeds: str
    tasks: str
    parked: str
    events: str = "task-events"
    tiers: tuple[str, ...] = ()  # all seed topics; empty: `seeds` alone

    @property
    def all_seeds(self) -> tuple[str, ...]:
        """Each topic that seeds of a task may be in."""
        return self.tiers or (self.seeds,)

    @property
    def control(self) -> str:
        """Of the log that tells the end of tasks."""
        return f"{self.tasks}.control"

    @property
    def clock(self) -> str:
        """Of records that tell the broker's time."""
        return f"{self.tasks}.clock"

    @property
    def pages(self) -> str:
        """Of the pages that the end of a task counts."""
        return f"{self.tasks}.pages"

    @classmethod
    def read(cls, settings: SettingsView, seeds: str | None = None) -> Self:
        """Of the crawl that reads `seeds`; by default that of the settings. Raises ConfigError."""
        return cls.of(CrawlTopics.beside(settings, seeds))

    @classmethod
    def of(cls, topics: CrawlTopics) -> Self:
        """Those of them that are of tasks."""
        return cls(topics.seeds, topics.tasks, topics.parked, topics.events, topics.tiers)
