"""Joins Scrapy's requests and items to the ledger, so that every ending is seen.

One hold for each request that waits or is under way, one for each result that is not
acknowledged, one for each dead letter under way. What has ended without a result gets a
failure result here, so that no document is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack

from scrapy import Request

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.dupefilter.seen import Seen
from site_spider.frontier.waiting_link import WaitingLink, as_request
from site_spider.ledger import lineage
from site_spider.ledger.ledger import Entry, Ledger, Outcome
from site_spider.ledger.lineage import Job, Root
from site_spider.ledger.repeats import Replays

logger = logging.getLogger(__name__)


class Completion:
    """The books of one crawl. Used on the event loop's thread only."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.replays = Replays()
        self.seen = Seen()  # replaced by the dupefilter's
        self.write_missing: Callable[[Job], None]  # writes a failure result; set by the assembly
        self.give_up: Callable[[Job, str], None]  # sets the seed aside; set by the assembly
        self.on_seed_ended: list[Callable[[Entry], None]] = []  # complete, or another process's now
        self.on_last_hold: Callable[[Entry], None] = lambda _entry: None  # one thing is left of a seed
        self.on_fenced: Callable[[], None] = lambda: None  # what waits for seeds may have to be dropped
        self._alive: dict[Request, Job] = {}  # accepted and not ended, by identity
        self._roots: dict[Entry, Root] = {}  # of seeds that began and have not ended

    # --- requests ---------------------------------------------------------------------

    def knows(self, request: Request) -> bool:
        """Whether this very request object waits or is under way already."""
        return request in self._alive

    def begin(self, request: Request, root: Root) -> None:
        """The first request of a seed; it takes over the hold that `take` gave."""
        request.meta[lineage.JOB] = root
        self._roots[root.seed_entry] = root
        root.requests += 1
        self._alive[request] = root

    def accept(self, request: Request, job: Job) -> None:
        """One more request serves this job."""
        self.ledger.hold(job.entry)
        job.requests += 1
        self._alive[request] = job

    def accept_link(self, entry: Entry) -> None:
        """A link waits as less than a request, and holds its seed."""
        self.ledger.hold(entry)

    def begin_link(self, link: WaitingLink) -> Request:
        """The request of a link that waited; it takes over the hold."""
        request, job = as_request(link)
        job.requests += 1
        self._alive[request] = job
        return request

    def give_up_link(self, link: WaitingLink, reason: str) -> None:
        """There can be no request for a link that waited: its seed is set aside."""
        self.give_up(link.parent, reason)
        self.release(link.parent.entry)

    def ended(self, request: Request) -> None:
        """A request has ended, in whatever way; others that follow from it were accepted before."""
        job = self._alive.pop(request, None)
        if job is None:
            return
        job.requests -= 1
        try:
            if job.requests == 0 and not job.written:
                if job.entry.live:
                    self.write_missing(job)
                else:
                    self.replays.broken(job.entry)
        except Exception as error:
            logger.exception("No failure result could be written for %s", job.url)
            self.give_up(job, f"no result could be written for {job.url}: {error!r}")
        self.release(job.entry)

    def broken_off(self, request: Request) -> None:
        """A request is cancelled on its way, at the end of the process: its seed is not complete here."""
        job = self._alive.get(request)
        if job is not None:
            job.requests += 1  # never 0: no failure result says that it has ended
            self.ledger.hold(job.entry)
            self.replays.broken(job.entry)

    def refuse(self, job: Job) -> None:
        """A request is dropped because its seed is another process's now."""
        self.replays.broken(job.entry)

    # --- seeds ------------------------------------------------------------------------

    def take(self, message: Message) -> Entry | None:
        """A message was polled; None when it was completed before."""
        entry = self.ledger.take(message.partition, message.offset)
        if entry is not None:
            self.replays.opened(entry, message)
        return entry

    def hold(self, entry: Entry) -> None:
        """One more thing has to end."""
        self.ledger.hold(entry)

    def release(self, entry: Entry) -> None:
        """One thing has ended."""
        complete = self.ledger.release(entry)
        if entry.holds == 0:
            self.replays.ended(entry)
        if complete:
            if entry.outcome is Outcome.RESULT:
                self.seen.complete(entry)
            else:
                self.seen.forget(entry)  # what did not end well may be sent, or put back, and is wanted then
            self._tell_ended(entry)
        elif entry.holds == 1:
            self.on_last_hold(entry)

    def roots(self) -> list[Root]:
        """The jobs of all seeds that began and have not ended."""
        return list(self._roots.values())

    @property
    def is_idle(self) -> bool:
        """Whether no seed is under way, though some may wait."""
        return not self._roots and not self.replays.is_awaited

    def _tell_ended(self, entry: Entry) -> None:
        self._roots.pop(entry, None)
        for call in self.on_seed_ended:
            call(entry)

    def keep_open(self, entry: Entry) -> ExitStack:
        """A context manager; until it is left, the seed is not complete."""
        self.hold(entry)
        held = ExitStack()
        held.callback(self.release, entry)
        return held

    def set_aside(self, entry: Entry) -> None:
        """The dead letter of a seed is durable: that one thing has ended."""
        self.end_as(entry, Outcome.DEAD_LETTER)

    def end_as(self, entry: Entry, outcome: Outcome) -> None:
        """The last thing of a seed has ended, or it need not begin: this is how it ends."""
        self.ledger.decide(entry, outcome)
        self.release(entry)

    # --- the assignment (see contracts.seed_log.Listener) ----------------------------------------

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """Begin an epoch for each partition."""
        for partition, position in positions.items():
            self.ledger.assign(partition, position)
        self.committed(positions)

    def committed(self, positions: Mapping[Partition, Position | None]) -> None:
        """This is what the group has committed."""
        for partition, position in positions.items():
            if position is not None:
                self.replays.committed(partition, position.offset)

    def lost(self, partitions: Sequence[Partition]) -> None:
        """End the epochs; what waits for their seeds is to be dropped, for the next owner replays them."""
        known = set(self.ledger.partitions())
        for partition in partitions:
            if partition in known:
                for entry in self.ledger.revoke(partition):
                    self._fence(entry)
                self.replays.left(partition)
        self.on_fenced()

    def drop(self, waiter: Request | WaitingLink) -> None:
        """What waited for a seed that is another process's now will not be done."""
        if isinstance(waiter, WaitingLink):
            self.replays.broken(waiter.parent.entry)
            self.release(waiter.parent.entry)
        elif (job := self._alive.get(waiter)) is not None:
            self.replays.broken(job.entry)
            self.ended(waiter)

    def _fence(self, entry: Entry) -> None:
        if entry in self._roots:
            self.replays.fenced(entry)
        else:
            self.replays.broken(entry)  # it never began
        self.seen.forget(entry)
        self._tell_ended(entry)

    def positions(
        self, partitions: Collection[Partition] | None = None, *, leaving: bool = False
    ) -> dict[Partition, Position]:
        """What is safe to commit now, for these partitions or all."""
        wanted = self.ledger.partitions() if partitions is None else partitions
        return self.ledger.positions(wanted, leaving=leaving)
