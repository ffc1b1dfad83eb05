"""What waits in the frontier: a seed, a link or a request, each in the form that takes least memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple, TypeAlias

from scrapy import Request

from site_spider import meta_keys
from site_spider.bounded import BoundedDict
from site_spider.engine.scrapy_parts import quick_request
from site_spider.frontier.priority_queue import HostPolicy
from site_spider.ledger.completion import Completion, Job, job_of
from site_spider.ledger.ledger import SeedInFlight
from site_spider.page.sitemap import LISTED, ListedAs
from site_spider.page.url import host_of
from site_spider.results.pipeline import Callbacks
from site_spider.seed.seed import TEXT_BYTES, Seed, text_bytes
from site_spider.sources.library import Library
from site_spider.sources.model import Source
from site_spider.text import refused, shown

# --- waiting link ----------------------------------------------------------------------------------------
# A link that waits, as a small tuple from which its Request is built later.
#
# A page has more links than its crawl can fetch at once, so most of what waits is links, and nearly all of
# them are plain: found by the spider, without a callback of their own. They wait as tuples at a fraction of
# a Request's size. Everything else waits as the Request that it is.

_REFERER = "Referer"
_META = frozenset({"depth", meta_keys.JOB})
_OF_LISTED = frozenset(LISTED)
_META_OF_LISTED = _META | {meta_keys.SITEMAP}
_ENCODING = "utf-8"
# one text for all links of a page; not interned, as Python 3.12 never frees such a text
_referer = lru_cache(maxsize=256)(bytes.decode)


class WaitingLink(NamedTuple):
    """Holds its seed as a request does; its job begins with its request."""

    url: str
    parent: Job
    depth: int
    priority: int
    referer: str | None
    listed: ListedAs | None = None


def as_link(request: Request, job: Job) -> WaitingLink | None:
    """A request that has just begun its job, as a tuple; None when it has something of its own."""
    if (
        job.parent is None
        or request.callback is not None
        or request.errback is not None
        or request.body
        or request.method != "GET"
        or request.dont_filter
        or request.encoding != _ENCODING
        or type(request) is not Request
        or not _META <= request.meta.keys() <= _META_OF_LISTED
        or request.cookies
        or request.flags
        or request.cb_kwargs
    ):
        return None
    listed: ListedAs | None = None
    if (said := request.meta.get(meta_keys.SITEMAP)) is not None:
        if said.keys() != _OF_LISTED:  # a file of sitemaps
            return None
        listed = tuple(map(said.__getitem__, LISTED))
    headers = request.headers
    values = headers.getlist(_REFERER)
    if len(values) != len(headers) or not all(value.isascii() for value in values):
        return None
    referer = _referer(values[0]) if values else None
    return WaitingLink(request.url, job.parent, job.depth, request.priority, referer, listed)


def as_request(link: WaitingLink) -> tuple[Request, Job]:
    """The request of a link, with a job of its own in its meta."""
    request = quick_request(
        link.url,
        verbatim=True,  # it stood in a Request already
        headers=None if link.referer is None else {_REFERER: link.referer},
        meta={"depth": link.depth},
        priority=link.priority,
    )
    if link.listed is not None:
        request.meta[meta_keys.SITEMAP] = dict(zip(LISTED, link.listed, strict=True))
    job = Job(request, link.parent.entry, link.parent)
    request.meta[meta_keys.JOB] = job
    return request, job


def as_begun(waiter: Request | WaitingLink, completion: Completion) -> tuple[Request, Job]:
    """Its request and its job, which begins now if it is a link that waited."""
    if isinstance(waiter, Request):
        return waiter, waiter.meta[meta_keys.JOB]
    request, job = as_request(waiter)
    completion.begin_job(request, job)
    return request, job


Waiter: TypeAlias = Request | SeedInFlight | WaitingLink


def seed_entry(waiter: Waiter) -> SeedInFlight | None:
    """The seed that it waits for; None when there is none."""
    if isinstance(waiter, SeedInFlight):
        return waiter
    job = waiter.parent if isinstance(waiter, WaitingLink) else job_of(waiter)
    return None if job is None else job.entry


def host_name(waiter: Request | WaitingLink) -> str:
    """What politeness goes by: the host, or the download slot that a request names."""
    if isinstance(waiter, Request) and isinstance(slot := waiter.meta.get(meta_keys.DOWNLOAD_SLOT), str):
        return slot
    return host_of(waiter.url)


def is_fenced(waiter: Waiter) -> bool:
    """Whether the seed that it waits for is another process's now."""
    entry = seed_entry(waiter)
    return entry is not None and not entry.live


