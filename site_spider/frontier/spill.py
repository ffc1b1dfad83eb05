"""Requests that are sent back to the seed topic, and the seeds they become.

It owns the decision which request is spilled and the message it is written as. It never drops a request
before the topic has acknowledged the message.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from scrapy import Request, Spider

from site_spider import meta_keys, runtime
from site_spider.bounded import BoundedDict
from site_spider.contracts.seed_log import Headers, MessagePlace, Partition
from site_spider.engine.background import Background, Turns
from site_spider.engine.callback_guard import unguarded
from site_spider.errors import LogUnavailable, SeedError, SiteSpiderError
from site_spider.frontier.politeness import PoliteFrontier
from site_spider.frontier.waiter import KEY as SOURCE
from site_spider.frontier.waiter import (
    Waiter,
    WaitingLink,
    as_begun,
    home_of,
    is_fenced,
    seed_entry,
    size_bytes,
    source_name,
)
from site_spider.ledger.completion import Job, is_first_attempt, job_of
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.page.sitemap import is_listing
from site_spider.page.url import host_of
from site_spider.results.commits import Commits
from site_spider.seed import spilled
from site_spider.seed.fields import Cookies
from site_spider.seed.seed import DIRECTIVES, Seed, moved_headers, parse_seed
from site_spider.seed.spilled import ListPlace, Spilled, signed
from site_spider.seed.topics import partition_of

logger = logging.getLogger(__name__)

# --- partitions: how many each seed topic has, and this process' share of them ---------------------------
# With SITE_HOST_OWNERSHIP, where seeds are keyed by host, a host belongs to the partition where a seed with
# its key goes, and to whichever process that partition is assigned to. With several tiers it has one in each.
# What is polled from a partition is crawled here all the same, whatever its key says, so nothing goes to and
# fro.

_ASK_SECONDS = 30.0  # between two questions how many partitions there are
_number_of = lru_cache(maxsize=10_000)(partition_of)


class TopicPartitions:
    """Asks the ledger what is assigned. On the event loop's thread only."""

    def __init__(
        self, topics: tuple[str, ...], ledger: Ledger, count_partitions: Callable[[str], int], background: Background
    ) -> None:
        self._background = background
        self._ledger = ledger
        self._count_partitions = count_partitions  # may block
        self.counts = dict.fromkeys(topics, 0)  # 0 while that is not known
        self._owned: Counter[str] = Counter()
        self._ask_at = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._looked: tuple[dict[str, int], set[Partition]] = dict(self.counts), set()

    def owns(self, host: str, topic: str) -> bool:
        """Whether a request to this host is made here. While the partitions are not known, all are."""
        count = self.counts.get(topic, 0)
        partition = Partition(topic, _number_of(host.encode(), count) if count else 0)
        return not count or self._ledger.epoch(partition) is not None

    def have_hosts_moved(self) -> bool:
        """True when hosts have changed hands since this was asked the last time."""
        before, self._looked = self._looked, (dict(self.counts), set(self._ledger.partitions()))
        return before != self._looked

    def share(self, topic: str) -> float:
        """Of the partitions of a topic, as of the last look; 1 while their number is not known.

        What has not ended when its last partition leaves goes on as if there were one.
        """
        count = self.counts.get(topic, 0)
        return min(1.0, max(1, self._owned[topic]) / count) if count else 1.0

    def look(self) -> None:
        """To be called now and then."""
        self._owned = Counter(partition.topic for partition in self._ledger.partitions())
        now = asyncio.get_running_loop().time()
        if now >= self._ask_at and (self._asking is None or self._asking.done()):
            self._ask_at = now + _ASK_SECONDS
            self._asking = self._background.start(self.ask(), "count of partitions")

    async def ask(self) -> None:
        """Find out how many partitions there are; an outage leaves that as it was."""
        for topic in self.counts:
            try:
                self.counts[topic] = await asyncio.to_thread(self._count_partitions, topic)
            except SiteSpiderError as error:
                logger.debug("The partitions of %s are not known now: %s", topic, error)


# --- interfaces: what is told of a request that leaves, and takes it -------------------------------------


@runtime_checkable
class SpilledPages(Protocol):
    """What a dupefilter has to know of pages that leave."""

    def spilled(self, request: Request, job: Job) -> None:
        """The page of this job goes to a seed topic."""

    def not_spilled(self, request: Request, job: Job) -> None:
        """It stays after all."""

    def not_fetched(self, request: Request, job: Job) -> None:
        """It is given up."""


