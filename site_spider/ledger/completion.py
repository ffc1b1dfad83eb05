"""Joins Scrapy's requests, also retries and redirects, and items to the ledger, so that every ending is counted.

One hold for each request that waits or is under way, one for each result that is not
acknowledged, one for each dead letter under way. What has ended without a result gets a
failure result here, so that no document is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, ClassVar, Final

from scrapy import Request

from site_spider import meta_keys, runtime
from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.contracts.sink import Exchange
from site_spider.errors import SeedError
from site_spider.ledger.ledger import Ledger, Outcome, Repeats, SeedInFlight
from site_spider.page.url import url_id
from site_spider.seed.seed import Seed, is_of_link

# --- lineage: which seed and which document a request serves ---------------------------------------------
# A job is one document to be written: a seed's own, or a discovered link's. Retries and redirects serve the
# job of the request they came from; a link begins a job of its own. The job travels in `request.meta`,
# which Scrapy copies on retry and redirect; where a new request carries none (errback output bypasses
# spider middlewares), the request that is being worked on in this context is its parent.

_REDIRECT_BYTES = 65_536  # of a body; a longer one is no part of an archive

_place: ContextVar[int] = ContextVar("place", default=0)
_working_on: ContextVar[Request | None] = ContextVar("working_on", default=None)


class Job:
    """One document to be written, and the requests that serve it."""

    __slots__ = (
        "answer", "depth", "dropped", "entry", "error", "exchanges", "method", "page", "parent", "requests", "seed",
        "url", "url_id", "written",
    )  # fmt: skip

    NO_DOCUMENT: ClassVar = "no document"  # as `page`: none is wanted
    url_id: str  # the `_id` of the document

    def __init__(self, request: Request, entry: SeedInFlight, parent: Job | None = None) -> None:
        self.entry = entry
        self.seed = seed = entry.seed
        self.parent = parent  # None: it is the job of the seed itself
        self.url, self.method = request.url, request.method
        if parent is None:
            self.url, self.url_id = entry.url, seed.url_id
            if (spilled := seed.spilled) is not None and not spilled.is_link:  # another process began it
                self.method = spilled.method
        self.depth: int = request.meta.get("depth", 0 if parent is None else parent.depth + 1)
        self.requests = 0  # accepted and not ended
        self.written = False  # a result was handed to the sinks
        self.page: Any = None  # the result that is written when nothing goes wrong any more
        self.error: str | None = None  # why there may be none
        self.answer: Any = None  # the response that the error happened with, or the result made of it
        self.dropped: Mapping[str, Any] | None = None  # what its document does not keep of the page
        self.exchanges: tuple[Exchange, ...] = ()  # with the sink warc: redirects, and the last answer

    def asks_anew(self) -> None:
        """Another attempt: of those before it only short redirects led here."""
        self.exchanges = tuple(
            one for one in self.exchanges if one.head[9:10] == b"3" and len(one.body) <= _REDIRECT_BYTES
        )

    def exchanged(self, exchange: Exchange) -> None:
        """What was asked, and answered."""
        self.exchanges = (*self.exchanges, exchange)

    def __deepcopy__(self, _memo: object) -> Job:
        """Itself, for who copies the meta of a page deeply, to give it to a link."""
        return self

    @property
    def is_over(self) -> bool:
        """Whether its seed has ended; where the partition has left, its next owner does that."""
        return self.entry.live and not self.entry.holds

    @property
    def has_page(self) -> bool:
        """Whether there is a document to be written."""
        return self.page is not None and self.page is not self.NO_DOCUMENT

    @property
    def is_link(self) -> bool:
        """Whether a page led to it, in this process or before it was sent on."""
        return self.parent is not None or is_of_link(self.seed, self.entry.message.headers)

    def __getattr__(self, name: str) -> str:
        """The `url_id` of a link, most of which wait in another form and are never asked for it."""
        if name != "url_id":
            raise AttributeError(name)
        self.url_id = id_of_page(self.url, self.seed.page_scope)
        return self.url_id


def id_of_page(url: str, scope: str | None) -> str:
    """The same for all who ask for a page within a scope: a document's `_id`, unless a seed names one."""
    try:
        return url_id(url, scope)
    except ValueError:  # a link of a spider of the user's own, with no canonical form
        named = url if scope is None else f"{scope}\n{url}"
        return blake2b(named.encode("utf-8", "replace"), digest_size=20).hexdigest()


