"""The one snapshot of a process, on which all that shows a crawl stands: a JSON document of bounded size.

`scrapy frontier`, the console, metrics and statistics take their numbers from here, so that no two of
them differ. It is made once an interval or on demand, in slices of time: what moves meanwhile may be
seen as it was or as it is. docs/observability.md says what each field means.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from heapq import heappush, heappushpop
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, Final

from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from site_spider import runtime
from site_spider.contracts.seed_log import Partition
from site_spider.download.bodies import Bodies
from site_spider.download.proxies import ProxyService
from site_spider.engine import flow as engine_hooks
from site_spider.engine.scrapy_parts import ROBOTS_COUNTED
from site_spider.frontier.priority_queue import HostView
from site_spider.frontier.retry_and_redirect import RETRIES_COUNTED
from site_spider.frontier.scheduler import Queues
from site_spider.intake.intake import Intake, Seeds
from site_spider.ledger.ledger import Ledger, Outcome
from site_spider.observe.counters import OUTCOMES, Counted, Pauses, iso
from site_spider.results.commits import Commits
from site_spider.results.failures import REASONS
from site_spider.results.pipeline import Sinks
from site_spider.tasks.board import BrokerClock

# --- identity: who a process is, for everybody who looks at several --------------------------------------

NAMES: Final = ("spider", "group", "topic", "process", "slot", "host_name", "pid", "started_at", "version")


class Identity:
    """Of one crawl. `member_name` is asked anew each time: the group is joined later."""

    def __init__(self, spider: str, group: str, topic: str, member_name: Callable[[], str]) -> None:
        self.spider = spider
        self.group = group
        self.topic = topic
        self.host_name = socket.gethostname()
        self.pid = os.getpid()
        self.started_at = runtime.time()
        self.process = f"{self.host_name}-{self.pid}-{int(self.started_at)}"  # no other has it, on any host at any time
        self.version = _version()
        self._member_name = member_name

    def document(self) -> dict[str, Any]:
        """`slot` is a name that the process which takes the place of this one has again; empty without one."""
        own = {**vars(self), "slot": self._member_name(), "started_at": iso(self.started_at)}
        return {name: own[name] for name in NAMES}


@cache
def _version() -> str:
    with suppress(PackageNotFoundError):  # in a checkout
        return version("site-spider")
    try:
        text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"


def seed_counts(ledger: Ledger) -> dict[str, int]:
    """Where every seed of this process is (rule 10)."""
    return {
        "consumed": ledger.consumed,
        "completed": sum(ledger.outcomes.values()),
        **{name: ledger.outcomes[Outcome(outcome)] for name, outcome in OUTCOMES.items()},
        "in_flight": ledger.in_flight,
        "handed_back": ledger.handed_back,
    }


def is_conserved(seeds: Mapping[str, int]) -> bool:
    """Whether every consumed seed is accounted for (rule 10)."""
    return seeds["consumed"] == sum(seeds.get(name, 0) for name in OUTCOMES) + seeds["in_flight"]


# --- scrapy stats: what Scrapy's statistics say of downloads, retries and links --------------------------
# Statistics may have any number of keys, since spiders and extensions add their own. So what is wanted is
# asked for by its key.

Stats = Mapping[str, Any]

COUNTED_OF_DOWNLOADS: Final = ("answers", "response_bytes", "request_bytes")

_STATUSES: Final = tuple((str(status), f"downloader/response_status_count/{status}") for status in range(100, 1000))
_LINKS: Final = (
    ("accepted", "links/accepted"),
    ("filtered", "dupefilter/filtered"),
    ("spilled", "spill/sent"),
    ("offsite", "offsite/filtered"),
    ("refused", "links/refused"),
    ("failed", "scheduler/failed"),
)


def downloads(stats: Stats) -> dict[str, Any]:
    """By kind: attempts, answers, bytes, and answers by status; those of pages without robots.txt."""
    both, robots = _answered(stats, ""), _answered(stats, ROBOTS_COUNTED)
    statuses = {name: count - robots["statuses"].get(name, 0) for name, count in both["statuses"].items()}
    return {
        "page": {
            **{name: both[name] - robots[name] for name in ("attempts", *COUNTED_OF_DOWNLOADS)},
            "statuses": {name: count for name, count in statuses.items() if count},
        },
        "robots": robots,
        "exceptions": number(stats, "downloader/exception_count"),
    }


def retries(stats: Stats) -> dict[str, Any]:
    """All, those of pages that were given up, and all by the reason of the failure before."""
    return {
        "count": number(stats, "retry/count"),
        "given_up": number(stats, "retry/max_reached"),
        "by_reason": {reason: number(stats, f"{RETRIES_COUNTED}{reason}") for reason in REASONS},
    }


def links(stats: Stats) -> dict[str, int]:
    """By fate. A link that was accepted waits here or is spilled."""
    return {fate: number(stats, key) for fate, key in _LINKS}


def number(stats: Stats, key: str) -> int:
    """A count; 0 where there is none, or where somebody has put something else."""
    value = stats.get(key, 0)
    return value if type(value) is int else 0


def _answered(stats: Stats, prefix: str) -> dict[str, Any]:
    """The prefix ROBOTS_COUNTED: of robots.txt alone."""
    keys = [(status, prefix + key) for status, key in _STATUSES]
    return {
        "attempts": number(stats, f"{prefix}downloader/request_count"),
        "answers": number(stats, f"{prefix}downloader/response_count"),
        "response_bytes": number(stats, f"{prefix}downloader/response_bytes"),
        "request_bytes": number(stats, f"{prefix}downloader/request_bytes"),
        "statuses": {status: number(stats, key) for status, key in keys if key in stats},
    }


# --- The memory of this process, as Linux says it --------------------------------------------------------

_STATM = Path("/proc/self/statm")
_MEGABYTE = 1024 * 1024  # as Scrapy counts MEMUSAGE_*_MB


def rss_bytes() -> int | None:
    """What is resident now; None where there is no /proc."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def memory(settings: BaseSettings) -> dict[str, Any]:
    """Now, at most since the start, and the limits of Scrapy's MEMUSAGE extension, in bytes."""
    return {
        "rss_bytes": rss_bytes(),
        "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "limit_bytes": settings.getint("MEMUSAGE_LIMIT_MB") * _MEGABYTE or None,
        "warning_bytes": settings.getint("MEMUSAGE_WARNING_MB") * _MEGABYTE or None,
    }


