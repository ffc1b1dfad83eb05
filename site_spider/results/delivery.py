"""Delivers batches to one sink, with retries.

Theory of operation. The batcher decides, this module acts: `_pump` hands every batch
that is due to a task of its own and sets one timer for the next moment at which
something can be due. It runs after whatever may change that: a submit, the end of a
write, the timer. There is no other task and no queue, so nothing is left behind.

The end of a write is seen by the task's done callback rather than inside the task,
because a task that is cancelled before its first step never runs at all, and its
records have to come back all the same.

A sink that is silent (`AnswerWatch`) counts as away until its next answer. The write goes on: the server
may be slow, and a second one would not help it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, ValuesView
from functools import partial
from math import inf

from site_spider import runtime
from site_spider.bounded import Histogram, LogLimit
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, DocumentStore, Record, Verdict
from site_spider.errors import BatchError, ConfigError, SinkUnavailable
from site_spider.outage import Outage, until_there
from site_spider.results.batches_and_retries import Batch, Batcher, BatchLimits, OnVerdict
from site_spider.text import cut, up_to

# --- Log lines of a delivery: an outage once, refusals a few at a time -----------------------------------

logger = logging.getLogger(__name__)

LONGEST_REASON = 300  # characters


class DeliveryLog:
    """For the sink of this name; `now` is the event loop's time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rejections = LogLimit(count=10, period_seconds=60)
        self._retries = LogLimit(count=1, period_seconds=60)

    def availability(self, before: float | None, since: float | None, waiting: int, now: float, reason: str) -> None:
        """The sink is unavailable `since` a moment, and was `before`; one line when that changed."""
        if since is not None and before is None:
            logger.warning("Sink %s is away; %d records wait: %s", self._name, waiting, _shortened(reason))
        elif since is None and before is not None:
            logger.info("Sink %s is back after %.1f s; %d records are waiting.", self._name, now - before, waiting)

    def rejected(self, record: Record, verdict: Verdict, now: float) -> None:
        if self._rejections.admit(now):
            more = self._rejections.take_held_back()
            note = f" ({more} more since the last such line)" if more else ""
            reason = _shortened(verdict.reason)
            logger.warning("Sink %s rejected %r: %s%s", self._name, record.key, reason, note)

    def retried(self, count: int, reason: str, now: float) -> None:
        if self._retries.admit(now):
            logger.warning("Sink %s wants %d records again later: %s", self._name, count, _shortened(reason))

    def withdrawn(self, count: int) -> None:
        if count:
            what = "results of partitions that have left; their next owner repeats the seeds"
            logger.info("Sink %s does not get %d %s.", self._name, count, what)


def _shortened(reason: str) -> str:
    return cut(" ".join(reason.split()), LONGEST_REASON)


# --- When a sink was heard of last: one with writes under way and no answer to any of them is silent -----

SILENT_SECONDS = 10.0


class AnswerWatch:
    """On the event loop's thread only; `on_silence` is called once in each silence."""

    def __init__(self, on_silence: Callable[[], None]) -> None:
        self.silent_since: float | None = None  # the event loop's time
        self._on_silence = on_silence
        self._timer: asyncio.TimerHandle | None = None

    def asked(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SILENT_SECONDS, self._is_silent)

    def heard(self, *, goes_on: bool) -> None:
        """A write has ended; with others under way they are given their time from now on."""
        self.close()
        if goes_on:
            self.asked()

    def close(self) -> None:
        self.silent_since = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _is_silent(self) -> None:
        self.silent_since = asyncio.get_running_loop().time() - SILENT_SECONDS
        self._on_silence()


CLOSE_SINK_SECONDS = 5.0
_ATTEMPT_SECONDS = 15.0  # what an attempt to open is granted even when the whole wait is shorter