def job_of(request: Request) -> Job | None:
    """The job that a request serves; None when it descends from no seed."""
    job: Any = request.meta.get(meta_keys.JOB)
    return job if isinstance(job, Job) else None


def first_request(request: Request, job: Job) -> Request:
    """What a job's page was first asked for with: `request` itself, unless it is a later attempt."""
    if request.url == job.url and request.method == job.method:
        return request
    meta = {key: request.meta[key] for key in (meta_keys.KNOWN_RUN,) if key in request.meta}
    return Request(job.url, method=job.method, meta={meta_keys.JOB: job, **meta})


work_on = _working_on.set  # from here on, in this context, what happens is done for a request, or for none
current_request = _working_on.get  # the one that is being worked on in this context
current_place = _place.get  # the number that `take_place` gave in this context


class Unattributed:
    """A context manager: within it nothing is done for a request. What outlives the request is made there.

    Transports and tasks keep the context that they are made in, and with it the request and its seed.
    """

    __slots__ = ("_request",)

    def __enter__(self) -> None:
        self._request = _working_on.get()
        _working_on.set(None)

    def __exit__(self, *_: object) -> None:
        _working_on.set(self._request)


def current_job() -> Job | None:
    """The job being worked on in this context."""
    request = _working_on.get()
    return None if request is None else job_of(request)


def take_place(*, is_item: bool) -> None:
    """Number what goes through the pipelines in this context: the items of a page from 1, its result 0."""
    request = _working_on.get()
    if is_item and request is not None:
        request.meta[meta_keys.ITEMS] = request.meta.get(meta_keys.ITEMS, 0) + 1
        _place.set(request.meta[meta_keys.ITEMS])
    else:
        _place.set(0)


def origin_of(request: Request) -> Request | None:
    """The request that is being worked on in this context, if it serves the job of `request`."""
    origin = _working_on.get()
    return origin if origin is not None and job_of(origin) is job_of(request) else None


def adopt(request: Request, is_being_scraped: Callable[[Request], bool]) -> Job | None:
    """Find (or begin) the job of a new request and note it in its meta; None without a seed that is under way."""
    origin = _working_on.get()
    parent = None if origin is None else job_of(origin)
    job = job_of(request)
    if job is None or job.is_over or (parent is not None and _is_child(request, job, is_being_scraped)):
        request.meta.pop(meta_keys.GIVEN, None)  # of its page
        if parent is None or parent.is_over:  # of a timer that a callback has set, say
            request.meta.pop(meta_keys.JOB, None)
            return None
        job = request.meta[meta_keys.JOB] = Job(request, parent.entry, parent)
    else:
        request.meta[meta_keys.GIVEN] = True
    return job


_COUNTS: Final = ("retry_times", "redirect_times", meta_keys.AGAIN)
ATTEMPTS: Final = (*_COUNTS, meta_keys.GIVEN)  # in meta of a request that is no first one


def _is_child(request: Request, job: Job, is_being_scraped: Callable[[Request], bool]) -> bool:
    """Tell a link whose meta was copied from a response, this one's or an earlier one's, from another attempt.

    Before the spider has the response only middlewares make requests, and those are attempts.
    A spider asks for one with get_retry_request, which counts, or with `response.request.replace(dont_filter=True)`;
    who copies a meta may leave counts out.
    """
    origin = _working_on.get()
    if origin is None or not is_being_scraped(origin):
        return False
    is_of_page = job_of(origin) is job
    if is_of_page and request.dont_filter and (request.url, request.body) == (origin.url, origin.body):
        return False
    counted = origin.meta if is_of_page else {}
    return all(request.meta.get(count) in (None, counted.get(count)) for count in _COUNTS)


def is_first_attempt(request: Request, job: Job | None) -> bool:
    """Whether it is a link as it was found."""
    return job is not None and job.parent is not None and not any(map(request.meta.get, ATTEMPTS))


# --- lifecycle: the life-cycle of a seed, and the listeners that follow it -------------------------------
#     arrived -> may begin -> began -> last hold -> ended (complete, with an outcome) -> committed
#                                               or fenced (its partition is another process's)
#
# A feature that follows seeds is one listener, added in the wiring. Listeners are called in the order in
# which they were added, on the event loop's thread, and do not raise. Each seed that arrived ends or is
# fenced exactly once, and nothing is told of it afterwards.


