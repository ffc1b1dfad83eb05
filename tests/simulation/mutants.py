"""Faults that are planted in the product, to see whether the simulation finds them.

A fault is a function and a piece of its source with another in its place. `python -m tests.simulation
--mutants` plants one after another and runs numbers until one fails.
"""

from __future__ import annotations

from typing import Any

from site_spider.dead_letter_replay import PutBack
from site_spider.dupefilter.dupefilter import SeedFilter, Seen
from site_spider.frontier.scheduler import Queues
from site_spider.frontier.spill import SeedWriter, Spill, TopicPartitions
from site_spider.frontier.politeness import PoliteFrontier, build_frontier
from site_spider.intake.intake import Intake, Seeds
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import PartitionLedger, Ledger
from site_spider.results.batches_and_retries import Batcher
from site_spider.results.commits import OffsetCommits
from site_spider.results.delivery import Delivery
from site_spider.results.exactly_once import ExactlyOnce
from site_spider.results.transaction_queue import TransactionQueue
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.pipeline import Results, _Pending
from site_spider.results import recrawl
from site_spider.spiders import conditional
from site_spider.tasks.ending import Counting, Tally, TaskEnding
from site_spider.tasks.parking import Leaving, Parking
from site_spider.tasks.returning import _Returning
from site_spider.tasks.tracker import Control
from tests.simulation.group import Group
from tests.simulation.log import SimConsumer

CHOSEN = {  # who is found soon by these troubles, and late by all of them
    "a commit is put together while another is settled": ["kill_again"],
    "a commit without an answer is waited for": ["commits"],
    "a link of a paused task is not parked": ["tasks"],
    "a join that is owed is not paid": ["kill_in_revocation"],
    "a tally counts whatever its version": ["freeze_with_a_tally"],
}
MISSED = {"a parked message is not told of", "a seed is filtered for a page in flight at once"}  # but by tests
YES = "Verdict(Answer.ACKNOWLEDGED)"

