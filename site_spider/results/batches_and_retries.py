"""Batches of records for one sink, and their verdicts.

Theory of operation. Every accepted record is in exactly one of four places:

- *ready*: may go into the next batch, in a heap by `order`;
- *paused*: the sink said RETRY; in a heap by the time at which it becomes ready again;
- *under way*: in a batch that was handed out and has no answer yet;
- *behind*: an earlier record of the same key is in one of the other three places. It is
  linked from that record (`follower`), so it can neither overtake it nor be under way
  beside it, in the same batch or in another: the later document wins.

It leaves when an answer is final, or when it is its turn and nobody wants it any more (`is_void`).
What comes back queues behind what waits (a new `order`), so one record that the sink can never take does
not hold up all others.

A batch that fails as a whole closes the gate (`_resume_at`) for a growing while. Until
the next success the sink counts as unavailable and one batch at a time is handed out.
Each failure also halves the batches (`_halvings`) and each success doubles them again, so
a server that chokes on large ones gets what it can take, and a record that fails whatever
batch it is in ends up alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import BatchError

SHORTEST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0  # a server that is back is noticed soon; measured with 30: twice the outage
_MOST_VOID = 1_000  # records at a time: when partitions leave behind a sink that is away, all may be


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is due, how large it may become, and how many may be under way.

    A record that alone is larger than `size_bytes` travels alone. While no batch is under way one is
    due at `idle_age_seconds` already, if that is less than `age_seconds`: a sink that answers
    quickly gets small batches soon, and a slow one is not asked more often.
    """

    size_bytes: int = 5_000_000
    count: int = 500
    age_seconds: float = 1.0
    under_way: int = 2
    idle_age_seconds: float = inf


class Batch(NamedTuple):
    """Records handed out together, each of another key; `number` is for the answer."""

    number: int
    records: tuple[Record, ...]


OnVerdict = Callable[[Verdict], None]  # who hears of the final answer to a record; the batcher calls nobody


class BatchEnd(NamedTuple):
    """The final answer to one record."""

    done: OnVerdict
    record: Record
    verdict: Verdict


@dataclass(slots=True, eq=False)
class _QueuedRecord:
    order: int
    record: Record
    done: OnVerdict
    accepted_at: float
    is_void: Callable[[], bool] | None
    attempts: int = 0
    follower: _QueuedRecord | None = None


def pause_seconds(attempts: int, jitter: float) -> float:
    """How long to wait after the n-th failure: 0.5–1 s, 1–2 s, … 5–10 s; `jitter` (0 to 1) chooses there."""
    ceiling = min(SHORTEST_PAUSE_SECONDS * 2.0 ** min(attempts, 16), LONGEST_PAUSE_SECONDS)
    return ceiling * (1 + jitter) / 2


