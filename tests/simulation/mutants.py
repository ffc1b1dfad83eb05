"""Faults that are planted in the product, to see whether the simulation finds them.

`python -m tests.simulation --mutants` plants one after another and runs numbers until one fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from site_spider.contracts.sink import ACKNOWLEDGED, Answer
from site_spider.dead_letters import PutBack
from site_spider.errors import LogSilent
from site_spider.frontier import waiting_room
from site_spider.frontier.scheduler import Queues
from site_spider.frontier.spill import Spill
from site_spider.frontier.waiter import WaitingLink
from site_spider.frontier.waiting_room import WaitingRoom
from site_spider.intake.intake import Intake
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Books, Ledger, Outcome
from site_spider.results.batch import Batcher
from site_spider.results.commits import OffsetCommits
from site_spider.results.delivery import Delivery
from site_spider.results.exactly_once import ExactlyOnce, TransactionCommits, TransactionOutcome
from site_spider.results.held import HeldResults
from site_spider.results.results import DeadLetters, Results, _Pending
from site_spider.tasks.ending import Counting, Tally, TaskEnding
from site_spider.tasks.moving import Leaving, Parking, _Returning
from site_spider.tasks.rates import Overtaking
from site_spider.tasks.tracker import Control
from tests.simulation.group import Group
from tests.simulation.log import SimConsumer

Wrong = Callable[..., Any]  # takes the right method first


def _ahead(right: Wrong, self: Books, *args: Any) -> None:
    right(self, *args)
    self.done_ahead = type(self.done_ahead)((first, beyond + 1) for first, beyond in self.done_ahead)


def _no_hold_for_links(right: Wrong, self: Queues, request: Any, job: Any, **how: Any) -> None:
    right(self, request, job, **how)
    job.entry.holds -= how["is_link"] and not self._completion.knows(request)  # it waits as less


def _oldest_overlooked(right: Wrong, self: Books, besides: Any = frozenset()) -> Any:
    first = right(self, besides)
    return right(self, {*besides, first}) if first in self.open else first


def _two_holds(right: Wrong, self: Completion, request: Any) -> None:
    job = self._alive.get(request)
    right(self, request)
    if job is not None and job.entry.live and job.entry.outcome is not None and job.entry.holds > 0:
        self.ledger.release(job.entry)


def _last_hold_overlooked(right: Wrong, self: Ledger, entry: Any) -> Any:
    if entry.live and entry.holds == 2 and entry.outcome is not None:
        right(self, entry)
    return right(self, entry) if entry.holds else False


def _all_done(right: Wrong, self: Completion, partitions: Any = None, *, leaving: bool = False) -> Any:
    found, reached = right(self, partitions, leaving=leaving), self.ledger.next_offset
    if leaving:
        found = {one: at._replace(offset=reached(one) or at.offset, metadata="") for one, at in found.items()}
    return found


def _forgotten_at_loss(_right: Wrong, self: Completion, partitions: Any) -> None:
    for one in [one for one in partitions if one in self.ledger.partitions()]:
        self.ledger.revoke(one)


def _leaves_uncounted(right: Wrong, self: OffsetCommits, partitions: Any) -> None:
    right(self, partitions)
    self._leaves -= 1


def _never_resumes(right: Wrong, self: Intake, consumer: Any, room: int) -> None:
    before = set(self._paused)
    right(self, consumer, room)
    if before:
        consumer.pause(list(before))


def _owes_nothing(right: Wrong, self: SimConsumer, assignment: Any) -> None:
    self._owes_join = False
    right(self, assignment)


def _at_once(right: Wrong, *args: Any) -> Future[Any]:
    right(*args)
    done: Future[Any] = Future()
    done.set_result(None)
    return done


def _spill_dropped(right: Wrong, self: Spill, request: Any, job: Any, *, dropped: bool, **how: Any) -> bool:
    """`dropped`: links; else the others."""
    if how["is_link"] is not dropped:
        return bool(right(self, request, job, **how))
    job.written = True
    if job is job.root:
        self._completion.ledger.decide(job.entry, Outcome.SPILLED)
    self._completion.ended(request)
    return True


def _retry_is_yes(right: Wrong, self: Delivery, batch: Any, write: Any) -> Any:
    if not write.cancelled() and write.exception() is None:
        yes = [ACKNOWLEDGED if one.answer is Answer.RETRY else one for one in write.result()]
        write.result()[:] = yes
    return right(self, batch, write)


def _away_is_yes(right: Wrong, self: Delivery, batch: Any, write: Any) -> Any:
    if not write.cancelled() and write.exception() is not None:
        endings = self._batcher.settle(batch.number, [ACKNOWLEDGED] * len(batch.records), self._now(), 0.5)
        for ticket, _record, verdict in endings:
            self._call(self._done.pop(ticket), verdict)
        return ""
    return right(self, batch, write)


def _not_kept_when_away(right: Wrong, self: Delivery, record: Any, done: Any, **how: Any) -> None:
    if self.available:
        right(self, record, done, **how)
    else:
        asyncio.get_running_loop().call_soon(done, ACKNOWLEDGED)


def _failed_batch_forgotten(_right: Wrong, self: Batcher, number: int, *_args: Any) -> None:
    del self._under_way[number]


def _first_sink_is_enough(right: Wrong, self: Any, verdict: Any) -> None:
    self.sinks = min(self.sinks, 1)
    right(self, verdict)


def _no_failure_document(_right: Wrong, self: Results, job: Any) -> None:
    if job.parent is None:
        self._completion.ledger.decide(job.entry, Outcome.FAILURE)


def _doubt_is_yes(_right: Wrong, self: TransactionCommits, *_args: Any) -> None:
    self._doubtful = None
    self._tell(TransactionOutcome(committed=True))


def _tree_left_out(right: Wrong, self: HeldResults, **how: Any) -> Any:
    found = right(self, **how)
    if found is not None and len(found.trees) > 1:
        found.trees[-1].items.clear()
    return found


def _looks_anyway(right: Wrong, self: ExactlyOnce) -> None:
    self._is_settling = False
    right(self)


def _tally_without_version(_right: Wrong, self: TaskEnding, tally: Any) -> None:
    self.tallies[tally.partition] = tally


def _parked_untold(right: Wrong, self: Parking, sent: Any, parked: Any) -> None:
    if sent.exception() is not None or self._states.of(parked.task_id) is None:
        right(self, sent, parked)
    else:
        self._finish(parked, sent.result())


def _link_parked_nowhere(right: Wrong, self: Leaving, waiter: Any, state: Any) -> None:
    if isinstance(waiter, WaitingLink):
        self._completion.release(waiter.parent.entry)
    else:
        right(self, waiter, state)


def _half_put_back(right: Wrong, self: Any, message: Any, work: Any) -> None:
    if message.offset % 2:
        right(self, message, work)
    else:
        work.count += 1


def _nothing(_right: Wrong, *_args: Any, **_how: Any) -> None:
    pass


# fmt: off
MUTANTS: dict[str, tuple[Any, str, Wrong]] = {
    # the ledger
    "the watermark is one too far": (Books, "watermark",
        lambda right, self, *args: (right(self, *args) or 0) + 1 if self.open else right(self, *args)),
    "runs that are complete ahead are one too long": (Books, "_restore", _ahead),
    "runs that a commit tells are one too long": (Books, "_complete_runs",
        lambda right, *args: ((first, end + 1) for first, end in right(*args))),
    "a seed behind a complete run counts as complete": (Books, "is_done",
        lambda right, self, at: any([at == next(iter(self.done_ahead), (0, -1))[1], right(self, at)])),
    "the oldest incomplete seed is overlooked": (Books, "watermark", _oldest_overlooked),
    "the end of a partition is one too far": (Ledger, "reached",
        lambda right, self, partition, offset: right(self, partition, offset + 1)),
    "seeds of a partition that left are not fenced": (Ledger, "revoke",
        lambda right, *args: right(*args) and []),
    "the last hold but one completes a seed": (Ledger, "release", _last_hold_overlooked),
    "a request that ends gives two holds back": (Completion, "ended", _two_holds),
    "a link that waits does not hold its seed": (Queues, "put", _no_hold_for_links),
    "a partition that leaves is committed as done": (Completion, "positions", _all_done),
    "what waits for a lost partition is kept": (Completion, "lost", _forgotten_at_loss),
    "an assignment begins one too far": (Completion, "assigned",
        lambda right, self, positions: right(self, {
            one: at and at._replace(offset=at.offset + 1, metadata="") for one, at in positions.items()})),
    # intake and commits
    "the last message of a batch is dropped": (Intake, "_hand_over",
        lambda right, self, messages: right(self, messages[:-1] if len(messages) > 5 else messages)),
    "a partition that was paused stays so": (Intake, "_pause_or_resume", _never_resumes),
    "partitions that leave are not counted": (OffsetCommits, "forget", _leaves_uncounted),
    "a refused commit counts as done": (OffsetCommits, "_answered",
        lambda right, self, positions, first, leaves, _no: right(self, positions, first, leaves, None)),
    "a commit without an answer is waited for": (OffsetCommits, "_answered",
        lambda right, *args: None if isinstance(args[-1], LogSilent) else right(*args)),
    "what waits for a commit never begins": (OffsetCommits, "commit_first", _nothing),
    "a join that is owed is not paid": (SimConsumer, "_take_assignment", _owes_nothing),
    "sessions do not end": (Group, "lost_sight", _nothing),
    # the frontier and the spill
    "a retry is dropped": (WaitingRoom, "put_request",
        lambda right, self, request: None if request.meta.get("retry_times") else right(self, request)),
    "a host's place is not given back": (WaitingRoom, "came_back", _nothing),
    "the limit of a host is one too high": (waiting_room, "HostPolicy",
        lambda right, concurrency, delay_seconds: right(concurrency + 1, delay_seconds)),
    "a spilled link is done before it is durable": (Spill, "_begin_to_send", _at_once),
    "a link that is to be spilled is dropped": (Spill, "send",
        lambda *args, **how: _spill_dropped(*args, dropped=True, **how)),
    "a redirect that is to be spilled is dropped": (Spill, "send",
        lambda *args, **how: _spill_dropped(*args, dropped=False, **how)),
    "the end of a task does not hear of a spilled link": (Control, "put", _nothing),
    # deliveries
    "a sink's wish for a retry counts as yes": (Delivery, "_outcome", _retry_is_yes),
    "a sink that is away counts as yes": (Delivery, "_outcome", _away_is_yes),
    "a result for a sink that is away is not kept": (Delivery, "submit", _not_kept_when_away),
    "a batch that failed is forgotten": (Batcher, "fail", _failed_batch_forgotten),
    "the first of several sinks is enough": (_Pending, "answered", _first_sink_is_enough),
    "a sink's refusal counts as yes": (_Pending, "answered",
        lambda right, self, _verdict: right(self, ACKNOWLEDGED)),
    "a page that failed has no document": (Results, "unwritten", _no_failure_document),
    "a dead letter is done before it is durable": (DeadLetters, "_send",
        lambda right, self, message, headers, entry: (
            right(self, message, headers, entry),
            self._completion.hold(entry),
            self._completion.set_aside(entry))),
    "no dead letter is written": (DeadLetters, "set_aside",
        lambda _right, self, _message, _reason, entry: self._completion.set_aside(entry)),
    "a dead letter behind those put back stays": (PutBack, "__contains__",
        lambda right, self, offset: right(self, offset) or offset == self.below),
    # exactly-once
    "a transaction in doubt counts as committed": (TransactionCommits, "_clear_up", _doubt_is_yes),
    "a kept result does not hold its seed": (ExactlyOnce, "_keep",
        lambda _right, self, job, item: job.entry.live and self._held.keep(job.entry, item, job)),
    "the last tree of a transaction is left out": (HeldResults, "commit", _tree_left_out),
    "a commit is put together while another is settled": (ExactlyOnce, "_look", _looks_anyway),
    # tasks
    "a partition is passed one too early": (Counting, "passed", lambda right, *args: right(*args) + 1),
    "the end comes one partition early": (TaskEnding, "is_passed",
        lambda _right, self: sum(self.passed(one) < high for one, high in self.highs.items()) <= 1),
    "the end does not wait for producers": (TaskEnding, "is_over",
        lambda _right, self: self.is_told or (self.is_closed and self.is_passed)),
    "what is in flight counts as counted": (Counting, "next_tally",
        lambda right, *args, **how: (tally := right(*args, **how)) and replace(tally, holes=frozenset())),
    "a tally counts whatever its version": (TaskEnding, "_tallied", _tally_without_version),
    "a seed that was counted is counted again": (Tally, "has_counted",
        lambda right, self, offset: right(self, offset) and offset % 5 != 0),
    "a parked message is done before it is durable": (Parking, "send", _at_once),
    "a parked message is not told of": (Parking, "_durable", _parked_untold),
    "a seed of a paused task is not parked": (Leaving, "_park_seed",
        lambda _right, self, waiting, _task_id: self._completion.end_as(waiting.entry, Outcome.SPILLED)),
    "a link of a paused task is not parked": (Leaving, "park", _link_parked_nowhere),
    "half of what was parked comes back": (_Returning, "_send", _half_put_back),
    "a seed that overtakes is done before it is durable": (Overtaking, "_send",
        lambda right, self, waiting: (
            right(self, waiting),
            self._completion.hold(waiting.entry),
            self._completion.end_as(waiting.entry, Outcome.SPILLED))),
}
# fmt: on


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With this fault."""
    where, what, wrong = MUTANTS[name]
    right = getattr(where, what)
    if isinstance(right, property):
        planted_in: Any = property(lambda self: wrong(right.fget, self))
    else:
        planted_in = lambda *args, **how: wrong(right, *args, **how)  # noqa: E731
    with patch.object(where, what, planted_in):
        yield