# --- weight ----------------------------------------------------------------------------------------------
# Estimates the memory of a waiting request: besides the texts, the numbers are resident memory;
# tests/frontier/test_weight.py holds them.

_LINK_BYTES = 330  # with its place in the frontier
_REQUEST_BYTES = 1_850  # likewise
_HEADER_BYTES = 250
_LISTED_BYTES = 150  # what a sitemap says of a link
_SITEMAP_BYTES = 700  # what a sitemap says of it


def size_bytes(waiter: Request | WaitingLink) -> int:
    """Its weight, as long as nothing of it is changed."""
    if isinstance(waiter, WaitingLink):
        return _LINK_BYTES + len(waiter.url) + (0 if waiter.listed is None else _LISTED_BYTES)
    size = _REQUEST_BYTES + 2 * len(waiter.url) + len(waiter.body)
    for name in waiter.headers:
        values = waiter.headers.getlist(name)
        size += _HEADER_BYTES + TEXT_BYTES * len(values) + sum(map(len, values))
    if "redirect_urls" in waiter.meta:
        size += text_bytes(waiter.meta["redirect_urls"])
    if meta_keys.SITEMAP in waiter.meta:
        size += _SITEMAP_BYTES
    return size


# --- links in hand ---------------------------------------------------------------------------------------
# Bounds the links of pages that are parsed and not enqueued yet.
#
# A page of 10,000 links is 7 MB of requests, and enqueuing them takes many turns of the event loop. So a
# large page waits, in the order of arrival, until those before it are through. One that holds nothing is
# let in when it is alone, whatever its size. On the event loop's thread only.

MOST_LINKS = 20_000  # of all pages under way, about 15 MB
_COUNTED_BYTES = 16_000  # of a body; smaller pages do not count
_HELD_LINK_BYTES = 16  # of a page, at the least


