"""Collects the numbers of `scrapy frontier` in small slices of time."""

from __future__ import annotations

import asyncio
import os
from itertools import islice
from typing import Any

from site_spider.contracts.seed_log import Partition
from site_spider.download.proxies.service import ProxyService
from site_spider.engine import hooks as engine_hooks
from site_spider.observe.survey import Survey
from site_spider.observe.watched import Watched

_SLICE = 200  # hosts looked at before the clock is
_SLICE_SECONDS = 0.002  # then others have the event loop
_MOST_LEVELS = 50
_MOST_PARTITIONS = 1000
_LEFT_ALONE = (
    "its slowest seed is too far behind (SITE_MAX_SPAN_OFFSETS), or too many of the seeds in flight are its "
    "or its tier's (SITE_SEED_TOPICS)"
)


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


async def look(watched: Watched, most: int) -> dict[str, Any]:
    """One document, of bounded size."""
    found = await survey(watched, most)
    queues, ledger = watched.queues, watched.ledger
    waiting, levels = len(queues.room), queues.room.frontier.lengths()
    return {
        "pid": os.getpid(),
        "spider": watched.crawler.spidercls.name,
        "group": watched.member.group,
        "topic": ",".join(watched.member.topics),
        "queues": queues.lengths(),
        "levels": {str(level): length for level, length in islice(levels.items(), _MOST_LEVELS)},
        "waiting": waiting,
        "waiting_for_their_moment": max(0, waiting - found.items),
        "hosts": found.counts(),
        "largest_hosts": found.largest(asyncio.get_running_loop().time()),
        "requests_out": found.out,
        "requests_in_progress": len(engine_hooks.requests_in_progress(watched.crawler.engine)),
        "seeds_in_flight": {_named(each): ledger.open_count(each) for each in _mine(watched)},
        "paused": _paused(watched),
        "sinks": [
            {
                "name": delivery.sink.name,
                "available": delivery.available,
                "backlog": delivery.backlog_count,
                "backlog_bytes": delivery.backlog_bytes,
            }
            for delivery in watched.sinks
        ],
        "proxies": _proxies(watched),
    }


def _named(partition: Partition) -> str:
    return f"{partition.topic}/{partition.number}"


def _mine(watched: Watched) -> list[Partition]:
    return list(islice(watched.ledger.partitions(), _MOST_PARTITIONS))


def _paused(watched: Watched) -> dict[str, str]:
    """The partitions of which nothing is polled now, each with the reason."""
    wide = watched.seeds.too_wide()
    reason = _why_nothing_is_polled(watched)
    found = {_named(each): reason or (_LEFT_ALONE if each in wide else "") for each in _mine(watched)}
    return {name: why for name, why in found.items() if why}


def _why_nothing_is_polled(watched: Watched) -> str:
    if watched.quarantine.is_closed:
        return "seeds suspected of killing the process are crawled one by one"
    away = [delivery.sink.name for delivery in watched.sinks if not delivery.available]
    if away:
        return f"the sink {away[0]} is away"
    if not watched.back_pressure.may_download():
        return "too many results wait for a sink (SITE_SINK_BACKLOG_BYTES), or the crawl stops"
    if watched.seeds.room() <= 0:
        return (
            "as many seeds are in flight as may be (SITE_MAX_SEEDS_IN_FLIGHT), or memory is full "
            "(SITE_FRONTIER_MAX_REQUESTS, SITE_FRONTIER_MAX_BYTES)"
        )
    return ""


def _proxies(watched: Watched) -> dict[str, int] | None:
    proxies = watched.crawler.get_extension(ProxyService)
    if proxies is None:
        return None
    now = asyncio.get_running_loop().time()
    return {"all": len(proxies.pool), "resting": proxies.pool.resting(now)}
