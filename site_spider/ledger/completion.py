"""Joins Scrapy's requests and items to the ledger, so that every ending is counted.

One hold for each request that waits or is under way, one for each result that is not
acknowledged, one for each dead letter under way. What has ended without a result gets a
failure result here, so that no document is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from scrapy import Request

from site_spider import meta_keys
from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.errors import SeedError
from site_spider.ledger.entry import Entry, Outcome
from site_spider.ledger.ledger import Ledger
from site_spider.ledger.lifecycle import SeedListener
from site_spider.ledger.lineage import Job, Root
from site_spider.ledger.repeats import Repeats
from site_spider.seed.seed import Seed


class Completion:
    """The books of one crawl. Used on the event loop's thread only."""

    def __init__(self, ledger: Ledger, lifecycle: SeedListener) -> None:
        self.ledger = ledger
        self.repeats = Repeats()
        self._lifecycle = lifecycle
        self._alive: dict[Request, Job] = {}  # accepted and not ended, by identity
        self._roots: dict[Entry, Root] = {}  # of seeds that began and have not ended
        self._closing: set[Entry] = set()  # with a hold of a listener that goes when all else has ended
        self._at_last: dict[Entry, Callable[[], None]] = {}

    # --- requests ---------------------------------------------------------------------

    def knows(self, request: Request) -> bool:
        """Whether this very request object waits or is under way already."""
        return request in self._alive

    def begin(self, request: Request, root: Root) -> None:
        """The first request of a seed; it takes over the hold that `take` gave."""
        request.meta[meta_keys.JOB] = root
        self._roots[root.seed_entry] = root
        root.requests += 1
        self._alive[request] = root
        self._lifecycle.began(root)

    def accept(self, request: Request, job: Job) -> None:
        """One more request serves this job."""
        self.ledger.hold(job.entry)
        job.requests += 1
        self._alive[request] = job

    def accept_link(self, entry: Entry) -> None:
        """A link waits as less than a request, and holds its seed."""
        self.ledger.hold(entry)

    def begin_job(self, request: Request, job: Job) -> None:
        """The request of a link that waited; it takes over the hold."""
        job.requests += 1
        self._alive[request] = job

    def ended(self, request: Request) -> None:
        """A request has ended, in whatever way; others that follow from it were accepted before."""
        job = self._alive.pop(request, None)
        if job is None:
            return
        job.requests -= 1
        if job.requests == 0 and (not job.written or (job.has_page and job.error is not None)):
            if job.entry.live:
                self._lifecycle.unwritten(job)
            else:
                self.repeats.broken(job.entry)
        if job.requests == 0:
            job.page = job.answer = None  # links keep the job of the page they were found on
        self.release(job.entry)

    def written(self, job: Job, document: Mapping[str, Any]) -> None:
        """The document of a job's page goes to the sinks."""
        self._lifecycle.written(job, document)

    def broken_off(self, request: Request) -> None:
        """A request is cancelled on its way, at the end of the process: its seed is not complete here."""
        job = self._alive.get(request)
        if job is not None:
            job.requests += 1  # never 0: no failure result says that it has ended
            self.ledger.hold(job.entry)
            self.repeats.broken(job.entry)

    def refuse(self, job: Job) -> None:
        """A request is dropped because its seed is another process's now."""
        self.repeats.broken(job.entry)

    # --- seeds ------------------------------------------------------------------------

    def take(self, message: Message, seed: Seed | SeedError) -> Entry | None:
        """A message was polled, and read as this; None when it was completed before."""
        entry = self.ledger.take(message.partition, message.offset)
        if entry is not None:
            self.repeats.opened(entry, message)
            self._lifecycle.arrived(entry, message, seed)
        return entry

    def hold(self, entry: Entry) -> None:
        """One more thing has to end."""
        self.ledger.hold(entry)

    def hold_to_close(self, entry: Entry) -> None:
        """The same, by a listener that waits for `last_hold`."""
        self._closing.add(entry)
        self.hold(entry)

    def at_last(self, entry: Entry, call: Callable[[], None]) -> None:
        """Call it when nothing else is left that has to end; it gives a hold back later.

        Not for a seed that is fenced before, which its next owner does again.
        """
        if not entry.live:
            self.repeats.broken(entry)
        elif self._others(entry) == 0:
            self.hold(entry)
            call()
        else:
            self._at_last[entry] = call

    def _others(self, entry: Entry) -> int:
        return entry.holds - (entry in self._closing)

    def release(self, entry: Entry) -> None:
        """One thing has ended."""
        if self._at_last and entry in self._at_last and self._others(entry) <= 1:
            self._at_last.pop(entry)()  # the hold is passed on
            return
        complete = self.ledger.release(entry)
        if entry.holds == 0:
            self.repeats.ended(entry)
        if complete:
            self._roots.pop(entry, None)
            self._closing.discard(entry)
            self._lifecycle.ended(entry)
        elif entry.holds == 1:
            self._lifecycle.last_hold(entry)

    def roots(self) -> list[Root]:
        """The jobs of all seeds that began and have not ended."""
        return list(self._roots.values())

    @property
    def is_idle(self) -> bool:
        """Whether no seed is under way, though some may wait."""
        return not self._roots and not self.repeats.is_awaited

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

    def leaves(self, entry: Entry) -> None:
        """A copy of its message is about to go to a topic; it then ends as spilled."""
        self._lifecycle.leaves(entry)

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
                self.repeats.committed(partition, position.offset)
        self._lifecycle.committed(positions)

    def lost(self, partitions: Sequence[Partition]) -> None:
        """End the epochs; what waits for their seeds is to be dropped: the next owner does them again."""
        known = set(self.ledger.partitions())
        for partition in partitions:
            if partition in known:
                for entry in self.ledger.revoke(partition):
                    self._fence(entry)
                self.repeats.left(partition)

    def drop(self, request: Request) -> None:
        """A request that waits for a fenced seed ends here."""
        if (job := self._alive.get(request)) is not None:
            self.repeats.broken(job.entry)
            self.ended(request)

    def drop_link(self, entry: Entry) -> None:
        """So does a link."""
        self.repeats.broken(entry)
        self.release(entry)

    def _fence(self, entry: Entry) -> None:
        ends_here = self._at_last.pop(entry, None) is None
        if ends_here and entry in self._roots:
            self.repeats.fenced(entry)
        else:
            self.repeats.broken(entry)  # it never began, or its end is its next owner's
        self._roots.pop(entry, None)
        self._closing.discard(entry)
        self._lifecycle.fenced(entry)

    def positions(
        self, partitions: Collection[Partition] | None = None, *, leaving: bool = False
    ) -> dict[Partition, Position]:
        """What is safe to commit now, for these partitions or all."""
        wanted = self.ledger.partitions() if partitions is None else partitions
        return self.ledger.positions(wanted, leaving=leaving)
