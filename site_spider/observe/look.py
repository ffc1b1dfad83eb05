"""Looks at the parts of a crawl, a little at a time, for whoever asks how far it is."""

from __future__ import annotations

import asyncio
import os
from itertools import islice
from typing import Any

from site_spider.contracts.seed_log import Partition
from site_spider.download.proxies.service import ProxyService
from site_spider.engine import hooks as engine_hooks
from site_spider.intake.seeds import Seeds
from site_spider.observe.survey import Survey
from site_spider.service.assembly import SeedService

_SLICE = 200  # hosts looked at before the clock is
_SLICE_SECONDS = 0.002  # then others have the event loop
_MOST_LEVELS = 50
_MOST_PARTITIONS = 1000
_LEFT_ALONE = (
    "its slowest seed is too far behind (SITE_MAX_SPAN_OFFSETS), or too many of the seeds in flight are its"
)


async def survey(service: SeedService, most: int = 0) -> Survey:
    """Every host of the frontier. It goes on meanwhile: what moves may be seen as it was or as it is."""
    found = Survey(most)
    loop = asyncio.get_running_loop()
    views = service.queues.room.frontier.hosts(loop.time())
    began = loop.time()
    while some := list(islice(views, _SLICE)):
        found.add(some)
        if loop.time() - began > _SLICE_SECONDS:
            await asyncio.sleep(0)
            began = loop.time()
    return found


async def look(service: SeedService, most: int) -> dict[str, Any]:
    """One document, of bounded size."""
    found = await survey(service, most)
    room = service.queues.room
    waiting, levels = len(room), room.frontier.lengths()
    seeds = service.seeds
    return {
        "pid": os.getpid(),
        "spider": service.crawler.spidercls.name,
        "group": service.config.consumer_group,
        "topic": service.config.seed_topic,
        "queues": service.queues.lengths(),
        "levels": {str(level): length for level, length in islice(levels.items(), _MOST_LEVELS)},
        "waiting": waiting,
        "waiting_for_their_moment": max(0, waiting - found.items),
        "hosts": found.counts(),
        "largest_hosts": found.largest(asyncio.get_running_loop().time()),
        "requests_out": found.out,
        "requests_in_progress": len(engine_hooks.requests_in_progress(service.crawler.engine)),
        "seeds_in_flight": {} if seeds is None else _in_flight(seeds),
        "paused": {} if seeds is None else _paused(service, seeds),
        "sinks": [
            {
                "name": delivery.sink.name,
                "available": delivery.available,
                "backlog": delivery.backlog_count,
                "backlog_bytes": delivery.backlog_bytes,
            }
            for delivery in service.deliveries
        ],
        "proxies": _proxies(service),
    }


def _named(partition: Partition) -> str:
    return f"{partition.topic}/{partition.number}"


def _in_flight(seeds: Seeds) -> dict[str, int]:
    mine = islice(seeds.ledger.partitions(), _MOST_PARTITIONS)
    return {_named(partition): seeds.ledger.open_count(partition) for partition in mine}


def _paused(service: SeedService, seeds: Seeds) -> dict[str, str]:
    """The partitions of which nothing is polled now, each with the reason."""
    wide = seeds.too_wide()
    reason = _why_nothing_is_polled(service, seeds)
    mine = islice(seeds.ledger.partitions(), _MOST_PARTITIONS)
    found = {_named(partition): reason or (_LEFT_ALONE if partition in wide else "") for partition in mine}
    return {name: why for name, why in found.items() if why}


def _why_nothing_is_polled(service: SeedService, seeds: Seeds) -> str:
    if seeds.isolation.active:
        return "seeds that may have killed their process are done one by one"
    away = [delivery.sink.name for delivery in service.deliveries if not delivery.available]
    if away:
        return f"the sink {away[0]} is away"
    if not service.may_download():
        return "too many results wait for a sink (SITE_SINK_BACKLOG_BYTES), or the crawl stops"
    if seeds.room() <= 0:
        return (
            "as many seeds are in flight as may be (SITE_MAX_SEEDS_IN_FLIGHT), or memory is full "
            "(SITE_FRONTIER_MAX_REQUESTS, SITE_FRONTIER_MAX_BYTES)"
        )
    return ""


def _proxies(service: SeedService) -> dict[str, int] | None:
    proxies = service.crawler.get_extension(ProxyService)
    if proxies is None:
        return None
    now = asyncio.get_running_loop().time()
    return {"all": len(proxies.pool), "resting": proxies.pool.resting(now)}