# fmt: off
MUTANTS: dict[str, tuple[Any, str, str]] = {
    # the ledger
    "the watermark is one too far": (PartitionLedger.watermark, "return offset", "return offset + 1"),
    "runs that are complete ahead are one too long": (PartitionLedger._restore,
        "(ahead.complete)", "((first, end + 1) for first, end in ahead.complete)"),
    "runs that a commit tells are one too long": (PartitionLedger._complete_runs, "after, offset", "after, offset + 1"),
    "a seed behind a complete run counts as complete": (PartitionLedger.is_done,
        "self.done_ahead[0][1] <= offset", "self.done_ahead[0][1] < offset"),
    "the oldest incomplete seed is overlooked": (PartitionLedger.watermark, "in self.open:", "in [*self.open][1:]:"),
    "the end of a partition is one too far": (Ledger.reached, "= offset", "= offset + 1"),
    "seeds of a partition that left are not fenced": (Ledger.revoke, "return fenced", "return []"),
    "the last hold but one completes a seed": (Ledger.release, "> 1:", "> 1 + (entry.outcome is not None):"),
    "a request that ends gives two holds back": (Completion.ended, "self.release(job.entry)",
        "self.release(job.entry) or (job.entry.holds and self.release(job.entry))"),
    "a link that waits does not hold its seed": (Queues.put, "self._completion.ledger.hold(job.entry)", "pass"),
    "a partition that leaves is committed as done": (Ledger.positions, "self.position(partition, leaving=leaving)",
        "(leaving and Position(self.next_offset(partition) or 0)) or self.position(partition)"),
    "what waits for a lost partition is kept": (Completion.lost, "self._fence(entry)", "pass"),
    "an assignment begins one too far": (Completion.assigned, "(partition, position)",
        "(partition, position and position._replace(offset=position.offset + 1, metadata=''))"),
    # intake and commits
    "the last message of a batch is dropped": (Intake._hand_over,
        "in messages]", "in messages[: len(messages) - (len(messages) > 5)]]"),
    "a partition that was paused stays so": (Intake._pause_or_resume, "consumer.pause(", "consumer._paused.update("),
    "what a partition that leaves has goes on": (Seeds._revoked, "self.lost(leaving)", "pass"),
    "partitions that leave are not counted": (OffsetCommits.forget, "self._leaves += 1", "pass"),
    "a refused commit counts as done": (OffsetCommits._answered, "if leaves !=", "error = None\n        if leaves !="),
    "a commit without an answer is waited for": (OffsetCommits._answered,
        "!= self._leaves", "!= self._leaves or isinstance(error, LogSilent)"),
    "what waits for a commit never begins": (OffsetCommits.commit_first, "self._firsts.put", "str"),
    "a join that is owed is not paid": (SimConsumer._take_assignment, "if self._owes_join:", "if False:"),
    "sessions do not end": (Group.lost_sight, "list(self.members.values())", "()"),
    # the frontier and the spill
    "a retry is lost": (PoliteFrontier.put, "self._put(", "'retry_times' in getattr(waiter, 'meta', ()) or self._put("),
    "a host's place is not given back": (PoliteFrontier.came_back, "self.frontier.release(", "dict("),
    "the limit of a host is one too high": (build_frontier, "(concurrency", "(concurrency + 1"),
    "a spilled link is done before it is durable": (Spill.send, "self._background.when_done(future,",
        "(future := Future()).set_result(None)\n        self._background.when_done(future,"),
    "what is to be spilled is dropped": (Spill.send, "message = ", "job.written = True\n"
        "        job.parent or self._completion.ledger.decide(job.entry, Outcome.SPILLED)\n"
        "        return not self._completion.ended(request)\n        message = "),
    "what is spilled has no key": (SeedWriter.write, "host_of(request.url).encode() or None, value", "None, value"),
    "the end of a task does not hear of a spilled link": (Control.put, "[task_id] = known", ""),
    # deliveries
    "a sink's wish for a retry counts as yes": (Delivery._outcome, "= write.result()",
        f"= [{YES} if one.answer is Answer.RETRY else one for one in write.result()]"),
    "a sink that is away counts as yes": (Delivery._outcome, "self._batcher.fail(batch.number, self._now(), jitter)",
        f"(yes := asyncio.Future()).set_result([{YES}] * len(batch.records))\n"
        "            return self._outcome(batch, yes)"),
    "a batch that failed is forgotten": (Batcher.fail, "in entries:", "in ():"),
    "the first of several sinks is enough": (_Pending.answered, "-= 1", "= min(self.sinks, 1) - 1"),
    "a sink's refusal counts as yes": (_Pending.answered, "verdict.answer is Answer.REJECTED", "False"),
    "a dead letter is done before it is durable": (DeadLetters._send,
        "self._background.when_done(sent, self._sent, entry, headers, most)",
        "self.under_way -= 1\n        self._completion.end_as(entry, Outcome.DEAD_LETTER)"),
    "no dead letter is written": (DeadLetters.set_aside, "self._send(entry, headers_of(message, reason))",
        "self._completion.end_as(entry, Outcome.DEAD_LETTER)"),
    "a dead letter behind those put back stays": (PutBack.__contains__, "offset < self", "offset <= self"),
    "an item does not hold its seed": (Results.submit_item, "_Pending(self, job,", "_Pending(self, None,"),
    # pages that are asked for again
    "a page that is unchanged becomes an empty one": (conditional.describe_outcome, "= checked.unchanged", "= False"),
    "a page that has changed counts as unchanged": (conditional._has_same_body, "bool(", "bool(found) or ("),
    "a change is said to be as old as the document": (conditional.describe_check,
        "checked.changed_at or result.checked_at", "checked.known.get('fetched_at') or result.checked_at"),
    # the dupefilter
    "a seed that did not end well marks its pages": (Seen.ended, "entry.outcome is Outcome.RESULT", "True"),
    "a page is marked when it is met": (Seen.begin, "self._seeds[page] = seed", "self.done.add(fingerprint)"),
    "a link that left is marked with its seed": (Seen.spill, "self._pass_on(page)", "return"),
    "a page that arrives counts as left": (Seen.arrive, "self._spilled.pop(", "("),
    "a page under way for one task counts for all": (Seen.begin, "else (task, fingerprint)", "else fingerprint"),
    "a seed is filtered for a page in flight at once": (SeedFilter._place,
        "(place := self._dupefilter.in_flight_for(request)) is None", "True"),
    "another's host is asked": (TopicPartitions.owns, "not count or", "not count or count or"),
    "a page is gone after one check": (recrawl.check_of, "gone >= rules.gone_after", "gone > 0"),
    # exactly-once
    "a transaction in doubt counts as committed": (ExactlyOnce._clear_up,
        "TransactionOutcome(committed)", "TransactionOutcome(True)"),
    "a kept result does not hold its seed": (ExactlyOnce._keep, "self._completion.hold_to_close(entry)", "pass"),
    "the last tree of a transaction is left out": (TransactionQueue.commit,
        "tuple(trees)", "tuple(trees if len(trees) < 2 else trees[:-1])"),
    "a commit is put together while another is settled": (ExactlyOnce.tick, "self._is_settling or ", ""),
    # tasks
    "a partition is passed one too early": (Counting.passed, "position)", "position) + 1"),
    "the end comes one partition early": (TaskEnding.is_passed,
        "all(self.passed(partition) >= high", "1 >= sum(self.passed(partition) < high"),
    "the end does not wait for producers": (TaskEnding.is_over, "not self.sending and ", ""),
    "what is in flight counts as counted": (Counting.next_tally, "in holes if", "in () if"),
    "a tally counts whatever its version": (TaskEnding._tallied, "tally.version > before.version", "True"),
    "a seed that was counted is counted again": (Tally.has_counted, "offset <", "0 < offset % 5 <"),
    "a parked message is done before it is durable": (Parking.send,
        "return parked.done", "(future := Future()).set_result(None)\n        return future"),
    "a parked message is not told of": (Parking._durable,
        "self._unproved.setdefault(parked.task_id, deque()).append(numbered)", "self._finish(parked, sent.result())"),
    "a seed of a paused task is not parked": (Leaving._park_seed,
        'self._completion.tell("leaves", waiting)', "return self._completion.end_as(waiting, Outcome.SPILLED)"),
    "a link of a paused task is not parked": (Leaving.park, "not self._spill.send(request, job, is_link",
        "self._completion.ended(request) and dict(is_link"),
    "half of what was parked comes back": (_Returning._send, "headers = ",
        "if message.offset % 2 == 0:\n            work.count += 1\n            return\n        headers = "),
}
# fmt: on
