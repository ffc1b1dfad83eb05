"""Faults that are planted in the product, to see whether the simulation finds them.

`python -m tests.simulation --mutants` plants one after another and runs numbers until one fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any
from unittest.mock import patch

from site_spider.contracts.sink import ACKNOWLEDGED, Answer
from site_spider.dead_letters import PutBack
from site_spider.errors import LogSilent
from site_spider.frontier import waiting_room
from site_spider.frontier.host_queue import HostPolicy
from site_spider.frontier.spill import Spill
from site_spider.frontier.waiter import WaitingLink
from site_spider.frontier.waiting_room import WaitingRoom
from site_spider.intake.intake import Intake
from site_spider.ledger.ledger import Books
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Outcome
from site_spider.ledger.ledger import Ledger
from site_spider.results.commits import OffsetCommits
from site_spider.results.batch import Batcher
from site_spider.results.results import DeadLetters
from site_spider.results.delivery import Delivery
from site_spider.results.exactly_once import TransactionCommits, TransactionOutcome
from site_spider.results.held import HeldResults
from site_spider.results.exactly_once import ExactlyOnce
from site_spider.results.results import Results, _Pending
from site_spider.tasks.control import Control
from site_spider.tasks.ending import Counting
from site_spider.tasks.ending import Tally, TaskEnding
from site_spider.tasks.moving import Leaving
from site_spider.tasks.rates import Overtaking
from site_spider.tasks.moving import Parking
from site_spider.tasks.moving import _Returning
from tests.simulation.group import Group
from tests.simulation.log import Broker

Wrong = Callable[..., Any]  # takes the right method first


def _watermark(right: Wrong, self: Books, *args: Any) -> Any:
    found = right(self, *args)
    return found + 1 if found is not None and self.open else found


def _ahead(right: Wrong, self: Books, *args: Any) -> None:
    right(self, *args)
    self.done_ahead = type(self.done_ahead)((first, beyond + 1) for first, beyond in self.done_ahead)


def _not_fenced(right: Wrong, self: Ledger, partition: Any) -> Any:
    right(self, partition)
    return []


def _dropped_retry(right: Wrong, self: WaitingRoom, request: Any) -> None:
    if not request.meta.get("retry_times"):
        right(self, request)


def _ends_with_request(right: Wrong, self: Completion, request: Any) -> None:
    job = self._alive.get(request)
    right(self, request)
    if job is not None and job.entry.live and job.entry.outcome is not None and job.entry.holds > 0:
        self.ledger.release(job.entry)


def _last_message_dropped(right: Wrong, self: Intake, messages: list[Any]) -> None:
    right(self, messages[:-1] if len(messages) > 5 else messages)


def _no_hold_for_links(right: Wrong, self: Completion, entry: Any) -> None:
    if entry.holds < 2:
        right(self, entry)


def _leaves_uncounted(right: Wrong, self: OffsetCommits, partitions: Any) -> None:
    right(self, partitions)
    self._leaves -= 1


def _durable_at_once(right: Wrong, self: Any, *args: Any) -> Any:
    right(self, *args)
    done: Future[Any] = Future()
    done.set_result(None)
    return done


def _dead_letter_at_once(right: Wrong, self: DeadLetters, message: Any, headers: Any, entry: Any) -> None:
    right(self, message, headers, entry)
    self._completion.hold(entry)
    self._completion.set_aside(entry)


def _retry_is_yes(right: Wrong, self: Delivery, batch: Any, write: Any) -> Any:
    if not write.cancelled() and write.exception() is None:
        verdicts = write.result()
        for index, verdict in enumerate(verdicts):
            if verdict.answer is Answer.RETRY:
                verdicts[index] = ACKNOWLEDGED
    return right(self, batch, write)


def _away_is_yes(right: Wrong, self: Delivery, batch: Any, write: Any) -> Any:
    if not write.cancelled() and write.exception() is not None:
        endings = self._batcher.settle(batch.number, [ACKNOWLEDGED] * len(batch.records), self._now(), 0.5)
        for ticket, _record, verdict in endings:
            self._call(self._done.pop(ticket), verdict)
        return ""
    return right(self, batch, write)


def _no_second_join(right: Wrong, self: Broker, *args: Any) -> None:
    right(self, *args)
    self.pays_owed_joins = False


def _no_session(_right: Wrong, _self: Group, _client: Any) -> None:
    pass


def _revoked_commits_all(
    right: Wrong, self: Completion, partitions: Any = None, *, leaving: bool = False
) -> Any:
    found = right(self, partitions, leaving=leaving)
    if leaving:
        found = {
            one: at._replace(offset=self.ledger.next_offset(one) or at.offset, metadata="")
            for one, at in found.items()
        }
    return found


def _forgotten_at_loss(right: Wrong, self: Completion, partitions: Any) -> None:
    known = [one for one in partitions if one in self.ledger.partitions()]
    for one in known:
        self.ledger.revoke(one)


def _assigned_behind(right: Wrong, self: Completion, positions: Any) -> None:
    right(self, {one: at and at._replace(offset=at.offset + 1, metadata="") for one, at in positions.items()})


# --- written as little as they are ------------------------------------------------------------------


def _nothing(_right: Wrong, *_args: Any, **_how: Any) -> None:
    pass


def _one_more(right: Wrong, *args: Any, **how: Any) -> Any:
    return right(*args, **how) + 1


def _is_done_too_far(right: Wrong, self: Books, offset: int) -> bool:
    end = self.done_ahead[0][1] if self.done_ahead else None
    return right(self, offset) or offset == end


def _reached_too_far(right: Wrong, self: Ledger, partition: Any, offset: int) -> None:
    right(self, partition, offset + 1)


def _oldest_overlooked(right: Wrong, self: Books, besides: Any) -> Iterator[int]:
    return islice(right(self, besides), 1, None)


def _runs_too_long(right: Wrong, self: Books, besides: Any) -> Iterator[tuple[int, int]]:
    return ((first, end + 1) for first, end in right(self, besides))


def _last_hold_overlooked(right: Wrong, self: Ledger, entry: Any) -> Any:
    if entry.live and entry.holds == 2 and entry.outcome is not None:
        right(self, entry)
    return right(self, entry) if entry.holds else False


def _refusal_is_yes(
    right: Wrong, self: OffsetCommits, positions: Any, first: Any, leaves: int, _no: Any
) -> None:
    right(self, positions, first, leaves, None)


def _silence_for_ever(
    right: Wrong, self: OffsetCommits, positions: Any, first: Any, leaves: int, error: Any
) -> None:
    if not isinstance(error, LogSilent):
        right(self, positions, first, leaves, error)


def _never_resumes(right: Wrong, self: Intake, consumer: Any, room: int) -> None:
    before = set(self._paused)
    right(self, consumer, room)
    if before:
        consumer.pause(list(before))


def _spill_dropped(is_link: bool) -> Wrong:
    def drop(right: Wrong, self: Spill, request: Any, job: Any, **how: Any) -> bool:
        if how["is_link"] is not is_link:
            return bool(right(self, request, job, **how))
        job.written = True
        if job.parent is None:
            self._completion.ledger.decide(job.entry, Outcome.SPILLED)
        self._completion.ended(request)
        return True

    return drop


def _first_sink_is_enough(right: Wrong, self: Any, verdict: Any) -> None:
    self.sinks = min(self.sinks, 1)
    right(self, verdict)


def _refusal_forgotten(right: Wrong, self: Any, _verdict: Any) -> None:
    right(self, ACKNOWLEDGED)


def _failed_batch_forgotten(_right: Wrong, self: Batcher, number: int, *_args: Any) -> None:
    del self._under_way[number]


def _not_kept_when_away(right: Wrong, self: Delivery, record: Any, done: Any, **how: Any) -> None:
    if self.available:
        right(self, record, done, **how)
    else:
        asyncio.get_running_loop().call_soon(done, ACKNOWLEDGED)


def _no_failure_document(_right: Wrong, self: Results, job: Any) -> None:
    if job.parent is None:
        self._completion.ledger.decide(job.entry, Outcome.FAILURE)


def _no_dead_letter(_right: Wrong, self: DeadLetters, _message: Any, _reason: str, entry: Any) -> None:
    self._completion.set_aside(entry)


def _one_more_at_a_host(right: Wrong, concurrency: int, delay_seconds: float) -> HostPolicy:
    found: HostPolicy = right(concurrency + 1, delay_seconds)
    return found


def _one_partition_less(_right: Wrong, self: TaskEnding) -> bool:
    behind = [one for one, high in self.highs.items() if self.passed(one) < high]
    return len(behind) <= 1


def _producers_overlooked(_right: Wrong, self: TaskEnding) -> bool:
    return self.is_told or (self.is_closed and self.is_passed)


def _no_holes(right: Wrong, *args: Any, **how: Any) -> Any:
    tally = right(*args, **how)
    return tally and replace(tally, holes=frozenset())


def _tally_without_version(_right: Wrong, self: TaskEnding, tally: Any) -> None:
    self.tallies[tally.partition] = tally


def _offset_counted_twice(right: Wrong, self: Tally, offset: int) -> bool:
    return right(self, offset) and offset % 5 != 0


def _parked_at_once(right: Wrong, self: Parking, *args: Any) -> Any:
    right(self, *args)
    done: Future[Any] = Future()
    done.set_result(None)
    return done


def _parked_untold(right: Wrong, self: Parking, sent: Any, parked: Any) -> None:
    state = self._states.of(parked.task_id)
    if sent.exception() is not None or state is None:
        right(self, sent, parked)
    else:
        self._finish(parked, sent.result())


def _seed_parked_nowhere(_right: Wrong, self: Leaving, waiting: Any, _task_id: str) -> None:
    self._completion.end_as(waiting.entry, Outcome.SPILLED)


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


def _moved_at_once(right: Wrong, self: Overtaking, waiting: Any) -> None:
    right(self, waiting)
    self._completion.hold(waiting)
    self._completion.end_as(waiting, Outcome.SPILLED)


def _doubt_is_yes(_right: Wrong, self: TransactionCommits, *_args: Any) -> None:
    self._doubtful = None
    self._tell(TransactionOutcome(committed=True))


def _kept_without_hold(_right: Wrong, self: ExactlyOnce, job: Any, item: Any) -> None:
    if job.entry.live:
        self._held.keep(job.entry, item, job)


def _tree_committed_before(right: Wrong, self: HeldResults, **how: Any) -> Any:
    found = right(self, **how)
    if found is not None and len(found.trees) > 1:
        last = found.trees[-1]
        last.items.clear()
    return found


def _looks_anyway(right: Wrong, self: ExactlyOnce) -> None:
    self._is_settling = False
    right(self)


def _replayed_twice(right: Wrong, self: PutBack, offset: object) -> bool:
    return right(self, offset) or offset == self.below


MUTANTS: dict[str, tuple[Any, str, Wrong]] = {
    # the ledger
    "the watermark is one too far": (Books, "watermark", _watermark),
    "runs that are complete ahead are one too long": (Books, "_restore", _ahead),
    "runs that a commit tells are one too long": (Books, "_complete_runs", _runs_too_long),
    "a seed behind a complete run counts as complete": (Books, "is_done", _is_done_too_far),
    "the oldest incomplete seed is overlooked": (Books, "_incomplete", _oldest_overlooked),
    "the end of a partition is one too far": (Ledger, "reached", _reached_too_far),
    "seeds of a partition that left are not fenced": (Ledger, "revoke", _not_fenced),
    "the last hold but one completes a seed": (Ledger, "release", _last_hold_overlooked),
    "a request that ends gives two holds back": (Completion, "ended", _ends_with_request),
    "a link that waits does not hold its seed": (Completion, "accept_link", _no_hold_for_links),
    "a partition that leaves is committed as done": (Completion, "positions", _revoked_commits_all),
    "what waits for a lost partition is kept": (Completion, "lost", _forgotten_at_loss),
    "an assignment begins one too far": (Completion, "assigned", _assigned_behind),
    # intake and commits
    "the last message of a batch is dropped": (Intake, "_hand_over", _last_message_dropped),
    "a partition that was paused stays so": (Intake, "_pause_or_resume", _never_resumes),
    "partitions that leave are not counted": (OffsetCommits, "forget", _leaves_uncounted),
    "a refused commit counts as done": (OffsetCommits, "_answered", _refusal_is_yes),
    "a commit without an answer is waited for": (OffsetCommits, "_answered", _silence_for_ever),
    "what waits for a commit never begins": (OffsetCommits, "commit_first", _nothing),
    "a join that is owed is not paid": (Broker, "__init__", _no_second_join),
    "sessions do not end": (Group, "lost_sight", _no_session),
    # the frontier and the spill
    "a retry is dropped": (WaitingRoom, "put_request", _dropped_retry),
    "a host's place is not given back": (WaitingRoom, "came_back", _nothing),
    "the limit of a host is one too high": (waiting_room, "HostPolicy", _one_more_at_a_host),
    "a spilled link is done before it is durable": (Spill, "_begin_to_send", _durable_at_once),
    "a link that is to be spilled is dropped": (Spill, "send", _spill_dropped(is_link=True)),
    "a redirect that is to be spilled is dropped": (Spill, "send", _spill_dropped(is_link=False)),
    "the end of a task does not hear of a spilled link": (Control, "put", _nothing),
    # deliveries
    "a sink's wish for a retry counts as yes": (Delivery, "_outcome", _retry_is_yes),
    "a sink that is away counts as yes": (Delivery, "_outcome", _away_is_yes),
    "a result for a sink that is away is not kept": (Delivery, "submit", _not_kept_when_away),
    "a batch that failed is forgotten": (Batcher, "fail", _failed_batch_forgotten),
    "the first of several sinks is enough": (_Pending, "answered", _first_sink_is_enough),
    "a sink's refusal counts as yes": (_Pending, "answered", _refusal_forgotten),
    "a page that failed has no document": (Results, "unwritten", _no_failure_document),
    "a dead letter is done before it is durable": (DeadLetters, "_send", _dead_letter_at_once),
    "no dead letter is written": (DeadLetters, "set_aside", _no_dead_letter),
    "a dead letter behind those put back stays": (PutBack, "__contains__", _replayed_twice),
    # exactly-once
    "a transaction in doubt counts as committed": (TransactionCommits, "_clear_up", _doubt_is_yes),
    "a kept result does not hold its seed": (ExactlyOnce, "_keep", _kept_without_hold),
    "the last tree of a transaction is left out": (HeldResults, "commit", _tree_committed_before),
    "a commit is put together while another is settled": (ExactlyOnce, "_look", _looks_anyway),
    # tasks
    "a partition is passed one too early": (Counting, "passed", _one_more),
    "the end comes one partition early": (TaskEnding, "is_passed", _one_partition_less),
    "the end does not wait for producers": (TaskEnding, "is_over", _producers_overlooked),
    "what is in flight counts as counted": (Counting, "next_tally", _no_holes),
    "a tally counts whatever its version": (TaskEnding, "_tallied", _tally_without_version),
    "a seed that was counted is counted again": (Tally, "has_counted", _offset_counted_twice),
    "a parked message is done before it is durable": (Parking, "send", _parked_at_once),
    "a parked message is not told of": (Parking, "_durable", _parked_untold),
    "a seed of a paused task is not parked": (Leaving, "_park_seed", _seed_parked_nowhere),
    "a link of a paused task is not parked": (Leaving, "park", _link_parked_nowhere),
    "half of what was parked comes back": (_Returning, "_send", _half_put_back),
    "a seed that overtakes is done before it is durable": (Overtaking, "_send", _moved_at_once),
}


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