class SeedListener:
    """Hears of seeds; what it does not override does nothing."""

    def arrived(self, entry: SeedInFlight, message: Message, seed: Seed | SeedError) -> None:
        """The ledger has opened an entry for a polled message, whether it is a valid seed or not."""

    def began(self, job: Job) -> None:
        """Its first request is given out, for this job."""

    def unwritten(self, job: Job) -> None:
        """All requests of one of its jobs have ended without a result. The seed is held meanwhile."""

    def written(self, job: Job, document: Mapping[str, Any]) -> None:
        """The document of one of its pages goes to the sinks."""

    def withdrawn(self, job: Job, url_id: str | None) -> None:
        """This document of it, or an item, is not written after all: its partition has left."""

    def leaves(self, entry: SeedInFlight) -> None:
        """A copy of its message goes to a topic, and may come back before it has ended as spilled, or dead letter."""

    def last_hold(self, entry: SeedInFlight) -> None:
        """One thing is left that has to end."""

    def ended(self, entry: SeedInFlight) -> None:
        """It is complete; `entry.outcome` says how it ended."""

    def fenced(self, entry: SeedInFlight) -> None:
        """Its partition has left; whoever has that does the seed again."""

    def assigned(self) -> None:
        """Partitions have come, with seeds that another process may have had."""

    def committed(self, positions: Mapping[Partition, Position | None]) -> None:
        """The group has committed these, or had when they were assigned; that stays so over a restart."""

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        """As in Listener."""


_EVENTS = tuple(name for name in vars(SeedListener) if not name.startswith("_"))


