"""What metrics are made of beside a snapshot: histograms, counts by outcome, resources, the loop's pulse."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from scrapy import __version__ as scrapy_version

from site_spider import options
from site_spider.bounded import Histogram
from site_spider.download.names import LOOKUPS
from site_spider.download.proxies import ProxyService
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.engine.scrapy_parts import ROBOTS_COUNTED
from site_spider.frontier.retry_and_redirect import BACKOFFS_COUNTED, REDIRECTS_COUNTED
from site_spider.intake.suspects import Quarantine
from site_spider.observe.counters import LogTally
from site_spider.observe.metrics.catalogue import OWN
from site_spider.observe.snapshot import Snapshot, Watched, number, snapshot, stats_of
from site_spider.results.commits import Commits

# --- What only metrics need of a process, beside its snapshot: histograms, counts by outcome, resources --

_BACKOFFS: Final = ("429", "503")
_REDIRECTS: Final = ("followed", "too_many", "invalid")
_ROBOTS_FETCHES: Final = (("answered", "response_count"), ("unanswered", "unanswered"))
_EXIT_CODES: Final = ("0", "1", "69", "70", "71", "75", "137", "other")
_DESCRIPTORS: Final = Path("/proc/self/fd")


def restarts_by_code(said: str) -> dict[str, int]:
    """Of `137:2,70:1`, each of a short list of exit codes, so that the first restart is an increase."""
    found = dict.fromkeys(_EXIT_CODES, 0)
    for pair in said.split(","):
        code, _, count = pair.partition(":")
        if code.isdecimal() and count.isdecimal():
            found[code if code in found else "other"] += int(count)
    return found


def expected_processes(said: Mapping[str, str]) -> int:
    """Of crawl_spider.sh, now; one that does not say it has as many as at the start."""
    with suppress(OSError, ValueError, KeyError):
        return int(os.pread(int(said["CRAWL_SPIDER_EXPECTED"]), 8, 0))
    given = said.get("CRAWL_SPIDER_PROCESSES", "")
    return int(given) if given.isdecimal() else 1


class Measurements:
    """Of one process, with what crawl_spider.sh says of it. On the event loop's thread."""

    def __init__(self, watched: Watched, commits: Commits, quarantine: Quarantine, dupefilter: object) -> None:
        self.log = LogTally()
        self._watched = watched
        self._commits = commits
        self._quarantine = quarantine
        self._dupefilter = dupefilter

    async def measured(self, hosts: int = 0) -> Snapshot:
        return {**await snapshot(self._watched, hosts), OWN: self._document()}

    def _document(self) -> dict[str, Any]:
        watched, said = self._watched, os.environ
        proxies = watched.crawler.get_extension(ProxyService)
        seen = self._dupefilter.seen if isinstance(self._dupefilter, SeenDupeFilter) else None
        return {
            "slot": said.get("CRAWL_SPIDER_SLOT", "1"),
            "processes": expected_processes(said),
            "versions": {
                "version": watched.identity.version,
                "scrapy": scrapy_version,
                "python": platform.python_version(),
            },
            "histograms": self._histograms(),
            "sinks": {
                each.sink.name: {"batches": sum(each.write_seconds.counts), **each.answers} for each in watched.sinks
            },
            "commits": dict(self._commits.outcomes),
            "last_commit_at": self._commits.last_at,
            "rebalances": dict(watched.intake.rebalances),
            "partitions": len(watched.ledger.partitions()),
            "suspected_seeds": self._quarantine.suspects,
            "seen_bytes": 0 if seen is None else seen.size_bytes,
            "seen_pages": None if seen is None else seen.known,
            "service": said.get("OTEL_SERVICE_NAME") or watched.identity.topic,
            "concurrency_limit": watched.crawler.settings.getint("CONCURRENT_REQUESTS"),
            "soft_limit_bytes": options.integer(watched.crawler.settings, "SITE_MEMORY_SOFT_BYTES"),
            "log_messages": self.log.document(),
            "restarts": restarts_by_code(said.get("CRAWL_SPIDER_RESTARTS", "")),
            "process": _process(),
            "proxy_requests": {} if proxies is None else dict(proxies.outcomes),
            "dns_lookups": dict(LOOKUPS.outcomes),
            **self._counted_by_scrapy(),
        }

    def _histograms(self) -> dict[str, Any]:
        counted = self._watched.counted
        return {
            "seed_duration_seconds": histogram_document(counted.seed_seconds),
            "download_duration_seconds": {"page": histogram_document(counted.download_seconds)},
            "schedule_delay_seconds": histogram_document(counted.kept_waiting_seconds),
            "response_size_bytes": histogram_document(counted.response_bytes),
            "event_loop_lag_seconds": histogram_document(counted.loop_lag_seconds),
            "dns_duration_seconds": histogram_document(LOOKUPS.seconds),
            "sink_batch_duration_seconds": {
                each.sink.name: histogram_document(each.write_seconds) for each in self._watched.sinks
            },
        }

    def _counted_by_scrapy(self) -> dict[str, Any]:
        stats = stats_of(self._watched)
        return {
            "backoffs": {cause: number(stats, BACKOFFS_COUNTED + cause) for cause in _BACKOFFS},
            "redirects": {fate: number(stats, REDIRECTS_COUNTED + fate) for fate in _REDIRECTS},
            "robots_fetches": {fate: number(stats, ROBOTS_COUNTED + key) for fate, key in _ROBOTS_FETCHES},
        }


def histogram_document(measured: Histogram) -> dict[str, Any]:
    """As JSON, with every bucket. An exemplar is the seed in whose work the value was measured."""
    return {
        "bounds": list(measured.bounds),
        "counts": list(measured.counts),
        "sum": measured.sum,
        "exemplars": [each and ["{}@{}".format(*each[0]), each[1]] for each in measured.exemplars],
    }


def _process() -> dict[str, Any]:
    used, limits = resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_NOFILE)
    found: dict[str, Any] = {"cpu_seconds": used.ru_utime + used.ru_stime, "max_fds": limits[0]}
    with suppress(OSError):  # not Linux
        found["open_fds"] = sum(1 for _ in _DESCRIPTORS.iterdir())
    return found