@dataclass(frozen=True, slots=True)
class Watched:
    """The parts of a crawl whose numbers are shown. Nothing of it is changed by who looks."""

    crawler: Crawler
    identity: Identity
    ledger: Ledger
    queues: Queues
    seeds: Seeds
    intake: Intake
    sinks: Sinks
    commits: Commits
    bodies: Bodies
    pauses: Pauses
    clock: BrokerClock
    counted: Counted


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
        "seeds_in_flight": {str(each): len(watched.ledger.of_partition(each).open) for each in _mine(watched)},
        "oldest_in_flight_seconds": {
            str(each): round(times.seconds_open(watched.ledger.of_partition(each).oldest), 3) for each in _mine(watched)
        },
        "unknown_fields": dict(watched.seeds.unknown_fields.counts),
    }


def _pages(watched: Watched) -> Snapshot:
    stats, counted = stats_of(watched), watched.counted
    return {
        "downloads": downloads(stats),
        **counted.pages.document(),
        "retries": retries(stats),
        "links": links(stats),
        "latency": counted.latency(),
        "tasks": counted.tasks.document(),
    }


# --- survey: counts of what waits in the frontier by reason, and the hosts with the longest queues -------

MOST_HOSTS = 1000  # that anybody may ask for
_LONGEST_NAME = 253  # characters


class Survey:
    """Gathers views of hosts one by one; memory is bounded by `most` hosts."""

    def __init__(self, most: int = 0) -> None:
        self._most = min(most, MOST_HOSTS)
        self._largest: list[tuple[int, int, HostView]] = []  # heap: waiting, number, view
        self._reasons: Counter[str] = Counter()
        self.hosts = 0  # of which something waits
        self.items = 0  # that wait for their host
        self.out = 0

    def add(self, views: Iterable[HostView]) -> None:
        for view in views:
            self.out += view.out
            if not view.waiting:
                continue
            self.hosts += 1
            self.items += view.waiting
            self._reasons[view.reason] += 1
            entry = (view.waiting, -self.hosts, view)
            if len(self._largest) < self._most:
                heappush(self._largest, entry)
            elif self._most:
                heappushpop(self._largest, entry)

    def counts(self) -> dict[str, int]:
        """Hosts of which something waits: all of them, and by the reason why nothing of them starts."""
        return {"waiting": self.hosts} | {reason: self._reasons[reason] for reason in sorted(self._reasons)}

    def largest(self, now: float) -> list[dict[str, Any]]:
        return [_described(view, now) for _, _, view in sorted(self._largest, reverse=True)]


def _described(view: HostView, now: float) -> dict[str, Any]:
    is_timed = view.reason not in ("ready", "busy")
    return {
        "host": view.host[:_LONGEST_NAME],
        "waiting": view.waiting,
        "out": view.out,
        "reason": view.reason,
        "next_in_seconds": round(max(0.0, view.next_at - now), 3) if is_timed else None,
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
        "sinks": list(_sinks(watched)),
        "proxies": _proxies(watched),
    }


def _paused(watched: Watched) -> dict[str, str]:
    everywhere, closed = watched.pauses.now(), watched.seeds.poll_room.closed
    found = {str(each): everywhere.said or closed.get(each, everywhere).said for each in _mine(watched)}
    if not found and everywhere.cause == "kafka":
        found = {watched.identity.topic: everywhere.said}  # its partitions are lost
    return {name: why for name, why in found.items() if why}


def _sinks(watched: Watched) -> Iterator[Snapshot]:
    """First the one that stores results with their offsets, if there is."""
    commits, deliveries = watched.commits, islice(watched.sinks, _MOST_SINKS)
    found = [(e.sink.name, e.available, e.backlog_count, e.backlog_bytes, e.last_accept_at) for e in deliveries]
    if commits.stores_records:
        found.insert(0, ("kafka", not commits.sink_away, *commits.backlog, commits.last_at))
    for name, available, backlog, backlog_bytes, accepted_at in found:
        yield {
            "name": name,
            "available": available,
            "backlog": backlog,
            "backlog_bytes": backlog_bytes,
            "backlog_limit_bytes": watched.sinks.backlog_limit_bytes,
            "last_accept_at": None if accepted_at is None else iso(accepted_at),
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
        "loop_lag_max_seconds": round(watched.counted.loop_lag.max_seconds(), 6),
        "clock_ahead_seconds": round(watched.clock.ahead_seconds, 3),
        "memory": memory(watched.crawler.settings),
    }


def _mine(watched: Watched) -> list[Partition]:
    return list(islice(watched.ledger.partitions(), _MOST_PARTITIONS))