class Delivery:
    """Brings records to one sink. All its methods belong to the event loop's thread.

    `on_change`, if set, is called without arguments after the backlog shrank or the
    availability changed: the moment to look whether intake may resume. `on_failure` hears of
    a mistake in here, after which records would wait for ever.
    """

    def __init__(
        self,
        sink: DocumentStore,
        *,
        limits: BatchLimits | None = None,
        write_timeout_seconds: float = 60.0,
        on_change: Callable[[], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        name: str = "",
    ) -> None:
        self.sink = sink
        self._on_failure = on_failure or self._log_failure
        self.on_change = on_change
        self._batcher = Batcher(limits)
        self._write_timeout_seconds = write_timeout_seconds
        self._writes: set[asyncio.Task[Sequence[Verdict]]] = set()
        # a plain handle: uvloop gives no TimerHandle for a moment that has come
        self._timer: asyncio.Handle | None = None
        self._timer_at = inf
        self._drained: asyncio.Event = asyncio.Event()
        self._writing = False  # between open and close
        self._closed = False
        self._hearing = AnswerWatch(self._is_silent)
        self._name = name or sink.name
        self._said = DeliveryLog(self._name)
        self.last_accept_at: float | None = None  # Unix time
        self.answers = dict.fromkeys([answer.value for answer in Answer], 0)
        self.write_seconds = Histogram()  # of batches, whatever came of them

    @property
    def backlog_count(self) -> int:
        """Records that were submitted and have no final answer."""
        return self._batcher.backlog_count

    @property
    def backlog_bytes(self) -> int:
        return self._batcher.backlog_bytes

    @property
    def available(self) -> bool:
        """False from a failed write until the next one that succeeds, and while a write has no answer."""
        return self._away_since is None

    def takes(self, most_bytes: int) -> bool:
        """Whether it is available, and less than so much waits for it."""
        return self._away_since is None and self._batcher.backlog_bytes < most_bytes

    @property
    def _away_since(self) -> float | None:
        failed = self._batcher.unavailable_since
        return self._hearing.silent_since if failed is None else failed

    async def open(self, wait_seconds: float) -> None:
        """Open the sink, waiting up to `wait_seconds` for one that is away.

        Raises SinkUnavailable after that, and ConfigError at once.
        """
        away = Outage(logger, f"Sink {self._name} is away, waiting{up_to(wait_seconds)}", f"Sink {self._name} is there")
        try:
            attempt = partial(self._open_once, max(wait_seconds, _ATTEMPT_SECONDS))
            await until_there(attempt, SinkUnavailable, wait_seconds, away)
        except BaseException:
            await self._close_sink()
            raise
        self._writing = True
        self._pump()

    def submit(
        self, record: Record, done: OnVerdict, *, at_once: bool = False, is_void: Callable[[], bool] | None = None
    ) -> None:
        """Queue a record; `done` is called once, with the final answer: acknowledged or rejected.

        What is void by its turn is not written, and `done` hears that it is acknowledged.
        It is called later, never from within. With `at_once` neither this record nor an earlier
        one waits for its batch to fill. Raises SinkUnavailable after `close`.
        """
        if self._closed:
            raise SinkUnavailable(f"{self._name}: nothing can be delivered after the end of the crawl.")
        now = asyncio.get_running_loop().time()
        self._batcher.accept(record, done, now, is_void)
        if at_once:
            self._batcher.flush()
        if at_once or self._timer is None or self._batcher.needs_look():
            self._pump()  # else the timer rings in time

    def flush(self) -> None:
        """Send what waits for its batch to fill, as far as the sink takes it."""
        self._batcher.flush()
        self._pump()

    async def close(self, timeout_seconds: float) -> int:
        """Write all that waits, whatever its age, and close the sink; returns how many records are left.

        Their `done` is never called.
        """
        if not self._closed:
            self._batcher.hurry()
            self._pump()
            try:
                await self._drain(timeout_seconds)
            finally:
                self._closed = True
                self._writing = False
                self._stop_timer()
                self._hearing.close()
                await self._abandon_writes()
                await self._close_sink()
        return self.backlog_count

    def _log_failure(self, error: BaseException) -> None:
        logger.error("The delivery to sink %s failed.", self._name, exc_info=error)

    # --- Opening and closing ---

    async def _open_once(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.sink.open()
        except TimeoutError:
            raise SinkUnavailable(f"{self._name}: no answer within {seconds:.0f} s.") from None

    async def _drain(self, timeout_seconds: float) -> None:
        if not self._writing:
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.backlog_count:
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            logger.warning("Sink %s: no time left for %d records.", self._name, self.backlog_count)

    async def _abandon_writes(self) -> None:
        writes = list(self._writes)
        for write in writes:
            write.cancel()
        if writes:
            await asyncio.wait(writes, timeout=CLOSE_SINK_SECONDS)

    async def _close_sink(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SINK_SECONDS):
                await self.sink.close()
        except Exception:  # a sink that cannot be closed must not keep the process from stopping
            logger.exception("Sink %s could not be closed.", self._name)

    # --- Writing ---

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _pump(self) -> None:
        if not self._writing:
            return
        try:
            self._hand_out()
        except Exception as error:  # noqa: BLE001 - a record that was accepted is not its submitter's any more
            self._on_failure(error)

    def _hand_out(self) -> None:
        loop = asyncio.get_running_loop()
        while (batch := self._batcher.take(loop.time())) is not None:
            write = loop.create_task(self._write(batch), name=f"write to {self._name}")
            self._writes.add(write)
            write.add_done_callback(partial(self._written, batch, loop.time()))
            self._hearing.asked()
        if self._batcher.void:
            loop.call_soon(self._drop_void)
        moment = self._batcher.next_at(loop.time())
        if moment is not None and moment < self._timer_at:
            self._stop_timer()
            self._timer, self._timer_at = loop.call_at(moment, self._on_timer), moment

    def _drop_void(self) -> None:
        void = self._batcher.void.copy()
        self._batcher.void.clear()
        self._said.withdrawn(len(void))
        for done in void:
            self._call(done, ACKNOWLEDGED)
        if self.backlog_count == 0:
            self._drained.set()
        if self.on_change:
            self.on_change()

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, inf
        self._pump()

    def _is_silent(self) -> None:
        if self._batcher.unavailable_since is None:
            reason = f"no answer for {SILENT_SECONDS:.0f} s; it is waited for"
            self._said.availability(None, self._away_since, self.backlog_count, self._now(), reason)
            if self.on_change:
                self.on_change()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf

    async def _write(self, batch: Batch) -> Sequence[Verdict]:
        async with asyncio.timeout(self._write_timeout_seconds):
            return await self.sink.write(batch.records)

    def _written(self, batch: Batch, began: float, write: asyncio.Task[Sequence[Verdict]]) -> None:
        self._writes.discard(write)
        self.write_seconds.observe(self._now() - began)
        try:
            self._conclude(batch, write)
        except Exception as error:  # noqa: BLE001 - the event loop would only log it
            self._on_failure(error)

    def _conclude(self, batch: Batch, write: asyncio.Task[Sequence[Verdict]]) -> None:
        before = self.backlog_count, self._away_since
        self._hearing.heard(goes_on=bool(self._writes) and self._writing)
        try:
            reason = self._outcome(batch, write)
        except BatchError as error:
            reason = f"the sink's answer is of no use: {error}"
            self._batcher.fail(batch.number, self._now(), runtime.random())  # spreads retries only
        since = self._away_since
        if not self._closed:
            self._said.availability(before[1], since, self.backlog_count, self._now(), reason)
        self._pump()
        if self.backlog_count == 0:
            self._drained.set()
        if self.on_change and before != (self.backlog_count, since):
            self.on_change()

    def _outcome(self, batch: Batch, write: asyncio.Task[Sequence[Verdict]]) -> str:
        """Give what became of a write to the batcher; returns why it failed, empty if it did not."""
        jitter = runtime.random()  # spreads retries only
        failure = self._failure(write)
        if failure:
            self._batcher.fail(batch.number, self._now(), jitter)
            return failure
        verdicts = write.result()
        if isinstance(verdicts, ValuesView):  # of a sink that keeps them by key
            verdicts = [*verdicts]
        if not isinstance(verdicts, Sequence) or not all(isinstance(verdict, Verdict) for verdict in verdicts):
            raise BatchError(f"{verdicts!r:.100} is no list of verdicts.")
        answers = [verdict.answer for verdict in verdicts]
        for answer in Answer:
            self.answers[answer.value] += answers.count(answer)
        endings = self._batcher.settle(batch.number, verdicts, self._now(), jitter)
        if Answer.ACKNOWLEDGED in answers:
            self.last_accept_at = runtime.time()
        for done, record, verdict in endings:
            if verdict.answer is Answer.REJECTED:
                self._said.rejected(record, verdict, self._now())
            self._call(done, verdict)
        if len(endings) == len(verdicts):
            return ""
        reason = next(verdict.reason for verdict in verdicts if verdict.answer is Answer.RETRY)
        if self.available:
            self._said.retried(len(verdicts) - len(endings), reason, self._now())
        return reason

    def _failure(self, write: asyncio.Task[Sequence[Verdict]]) -> str:
        if write.cancelled():
            return "the write was cancelled"
        error = write.exception()
        if error is None:
            return ""
        if isinstance(error, TimeoutError):
            return f"no answer within {self._write_timeout_seconds:.0f} s"
        if isinstance(error, ConfigError):  # of a sink that is opened when it is needed
            self._on_failure(error)
        elif not isinstance(error, SinkUnavailable):
            # A mistake in an adapter must not lose records either.
            logger.error("Sink %s failed unexpectedly.", self._name, exc_info=error)
            return repr(error)
        return str(error)

    def _call(self, done: OnVerdict, verdict: Verdict) -> None:
        try:
            done(verdict)
        except Exception as error:  # noqa: BLE001 - the other records of the batch still have to hear
            self._on_failure(error)


# --- on demand -------------------------------------------------------------------------------------------
# A sink that is opened by its first batch: a crawl without items needs no index, table or topic for them.


class OnDemand:
    """Of a store whose settings have been checked."""

    def __init__(self, sink: DocumentStore) -> None:
        self.name = f"{sink.name} (items)"
        self._sink = sink
        self.is_used = False  # whether there was a first batch
        self._is_open = False
        self._opening = asyncio.Lock()

    async def check(self) -> str:
        check = getattr(self._sink, "check", None)
        return str(await check()) if check is not None else ""

    async def open(self) -> None:
        """Nothing yet."""

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """As the sink does. Raises SinkUnavailable, and ConfigError when the sink cannot be opened."""
        self.is_used = True
        if not self._is_open:
            async with self._opening:
                if not self._is_open:
                    await self._sink.open()
                    self._is_open = True
        return await self._sink.write(records)

    async def close(self) -> None:
        """Also what could not be opened, or was about to be: a thread may wait in it."""
        if self.is_used:
            self._is_open = False
            await self._sink.close()
