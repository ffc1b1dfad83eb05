"""The frontier of one crawl: politeness, memory limits, and the engine's waking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from math import inf
from typing import Any, NamedTuple, TypeAlias

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from site_spider import meta_keys, options, runtime
from site_spider.engine import flow as engine_hooks
from site_spider.errors import ConfigError
from site_spider.frontier.backoff import HostBackoff
from site_spider.frontier.frontier import Frontier, Rates
from site_spider.frontier.priority_queue import HostPolicy
from site_spider.frontier.robots import Robots, State
from site_spider.frontier.waiter import (
    Waiter,
    WaitingLink,
    as_link,
    flow_of,
    host_name,
    is_fenced,
    policy_of,
    seed_entry,
    size_bytes,
)
from site_spider.intake.room import Load
from site_spider.ledger.completion import Completion, Job
from site_spider.ledger.ledger import SeedInFlight
from site_spider.page.url import host_of
from site_spider.sources.library import Library

# --- politeness ------------------------------------------------------------------------------------------
# When a host may be asked, as the settings say: the frontier's policy of hosts, back-off and robots.txt.


class Politeness(NamedTuple):
    """What decides, besides the frontier, when a host may be asked."""

    backoff: HostBackoff
    most_of_host: float  # requests that wait
    robots: Robots | None  # where robots.txt is obeyed
    throttled_delay: Callable[[str], float] | None  # of a host, where AutoThrottle finds it


def build_frontier(
    settings: BaseSettings,
    library: Callable[[], Library],
    weight_of: Callable[[Hashable], float] = lambda _flow: 1.0,
    rates: Rates | None = None,
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
        weight_of,
        rates,
    )


def _policy(host: str, slot: Any, usual: HostPolicy) -> HostPolicy:
    policy, why = usual, "concurrency is 1 or more, delay 0 or more"
    try:
        policy = HostPolicy(int(slot.get("concurrency", usual[0])), float(slot.get("delay", usual[1])))
        is_usable = policy.concurrency >= 1 and 0 <= policy.delay_seconds < inf  # else nothing of it would ever begin
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        is_usable, why = False, str(error)
    if not is_usable:
        raise ConfigError(f"DOWNLOAD_SLOTS has {slot!r} for {host}, but needs numbers, such as {{'delay': 1}}: {why}.")
    return policy


def _spread(settings: BaseSettings) -> Callable[[float], float]:
    """Varies a delay. Raises ConfigError."""
    jitter = options.seconds(settings, "DOWNLOAD_DELAY_JITTER")
    return lambda seconds: max(0.0, seconds * runtime.uniform(1 - jitter, 1 + jitter))  # a delay


def build_politeness(
    crawler: Crawler,
    frontier: Frontier[Any],
    wake: Callable[[], None],
    is_free: Callable[[str], bool] = lambda _url: False,
) -> Politeness:
    """As the settings ask for. Raises ConfigError."""
    settings = crawler.settings
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
        Robots(crawler, frontier, wake, is_free) if options.boolean(settings, "ROBOTSTXT_OBEY") else None,
        throttled_delay,
    )


_MOST_PASSED = 300  # of what cannot begin now, before others have the event loop


# host, flow, since when and for which seed a request is out
_Out: TypeAlias = tuple[str, Hashable, float, SeedInFlight | None]

Build = Callable[[Waiter], Request | None]  # the request of what waited; None when there can be none
Told = Callable[[float, object], object]  # seconds, and the seed's place


class PoliteFrontier:
    """What waits, and which hosts have requests out. On the event loop's thread only."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        frontier: Frontier[Waiter],
        politeness: Politeness,
        load: Load,
        completion: Completion,
        may_begin: Callable[[SeedInFlight], bool],
        starved: Callable[[], None],
        wake: Callable[[], None],
        was_out: Told,
        was_kept: Told,
        *,
        takes: Callable[[Waiter], bool],
    ) -> None:
        self._was_out = was_out  # of requests
        self._was_kept = was_kept  # from a free host
        self._takes = takes  # what is not to begin here, though it is its turn
        self.frontier = frontier
        self.load = load
        self._politeness = politeness
        self._may_begin = may_begin
        self._starved = starved
        self.wake = wake
        self._loop = asyncio.get_running_loop()
        self._out: dict[Request, _Out] = {}
        self.completion = completion
        self._seeds = 0  # of what waits
        self.fencings = 0  # not 0: something may wait for seeds that are another process's
        self.is_closed = False
        # seeds that may not begin yet; in the seed queue what was compared once would be a duplicate
        self.keeps_back: list[SeedInFlight] = []
        # a plain handle: uvloop gives no TimerHandle for a moment that has come
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = inf

    def __len__(self) -> int:
        return len(self.frontier)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is being downloaded, so that no result comes soon."""
        return not self._out and not len(self.frontier)

    def has_place_for(self, request: Request) -> bool:
        """False where a link is to go to the seed topic: too much waits, of its host or of all."""
        most = self._politeness.most_of_host
        return not self.load.is_full and self.frontier.waiting(host_name(request)) < most

    def put_link(self, request: Request, job: Job) -> bool:
        """A request with which its job begins waits, if it is plain, as less than a Request: True then."""
        link = as_link(request, job)
        if link is not None:
            self._put(link, -inf)
        return link is not None

    def put(self, waiter: Waiter) -> None:
        """It waits at its level, behind the others of its host; a retry not before its moment, also when put back."""
        self._put(waiter, waiter.meta.get(meta_keys.NOT_BEFORE, -inf) if isinstance(waiter, Request) else -inf)

    def put_seed(self, waiting: SeedInFlight, not_before: float = -inf) -> None:
        """A seed waits at level 0, or where a priority of its own belongs."""
        self._seeds += 1
        seed, now = waiting.seed, self._loop.time()
        host = host_of(seed.url)
        self.frontier.push(-seed.priority, host, waiting, now, not_before, flow_of(waiting))

    def _put(self, waiter: Waiter, not_before: float) -> None:
        if isinstance(waiter, SeedInFlight):
            self.put_seed(waiter, not_before)
            return
        now, flow, weight_bytes = self._loop.time(), flow_of(waiter), size_bytes(waiter)
        self.frontier.push(-waiter.priority, host_name(waiter), waiter, now, not_before, flow)
        self.load.count_request(1, weight_bytes)

    def next(self, build: Build) -> Request | None:
        """The next request whose host is free."""
        for _ in range(_MOST_PASSED):
            waiter = self.frontier.pop(self._loop.time())
            if waiter is None:
                if self._set_alarm() > self._loop.time():
                    self._starved()
                return None
            if self._is_set_aside(waiter):
                continue
            host = self.frontier.last_host
            state = State.KNOWN if self._politeness.robots is None else self._ask(waiter, host)
            if state is State.UNKNOWN:
                return None  # a download that ends has the engine ask again
            if state is State.KNOWN and (request := self._begun(waiter, host, build)) is not None:
                return request
        self.wake()
        return None

    def _is_set_aside(self, waiter: Waiter) -> bool:
        """True when what was popped is not to begin, or not yet: it has left the frontier."""
        if self.fencings and is_fenced(waiter):
            self.drop(waiter)
        elif isinstance(waiter, SeedInFlight) and not self._may_begin(waiter):
            self.keeps_back.append(waiter)
        elif not self._takes(waiter):
            return False
        self.frontier.forgo(self._loop.time())
        self._left(waiter)
        return True

    def _begun(self, waiter: Waiter, host: str, build: Build) -> Request | None:
        """The request of what was popped, out from now on unless a middleware is to drop it."""
        self._left(waiter)
        request = build(waiter)
        robots = self._politeness.robots
        if request is None or (robots is not None and not robots.lets_pass(request)):
            self.frontier.forgo(self._loop.time())
            return request
        if self._politeness.throttled_delay is not None:
            now = self._loop.time()
            self.frontier.hold(host, now + self._politeness.throttled_delay(host), "delay", now)
        seed = waiter if isinstance(waiter, SeedInFlight) else seed_entry(waiter)
        self._out[request] = host, self.frontier.last_flow, self._loop.time(), seed
        self._was_kept(self.frontier.delay_seconds, seed and (seed.partition, seed.offset))
        return request

    def _ask(self, waiter: Waiter, host: str) -> State:
        """KNOWN when what was popped can go on; else it waits again."""
        robots = self._politeness.robots
        url = waiter.seed.url if isinstance(waiter, SeedInFlight) else waiter.url
        meta = waiter.meta if isinstance(waiter, Request) else None
        if robots is None or not robots.count_for(url, meta):
            return State.KNOWN
        look = robots.ask(url, host)
        if look.state is State.LATER:
            self.frontier.forgo(self._loop.time())
            self._left(waiter)
            self._put(waiter, look.until)
        return State.KNOWN if look.state is State.UNREACHABLE else look.state

    def _left(self, waiter: Waiter) -> None:
        if isinstance(waiter, SeedInFlight):
            self._seeds -= 1
        else:
            self.load.count_request(-1, size_bytes(waiter))

    def came_back(self, request: Request) -> None:
        """A request has left the downloader; its host may get another one."""
        out = self._out.pop(request, None)
        if out is not None:
            host, flow, began, seed = out
            now = self._loop.time()
            self.frontier.release(host, now, flow, cost=now - began)
            self._was_out(now - began, seed and (seed.partition, seed.offset))

    def host_overloaded(self, request: Request, asked_seconds: float) -> None:
        """The host has no room for this request: start nothing of it for a while."""
        out, now = self._out.get(request), self._loop.time()
        if out is not None:
            host, _, began, _ = out
            jitter = runtime.random()  # varies a pause only
            is_retry = bool(request.meta.get("retry_times"))
            until = self._politeness.backoff.overloaded(host, began, now, jitter, asked_seconds, is_retry=is_retry)
            self.frontier.hold(host, until, "back-off", now)

    def host_answered(self, request: Request) -> None:
        """The host has answered this request well."""
        if self._politeness.backoff.hosts and (out := self._out.get(request)) is not None:
            self._politeness.backoff.answered(out[0], out[2], self._loop.time())

    def remove(self, unwanted: Callable[[Waiter], bool]) -> Iterator[list[Waiter]]:
        """Take out what `unwanted` picks, some at a time."""
        for removed in self.frontier.remove(unwanted, self._loop.time()):
            for waiter in removed:
                self._left(waiter)
            yield removed

    def fenced(self) -> None:
        """Some of what waits may be for seeds that are another process's now: it is dropped, soon."""
        self.fencings += 1

    def remove_fenced(self) -> Iterator[list[Waiter]]:
        """Take out what waits for seeds that are another process's now."""
        before = self.fencings
        yield from self.remove(is_fenced)
        if before == self.fencings:
            self.fencings = 0

    def drop(self, waiter: Waiter) -> None:
        """What waited for a seed that is another process's now is not to be done any more."""
        if isinstance(waiter, WaitingLink):
            self.completion.drop_link(waiter.parent.entry)
        elif isinstance(waiter, Request):
            self.completion.drop(waiter)

    def withdraw_seeds(self) -> None:
        """Keep back the seeds that have not begun."""
        if self._seeds:
            for removed in self.remove(lambda waiter: isinstance(waiter, SeedInFlight)):
                self.keeps_back.extend(waiter for waiter in removed if isinstance(waiter, SeedInFlight))

    def take_kept_back(self) -> list[SeedInFlight]:
        """Take the seeds that are kept back."""
        kept_back, self.keeps_back = self.keeps_back, []
        return kept_back

    def close(self) -> None:
        """Wake nobody any more, and fetch no robots.txt."""
        self.is_closed = True
        self._silence()
        if self._politeness.robots is not None:
            self._politeness.robots.close()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm, self._alarm_at = None, inf

    def _set_alarm(self) -> float:
        moment = self.frontier.next_at()
        if moment < self._alarm_at:
            self._silence()
            self._alarm_at = moment
            self._alarm = self._loop.call_at(moment, self._ring)
        return moment

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, inf
        self.wake()


def build_load(settings: BaseSettings) -> Load:
    """With the limits that the settings name. Raises ConfigError."""
    return Load(
        options.integer(settings, "SITE_FRONTIER_MAX_REQUESTS", minimum=1),
        options.integer(settings, "SITE_FRONTIER_MAX_BYTES", minimum=1),
    )
