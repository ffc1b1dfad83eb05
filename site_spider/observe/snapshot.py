"""The one snapshot of a process, on which all that shows a crawl stands: a JSON document of bounded size.

`scrapy frontier`, the console, metrics and statistics take their numbers from here, so that no two of
them differ. It is made once an interval or on demand, in slices of time: what moves meanwhile may be
seen as it was or as it is. docs/observability.md says what each field means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from site_spider import runtime
from site_spider.contracts.seed_log import Partition
from site_spider.download.proxies.service import ProxyService
from site_spider.engine import flow as engine_hooks
from site_spider.observe import scrapy_stats
from site_spider.observe.document import is_conserved, seed_counts
from site_spider.observe.memory import memory
from site_spider.observe.moments import iso
from site_spider.observe.pauses import SPAN_SAID
from site_spider.observe.survey import Survey
from site_spider.observe.watched import Watched
from site_spider.results.delivery import Delivery

Snapshot = dict[str, Any]

LARGEST_HOSTS: Final = 20

_SLICE: Final = 200  # hosts looked at before the clock is
_SLICE_SECONDS: Final = 0.002  # then others have the event loop
_MOST_LEVELS: Final = 50
_MOST_PARTITIONS: Final = 1000
_MOST_SINKS: Final = 50


async def snapshot(watched: Watched, hosts: int = LARGEST_HOSTS) -> Snapshot:
    """All that is known of this process now, with so many of its largest hosts."""
    found = await survey(watched, hosts)
    now = runtime.time()
    return {
        "at": iso(now),
        **watched.identity.document(),
        "uptime_seconds": round(now - watched.identity.started_at, 3),
        **_seeds(watched),
        **_pages(watched),
        **_waiting(watched, found),
        **_held_up(watched),
        **_resources(watched),
    }


async def survey(watched: Watched, most: int = 0) -> Survey:
    """Every host of the frontier. It goes on meanwhile: what moves may be seen as it was or as it is."""
    found = Survey(most)
    loop = asyncio.get_running_loop()
    views = watched.queues.room.frontier.hosts(loop.time())
    began = loop.time()
    while some := list(islice(views, _SLICE)):
        found.add(some)
        if loop.time() - began > _SLICE_SECONDS:
            await asyncio.sleep(0)
            began = loop.time()
    return found


def stats_of(watched: Watched) -> Mapping[str, Any]:
    """Scrapy's statistics, as they are now."""
    collector = watched.crawler.stats
    assert collector is not None
    return collector.get_stats()


# --- seeds and pages ------------------------------------------------------------------------------


def _seeds(watched: Watched) -> Snapshot:
    counts, times = seed_counts(watched.ledger), watched.counted.seed_times
    since = times.seconds_since_completion()
    return {
        "seeds": counts | {"deleted_unread": watched.seeds.deleted_unread},
        "conserved": is_conserved(counts),
        "seconds_since_completion": None if since is None else round(since, 3),
        "seeds_in_flight": {_named(each): watched.ledger.open_count(each) for each in _mine(watched)},
        "oldest_in_flight_seconds": {
            _named(each): round(times.seconds_open(watched.ledger.oldest(each)), 3) for each in _mine(watched)
        },
        "unknown_fields": dict(watched.seeds.unknown_fields.counts),
    }


def _pages(watched: Watched) -> Snapshot:
    stats, counted = stats_of(watched), watched.counted
    return {
        "downloads": scrapy_stats.downloads(stats),
        **counted.pages.document(),
        "retries": scrapy_stats.retries(stats),
        "links": scrapy_stats.links(stats),
        "latency": counted.histograms.document(),
        "tasks": counted.tasks.document(),
    }


# --- what waits, and for what ---------------------------------------------------------------------


def _waiting(watched: Watched, found: Survey) -> Snapshot:
    queues = watched.queues
    waiting, levels = len(queues.room), queues.room.frontier.lengths()
    return {
        "queues": queues.lengths(),
        "levels": {str(level): length for level, length in islice(levels.items(), _MOST_LEVELS)},
        "waiting": waiting,
        "waiting_for_their_moment": max(0, waiting - found.items),
        "hosts": found.counts(),
        "largest_hosts": found.largest(asyncio.get_running_loop().time()),
        "requests_out": found.out,
        "requests_in_progress": len(engine_hooks.requests_in_progress(watched.crawler.engine)),
    }


def _held_up(watched: Watched) -> Snapshot:
    pause = watched.pauses.now()
    return {
        "pause": {"cause": pause.cause, "said": pause.said},
        "paused": _paused(watched),
        "paused_seconds": {cause: round(spent, 3) for cause, spent in watched.pauses.seconds.items()},
        "log_is_away": watched.intake.is_away,
        "sinks": [_sink(delivery, watched) for delivery in islice(watched.sinks, _MOST_SINKS)],
        "proxies": _proxies(watched),
    }


def _paused(watched: Watched) -> dict[str, str]:
    """The partitions of which nothing is polled now, each with the reason."""
    everywhere, wide = watched.pauses.now(), watched.seeds.too_wide()
    found = {_named(each): everywhere.said or (SPAN_SAID if each in wide else "") for each in _mine(watched)}
    if not found and everywhere.cause == "kafka":
        found = {watched.identity.topic: everywhere.said}  # its partitions are lost
    return {name: why for name, why in found.items() if why}


def _sink(delivery: Delivery, watched: Watched) -> Snapshot:
    accepted = delivery.last_accept_at
    return {
        "name": delivery.sink.name,
        "available": delivery.available,
        "backlog": delivery.backlog_count,
        "backlog_bytes": delivery.backlog_bytes,
        "backlog_limit_bytes": watched.sinks.backlog_limit_bytes,
        "last_accept_at": None if accepted is None else iso(accepted),
    }


def _proxies(watched: Watched) -> dict[str, int] | None:
    proxies = watched.crawler.get_extension(ProxyService)
    if proxies is None:
        return None
    now = asyncio.get_running_loop().time()
    return {"all": len(proxies.pool), "resting": proxies.pool.resting(now)}


# --- the process ----------------------------------------------------------------------------------


def _resources(watched: Watched) -> Snapshot:
    load = watched.queues.room.load
    return {
        "frontier": {
            "requests": load.requests,
            "max_requests": load.max_requests,
            "bytes": load.bytes,
            "max_bytes": load.max_bytes,
        },
        "bodies": {"bytes": watched.bodies.bytes, "max_bytes": watched.bodies.max_bytes},
        "loop_lag_max_seconds": round(watched.loop_lag.max_seconds(), 6),
        "clock_ahead_seconds": round(watched.clock.ahead_seconds, 3),
        "memory": memory(watched.crawler.settings),
    }


def _named(partition: Partition) -> str:
    return f"{partition.topic}/{partition.number}"


def _mine(watched: Watched) -> list[Partition]:
    return list(islice(watched.ledger.partitions(), _MOST_PARTITIONS))