# says in the control log of a task where one of its seeds is, before its parent completes
TellPlace = Callable[[str, MessagePlace], None]


class ParkedTopic(Protocol):
    """Where requests of a paused task wait."""

    topic: str
    tell_place: TellPlace | None  # None: the end of tasks is not told

    def send(self, task_id: str, origin: str, key: bytes | None, value: bytes, headers: Headers) -> Future[Any]:
        """Done when the message is safe there, or in `origin`, its seed topic, if the task goes on.

        `headers` are those of a seed that moved.
        """


@dataclass(frozen=True, slots=True)
class SpillRules:
    """What leaves besides what is too much."""

    open_seconds: float  # of a tree, before its links leave
    tree_pages: int  # that a tree has here, before its links leave
    all_links: bool
    hosts: TopicPartitions | None = None  # None: all are this process's


# --- writer: writes a request as the message of a seed ---------------------------------------------------

CookiesOf = Callable[[Request, SeedInFlight], Cookies]

# Keys of Request.meta that mean nothing elsewhere, or that the message says in its own words.
_OF_LINKS = frozenset({
    "depth", meta_keys.JOB, meta_keys.COOKIEJAR, meta_keys.TO_TOPIC, meta_keys.LEAF, "link_text",
    meta_keys.SITEMAP, meta_keys.PAGE_NUMBER, meta_keys.KNOWN_RUN, meta_keys.NOT_BEFORE,
}) | DIRECTIVES  # fmt: skip
_OF_ATTEMPTS = _OF_LINKS | {
    meta_keys.DOWNLOAD_SLOT, "download_latency", "retry_times",
    "redirect_times", "redirect_ttl", "redirect_urls", "redirect_reasons",
}  # fmt: skip


class SeedWriter:
    """Knows what a seed can say of a request: what has something else of its own stays where it is."""

    def __init__(
        self,
        spider: Spider,
        cookies_of: CookiesOf,
        keys: Sequence[bytes] = (),
        add_headers: Callable[[Request, Job], None] | None = None,  # of its seed, to a link's
    ) -> None:
        self._add_headers = add_headers
        self._keys = keys  # the first signs
        self._cookies_of = cookies_of
        names = getattr(spider, "seed_callbacks", ())
        self._callbacks = frozenset(names)
        self._names = {getattr(spider, name): name for name in names} | {None: None}
        self._errbacks = (None, getattr(spider, "failed", None))

    def write(self, request: Request, job: Job, *, is_link: bool) -> tuple[bytes | None, bytes] | None:
        """Key (the host) and value; None when a seed cannot say it all.

        A link is a job that nobody has asked for yet; anything else is an attempt that goes on elsewhere.
        """
        try:
            if not self._is_sayable(request, job, is_link=is_link):
                return None
            if self._add_headers is not None:
                self._add_headers(request, job)
            fields = self._fields(request, job, is_link=is_link)
            if self._keys:
                fields = signed(fields, self._keys[0])
            value = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
            if parse_seed(value, self._callbacks, self._keys).body != (request.body or None):
                return None
        except (SeedError, ValueError, TypeError, RecursionError):  # whatever JSON or a seed cannot hold
            return None
        return host_of(request.url).encode() or None, value

    def _is_sayable(self, request: Request, job: Job, *, is_link: bool) -> bool:
        meta = request.meta
        return (
            type(request).__module__.startswith("scrapy.")  # others have a handler, or a middleware, of their own
            and all(_is_known(key, is_link=is_link) for key in meta)
            and meta.get(meta_keys.COOKIEJAR, job.entry) is job.entry
            and meta.get(meta_keys.DOWNLOAD_SLOT, host_of(request.url)) == host_of(request.url)
            and unguarded(request.callback) in self._names
            and unguarded(request.errback) in self._errbacks
            and not (request.cb_kwargs or request.flags or request.cookies)
        )

    def _fields(self, request: Request, job: Job, *, is_link: bool) -> dict[str, Any]:
        name = self._names[unguarded(request.callback)]
        body = request.body.decode(request.encoding) if request.body else None
        said: dict[str, Any] = {
            "callback": None if name == "parse" else name,
            "_encoding": None if request.encoding == "utf-8" else request.encoding,
            "headers": _headers(request),
            "cookies": self._cookies_of(request, job.entry),
            "body": body,
            "dont_filter": request.dont_filter,
            spilled.HOPS: 0 if is_link else _hops(job),
            spilled.PLACE: _place(request),
            spilled.HOME: "" if source_name(job.seed) is None else home_of(job),
        }
        return {
            "url": request.url,
            "method": request.method,
            "priority": request.priority,
            "meta": _meta(request, job, is_link=is_link),
            **{key: value for key, value in said.items() if value},
        }


