"""The frontier of one crawl: seeds and requests by level and host, and the engine's waking."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.httpobj import urlparse_cached

from site_spider import meta_keys, options
from site_spider.engine import hooks as engine_hooks
from site_spider.errors import ConfigError
from site_spider.frontier.backoff import HostBackoff
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.host_queue import HostPolicy
from site_spider.frontier.levels import level_of
from site_spider.frontier.retry.hosts import HostAnswers
from site_spider.frontier.robots.cache import State
from site_spider.frontier.robots.fetcher import Robots, is_subject
from site_spider.frontier.robots.gate import RobotsGate
from site_spider.frontier.sourced import policy_of
from site_spider.frontier.waiting_link import WaitingLink, as_link
from site_spider.frontier.weight import size_bytes
from site_spider.intake.load import Load
from site_spider.intake.seed_queue import Waiting
from site_spider.ledger import lineage
from site_spider.ledger.completion import Completion
from site_spider.ledger.entry import Entry
from site_spider.ledger.lineage import Job
from site_spider.page.url import host_of
from site_spider.sources.library import Library

_NONE = Library({})
_MOST_PASSED = 300  # of what cannot begin now, before others have the event loop

Waiter = Request | Waiting | WaitingLink


class Builder(Protocol):
    """Makes requests of what waits in another form."""

    def build_seed(self, waiting: Waiting) -> Request | None:
        """None when there can be none, and the seed is dealt with."""

    def build_link(self, link: WaitingLink) -> Request | None:
        """Its job begins; None likewise."""


class Politeness(NamedTuple):
    """What decides, besides the frontier, when a host may be asked."""

    backoff: HostBackoff
    most_of_host: float  # requests that wait
    gate: RobotsGate | None  # where robots.txt is obeyed
    throttled_delay: Callable[[str], float] | None  # of a host, where AutoThrottle finds it


class _Out(NamedTuple):
    host: str
    began: float


class WaitingRoom(HostAnswers):
    """What waits, and which hosts have requests out. On the event loop's thread only."""

    def __init__(
        self,
        frontier: Frontier[Waiter],
        politeness: Politeness,
        load: Load,
        completion: Completion,
        may_begin: Callable[[Entry], bool],
        starved: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self.frontier = frontier
        self.load = load
        self._politeness = politeness
        self._may_begin = may_begin
        self._starved = starved
        self.wake = wake
        self._loop = asyncio.get_running_loop()
        self._out: dict[Request, _Out] = {}
        self._completion = completion
        self._seeds = 0  # of what waits
        self._fencings = 0
        self.has_fenced = False  # something may wait for seeds that are another process's
        self._kept_back: list[Waiting] = []  # whose turn it was, and that may not begin yet
        # a plain handle: uvloop gives no TimerHandle for a moment that has come
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = inf

    def __len__(self) -> int:
        return len(self.frontier)

    def has_place_for(self, request: Request) -> bool:
        """False where a link is to go to the seed topic: too much waits, of its host or of all."""
        return (
            not self.load.is_full and self.frontier.waiting(host_key(request)) < self._politeness.most_of_host
        )

    def put_link(self, request: Request, job: Job) -> bool:
        """A request with which its job begins waits, if it is plain, as less than a Request: True then."""
        link = as_link(request, job)
        if link is not None:
            self._put(link, -inf)
        return link is not None

    def put_request(self, request: Request) -> None:
        """A request waits at the level of its priority; a retry not before its moment."""
        self._put(request, request.meta.pop(meta_keys.NOT_BEFORE, -inf))

    def put_seed(self, waiting: Waiting) -> None:
        """A seed waits at level 0, or where a priority of its own belongs."""
        self._put(waiting, -inf)

    def _put(self, waiter: Waiter, not_before: float) -> None:
        priority = waiter.seed.priority if isinstance(waiter, Waiting) else waiter.priority
        if isinstance(waiter, Waiting):
            self._seeds += 1
        else:
            self.load.add_request(size_bytes(waiter))
        self.frontier.push(level_of(priority), _host_of(waiter), waiter, self._loop.time(), not_before)

    def next(self, builder: Builder) -> Request | None:
        """The next request whose host is free."""
        gate, passed = self._politeness.gate, 0
        while (waiter := self.frontier.pop(self._loop.time())) is not None:
            passed += 1
            if passed > _MOST_PASSED:
                self.frontier.put_back(self._loop.time())
                self.wake()
                return None
            if self.has_fenced and is_fenced(waiter):
                self.frontier.forgo(self._loop.time())
                self._left(waiter)
                self.drop(waiter)
                continue
            if isinstance(waiter, Waiting) and not self._may_begin(waiter.entry):
                self._kept_back.append(waiter)
                self.frontier.forgo(self._loop.time())
                self._left(waiter)
                continue
            host = _host_of(waiter)
            if gate is not None and (state := self._ask(gate, waiter, host)) is not State.KNOWN:
                if state is State.UNKNOWN:
                    return None  # a download that ends has the engine ask again
                continue
            self._left(waiter)
            request = _built(waiter, builder)
            if request is None:
                self.frontier.forgo(self._loop.time())
                continue
            if gate is None or gate.lets_pass(request):
                if self._politeness.throttled_delay is not None:
                    self.frontier.slow_down(self._politeness.throttled_delay(host), self._loop.time())
                self._out[request] = _Out(host, self._loop.time())
            else:  # it is not sent: a middleware drops it
                self.frontier.forgo(self._loop.time())
            return request
        self._set_alarm()
        self._starved()
        return None

    def _ask(self, gate: RobotsGate, waiter: Waiter, host: str) -> State:
        """KNOWN when what was popped can go on; else it waits again."""
        if isinstance(waiter, Request) and not is_subject(waiter):
            return State.KNOWN
        url = waiter.seed.url if isinstance(waiter, Waiting) else waiter.url
        if not gate.robots.counts_for(url):
            return State.KNOWN
        look = gate.look(url, host)
        if look.state is State.LATER:
            self.frontier.forgo(self._loop.time())
            self._left(waiter)
            self._put(waiter, look.until)
        return State.KNOWN if look.state is State.UNREACHABLE else look.state

    def _left(self, waiter: Waiter) -> None:
        if isinstance(waiter, Waiting):
            self._seeds -= 1
        else:
            self.load.remove_request(size_bytes(waiter))

    def came_back(self, request: Request) -> None:
        """A request has left the downloader; its host may get another one."""
        out = self._out.pop(request, None)
        if out is not None:
            self.frontier.release(out.host, self._loop.time())

    def host_overloaded(self, request: Request, asked_seconds: float) -> None:
        """As in HostAnswers."""
        out, now = self._out.get(request), self._loop.time()
        if out is not None:
            jitter = random.random()  # noqa: S311 - varies a pause only
            is_retry = bool(request.meta.get("retry_times"))
            until = self._politeness.backoff.overloaded(
                out.host, out.began, now, jitter, asked_seconds, is_retry=is_retry
            )
            self.frontier.hold(out.host, until, "back-off", now)

    def host_answered(self, request: Request) -> None:
        """As in HostAnswers."""
        if self._politeness.backoff and (out := self._out.get(request)) is not None:
            self._politeness.backoff.answered(out.host, out.began, self._loop.time())

    def remove(self, unwanted: Callable[[Waiter], bool]) -> Iterator[list[Waiter]]:
        """Take out what `unwanted` picks, some at a time."""
        for removed in self.frontier.remove(unwanted, self._loop.time()):
            for waiter in removed:
                self._left(waiter)
            yield removed

    def fenced(self) -> None:
        """Seeds are another process's now."""
        self._fencings += 1
        self.has_fenced = True

    def remove_fenced(self) -> Iterator[list[Waiter]]:
        """Take out what waits for seeds that are another process's now."""
        before = self._fencings
        yield from self.remove(is_fenced)
        if before == self._fencings:
            self.has_fenced = False

    def drop(self, waiter: Waiter) -> None:
        """What waited for a seed that is another process's now is not to be done any more."""
        if isinstance(waiter, WaitingLink):
            self._completion.drop_link(waiter.parent.entry)
        elif isinstance(waiter, Request):
            self._completion.drop(waiter)

    def remove_seeds(self) -> list[Waiting]:
        """Take out the seeds that have not begun."""
        if not self._seeds:
            return []
        removed = self.remove(lambda waiter: isinstance(waiter, Waiting))
        return [waiter for some in removed for waiter in some if isinstance(waiter, Waiting)]

    def take_kept_back(self) -> list[Waiting]:
        """Take the seeds whose turn it was while they could not begin."""
        kept_back, self._kept_back = self._kept_back, []
        return kept_back

    def close(self) -> None:
        """Wake nobody any more, and fetch no robots.txt."""
        self._silence()
        if self._politeness.gate is not None:
            self._politeness.gate.robots.close()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm, self._alarm_at = None, inf

    def _set_alarm(self) -> None:
        moment = self.frontier.next_at()
        if moment >= self._alarm_at:
            return
        self._silence()
        if moment < inf:
            self._alarm_at = moment
            self._alarm = self._loop.call_at(moment, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, inf
        self.wake()


def host_key(request: Request) -> str:
    """What politeness goes by: the host, or the download slot that a request names."""
    slot = request.meta.get(meta_keys.DOWNLOAD_SLOT)
    return slot if isinstance(slot, str) else urlparse_cached(request).hostname or ""


def build_politeness(
    crawler: Crawler, frontier: Frontier[Any], wake: Callable[[], None], is_free: Callable[[str], bool]
) -> Politeness:
    """As the settings ask for. Raises ConfigError."""
    settings = crawler.settings
    robots = Robots.from_crawler(crawler, is_free)
    throttled_delay = None
    if options.boolean(settings, "AUTOTHROTTLE_ENABLED"):
        spread = _spread(settings)
        throttled_delay = lambda host: spread(engine_hooks.throttled_delay(crawler.engine, host))  # noqa: E731
    return Politeness(
        HostBackoff(
            options.seconds(settings, "SITE_RETRY_PAUSE_SECONDS"),
            options.seconds(settings, "SITE_RETRY_LONGEST_PAUSE_SECONDS"),
        ),
        options.integer(settings, "SITE_HOST_MAX_REQUESTS", minimum=1),
        None if robots is None else RobotsGate(frontier, robots, wake),
        throttled_delay,
    )


def build_load(settings: BaseSettings) -> Load:
    """With the limits that the settings name. Raises ConfigError."""
    return Load(
        options.integer(settings, "SITE_FRONTIER_MAX_REQUESTS", minimum=1),
        options.integer(settings, "SITE_FRONTIER_MAX_BYTES", minimum=1),
    )


def build_frontier(
    settings: BaseSettings, library: Callable[[], Library] = lambda: _NONE
) -> Frontier[Waiter]:
    """A frontier with Scrapy's settings of politeness, and those of sources. Raises ConfigError."""
    concurrency = options.integer(settings, "CONCURRENT_REQUESTS_PER_DOMAIN", minimum=1)
    delay_seconds = options.seconds(settings, "DOWNLOAD_DELAY")
    usual = HostPolicy(concurrency, delay_seconds)
    slots = options.mapping(settings, "DOWNLOAD_SLOTS")
    own = {host: _policy(host, slot, usual) for host, slot in slots.items() if slot}
    return Frontier(
        policy_of(library, own, usual),
        options.seconds(settings, "SITE_MAX_WAIT_SECONDS", minimum=1),
        _spread(settings),
    )


def _policy(host: str, slot: Any, usual: HostPolicy) -> HostPolicy:
    try:
        concurrency, delay_seconds = slot.get("concurrency", usual[0]), slot.get("delay", usual[1])
        return HostPolicy(int(concurrency), float(delay_seconds))
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"DOWNLOAD_SLOTS has {slot!r} for {host}, but needs numbers, such as {{'delay': 1}}: {error}."
        ) from None


def _spread(settings: BaseSettings) -> Callable[[float], float]:
    """Varies a delay. Raises ConfigError."""
    jitter = options.seconds(settings, "DOWNLOAD_DELAY_JITTER")
    return lambda seconds: max(0.0, seconds * random.uniform(1 - jitter, 1 + jitter))  # noqa: S311 - a delay


def seed_entry(waiter: Waiter) -> Entry | None:
    """The seed that it waits for; None when there is none."""
    if isinstance(waiter, Waiting):
        return waiter.entry
    job = waiter.parent if isinstance(waiter, WaitingLink) else lineage.job_of(waiter)
    return None if job is None else job.entry


def _built(waiter: Waiter, builder: Builder) -> Request | None:
    if isinstance(waiter, Waiting):
        return builder.build_seed(waiter)
    return builder.build_link(waiter) if isinstance(waiter, WaitingLink) else waiter


def _host_of(waiter: Waiter) -> str:
    if isinstance(waiter, Waiting):
        return host_of(waiter.seed.url)
    return urlsplit(waiter.url).hostname or "" if isinstance(waiter, WaitingLink) else host_key(waiter)


def is_fenced(waiter: Waiter) -> bool:
    """Whether the seed that it waits for is another process's now."""
    entry = seed_entry(waiter)
    return entry is not None and not entry.live
