"""When a host may be asked, as the settings say: the frontier's policy of hosts, back-off and robots.txt."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from site_spider import options, runtime
from site_spider.engine import hooks as engine_hooks
from site_spider.errors import ConfigError
from site_spider.frontier.backoff import HostBackoff
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.host_queue import HostPolicy
from site_spider.frontier.hosts import Rates
from site_spider.frontier.robots.fetcher import Robots
from site_spider.frontier.robots.gate import RobotsGate
from site_spider.frontier.sourced import policy_of
from site_spider.frontier.waiter import Waiter
from site_spider.sources.library import Library

_NONE = Library({})


class Politeness(NamedTuple):
    """What decides, besides the frontier, when a host may be asked."""

    backoff: HostBackoff
    most_of_host: float  # requests that wait
    gate: RobotsGate | None  # where robots.txt is obeyed
    throttled_delay: Callable[[str], float] | None  # of a host, where AutoThrottle finds it


def build_frontier(
    settings: BaseSettings,
    library: Callable[[], Library] = lambda: _NONE,
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
    return lambda seconds: max(0.0, seconds * runtime.uniform(1 - jitter, 1 + jitter))  # a delay


def build_politeness(
    crawler: Crawler,
    frontier: Frontier[Any],
    wake: Callable[[], None],
    is_free: Callable[[str], bool] = lambda _url: False,
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
