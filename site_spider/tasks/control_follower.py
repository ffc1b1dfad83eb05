"""Follows the control log of tasks on a thread, and says when all is read that was there at a moment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue

from site_spider import runtime
from site_spider.contracts.seed_log import Message, SeedLog, TopicReader
from site_spider.errors import LogUnavailable
from site_spider.outage import Outage
from site_spider.tasks.bad_records import BadRecords
from site_spider.tasks.control_log import Endings

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_PAUSE_SECONDS = 0.5  # while the log does not answer

Tell = Callable[..., None]  # calls on the event loop's thread
Then = Callable[[], None]


class ControlFollower:
    """Takes records into `endings` on the event loop's thread, in their order."""

    def __init__(
        self,
        log: SeedLog,
        topic: str,
        endings: Endings,
        tell: Tell,
        count: Callable[[str], None] | None = None,
    ) -> None:
        self._log = log
        self._topic = topic
        self._endings = endings
        self._tell = tell
        self._bad = BadRecords(topic, count)
        self._barriers: SimpleQueue[Then] = SimpleQueue()
        self._waiting: list[Then] = []  # for the end of the log as it was when they were taken
        self._stopping = runtime.Event()
        self._away = Outage(
            logger, "The control log of tasks cannot be read, trying again", "It is read again"
        )
        self._thread = runtime.Thread(target=self._run, name="site-task-ends", daemon=True)

    # --- on the event loop's thread ---------------------------------------------------------

    def start(self) -> None:
        """Follow from now on, from the beginning of the log."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more. Blocks for a moment."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def when_read(self, then: Then) -> None:
        """Call `then` when everything is read that is in the log now."""
        self._barriers.put(then)

    def _arrive(self, messages: list[Message]) -> None:
        for message in messages:
            self._bad.taken(self._endings.take, message)

    # --- on the follower's thread -------------------------------------------------------------

    def _run(self) -> None:
        reader: TopicReader | None = None
        while not self._stopping.is_set():
            try:
                reader = reader or self._log.reader(self._topic, compacted=True)
                self._read(reader)
            except LogUnavailable as error:
                self._away.goes_on(error)
                self._stopping.wait(_PAUSE_SECONDS)
            else:
                self._away.is_over()
        if reader is not None:
            reader.close()

    def _read(self, reader: TopicReader) -> None:
        if not self._waiting and (count := self._barriers.qsize()):
            reader.mark_end()  # after they were asked for
            self._waiting = [self._barriers.get_nowait() for _ in range(count)]
        if self._waiting and reader.is_at_end:
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                self._tell(then)
        if messages := reader.poll(_POLL_SECONDS):
            self._tell(self._arrive, messages)
