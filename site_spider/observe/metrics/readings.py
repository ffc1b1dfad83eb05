"""The value of each metric, out of a snapshot with its measurements (see `measurements`).

A reading gives label values with a number. What a document does not have is not exported.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, Final

from scrapy import __version__ as scrapy_version

from site_spider import options, runtime
from site_spider.download.names import LOOKUPS
from site_spider.download.proxies.service import ProxyService
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.engine.scrapy_parts import ROBOTS_COUNTED
from site_spider.frontier.retry import BACKOFFS_COUNTED, REDIRECTS_COUNTED
from site_spider.histogram import Histogram
from site_spider.intake.suspects import Quarantine
from site_spider.ledger.ledger import Entry
from site_spider.observe.counters import LogTally
from site_spider.observe.snapshot import Snapshot, Watched, number, snapshot, stats_of
from site_spider.results.commits import Commits
from site_spider.seed.tiers import MOST_TIERS

# --- numbers ---------------------------------------------------------------------------------------------
# Numbers out of documents that others wrote: what is missing or of another type is left out.


_MOST_NAMES = 1000  # of one mapping
_LONGEST = 100  # characters of a label's value


def at(document: object, *path: str) -> Any:
    """What lies there; None where there is nothing."""
    for key in path:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def number_at(document: object, *path: str) -> float | None:
    """A number; booleans are 1 and 0."""
    value = at(document, *path)
    return value if isinstance(value, int | float) and isfinite(value) else None


def numbers(document: object, *path: str) -> Iterator[tuple[str, float]]:
    """Of a mapping, names with their numbers."""
    found = at(document, *path)
    if isinstance(found, Mapping):
        for name, value in islice(found.items(), _MOST_NAMES):
            if isinstance(value, int | float) and isfinite(value):
                yield label(name), value


def mappings(document: object, *path: str) -> Iterator[Mapping[str, Any]]:
    """Of a list, those that are mappings."""
    found = at(document, *path)
    if isinstance(found, list):
        yield from (one for one in islice(found, _MOST_NAMES) if isinstance(one, Mapping))


def moment(document: object, *path: str) -> float | None:
    """A moment in ISO 8601 as Unix time."""
    value = at(document, *path)
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def label(value: object) -> str:
    """A text fit to be a label."""
    return str(value).encode("utf-8", "replace").decode()[:_LONGEST]


Document = Mapping[str, Any]
Reading = Iterator[tuple[tuple[str, ...], float]]
Read = Callable[[Document], Reading]

OWN: Final = "measurements"  # of a document: what only metrics need
MOST_SINKS: Final = 4
_MOST_OLDEST: Final = 10
_MOST_STATUSES: Final = 24
_MOST_TOPICS: Final = MOST_TIERS
_ALWAYS: Final = ("200", "403", "404", "429", "500", "503")  # so that an increase from 0 is seen
_MOST_TASKS: Final = 50
NO_TASK: Final = "(no task)"
_OTHER: Final = "other"
_KINDS: Final = ("page", "robots")
_OUTCOMES: Final = {
    "result": "completed_with_result",
    "failure": "completed_with_failure",
    "filtered": "filtered",
    "dead_letter": "dead_lettered",
    "spilled": "spilled",
    "cancelled": "cancelled",
}


def one(*path: str) -> Read:
    """A number without labels."""

    def read(document: Document) -> Reading:
        if (value := number_at(document, *path)) is not None:
            yield (), value

    return read


def own(*path: str) -> Read:
    """A number of the measurements."""
    return one(OWN, *path)


def by_name(*path: str, most: int = 20) -> Read:
    """Numbers by one label; those beyond `most` are left out."""

    def read(document: Document) -> Reading:
        for count, (name, value) in enumerate(numbers(document, *path)):
            if count < most:
                yield (name,), value

    return read


def _completed(document: Document) -> Reading:
    for outcome, key in _OUTCOMES.items():
        if (value := number_at(document, "seeds", key)) is not None:
            yield (outcome,), value


def _oldest(document: Document) -> Reading:
    found = nlargest(_MOST_OLDEST, numbers(document, "oldest_in_flight_seconds"), key=lambda each: each[1])
    for name, seconds in found:
        topic, _, partition = name.rpartition("/")
        yield (topic, partition), seconds


def _of_kinds(key: str) -> Read:
    def read(document: Document) -> Reading:
        for kind in _KINDS:
            if (value := number_at(document, "downloads", kind, key)) is not None:
                yield (kind,), value

    return read


def _statuses(document: Document) -> Reading:
    pages = dict.fromkeys(_ALWAYS, 0.0)
    for status, count in numbers(document, "downloads", "page", "statuses"):
        name = status if status in pages or len(pages) < _MOST_STATUSES else _class(status)
        pages[name] = pages.get(name, 0) + count
    yield from ((("page", status), count) for status, count in pages.items())
    robots: dict[str, float] = {}
    for status, count in numbers(document, "downloads", "robots", "statuses"):
        robots[_class(status)] = robots.get(_class(status), 0) + count
    yield from ((("robots", status), count) for status, count in robots.items())


def _class(status: str) -> str:
    return f"{status[0]}xx" if status[:1] in "12345" and len(status) == 3 else _OTHER


def _hosts(document: Document) -> Reading:
    """By reason; the sum of all is not one of them."""
    for reason, count in numbers(document, "hosts"):
        if reason != "waiting":
            yield (reason,), count


def _queues(document: Document) -> Reading:
    for queue, length in numbers(document, "queues"):
        if queue != "bytes":
            yield (queue,), length


def _paused_now(document: Document) -> Reading:
    now = at(document, "pause", "cause")
    for cause, _ in numbers(document, "paused_seconds"):
        yield (cause,), float(cause == now)


def _proxies(document: Document) -> Reading:
    every, resting = number_at(document, "proxies", "all"), number_at(document, "proxies", "resting")
    if every is not None and resting is not None:
        yield ("ready",), every - resting
        yield ("resting",), resting


def _sinks(document: Document) -> Iterator[tuple[str, Document]]:
    for count, sink in enumerate(mappings(document, "sinks")):
        if count < MOST_SINKS:
            yield label(sink.get("name", "")), sink


def _of_sinks(key: str) -> Read:
    def read(document: Document) -> Reading:
        for name, sink in _sinks(document):
            if (value := number_at(sink, key)) is not None:
                yield (name,), float(value)

    return read


def _last_accepts(document: Document) -> Reading:
    for name, sink in _sinks(document):
        if (value := moment(sink, "last_accept_at")) is not None:
            yield (name,), value


def _sink_records(document: Document) -> Reading:
    for name, _ in _sinks(document):
        for outcome in ("acknowledged", "retried", "rejected"):
            if (value := number_at(document, OWN, "sinks", name, outcome)) is not None:
                yield (name, outcome), value


def _sink_batches(document: Document) -> Reading:
    for name, _ in _sinks(document):
        if (value := number_at(document, OWN, "sinks", name, "batches")) is not None:
            yield (name,), value


def _log_is_there(document: Document) -> Reading:
    away = at(document, "log_is_away")
    if isinstance(away, bool):
        yield (), float(not away)


def _build(document: Document) -> Reading:
    versions = at(document, OWN, "versions")
    if isinstance(versions, Mapping):
        found = [versions.get(name, "") for name in ("version", "scrapy", "python")]
        whose = at(document, "spider") or "", at(document, OWN, "service") or ""
        yield tuple(map(label, (*found, *whose))), 1.0


def _items(document: Document) -> Reading:
    if (value := number_at(document, "items")) is not None:
        yield (label(at(document, "spider") or ""),), value


def _of_tasks(count: Callable[[Document], float]) -> Read:
    """Of the largest; ids that are the same as labels are summed up."""

    def read(document: Document) -> Reading:
        found: dict[str, float] = {}
        for task in islice(mappings(document, "tasks", "largest"), _MOST_TASKS):
            name = label(task.get("task_id") or NO_TASK)
            found[name] = found.get(name, 0.0) + count(task)
        yield from (((name,), value) for name, value in found.items())

    return read


def _log_messages(document: Document) -> Reading:
    for count, said in enumerate(mappings(document, OWN, "log_messages")):
        if count < 22 and (value := number_at(said, "count")) is not None:
            yield (label(said.get("level", "")), label(said.get("logger", ""))), value


def _started(document: Document) -> Reading:
    if (value := moment(document, "started_at")) is not None:
        yield (), value


def _last_completion(document: Document) -> Reading:
    now, since = moment(document, "at"), number_at(document, "seconds_since_completion")
    if now is not None and since is not None:
        yield (), now - since


def _memory_limit(document: Document) -> Reading:
    yield (), number_at(document, "memory", "limit_bytes") or 0.0


READINGS: Final[Mapping[str, Read]] = {
    "seeds_consumed": one("seeds", "consumed"),
    "seeds_completed": _completed,
    "seeds_handed_back": one("seeds", "handed_back"),
    "seeds_deleted_unread": one("seeds", "deleted_unread"),
    "seeds_in_flight": one("seeds", "in_flight"),
    "suspected_seeds": own("suspected_seeds"),
    "oldest_in_flight_seconds": _oldest,
    "partitions_assigned": own("partitions"),
    "last_completion_timestamp_seconds": _last_completion,
    "download_attempts": _of_kinds("attempts"),
    "downloads": _statuses,
    "received_bytes": _of_kinds("response_bytes"),
    "sent_bytes": _of_kinds("request_bytes"),
    "failures": by_name("reasons"),
    "retries": by_name("retries", "by_reason"),
    "links": by_name("links"),
    "redirects": by_name(OWN, "redirects"),
    "robots_fetches": by_name(OWN, "robots_fetches"),
    "backoffs": by_name(OWN, "backoffs"),
    "proxy_requests": by_name(OWN, "proxy_requests"),
    "dns_lookups": by_name(OWN, "dns_lookups"),
    "requests_out": one("requests_out"),
    "concurrency_limit": own("concurrency_limit"),
    "proxies": _proxies,
    "items": _items,
    "task_pages": _of_tasks(lambda task: number_at(task, "pages") or 0.0),
    "task_seeds_completed": _of_tasks(lambda task: sum(value for _, value in numbers(task, "outcomes"))),
    "task_failures": _of_tasks(lambda task: sum(value for _, value in numbers(task, "reasons"))),
    "requests_waiting": _queues,
    "hosts": _hosts,
    "frontier_bytes": one("frontier", "bytes"),
    "frontier_limit_bytes": one("frontier", "max_bytes"),
    "seen_pages": own("seen_pages"),
    "seen_bytes": own("seen_bytes"),
    "paused_seconds": by_name("paused_seconds"),
    "intake_paused": _paused_now,
    "sink_records": _sink_records,
    "sink_batches": _sink_batches,
    "sink_up": _of_sinks("available"),
    "sink_backlog_records": _of_sinks("backlog"),
    "sink_backlog_bytes": _of_sinks("backlog_bytes"),
    "sink_backlog_limit_bytes": _of_sinks("backlog_limit_bytes"),
    "sink_last_accept_timestamp_seconds": _last_accepts,
    "kafka_commits": by_name(OWN, "commits"),
    "kafka_rebalances": by_name(OWN, "rebalances"),
    "kafka_up": _log_is_there,
    "last_commit_timestamp_seconds": own("last_commit_at"),
    "build_info": _build,
    "log_messages": _log_messages,
    "process_restarts": by_name(OWN, "restarts"),
    "process_cpu_seconds": own("process", "cpu_seconds"),
    "process_start_time_seconds": _started,
    "process_resident_memory_bytes": one("memory", "rss_bytes"),
    "process_open_fds": own("process", "open_fds"),
    "process_max_fds": own("process", "max_fds"),
    "memory_soft_limit_bytes": own("soft_limit_bytes"),
    "memory_limit_bytes": _memory_limit,
    "event_loop_silent_seconds": own("loop_silent_seconds"),
    "group_lag_seeds": by_name(OWN, "group", "lag_seeds", most=_MOST_TOPICS),
    "group_lag_age_seconds": by_name(OWN, "group", "lag_age_seconds", most=_MOST_TOPICS),
    "group_members": own("group", "members"),
    "group_partitions_unowned": by_name(OWN, "group", "partitions_unowned", most=_MOST_TOPICS),
    "topic_retention_seconds": by_name(OWN, "group", "retention_seconds", most=_MOST_TOPICS),
    "dead_letters": by_name(OWN, "group", "dead_letters", most=_MOST_TOPICS),
}


def groups(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Documents by consumer group."""
    found: dict[str, list[Document]] = {}
    for document in documents:
        found.setdefault(label(document.get("group", "")), []).append(document)
    return found