class Batcher:
    """All records on their way to one sink. Times are seconds of any clock that never goes back."""

    def __init__(self, limits: BatchLimits | None = None) -> None:
        self.limits = limits or BatchLimits()
        self.backlog_count = 0  # accepted and without a final answer
        self.backlog_bytes = 0
        self.unavailable_since: float | None = None
        self.void: list[OnVerdict] = []  # of what was void when its turn came, until somebody takes them
        self._ready: list[tuple[int, _QueuedRecord]] = []
        self._ready_bytes = 0
        self._paused: list[tuple[float, int, _QueuedRecord]] = []
        self._under_way: dict[int, list[_QueuedRecord]] = {}
        self._last_of_key: dict[str, _QueuedRecord] = {}
        self._numbers = 0
        self._orders = 0
        self._failures = 0  # in a row
        self._halvings = 0
        self._resume_at = -inf
        self._hurried_to = 0.0  # what was accepted up to this order is due, whatever its age

    @property
    def is_hurried(self) -> bool:
        """Whether something is ready that is due whatever its age: it was hurried, or fills a batch."""
        return bool(self._ready) and (
            self._ready[0][0] <= self._hurried_to
            or len(self._ready) >= self.limits.count
            or self._ready_bytes >= self.limits.size_bytes
        )

    def needs_look(self) -> bool:
        """Whether what came last may be due before all that was ready: it is alone, or due at once."""
        return len(self._ready) <= 1 or self.is_hurried

    def accept(self, record: Record, done: OnVerdict, now: float, is_void: Callable[[], bool] | None = None) -> None:
        """Take a record in. `is_void` is asked when its turn comes: True ends it, and `void` tells."""
        entry = _QueuedRecord(self._next_order(), record, done, now, is_void)
        before = self._last_of_key.get(record.key)
        self._last_of_key[record.key] = entry
        self.backlog_count += 1
        self.backlog_bytes += record.size_bytes
        if before is None:
            self._make_ready(entry)
        else:
            before.follower = entry

    def take(self, now: float) -> Batch | None:
        """The next batch, if one is due and may be handed out."""
        if now < self._resume_at or self._is_full():
            return None
        self._wake(now)
        if not self._is_due(now) or not (entries := self._gather()):
            return None
        self._numbers += 1
        self._under_way[self._numbers] = entries
        return Batch(self._numbers, tuple([entry.record for entry in entries]))

    def next_at(self, now: float) -> float | None:
        """When to call `take` again if nothing else happens first; None: not before something does."""
        if self._is_full():
            return None
        moments = []
        if self._ready:
            moments.append(now if self._is_due(now) else self._oldest_due_at())
        if self._paused:
            moments.append(self._paused[0][0])
        return max(now, self._resume_at, min(moments)) if moments else None

    def settle(self, number: int, verdicts: Sequence[Verdict], now: float, jitter: float) -> list[BatchEnd]:
        """Take the answers to a batch, one for each record in order; returns the final ones.

        A batch of which nothing passed says the same as an unavailable sink. Raises
        BatchError when the batch is not under way or the answers do not fit it.
        """
        entries = self._answered(number)
        if len(verdicts) != len(entries):
            raise BatchError(f"batch {number} of {len(entries)} records got {len(verdicts)} answers.")
        del self._under_way[number]
        if all(verdict.answer is Answer.RETRY for verdict in verdicts):
            self._close_gate(now, jitter)
        else:
            self._open_gate()
        endings = []
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict.answer is Answer.RETRY:
                self._pause(entry, now, jitter)
            else:
                self._end(entry)
                endings.append(BatchEnd(entry.done, entry.record, verdict))
        return endings

    def fail(self, number: int, now: float, jitter: float) -> None:
        """The batch failed as a whole: its records go back. Raises BatchError when it is not under way."""
        entries = self._answered(number)
        del self._under_way[number]
        self._close_gate(now, jitter)
        for entry in entries:
            self._make_ready(entry, order=self._next_order())

    def flush(self) -> None:
        """Whatever was accepted until now is due as soon as it is ready."""
        self._hurried_to = max(self._hurried_to, self._orders)

    def hurry(self) -> None:
        """From now on whatever is ready is due, and pauses that have begun are over: the end is near."""
        self._hurried_to = inf
        self._failures = 0
        self._resume_at = -inf
        for _, _, entry in self._paused:
            entry.attempts = 0
        self._wake(inf)

    # --- Gathering ---

    def _is_full(self) -> bool:
        allowed = self.limits.under_way if self.unavailable_since is None else 1
        return len(self._under_way) >= allowed

    def _is_due(self, now: float) -> bool:
        return self.is_hurried or (bool(self._ready) and now >= self._oldest_due_at())

    def _oldest_due_at(self) -> float:
        limits = self.limits
        age = limits.age_seconds if self._under_way else min(limits.age_seconds, limits.idle_age_seconds)
        return self._ready[0][1].accepted_at + age

    def _gather(self) -> list[_QueuedRecord]:
        count = max(1, self.limits.count >> self._halvings)
        room = self.limits.size_bytes >> self._halvings
        entries: list[_QueuedRecord] = []
        while self._ready and len(entries) < count and len(self.void) < _MOST_VOID:
            first = self._ready[0][1]
            size = first.record.size_bytes
            if first.is_void is not None and first.is_void():
                heappop(self._ready)
                self._ready_bytes -= size
                self._end(first)
                self.void.append(first.done)
                continue
            if entries and size > room:
                break
            room -= size
            self._ready_bytes -= size
            entries.append(heappop(self._ready)[1])
        if not self.backlog_count:  # nothing is left that would find out that the sink is there again
            self._open_gate()
        return entries

    # --- Moving one record ---

    def _next_order(self) -> int:
        self._orders += 1
        return self._orders

    def _make_ready(self, entry: _QueuedRecord, order: int | None = None) -> None:
        entry.order = order or entry.order
        self._ready_bytes += entry.record.size_bytes
        heappush(self._ready, (entry.order, entry))

    def _pause(self, entry: _QueuedRecord, now: float, jitter: float) -> None:
        entry.attempts += 1
        entry.order = self._next_order()
        heappush(self._paused, (now + pause_seconds(entry.attempts, jitter), entry.order, entry))

    def _wake(self, now: float) -> None:
        while self._paused and self._paused[0][0] <= now:
            self._make_ready(heappop(self._paused)[2])

    def _end(self, entry: _QueuedRecord) -> None:
        self.backlog_count -= 1
        self.backlog_bytes -= entry.record.size_bytes
        if entry.follower is None:
            del self._last_of_key[entry.record.key]
        else:
            self._make_ready(entry.follower)

    # --- The gate ---

    def _answered(self, number: int) -> list[_QueuedRecord]:
        if number not in self._under_way:
            raise BatchError(f"batch {number} is not under way.")
        return self._under_way[number]

    def _close_gate(self, now: float, jitter: float) -> None:
        if now < self._resume_at:
            return  # the other batch of the same outage
        self._failures += 1
        self._halvings = min(self._halvings + 1, self.limits.count.bit_length())
        self._resume_at = now + pause_seconds(self._failures, jitter)
        if self.unavailable_since is None:
            self.unavailable_since = now

    def _open_gate(self) -> None:
        self._failures = 0
        self._halvings = max(0, self._halvings - 1)
        self._resume_at = -inf
        self.unavailable_since = None