class Completion:
    """The books of one crawl. Used on the event loop's thread only."""

    def __init__(self, ledger: Ledger, *listeners: object) -> None:
        self.ledger = ledger
        self.repeats = Repeats()
        self.has_tasks = False  # whether there was a seed of a task
        self._told: dict[str, list[tuple[Callable[..., None], bool]]] = {event: [] for event in _EVENTS}
        self._of_all: set[str] = set()  # events that somebody hears of seeds without a task
        self._alive: dict[Request, Job] = {}  # accepted and not ended, by identity
        self._begun: dict[SeedInFlight, None] = {}  # those that have not ended
        self.add(*listeners)

    def add(self, *listeners: object, of_tasks: bool = False) -> None:
        """From now on these are told, in this order, what they have of a SeedListener and do not inherit.

        `of_tasks`: of seeds with a task alone.
        """
        for listener in listeners:
            for event, told in self._told.items():
                if getattr(type(listener), event, None) not in (None, getattr(SeedListener, event)):
                    told.append((getattr(listener, event), of_tasks))
                    self._of_all |= set() if of_tasks else {event}

    def tell(self, event: str, about: SeedInFlight | Job, *more: Any) -> None:
        """Have the listeners hear of an event, by its name: `written` and `leaves` are for others to tell."""
        seed: Seed | None = getattr(about, "seed", None)  # None: it is not valid
        has_task = seed is not None and seed.task_id is not None
        for hear, of_tasks in self._told[event]:
            if has_task or not of_tasks:
                hear(about, *more)

    # --- requests ---------------------------------------------------------------------

    def knows(self, request: Request) -> bool:
        """Whether this very request object waits or is under way already."""
        return request in self._alive

    def begin(self, request: Request, job: Job) -> None:
        """The first request of a seed; it takes over the hold that `take` gave."""
        request.meta[meta_keys.JOB] = job
        job.entry.began_at = runtime.monotonic()
        self._begun[job.entry] = None
        self.begin_job(request, job)
        if self.has_tasks or "began" in self._of_all:
            self.tell("began", job)

    def accept(self, request: Request, job: Job) -> None:
        """One more request serves this job."""
        self.ledger.hold(job.entry)
        self.begin_job(request, job)

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
        if job.requests == 0 and (not job.written or (job.error is not None and job.has_page)):
            if job.entry.live:
                self.tell("unwritten", job)
            else:
                self.repeats.broken(job.entry)
        if job.requests == 0:
            job.page = job.answer = job.dropped = None  # links keep the job of the page they were found on
            job.exchanges = ()
        self.release(job.entry)

    def withdrawn(self, job: Job, url_id: str | None) -> None:
        """A document is not written, or an item. Should the partition come back, the seed has to be done anew."""
        self.repeats.broken(job.entry)
        self.tell("withdrawn", job, url_id)

    def broken_off(self, request: Request) -> None:
        """A request is cancelled on its way, at the end of the process: its seed is not complete here."""
        job = self._alive.get(request)
        if job is not None:
            job.requests += 1  # never 0: no failure result says that it has ended
            self.ledger.hold(job.entry)
            self.repeats.broken(job.entry)

    # --- seeds ------------------------------------------------------------------------

    def take(self, message: Message, seed: Seed | SeedError) -> SeedInFlight | None:
        """A message was polled, and read as this; None when it was completed before."""
        entry = self.ledger.take(message.partition, message.offset)
        if entry is not None:
            entry.message = message
            if isinstance(seed, Seed):
                entry.seed = seed
                self.has_tasks = self.has_tasks or seed.task_id is not None
            self.tell("arrived", entry, message, seed)
        return entry

    def hold_to_close(self, entry: SeedInFlight) -> None:
        """One more thing has to end: that of a listener which waits for `last_hold`."""
        entry.is_closing = True
        self.ledger.hold(entry)

    def at_last(self, entry: SeedInFlight, call: Callable[[], None]) -> None:
        """Call it when nothing else is left that has to end; it gives a hold back later.

        Not for a seed that is fenced before, which its next owner does again.
        """
        if not entry.live:
            self.repeats.broken(entry)
        elif entry.holds == entry.is_closing:
            self.ledger.hold(entry)
            call()
        else:
            entry.at_last = call

    def release(self, entry: SeedInFlight) -> None:
        """One thing has ended."""
        if (call := entry.at_last) is not None and entry.holds <= 1 + entry.is_closing:
            entry.at_last = None
            call()  # the hold is passed on
            return
        complete = self.ledger.release(entry)
        if entry.holds == 0:
            self.repeats.ended(entry)
        if complete:
            self._begun.pop(entry, None)
            self.tell("ended", entry)
        elif entry.holds == 1 and (self.has_tasks or "last_hold" in self._of_all):
            self.tell("last_hold", entry)

    def begun(self) -> list[SeedInFlight]:
        """The seeds that began and have not ended."""
        return list(self._begun)

    @property
    def is_idle(self) -> bool:
        """Whether no seed is under way, though some may wait."""
        return not self._begun and not self.repeats.is_awaited

    def keep_open(self, entry: SeedInFlight) -> ExitStack:
        """A context manager; until it is left, the seed is not complete."""
        self.ledger.hold(entry)
        held = ExitStack()
        held.callback(self.release, entry)
        return held

    def end_as(self, entry: SeedInFlight, outcome: Outcome) -> None:
        """The last thing of a seed has ended, or it need not begin: this is how it ends."""
        self.ledger.decide(entry, outcome)
        self.release(entry)

    # --- the assignment (see contracts.seed_log.Listener) ----------------------------------------

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        """Begin an epoch for each partition."""
        for partition, position in positions.items():
            self.ledger.assign(partition, position)
        for hear, _ in self._told["assigned"]:
            hear()
        self.committed(positions)

    def committed(self, positions: Mapping[Partition, Position | None]) -> None:
        """This is what the group has committed."""
        for partition, position in positions.items():
            if position is not None:
                self.repeats.committed(partition, position.offset)
        for hear, of_tasks in self._told["committed"]:
            if self.has_tasks or not of_tasks:
                hear(positions)

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        """The log has deleted messages that were not read."""
        for hear, _ in self._told["deleted"]:
            hear(partition, first, beyond)

    def lost(self, partitions: Sequence[Partition]) -> None:
        """End the epochs; what waits for their seeds is to be dropped: the next owner does them again."""
        leaving = {partition: None for partition in partitions if self.ledger.epoch(partition) is not None}
        for partition in leaving:
            for entry in self.ledger.revoke(partition):
                self._fence(entry)
        self.repeats.left(leaving.keys())

    def drop(self, request: Request) -> None:
        """A request that waits for a fenced seed ends here."""
        if (job := self._alive.get(request)) is not None:
            self.repeats.broken(job.entry)
            self.ended(request)

    def drop_link(self, entry: SeedInFlight) -> None:
        """So does a link."""
        self.repeats.broken(entry)
        self.release(entry)

    def _fence(self, entry: SeedInFlight) -> None:
        has_begun = self._begun.pop(entry, False) is None
        if has_begun and entry.at_last is None:
            self.repeats.fenced(entry)
        else:
            self.repeats.broken(entry)  # it never began, or its end is its next owner's
        entry.at_last, entry.is_closing = None, False
        self.tell("fenced", entry)