# --- pulse -----------------------------------------------------------------------------------------------
# Whether the event loop turns, as other threads see it.


_BEAT_SECONDS = 0.25


class Pulse:
    """Beats on the running event loop. By its own clock: that of uvloop stands still while the loop does."""

    def __init__(self) -> None:
        self._beat_at = runtime.monotonic()
        self._timer: asyncio.Handle | None = None

    def start(self) -> None:
        """Beat from now on."""
        self._beat_at = runtime.monotonic()
        self._timer = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self.start)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()

    def silent_seconds(self) -> float:
        """Since the last beat was due. Any thread may ask."""
        return max(0.0, runtime.monotonic() - self._beat_at - _BEAT_SECONDS)


# --- measurements ----------------------------------------------------------------------------------------
# What only metrics need of a process, beside its snapshot: histograms, counts by outcome, resources.


_BACKOFFS: Final = ("429", "503")
_REDIRECTS: Final = ("followed", "too_many", "invalid")
_EXIT_CODES: Final = ("0", "1", "69", "70", "71", "75", "137", "other")
_DESCRIPTORS: Final = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True)
class Launch:
    """What crawl_spider.sh says of this process: its number, of how many, and how it has ended before."""

    slot: str = "1"
    processes: int = 1
    service: str = ""  # OTEL_SERVICE_NAME
    restarts: str = ""  # such as `137:2,70:1`: exit codes with how often

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Launch:
        """From the environment."""
        processes = environ.get("CRAWL_SPIDER_PROCESSES", "")
        return cls(
            environ.get("CRAWL_SPIDER_SLOT", "1"),
            int(processes) if processes.isdecimal() else 1,
            restarts=environ.get("CRAWL_SPIDER_RESTARTS", ""),
            service=environ.get("OTEL_SERVICE_NAME", ""),
        )

    def restarts_by_code(self) -> dict[str, int]:
        """Each of a short list of exit codes, so that the first restart is an increase."""
        found = dict.fromkeys(_EXIT_CODES, 0)
        for pair in self.restarts.split(","):
            code, _, count = pair.partition(":")
            if code.isdecimal() and count.isdecimal():
                found[code if code in found else "other"] += int(count)
        return found