class LinksInHand:
    """Of one crawl; a request counts from `begin` until it has ended."""

    def __init__(self, most: int = MOST_LINKS) -> None:
        self._most = most
        self._held: dict[Request, int] = {}
        self._sum = 0
        self._waiting: deque[tuple[Request, int, asyncio.Future[None]]] = deque()

    async def begin(self, request: Request, body_bytes: int) -> None:
        """Wait until the links of a page may be read."""
        if body_bytes < _COUNTED_BYTES:
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, min(body_bytes // _HELD_LINK_BYTES, self._most), place))
        self._let_in()
        await place

    def found(self, request: Request, links: int) -> None:
        """A page that may be read has so many."""
        if request in self._held:
            self._hold(request, links)
            self._let_in()

    def ended(self, request: Request) -> None:
        """Its links are enqueued, or it has none."""
        if request in self._held:
            self._sum -= self._held.pop(request)
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            request, links, place = self._waiting[0]
            if not place.done():  # else it was cancelled
                if self._sum + links > self._most:
                    return
                self._hold(request, links)
                place.set_result(None)
            self._waiting.popleft()

    def _hold(self, request: Request, links: int) -> None:
        self._sum += links - self._held.get(request, 0)
        self._held[request] = links


# --- fairness --------------------------------------------------------------------------------------------
# The flows of a crawl: what one task has waiting in one tier, with weight and rate.

WeightOf = Callable[[str | None], float]  # of a task; None: of what has none
RateOf = Callable[[str | None], float | None]  # requests a second over the whole group; None: no limit

_BURST_SECONDS = 0.5  # of its rate that a task may catch up with
_LOOK_SECONDS = 1.0  # a rate or a share may have changed
_LEAST_RATE = 1e-6
_MOST_TASKS = 10_000


class TaskFlow(NamedTuple):
    """What one task has waiting in one tier."""

    task_id: str | None
    topic: str


_task_flow = lru_cache(maxsize=_MOST_TASKS)(TaskFlow)  # one for all seeds of it


def flow_of(waiter: Waiter) -> TaskFlow | None:
    """None for what no seed stands behind."""
    entry = waiter if isinstance(waiter, SeedInFlight) else seed_entry(waiter)
    if entry is None:
        return None
    if entry.flow is None:
        entry.flow = _task_flow(entry.seed.task_id, entry.partition.topic)
    return entry.flow  # type: ignore[no-any-return]


def task_weights(tiers: Mapping[str, float], weight_of: WeightOf) -> Callable[[Hashable], float]:
    """The weight of a task times that of its tier; asked at each service, so that a change counts for what waits."""

    def weight(flow: Hashable) -> float:
        if not isinstance(flow, TaskFlow):
            return 1.0
        of_tier = tiers.get(flow.topic, 1.0)
        return of_tier if flow.task_id is None else of_tier * weight_of(flow.task_id)

    return weight


@dataclass(slots=True)
class RateUse:
    """What a task with a rate does here, and its token bucket."""

    begun: int = 0  # requests
    begun_at: float = -inf
    held_at: float = -inf  # when the rate held something back
    left: float = 1.0  # tokens, when the last one had begun

    def tokens(self, rate: float, now: float) -> float:
        """How many requests may begin now."""
        earned = (now - self.begun_at) * rate if self.begun else 0.0
        return min(1.0 + rate * _BURST_SECONDS, self.left + earned)


class TaskRates:
    """A token bucket a task, filled with this process' part of the rate.

    That is what `share` said last, or what its share of the partitions gives it.
    """

    def __init__(self, rate_of: RateOf, share_of: Callable[[str], float]) -> None:
        self._rate_of = rate_of
        self._share_of = share_of
        self._uses: BoundedDict[str, RateUse] = BoundedDict(_MOST_TASKS)
        self._parts: dict[str, float] = {}  # of rates, in requests a second

    def active(self, since: float) -> list[str]:
        """The tasks with a rate of which something began, or was held back, since then."""
        return [task_id for task_id, use in self._uses.items() if max(use.begun_at, use.held_at) >= since]

    def use(self, task_id: str) -> RateUse:
        """What a task does here; to be read only."""
        return self._uses.get(task_id) or RateUse()

    def share(self, task_id: str, per_second: float | None) -> None:
        """This process' part of the rate of a task, from now on; None: by its partitions."""
        if per_second is None:
            self._parts.pop(task_id, None)
        else:
            self._parts[task_id] = per_second

    def free_at(self, key: Hashable, now: float) -> float:
        """When the next request of a task may begin; to be asked again then."""
        if not isinstance(key, TaskFlow) or key.task_id is None or (rate := self._rate(key)) is None:
            return now
        use = self._uses.get(key.task_id)
        if use is None or (tokens := use.tokens(rate, now)) >= 1.0:
            return now
        use.held_at = now
        return now + min(_LOOK_SECONDS, (1.0 - tokens) / rate + 1e-6)

    def spend(self, key: Hashable, now: float) -> None:
        """One has begun."""
        if not isinstance(key, TaskFlow) or key.task_id is None or (rate := self._rate(key)) is None:
            return
        use = self.use(key.task_id)
        left = use.tokens(rate, now) - 1.0
        self._uses[key.task_id] = RateUse(use.begun + 1, now, use.held_at, left)

    def _rate(self, key: TaskFlow) -> float | None:
        if key.task_id is None or (rate := self._rate_of(key.task_id)) is None:
            return None
        part = self._parts.get(key.task_id)
        return max(_LEAST_RATE, rate * self._share_of(key.topic) if part is None else min(part, rate))


# --- sourced ---------------------------------------------------------------------------------------------
# Which source a request or page belongs to, and how the source's host is asked.

KEY = "source"  # of a seed's meta
_MENTIONED = b'"source"'
_OF_ITS_OWN = ("content-", "if-", "range")  # of a seed's body, and of what somebody knows of its page
_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})


def source_name(seed: Seed) -> object:
    """What the seed names as its source, else its task; None when neither does."""
    named = seed.extra.get(KEY) if _MENTIONED in seed.extra_json else None
    return seed.task_source if named is None else named


def source_of(library: Library, job: Job | None, url: str) -> Source | None:
    """The one that the seed names, for all of its tree; else the one whose hosts and URLs fit."""
    name = None if job is None else source_name(job.seed)
    return library.named(name) if isinstance(name, str) else library.match(url, host_of(url))


def checked(seed: Seed, library: Library) -> Seed:
    """The seed. Raises SeedError when it names a source that there is not.

    Without sources no name counts, and what is no text is none: other producers have a `source` of their own.
    """
    name = source_name(seed) if library.enabled else None
    if isinstance(name, str) and library.lacks(name):
        known = ", ".join(source.name for source in library.enabled)
        raise refused("meta.source", f"{shown(name)} is not the name of a source; known: {known}")
    return seed


