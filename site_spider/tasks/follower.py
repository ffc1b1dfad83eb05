"""Follows the topics of tasks: what they say up to their present end, and what comes later as it comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from queue import SimpleQueue

from site_spider import runtime
from site_spider.contracts.seed_log import Message, SeedLog, TopicReader
from site_spider.errors import LogUnavailable, SiteSpiderError
from site_spider.outage import Outage
from site_spider.tasks.board import Board

TASK_HEADER = "task_id"  # of a parked message
ORIGIN_HEADER = "origin_topic"  # of a parked message: the seed topic that it comes back to

# --- view ------------------------------------------------------------------------------------------------
# What a topic says: read up to its present end, or followed by a thread.
#
# Others may write to the topics of tasks, too. So a record that cannot be taken is counted, said and skipped,
# and ends nothing.

logger = logging.getLogger(__name__)

_MOST_SAID = 20  # records of a topic
_POLL_SECONDS = 0.1
_PAUSE_SECONDS = 0.5  # while the log does not answer
_READ_SECONDS = 30.0
_MOST_AT_ONCE, _MOST_BYTES = 100, 64_000  # of records, in one turn of the event loop

Changed = Callable[[Collection[str]], None]  # is told the ids of tasks
Tell = Callable[..., None]  # calls on the event loop's thread
Then = Callable[[], None]


class TopicView:
    """Gives the records of a compacted topic to `take`, which returns the id of a task, in their order.

    Its methods block, and raise LogUnavailable.
    """

    def __init__(
        self, log: SeedLog, topic: str, take: Callable[[Message], str], count: Callable[[str], None] | None = None
    ) -> None:
        self.topic = topic
        self._log = log
        self._take = take
        self._count = count  # in Scrapy's statistics
        self._said = 0
        self._reader: TopicReader | None = None

    @property
    def reader(self) -> TopicReader:
        """From the beginning of the topic on."""
        if self._reader is None:
            self._reader = self._log.reader(self.topic, compacted=True)
        return self._reader

    def read_on(self, timeout_seconds: float = _READ_SECONDS, setting: str = "") -> set[str]:
        """Take all that is there now; the ids of tasks. `setting` names the limit of time."""
        if self._reader is not None:
            self._reader.mark_end()
        task_ids, deadline = set(), runtime.monotonic() + timeout_seconds
        while not self.reader.is_at_end:
            task_ids |= self.taken(self.reader.poll(_POLL_SECONDS))
            if runtime.monotonic() > deadline and not self.reader.is_at_end:
                raise LogUnavailable(
                    f"{self.topic} at {self._log.address} could not be read to its end within "
                    f"{timeout_seconds:g} s{setting and f' ({setting})'}."
                )
        return task_ids

    def taken(self, messages: Iterable[Message]) -> set[str]:
        """The ids of their tasks; what cannot be taken is said and skipped."""
        found = set()
        for message in messages:
            try:
                found.add(self._take(message))
            except SiteSpiderError as error:
                self._skip(message, str(error))
            except Exception as error:  # noqa: BLE001 - whatever a record holds, it ends no process
                self._skip(message, f"it cannot be taken: {error!r:.300}")
        return found

    def _skip(self, message: Message, why: str) -> None:
        self._said += 1
        if self._count is not None:
            self._count("tasks/records_skipped")
        if self._said <= _MOST_SAID:
            place = f"{self.topic}/{message.partition.number} offset {message.offset}"
            logger.warning("Skipped in %s: %s", place, why)
        if self._said == _MOST_SAID:
            logger.warning("Further malformed records of %s are not said", self.topic)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class Follower:
    """A thread reads from `start` on. Records are taken by who opens, then on the event loop's thread."""

    def __init__(self, view: TopicView, tell: Tell, changed: Changed) -> None:
        self._view = view
        self._tell = tell
        self._changed = changed
        self._barriers: SimpleQueue[Then] = SimpleQueue()
        self._waiting: list[Then] = []  # for the end of the topic as it was when they were taken
        self._stopping, self._taken = runtime.Event(), runtime.Event()
        away = f"{view.topic} cannot be read, trying again", f"{view.topic} is read again"
        self._away = Outage(logger, *away)
        self._thread = runtime.Thread(target=self._run, name="site-tasks", daemon=True)

    def open(self, timeout_seconds: float) -> None:
        """Read all that is there. Blocks; raises LogUnavailable."""
        self._view.read_on(timeout_seconds, "SITE_STARTUP_WAIT_SECONDS")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Follow no more. Blocks for a moment."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._view.close()

    def when_read(self, then: Then) -> None:
        """Call `then` on the event loop's thread when everything is taken that is in the topic now."""
        self._barriers.put(then)

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._away.tried(LogUnavailable):
                for some in _parts(self._poll()):
                    self._hand_over(some)
            if self._away.is_on:
                self._stopping.wait(_PAUSE_SECONDS)

    def _poll(self) -> list[Message]:
        reader = self._view.reader
        if not self._waiting and (count := self._barriers.qsize()):
            reader.mark_end()  # after they were asked for
            self._waiting = [self._barriers.get_nowait() for _ in range(count)]
        if self._waiting and reader.is_at_end:
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                self._tell(then)
        return reader.poll(_POLL_SECONDS)

    def _hand_over(self, messages: list[Message]) -> None:
        """And wait until they are taken, so that other work has its turn."""
        self._taken.clear()
        self._tell(self._arrive, messages)
        while not (self._taken.wait(_POLL_SECONDS) or self._stopping.is_set()):
            pass

    def _arrive(self, messages: list[Message]) -> None:
        try:
            self._changed(self._view.taken(messages))
        finally:
            self._taken.set()


def _parts(messages: list[Message]) -> Iterator[list[Message]]:
    some, size_bytes = list[Message](), 0
    for message in messages:
        some.append(message)
        size_bytes += len(message.value or b"")
        if len(some) >= _MOST_AT_ONCE or size_bytes >= _MOST_BYTES:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


def read_board(log: SeedLog, topic: str) -> Board:
    """All that the task topic says at this moment. Blocks; raises LogUnavailable."""
    board = Board()
    with closing(TopicView(log, topic, board.take)) as view:
        view.read_on()
    return board
