"""Which seed and which document a request serves.

A job is one document to be written: a seed's own, or a discovered link's. Retries and
redirects serve the job of the request they came from; a link begins a job of its own. The
job travels in `request.meta`, which Scrapy copies on retry and redirect; where a new
request carries none (errback output bypasses spider middlewares), the request that is
being worked on in this context is its parent.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, cast

from scrapy import Request

from site_spider import meta_keys, runtime
from site_spider.contracts.seed_log import Message
from site_spider.ledger.entry import Entry
from site_spider.page.url import host_of, url_id
from site_spider.seed.seed import Seed

_place: ContextVar[int] = ContextVar("place", default=0)
_working_on: ContextVar[Request | None] = ContextVar("working_on", default=None)


class Job:
    """One document to be written, and the requests that serve it."""

    __slots__ = (
        "_root", "_url_id", "answer", "depth", "error", "method", "page", "parent", "requests", "url",
        "written",
    )  # fmt: skip

    NO_DOCUMENT = "no document"  # as `page`: none is wanted

    def __init__(self, request: Request, parent: Job | None) -> None:
        self.url = request.url
        self.method = request.method
        self.parent = parent
        self._root = None if parent is None else parent.root
        self.depth: int = request.meta.get("depth", 0 if parent is None else parent.depth + 1)
        self.requests = 0  # accepted and not ended
        self.written = False  # a result was handed to the sinks
        self.page: Any = None  # the result that is written when nothing goes wrong any more
        self.error: str | None = None  # why there may be none
        self.answer: Any = None  # the response that the error happened with, or the result made of it
        self._url_id: str | None = None

    @classmethod
    def lost(cls, request: Request, parent: Job, error: str) -> Job:
        """Of a link that no request can be made for."""
        job = cls(request, parent)
        job.error = error
        return job

    @property
    def has_page(self) -> bool:
        """Whether there is a document to be written."""
        return self.page is not None and self.page is not self.NO_DOCUMENT

    @property
    def root(self) -> Root:
        """The job of the seed. It does not keep itself, or it would wait for the collector."""
        return self._root or cast(Root, self)

    @property
    def entry(self) -> Entry:
        """The seed in the ledger."""
        return self.root.seed_entry

    @property
    def page_scope(self) -> str | None:
        """Within what its page is compared with others: see Seed."""
        return self.root.seed.page_scope

    @property
    def url_id(self) -> str:
        """The `_id` of the document."""
        if self._url_id is None:
            self._url_id = id_of_page(self.url, self.page_scope)
        return self._url_id


class Root(Job):
    """The job of a seed itself."""

    __slots__ = (
        "anchor_host",
        "began",
        "is_overdue",
        "is_set_aside",
        "message",
        "pages",
        "scope_host",
        "seed",
        "seed_entry",
    )

    def __init__(self, request: Request, entry: Entry, seed: Seed, message: Message) -> None:
        super().__init__(request, None)
        spilled = seed.spilled
        if spilled is not None and not spilled.is_link:  # another process began it
            self.url, self.method = spilled.url, spilled.method
        else:
            self.url = seed.url
        self.began = runtime.monotonic()
        # Its links are spilled. A link of the same host was spilled because its tree was large or old: kept
        # in memory, its own tree would be repeated by the next death as the first one was.
        self.is_overdue = spilled is not None and spilled.is_link and spilled.anchor_host == host_of(self.url)
        self.pages = 1  # that were to be crawled here for this seed
        self.is_set_aside = False  # a dead letter is on its way, or there
        # where the redirects of its seed ended: links are followed from there
        self.anchor_host = "" if spilled is None else spilled.anchor_host
        self.scope_host = "" if spilled is None else spilled.scope_host  # the same, as far as it is believed
        self.seed_entry = entry
        self.seed = seed
        self.message = message
        self._url_id = seed.url_id

    def grows(self) -> None:
        """One more page is to be crawled here."""
        self.pages += 1

    def found_at(self, host: str) -> None:
        """Its page was found there; what another process found before it was sent here stands."""
        if self.seed.spilled is None or not self.seed.spilled.anchor_host:
            self.anchor_host = self.scope_host = host

    @property
    def is_unproven(self) -> bool:
        """Whether an unsigned message says which page it was that another process began."""
        spilled = self.seed.spilled
        return spilled is not None and not spilled.is_link and not spilled.is_proven


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
    return Request(job.url, method=job.method, meta={meta_keys.JOB: job})


def work_on(request: Request | None) -> None:
    """From here on, in this context, what happens is done for `request`."""
    _working_on.set(request)


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


def current_request() -> Request | None:
    """The request being worked on in this context."""
    return _working_on.get()


def take_place(*, is_item: bool) -> None:
    """Number what goes through the pipelines in this context: the items of a page from 1, its result 0."""
    request = _working_on.get()
    if is_item and request is not None:
        request.meta[meta_keys.ITEMS] = request.meta.get(meta_keys.ITEMS, 0) + 1
        _place.set(request.meta[meta_keys.ITEMS])
    else:
        _place.set(0)


def current_place() -> int:
    """The number that `take_place` gave in this context."""
    return _place.get()


def origin_of(request: Request) -> Request | None:
    """The request that is being worked on in this context, if it serves the job of `request`."""
    origin = _working_on.get()
    return origin if origin is not None and job_of(origin) is job_of(request) else None


def adopt(request: Request, is_being_scraped: Callable[[Request], bool]) -> Job | None:
    """Find (or begin) the job of a new request and note it in its meta; None without a seed."""
    origin = _working_on.get()
    parent = None if origin is None else job_of(origin)
    job = job_of(request)
    if job is None or (job is parent and origin is not None and _is_child(request, origin, is_being_scraped)):
        if parent is None:
            return None
        job = Job(request, parent)
        request.meta[meta_keys.JOB] = job
    return job


def _is_child(request: Request, origin: Request, is_being_scraped: Callable[[Request], bool]) -> bool:
    """Tell a link whose meta was copied from the response from another attempt at the same page.

    Before the spider has the response only middlewares make requests, and those are attempts.
    A spider asks for one with get_retry_request, which counts.
    """
    if not is_being_scraped(origin):
        return False
    counts = ("retry_times", "redirect_times")
    return all(request.meta.get(count) == origin.meta.get(count) for count in counts)
