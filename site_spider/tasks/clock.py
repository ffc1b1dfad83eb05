"""The time by which tasks expire, and their budgets of time are spent: that of the broker.

Theory of operation. Clocks of machines differ. So no process compares a limit with its own clock: the owner
of the first partition of the seed topic does, by the broker's time, and writes what has passed as one record
of the task topic (phase.TaskTimes). Every process follows that record, which is as true for whoever reads it
later. A process that starts judges once before it polls seeds, because there may be no owner yet.

The broker's time is learnt from the time at which it stores a record of a topic that is dated by the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import UTC, datetime, timedelta
from functools import partial

from site_spider import runtime
from site_spider.contracts.seed_log import Message, MessagePlace, Producer, SeedLog
from site_spider.engine.background import Background
from site_spider.errors import SiteSpiderError
from site_spider.outage import Outage
from site_spider.tasks.board import TIMES, Board, note_key
from site_spider.tasks.phase import TaskTimes
from site_spider.tasks.record import Task

logger = logging.getLogger(__name__)

MOST_SECONDS = 10.0  # that a clock may differ without a word
_ANSWER_SECONDS = 5.0
_SURE_SECONDS = 1.0  # an answer that took longer says too little of the time
_MEASURE_SECONDS = 60.0
_JUDGE_SECONDS = 1.0
_LONGEST_SECONDS = 10_000 * 86_400  # that a span of time is compared with
_KEY = b"clock"


class BrokerClock:
    """How far the clock of this machine is ahead of the broker's, as measured last."""

    def __init__(self, log: SeedLog, producer: Producer, topic: str) -> None:
        self.ahead_seconds = 0.0  # negative when it is behind
        self._log = log
        self._producer = producer
        self._topic = topic
        self._has_topic = False
        self._away = Outage(
            logger,
            "The broker's time cannot be learnt, so that of this machine is taken for the expiry of tasks",
            "The broker's time is known",
        )

    def now(self) -> float:
        """The broker's time, as a Unix time."""
        return runtime.time() - self.ahead_seconds

    def measure(self) -> None:
        """Blocks for some seconds at most. Says it when the clocks differ."""
        if not getattr(self._log, "has_own_clock", False):
            return
        try:
            self._ask()
        except (SiteSpiderError, FutureTimeoutError) as error:
            self._away.goes_on(error)
            return
        self._away.is_over()
        if abs(self.ahead_seconds) > MOST_SECONDS:
            logger.warning("%s", self.said())

    def said(self) -> str:
        """How they differ, and what to do."""
        which = "ahead of" if self.ahead_seconds > 0 else "behind"
        return (
            f"The clock of this machine is {abs(self.ahead_seconds):.0f} s {which} that of the broker at "
            f"{self._log.address}. Correct it (timedatectl, NTP). Tasks expire by the broker's."
        )

    def _ask(self) -> None:
        if not self._has_topic:
            self._log.make_topic(self._topic, 1, compacted=True, dated=True)
            self._has_topic = True
        before = runtime.time()
        place = self._producer.send(self._topic, _KEY, b"").result(_ANSWER_SECONDS)
        took = runtime.time() - before
        if not place.written_ms:
            raise SiteSpiderError(
                f"topic {self._topic} is not dated by the server; set its "
                "message.timestamp.type=LogAppendTime"
            )
        if took <= _SURE_SECONDS:
            self.ahead_seconds = before + took / 2 - place.written_ms / 1000


class TimeLimits:
    """Writes which limits of time have passed. On the event loop's thread, but for `open`, which blocks."""

    def __init__(
        self,
        board: Board,
        clock: BrokerClock,
        topic: str,
        producer: Producer,
        has_first: Callable[[], bool],
        background: Background,
    ) -> None:
        self._board = board
        self._clock = clock
        self._topic = topic
        self._producer = producer
        self._has_first = has_first  # the first partition of the seed topic
        self._background = background
        self._sent: dict[str, TaskTimes] = {}  # that were not read back
        self._measure_at = self._judge_at = 0.0

    def open(self) -> None:
        """Judge what has expired before any seed is polled. Raises LogUnavailable."""
        self._measure_at = runtime.monotonic() + _MEASURE_SECONDS
        self._clock.measure()
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        for task in self._board:
            times = passed(task, self._board.times(task.task_id), now, has_begun=False)
            if times.expired != self._board.times(task.task_id).expired:
                place = self._send(task, times).result(_ANSWER_SECONDS)
                self._board.take(Message(place.partition, place.offset, *_record(task, times)))

    def look(self) -> None:
        """To be called now and then."""
        now = runtime.monotonic()
        if now >= self._measure_at:
            self._measure_at = now + _MEASURE_SECONDS
            self._background.start(asyncio.to_thread(self._clock.measure), "the broker's time")
        if now >= self._judge_at and self._has_first():
            self._judge_at = now + _JUDGE_SECONDS
            self._judge(datetime.fromtimestamp(self._clock.now(), UTC))

    def _judge(self, now: datetime) -> None:
        for task in self._board:
            known = self._board.times(task.task_id)
            times = passed(task, known, now, has_begun=self._board.used(task.task_id).begun > 0)
            if times == known:
                self._sent.pop(task.task_id, None)
            elif self._sent.get(task.task_id) != times:
                self._sent[task.task_id] = times
                self._send(task, times).add_done_callback(partial(self._settled, task.task_id))

    def _settled(self, task_id: str, sent: Future[MessagePlace]) -> None:
        """On any thread. What did not arrive is sent again."""
        if sent.exception() is not None:
            self._sent.pop(task_id, None)

    def _send(self, task: Task, times: TaskTimes) -> Future[MessagePlace]:
        return self._producer.send(self._topic, *_record(task, times))


def passed(task: Task, known: TaskTimes, now: datetime, *, has_begun: bool) -> TaskTimes:
    """What has passed at a moment; the same object when there is no news."""
    times = known.of(task)
    changes: dict[str, object] = {}
    if task.expires_at is not None and now >= task.expires_at and _is_later(task.expires_at, times.expired):
        changes["expired"] = task.expires_at
    if times.first_at is None and has_begun:
        changes["first_at"] = now
    elif task.max_seconds is not None and times.first_at is not None:
        is_news = task.max_seconds > (times.spent_seconds or 0)
        if is_news and now - times.first_at >= timedelta(seconds=min(task.max_seconds, _LONGEST_SECONDS)):
            changes["spent_seconds"] = task.max_seconds
    if not changes:
        return known
    return times.model_copy(update=changes)


def _is_later(moment: datetime, known: datetime | None) -> bool:
    return known is None or moment > known


def _record(task: Task, times: TaskTimes) -> tuple[bytes, bytes]:
    return note_key(task.task_id, TIMES), times.model_dump_json(exclude_defaults=True).encode()