def _is_known(key: str, *, is_link: bool) -> bool:
    return key in _OF_LINKS if is_link else key in _OF_ATTEMPTS or str(key).startswith(meta_keys.PREFIX)


def _headers(request: Request) -> dict[str, list[str]]:
    charset = request.encoding
    return {
        name.decode("ascii"): [value.decode(charset) for value in values]
        for name, values in request.headers.items()
        if name != b"Cookie"
    }


def _meta(request: Request, job: Job, *, is_link: bool) -> dict[str, Any]:
    seed = job.seed
    said: dict[str, Any] = {
        "task_id": seed.task_id,
        "if_changed": seed.directives.get("if_changed"),
        **{key: request.meta[key] for key in DIRECTIVES & request.meta.keys()},
        "NotExtract": seed.not_extract or request.meta.get(meta_keys.LEAF) or None,
        SOURCE: source_name(seed),
        "sitemap": request.meta.get(meta_keys.SITEMAP),
    }
    extra = seed.extra
    if job.parent is not None and is_of_page_alone(seed, extra):
        del extra["sitemap"]
    if job.parent is None:
        said |= {"parent_url_id": seed.parent_url_id, "seed_url_id": seed.seed_url_id}
    else:
        said |= {"parent_url_id": job.parent.url_id, "seed_url_id": seed.seed_url_id or seed.url_id}
    return {
        **extra,
        "url_id": job.url_id,
        "depth": job.depth,
        **{key: value for key, value in said.items() if value is not None},
        spilled.KEY: _spilled(request, job, is_link=is_link).fields(),
    }


def is_of_page_alone(seed: Seed, extra: Mapping[str, Any]) -> bool:
    """Whether `sitemap` of the seed's meta says where its page was found: it is not about what that names."""
    return "sitemap" in extra and (seed.spilled is not None or is_listing(extra["sitemap"]))


def _spilled(request: Request, job: Job, *, is_link: bool) -> Spilled:
    anchor_host = job.entry.anchor_host
    if is_link:
        return Spilled(anchor_host=anchor_host)
    get = request.meta.get
    return Spilled(
        url=job.url,
        method=job.method,
        anchor_host=anchor_host,
        retry_times=get("retry_times", 0),
        retry_reasons=tuple(get(meta_keys.RETRY_REASONS, ())),
        redirect_times=get("redirect_times", 0),
        redirect_ttl=get("redirect_ttl"),
        redirect_urls=tuple(get("redirect_urls", ())),
        redirect_reasons=tuple(get("redirect_reasons", ())),
        unraised_priority=get(meta_keys.UNRAISED_PRIORITY),
    )


def _place(request: Request) -> list[int]:
    number = request.meta.get(meta_keys.PAGE_NUMBER)
    return [] if number is None else [*ListPlace(number, *request.meta.get(meta_keys.KNOWN_RUN, ()))]


def _hops(job: Job) -> int:
    """Of one page; a seed refuses more than there may be, and then it stays."""
    before = job.seed.spilled if job.parent is None else None
    return 0 if before is None else before.hops + 1


# --- spill: decides which requests go back to the seed topic of their seed, and sends them ---------------
# Theory of operation. Eight reasons:
#
# - a seed whose tree is open for longer than SITE_SEED_MAX_OPEN_SECONDS is overdue: its links
#   that wait, and those found from then on, leave, so that the watermark moves;
# - a tree of SITE_TREE_MAX_PAGES pages keeps no more links: a death of the process repeats the whole tree;
# - a seed that was under way at a death of its process keeps none, so that the next death counts for pages
#   and not for the tree, and repeats no more than was under way (ledger.metadata); neither holds where
#   results are kept until their tree is complete;
# - with SITE_LINKS_TO=kafka every link leaves;
# - a link leaves for another topic where the rule of a source says so;
# - links that find the memory full leave (intake.room), or their host's share of it;
# - where results are kept until their tree is complete (results.exactly_once), links leave when
#   trees keep too much;
# - with SITE_HOST_OWNERSHIP a link, its retries, or a redirect, to a host of another process leave.
#
# A request that leaves keeps its hold on its seed until the topic has acknowledged the message, so a crash
# repeats it rather than loses it. What a seed cannot say (SeedWriter), and what the topic
# refuses, is crawled here. A page that left is neither in flight nor done in this process
# (dupefilter.dupefilter): it is compared where it arrives.

