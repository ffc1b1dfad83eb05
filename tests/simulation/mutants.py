"""Faults that are planted in the product, to see whether the simulation finds them.

`python -m tests.simulation --mutants` plants one after another and runs numbers until one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from site_spider.contracts.sink import ACKNOWLEDGED, Answer
from site_spider.frontier.spill.spill import Spill
from site_spider.frontier.waiting_room import WaitingRoom
from site_spider.intake.intake import Intake
from site_spider.ledger.books import Books
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Ledger
from site_spider.results.at_least_once import OffsetCommits
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.delivery import Delivery
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


MUTANTS: dict[str, tuple[type, str, Wrong]] = {
    "the watermark is one too far": (Books, "watermark", _watermark),
    "runs that are complete ahead are one too long": (Books, "_restore", _ahead),
    "seeds of a partition that left are not fenced": (Ledger, "revoke", _not_fenced),
    "a retry is dropped": (WaitingRoom, "put_request", _dropped_retry),
    "a request that ends gives two holds back": (Completion, "ended", _ends_with_request),
    "the last message of a batch is dropped": (Intake, "_hand_over", _last_message_dropped),
    "a link that waits does not hold its seed": (Completion, "accept_link", _no_hold_for_links),
    "partitions that leave are not counted": (OffsetCommits, "forget", _leaves_uncounted),
    "a spilled link is done before it is durable": (Spill, "_begin_to_send", _durable_at_once),
    "a dead letter is done before it is durable": (DeadLetters, "_send", _dead_letter_at_once),
    "a sink's wish for a retry counts as yes": (Delivery, "_outcome", _retry_is_yes),
    "a sink that is away counts as yes": (Delivery, "_outcome", _away_is_yes),
    "a join that is owed is not paid": (Broker, "__init__", _no_second_join),
    "sessions do not end": (Group, "lost_sight", _no_session),
    "a partition that leaves is committed as done": (Completion, "positions", _revoked_commits_all),
    "what waits for a lost partition is kept": (Completion, "lost", _forgotten_at_loss),
    "an assignment begins one too far": (Completion, "assigned", _assigned_behind),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With this fault."""
    kind, method, wrong = MUTANTS[name]
    right = getattr(kind, method)
    with patch.object(kind, method, lambda *args, **how: wrong(right, *args, **how)):
        yield