def prepare(library: Library, request: Request) -> None:
    """Headers and cookies of its source, where the request has none of its own.

    Cookies are for the seed's own page: all requests of a seed share its cookies. Secrets go to hosts of the source and
    of the seed alone: a site may redirect, or link, to anywhere.
    """
    job = job_of(request)
    source = source_of(library, job, request.url)
    if source is None:
        return
    host = host_of(request.url)
    is_at_home = source.match.has_host(host) or (job is not None and host == home_of(job))
    for name, value in source.request.headers.items():
        if is_at_home or name.lower() not in _SECRET:
            request.headers.setdefault(name, value)
    if is_at_home and source.request.cookies and job is not None and job.parent is None:
        request.cookies = _cookies(source, request)


def home_of(job: Job) -> str:
    """The host of what a producer asked for, also where another process has begun its tree; "": nobody knows."""
    said = job.seed.spilled
    return said.home if said and (said.is_link or job.seed.seed_url_id) else host_of(job.entry.url)


def seed_headers(library: Callable[[], Library], *, everywhere: bool) -> Callable[[Request, Job], None]:
    """Adds headers of a seed to the first request for a link: where a setting or the link's source says so.

    What it has of its own stays. Secrets stay at the seed's origin.
    """

    def add(request: Request, job: Job) -> None:
        headers = job.seed.headers
        is_first = job.parent is not None and not request.meta.get("redirect_times")
        if not (headers and is_first and (everywhere or _wants_seed_headers(library(), request, job))):
            return
        is_elsewhere = request.url.split("/", 3)[:3] != job.entry.url.split("/", 3)[:3]
        values: dict[str, list[str]] = {}
        for name, value in headers:
            low = name.lower()
            if not (low.startswith(_OF_ITS_OWN) or (is_elsewhere and low in _SECRET)):
                values.setdefault(name, []).append(value)
        for name, all_values in values.items():
            request.headers.setdefault(name, all_values)

    return add


def _wants_seed_headers(library: Library, request: Request, job: Job) -> bool:
    source = source_of(library, job, request.url) if library.enabled else None
    return source is not None and bool(source.request.seed_headers)


def _cookies(source: Source, request: Request) -> list[Any]:
    """Those of the source are for the whole host."""
    own = request.cookies
    given = [{"name": name, "value": value} for name, value in own.items()] if isinstance(own, dict) else own
    known = {cookie.get("name") for cookie in given}
    wanted = source.request.cookies.items()
    return [{"name": name, "value": value, "path": "/"} for name, value in wanted if name not in known] + [*given]


def policy_of(
    library: Callable[[], Library], own: dict[str, HostPolicy], usual: HostPolicy
) -> Callable[[str], HostPolicy]:
    """How often a host may be asked: by DOWNLOAD_SLOTS, else by its sources, else as all others."""

    def policy(host: str) -> HostPolicy:
        if host in own:
            return own[host]
        if not (loaded := library()).enabled:
            return usual
        concurrency, delay_seconds = usual
        for source in reversed(loaded.of_host(host)):  # the nearest counts most
            wanted = source.request
            concurrency = concurrency if wanted.concurrency is None else wanted.concurrency
            delay_seconds = delay_seconds if wanted.delay is None else wanted.delay
        return HostPolicy(concurrency, delay_seconds)

    return policy


def robots_free(library: Callable[[], Library], *, by_default: bool) -> Callable[[str], bool]:
    """Whether robots.txt does not count for a URL: as its host's nearest source says, else as by default."""

    def is_free(url: str) -> bool:
        said = (source.request.robots for source in library().of_host(host_of(url)))
        return next((not robots for robots in said if robots is not None), by_default)

    return is_free


# --- preparation -----------------------------------------------------------------------------------------
# What a request gets right before it is downloaded, and does without while it waits.


def preparation(
    callbacks: Callbacks,
    seed_meta_keys: Sequence[str],
    library: Callable[[], Library],
    begins: Callable[[Request, Job], None],  # is told of each request
    add_headers: Callable[[Request, Job], None],
) -> Callable[[Request, Job], None]:
    """Headers and cookies of its source, cookies and meta of the seed, callback and errback."""

    def prepare_one(request: Request, job: Job) -> None:
        begins(request, job)
        if job.seed.headers:
            add_headers(request, job)
        if (sources := library()).enabled:
            prepare(sources, request)
        meta = request.meta
        meta.setdefault(meta_keys.COOKIEJAR, job.entry)  # unless it names a jar itself
        meta.pop(meta_keys.ITEMS, None)  # of an earlier attempt
        if seed_meta_keys:
            extra = job.seed.extra
            for key in seed_meta_keys:
                if key in extra:
                    meta.setdefault(key, extra[key])
        callbacks.complete(request)

    return prepare_one
