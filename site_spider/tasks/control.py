"""The control log of tasks in a crawl: what it says, and what this process writes to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import islice

from site_spider.contracts.seed_log import Message, MessagePlace, Partition, Producer
from site_spider.engine.background import Background
from site_spider.outage import Outage
from site_spider.tasks.control_log import Endings, headers_of, read, send, written
from site_spider.tasks.ending import Fact, TakenBack, TaskEnding
from site_spider.tasks.follower import Follower, Then

logger = logging.getLogger(__name__)

_MOST_KNOWN = 20_000  # tasks of which messages are known
_MOST_LOOKED_AT = 1_000


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
        self._known: dict[str, dict[Partition, int]] = {}  # by task, the one that is told of last at the end

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

    def take_back(self, task_id: str, facts: Iterable[TakenBack]) -> None:
        """Take back records that others carry on. What is lost on the way is taken back by the next owner."""
        for fact in facts:
            self.write(task_id, fact, lambda _is_durable: None)

    def write(self, task_id: str, fact: Fact, done: Callable[[bool], None]) -> None:
        """Append a record; `done` hears whether it is durable. Raises BadRecord: nobody could read it."""
        read(Message(Partition(self._topic, 0), 0, *written(task_id, fact), headers=tuple(headers_of(fact))))

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

        send(self._producer, self._topic, task_id, fact).add_done_callback(answered)

    def put(self, task_id: str, place: MessagePlace) -> None:
        """As in Highs of frontier.spill."""
        known = self._known.pop(task_id, {})
        known[place.partition] = max(place.offset + 1, known.get(place.partition, 0))
        self._known[task_id] = known
        if len(self._known) > _MOST_KNOWN:
            self._forget_one()

    def known(self, task_id: str) -> Mapping[Partition, int]:
        """The highest position of a message of the task that this process knows of, by partition.

        What tallies have passed is left out.
        """
        known, ending = self._known.get(task_id, {}), self.get(task_id)
        for partition in [each for each in known if ending and ending.tallied(each) >= known[each]]:
            del known[partition]
        return known

    def _forget_one(self) -> None:
        """A task that the log does not name: who closes it looks for its messages. Or one that has ended."""
        for task_id in list(islice(self._known, _MOST_LOOKED_AT)):
            ending, known = self.get(task_id), self._known.pop(task_id)
            if ending is None or ending.is_told:
                return
            self._known[task_id] = known
