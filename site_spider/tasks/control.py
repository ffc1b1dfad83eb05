"""The control log of tasks in a crawl: what it says, and what this process writes to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from site_spider.contracts.seed_log import Message, MessagePlace, Partition, Producer
from site_spider.engine.background import Background
from site_spider.outage import Outage
from site_spider.tasks.control_log import Endings, read, written
from site_spider.tasks.ending import Fact, High, TaskEnding
from site_spider.tasks.follower import Follower, Then

logger = logging.getLogger(__name__)


class Control:
    """On the event loop's thread only.

    A task that the log does not name costs nothing but that: when something depends on it, the log is read
    up to its present end first.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        writer: str,
        endings: Endings,
        follower: Follower,
        background: Background,
    ) -> None:
        self.writer = writer  # the name of this process in the log
        self.endings = endings
        self._producer = producer
        self._topic = topic
        self._follower = follower
        self._guarded = background.guarded
        self._loop = asyncio.get_running_loop()
        self._away = Outage(
            logger, "The control log of tasks takes no records, trying again", "It takes them again"
        )
        self._highs: dict[tuple[str, Partition], int] = {}  # the highest that this process has told
        self._unsure: list[
            tuple[str, MessagePlace, Then]
        ] = []  # of tasks that may be known when the log is read

    def start(self) -> None:
        """Follow the log."""
        self._follower.start()

    def stop(self) -> None:
        """Follow it no more. Blocks for a moment."""
        self._follower.close()

    def get(self, task_id: str) -> TaskEnding | None:
        """What is known of a task; None when the log does not name it."""
        return self.endings.get(task_id)

    @contextmanager
    def guarded(self, task_id: str) -> Iterator[None]:
        """Work for one task: what it raises sets the task aside, and ends nothing."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - said, with a traceback
            self.set_aside(task_id, error)

    def set_aside(self, task_id: str, error: BaseException) -> None:
        """Its seeds are crawled as those of a task that the log does not name."""
        self.endings.set_aside(task_id)
        logger.error(
            "Task %s is set aside: its seeds are not counted and its end is not told by this process: %r",
            task_id, error, exc_info=error,
        )  # fmt: skip

    def when_read(self, then: Then) -> None:
        """Call `then` when everything is read that is in the log now."""
        self._follower.when_read(then)

    def write(self, task_id: str, fact: Fact, done: Callable[[bool], None]) -> None:
        """Append a record; `done` hears whether it is durable. Raises BadRecord: nobody could read it."""
        key, value = record = written(task_id, fact)
        read(Message(Partition(self._topic, 0), 0, *record))

        def heard(error: BaseException | None) -> None:
            if error is None:
                self._away.is_over()
            else:
                self._away.goes_on(error)
            done(error is None)

        def answered(future: Future[MessagePlace]) -> None:
            try:
                self._loop.call_soon_threadsafe(self._guarded(heard), future.exception())
            except RuntimeError:
                return  # the loop has closed: the process is ending

        self._producer.send(self._topic, key, value).add_done_callback(answered)

    def put(self, task_id: str, place: MessagePlace, then: Then) -> None:
        """As in Highs of frontier.spill. Unacknowledged, `then` is never called: the seed is repeated."""
        if self.get(task_id) is not None:
            self._tell_high(task_id, place, then)
            return
        self._unsure.append((task_id, place, then))
        if len(self._unsure) == 1:
            self._loop.call_soon(self._guarded(self._ask))

    def _ask(self) -> None:
        """Whoever closes a task says so in the log before it looks for the last seeds of the topic."""
        unsure, self._unsure = self._unsure, []

        def decide() -> None:
            for task_id, place, then in unsure:
                if self.get(task_id) is None:
                    then()
                else:
                    self._tell_high(task_id, place, then)

        self.when_read(decide)

    def _tell_high(self, task_id: str, place: MessagePlace, then: Then) -> None:
        key = task_id, place.partition
        position = self._highs[key] = max(self._highs.get(key, 0), place.offset + 1)

        def answered(is_durable: bool) -> None:
            if is_durable:
                then()

        self.write(task_id, High(place.partition, self.writer, position), answered)