_NO_WORDS = "a seed has no words for its callback, cb_kwargs, flags, cookies or meta"
TRY_AGAIN_SECONDS = 10.0  # with what the topic of parked messages did not take
_MOST_AT_ONCE = 500  # of what waits: the event loop goes on in between


@dataclass(eq=False)
class Spill:
    """On the event loop's thread only."""

    _rules: SpillRules
    _commits: Commits
    _writer: SeedWriter
    _room: PoliteFrontier
    _pages: SpilledPages | None
    _count: Callable[[str], None]  # in Scrapy's statistics
    _background: Background
    _parked: ParkedTopic
    _is_sweeping: bool = False  # something that waits may have to leave

    def __post_init__(self) -> None:
        self._completion, self._hosts = self._room.completion, self._rules.hosts
        self._said: BoundedDict[tuple[str, str], bool] = BoundedDict(1000)  # what stays, and why

    async def look(self) -> None:
        """Send away what waits and is not to wait here any more; to be called now and then."""
        have_hosts_moved = self._hosts is not None and self._hosts.have_hosts_moved()
        if self._find_overdue() or have_hosts_moved:
            self._is_sweeping = True
        if self._is_sweeping and self._room.load.may_download:
            self._is_sweeping = await self._sweep()

    async def _sweep(self) -> bool:
        """Whether more may have to leave than was taken out at once."""
        left, turns = _MOST_AT_ONCE, Turns.of_running_loop()

        def picks(waiter: Waiter) -> bool:
            nonlocal left
            has_to_leave = left > 0 and self._has_to_leave(waiter)
            left -= has_to_leave
            return has_to_leave

        async for found in turns.through(self._room.remove(picks)):
            async for waiter in turns.through(found):
                self._send_or_put_back(waiter)
        return left == 0

    def _find_overdue(self) -> bool:
        before, crowded = runtime.monotonic() - self._rules.open_seconds, self._commits.is_crowded
        begun = [entry for entry in self._completion.begun() if not entry.is_overdue]
        late = [entry for entry in begun if crowded or entry.began_at < before]
        for entry in late:
            entry.is_overdue = True
        if crowded and late:
            logger.info("%d open trees keep too many results; their links are spilled", len(late))
        for entry in () if crowded else late:
            logger.info(
                "The tree of %s is open for more than %.0f s; its links are spilled to %s",
                entry.url,
                self._rules.open_seconds,
                entry.partition.topic,
            )
        return bool(late)

    def _has_to_leave(self, waiter: Waiter) -> bool:
        entry = seed_entry(waiter)
        if entry is None or not entry.live:
            return False
        if isinstance(waiter, WaitingLink):
            return entry.is_overdue or not self._is_ours(waiter.url, entry)
        if not isinstance(waiter, Request) or meta_keys.STAYS in waiter.meta:
            return False
        job = job_of(waiter)
        return job is not None and self._leaves(waiter, job, is_link=is_first_attempt(waiter, job))

    def _send_or_put_back(self, waiter: Waiter) -> None:
        if is_fenced(waiter):
            self._room.drop(waiter)
            return
        assert not isinstance(waiter, SeedInFlight)
        request, job = as_begun(waiter, self._completion)
        if not self.send(request, job, is_link=is_first_attempt(request, job)):
            request.meta[meta_keys.STAYS] = True
            self._room.put(request)

    def wants(self, request: Request, job: Job, *, is_link: bool) -> bool:
        """Whether a request is to leave rather than wait. A link is a request with which its job begins."""
        if not job.entry.live:
            return False
        return self._leaves(request, job, is_link=is_link) or (is_link and not self._room.has_place_for(request))

    def _leaves(self, request: Request, job: Job, *, is_link: bool) -> bool:
        if is_link:
            if meta_keys.TO_TOPIC in request.meta:
                return True
            return self._tree_is_closed(job) or not self._is_ours(request.url, job.entry)
        # what was polled here is crawled here, so only a link, or another host, is another process'
        came_from = (request.meta.get("redirect_urls") or [request.url])[-1]
        is_foreign = job.parent is not None or host_of(came_from) != host_of(request.url)
        return is_foreign and not self._is_ours(request.url, job.entry)

    def _tree_is_closed(self, job: Job) -> bool:
        """Whether no link of this tree stays here."""
        entry = job.entry
        if self._rules.all_links or entry.is_overdue:
            return True
        if self._commits.stores_records:
            return False  # stored as a whole; pages that are seeds might be stored again after a kill
        deaths = self._completion.ledger.of_partition(entry.partition).suspicion.deaths(entry.offset)
        return deaths > 0 or entry.pages >= self._rules.tree_pages

    def _is_ours(self, url: str, entry: SeedInFlight) -> bool:
        return self._hosts is None or self._hosts.owns(host_of(url), entry.partition.topic)

    def give_up(self, request: Request, job: Job) -> None:
        """A request that is neither fetched nor sent."""
        if self._pages is not None:
            self._pages.not_fetched(request, job)

    def send(self, request: Request, job: Job, *, is_link: bool) -> bool:
        """Send an accepted request on its way; False when no seed can say what it is."""
        message = self._writer.write(request, job, is_link=is_link)
        topic = request.meta.get(meta_keys.TO_TOPIC)
        if message is None:
            if topic is not None and topic != self._parked.topic:
                self._say_it_stays(request, topic, _NO_WORDS)
            return False
        key, value = message
        weight_bytes = size_bytes(request) + len(value)
        self._room.load.count_sending(1, weight_bytes)
        if self._pages is not None:
            self._pages.spilled(request, job)
        future = self._begin_to_send(topic, job, key, value)
        self._background.when_done(future, self._sent, request, job, weight_bytes)
        return True

    def _say_it_stays(self, request: Request, topic: str, why: str, what: str = "is crawled here") -> None:
        if (topic, why) not in self._said:
            self._said[topic, why] = True
            logger.warning("A request to topic %s %s, like others: %s: %s", topic, what, why, request.url)

    def _begin_to_send(self, topic: str | None, job: Job, key: bytes | None, value: bytes) -> Future[Any]:
        task_id, own = job.seed.task_id, job.entry.partition.topic
        headers = moved_headers(job.seed, job.entry.message, is_link=job.parent is not None)
        if task_id is not None and topic == self._parked.topic:
            return self._parked.send(task_id, own, key, value, headers)
        return self._commits.spill(job.entry, topic or own, key, value, headers)

    def _sent(self, future: Future[Any], request: Request, job: Job, weight_bytes: int) -> None:
        self._room.load.count_sending(-1, weight_bytes)
        error = future.exception()
        if error is not None:
            topic = request.meta.get(meta_keys.TO_TOPIC) or job.entry.partition.topic
            source = source_name(job.seed)
            waits = topic == self._parked.topic and isinstance(error, LogUnavailable)
            what = "waits here" if waits else "is crawled here"
            self._say_it_stays(request, topic, f"{error}{f' Source {source}' if source else ''}", what)
            if self._pages is not None:
                self._pages.not_spilled(request, job)
            if job.entry.live:
                request.meta.pop(meta_keys.TO_TOPIC, None)
                if waits:
                    request.meta[meta_keys.NOT_BEFORE] = asyncio.get_running_loop().time() + TRY_AGAIN_SECONDS
                else:
                    request.meta[meta_keys.STAYS] = topic == self._parked.topic
                self._room.put(request)
            else:
                self._completion.ended(request)
        else:
            self._left(request, job, future.result())
        self._room.wake()

    def _left(self, request: Request, job: Job, place: MessagePlace | None) -> None:
        self._count("spill/sent")
        if place is not None and job.seed.task_id is not None and self._parked.tell_place is not None:
            self._parked.tell_place(job.seed.task_id, place)  # the end of its task waits for the new seed
        job.written = True  # by whoever takes the new seed
        if job.parent is None:
            self._completion.ledger.decide(job.entry, Outcome.SPILLED)
        self._completion.repeats.broken(job.entry)  # its next owner may have left this page to the seed
        self._completion.ended(request)