class Measurements:
    """Of one process. On the event loop's thread."""

    def __init__(
        self, watched: Watched, commits: Commits, quarantine: Quarantine, dupefilter: object
    ) -> None:
        self.log = LogTally()
        self._watched = watched
        self._commits = commits
        self._quarantine = quarantine
        self._dupefilter = dupefilter
        self._launch = Launch.read()

    async def measured(self, hosts: int = 0) -> Snapshot:
        """A snapshot, with all that metrics are made of."""
        return {**await snapshot(self._watched, hosts), OWN: self._document()}

    def _document(self) -> dict[str, Any]:
        watched = self._watched
        return {
            "slot": self._launch.slot,
            "processes": self._launch.processes,
            "versions": {
                "version": watched.identity.version,
                "scrapy": scrapy_version,
                "python": platform.python_version(),
            },
            "histograms": self._histograms(),
            "sinks": {
                each.sink.name: {"batches": each.tally.batches, **each.tally.answers}
                for each in watched.sinks
            },
            "commits": dict(self._commits.tally.outcomes),
            "last_commit_at": self._commits.tally.last_at,
            "rebalances": dict(watched.intake.rebalances),
            "partitions": len(watched.ledger.partitions()),
            "suspected_seeds": self._quarantine.suspects,
            "seen_bytes": self._seen_bytes(),
            "seen_pages": self._seen_pages(),
            "service": self._launch.service or watched.identity.topic,
            "concurrency_limit": watched.crawler.settings.getint("CONCURRENT_REQUESTS"),
            "soft_limit_bytes": options.integer(watched.crawler.settings, "SITE_MEMORY_SOFT_BYTES"),
            "log_messages": self.log.document(),
            "restarts": self._launch.restarts_by_code(),
            "process": _process(),
            "proxy_requests": self._proxy_requests(),
            "dns_lookups": dict(LOOKUPS.outcomes),
            **self._counted_by_scrapy(),
        }

    def _seen_bytes(self) -> int:
        return self._dupefilter.seen.size_bytes if isinstance(self._dupefilter, SeenDupeFilter) else 0

    def _seen_pages(self) -> int | None:
        return self._dupefilter.seen.known if isinstance(self._dupefilter, SeenDupeFilter) else None

    def _histograms(self) -> dict[str, Any]:
        counted = self._watched.counted.histograms
        return {
            "seed_duration_seconds": histogram_document(counted.seed_seconds),
            "download_duration_seconds": {"page": histogram_document(counted.download_seconds)},
            "schedule_delay_seconds": histogram_document(counted.kept_waiting_seconds),
            "response_size_bytes": histogram_document(counted.response_bytes),
            "event_loop_lag_seconds": histogram_document(counted.loop_lag_seconds),
            "dns_duration_seconds": histogram_document(LOOKUPS.seconds),
            "sink_batch_duration_seconds": {
                each.sink.name: histogram_document(each.tally.seconds) for each in self._watched.sinks
            },
        }

    def _counted_by_scrapy(self) -> dict[str, Any]:
        stats = stats_of(self._watched)
        asked = number(stats, "robotstxt/request_count")
        answered = number(stats, f"{ROBOTS_COUNTED}downloader/response_count")
        return {
            "backoffs": {cause: number(stats, BACKOFFS_COUNTED + cause) for cause in _BACKOFFS},
            "redirects": {fate: number(stats, REDIRECTS_COUNTED + fate) for fate in _REDIRECTS},
            "robots_fetches": {"answered": answered, "unanswered": max(0, asked - answered)},
        }

    def _proxy_requests(self) -> dict[str, int]:
        proxies = self._watched.crawler.get_extension(ProxyService)
        return {} if proxies is None else dict(proxies.outcomes)


def histogram_document(measured: Histogram) -> dict[str, Any]:
    """As JSON, with every bucket. An exemplar is the seed in whose work the value was measured."""
    return {
        "bounds": list(measured.bounds),
        "counts": list(measured.counts),
        "sum": measured.sum,
        "exemplars": [None if each is None else [_seed(each[0]), each[1]] for each in measured.exemplars],
    }


def _seed(of_whom: object) -> str:
    return of_whom.position if isinstance(of_whom, Entry) else ""


def _process() -> dict[str, Any]:
    used, limits = resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_NOFILE)
    found: dict[str, Any] = {"cpu_seconds": used.ru_utime + used.ru_stime, "max_fds": limits[0]}
    with suppress(OSError):  # not Linux
        found["open_fds"] = sum(1 for _ in _DESCRIPTORS.iterdir())
    return found
