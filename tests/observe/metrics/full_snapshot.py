"""A snapshot in which everything that is bounded is at its bound."""

from __future__ import annotations

from typing import Any

from site_spider.bounded import Histogram
from site_spider.observe.counters import BYTES, CAUSES, LAG_SECONDS, MOST_LOGGERS
from site_spider.observe.metrics.catalogue import METRICS
from site_spider.observe.metrics.readings import histogram_document, restarts_by_code
from site_spider.results.failures import REASONS

SINKS = ("local", "elasticsearch", "hbase", "kafka", "one.too.many")
LONG = {f"name-{number}": number for number in range(200)}


def full_snapshot(slot: str = "1", group: str = "g") -> dict[str, Any]:
    seconds = histogram_document(_filled(Histogram()))
    return {
        "group": group,
        "spider": "news",
        "items": 12,
        "tasks": {
            "largest": [
                {"task_id": f"task-{n}", "pages": 9, "outcomes": {"result": 7}, "reasons": {"dns": 2}}
                for n in range(200)
            ],
            "others": {"tasks": 3},
        },
        "at": "2026-11-22T09:00:00.000+00:00",
        "started_at": "2026-11-22T08:00:00.000+00:00",
        "seconds_since_completion": 2.5,
        "seeds": {
            "consumed": 100, "completed_with_result": 40, "completed_with_failure": 30, "filtered": 10,
            "dead_lettered": 5, "spilled": 5, "cancelled": 0, "in_flight": 10, "handed_back": 3,
            "deleted_unread": 2,
        },
        "oldest_in_flight_seconds": {f"seeds/{number}": number for number in range(500)},
        "downloads": {
            "page": {
                "attempts": 9, "answers": 8, "response_bytes": 7, "request_bytes": 6,
                "statuses": {str(status): 1 for status in range(100, 1000)},
            },
            "robots": {
                "attempts": 5, "answers": 4, "response_bytes": 3, "request_bytes": 2,
                "statuses": {str(status): 1 for status in range(100, 1000)},
            },
        },
        "reasons": dict.fromkeys(REASONS, 1),
        "retries": {"by_reason": dict.fromkeys(REASONS, 1)},
        "links": dict.fromkeys(("accepted", "filtered", "spilled", "offsite", "failed"), 1),
        "queues": dict.fromkeys(("redirects", "links", "seeds", "retries", "proxy", "spilling", "bytes"), 1),
        "hosts": {"waiting": 9, **{f"reason {number}": 1 for number in range(8)}},
        "requests_out": 5,
        "pause": {"cause": "sink", "said": "the sink is away"},
        "paused_seconds": dict.fromkeys(CAUSES, 1.5),
        "log_is_away": False,
        "sinks": [
            {
                "name": name, "available": True, "backlog": 1, "backlog_bytes": 2, "backlog_limit_bytes": 3,
                "last_accept_at": "2026-11-22T08:59:00.000+00:00",
            }
            for name in SINKS
        ],
        "proxies": {"all": 3, "resting": 1},
        "frontier": {"requests": 1, "max_requests": 2, "bytes": 3, "max_bytes": 4},
        "memory": {"rss_bytes": 1, "max_rss_bytes": 2, "limit_bytes": None},
        "measurements": {
            "slot": slot,
            "processes": 4,
            "versions": {"version": "0.1.0", "scrapy": "2.19.0", "python": "3.11.2"},
            "histograms": {
                "seed_duration_seconds": seconds,
                "download_duration_seconds": {"page": seconds},
                "schedule_delay_seconds": seconds,
                "dns_duration_seconds": seconds,
                "response_size_bytes": histogram_document(_filled(Histogram(BYTES))),
                "event_loop_lag_seconds": histogram_document(_filled(Histogram(LAG_SECONDS))),
                "sink_batch_duration_seconds": dict.fromkeys(SINKS, seconds),
            },
            "sinks": {
                name: {"batches": 4, "acknowledged": 3, "retried": 2, "rejected": 1} for name in SINKS
            },
            "commits": {"succeeded": 1, "failed": 0},
            "last_commit_at": 1e9,
            "rebalances": {"assigned": 1, "revoked": 0, "lost": 0},
            "partitions": 500,
            "suspected_seeds": 0,
            "seen_pages": 3,
            "service": "seeds",
            "seen_bytes": 1,
            "concurrency_limit": 64,
            "soft_limit_bytes": 0,
            "log_messages": [
                {"level": level, "logger": f"logger {number}", "count": 1}
                for level in ("warning", "error")
                for number in range(MOST_LOGGERS + 1)
            ],
            "restarts": restarts_by_code("137:2,42:1"),
            "process": {"cpu_seconds": 1.0, "open_fds": 2, "max_fds": 3},
            "proxy_requests": {"answered": 1, "failed": 0, "silent": 0},
            "dns_lookups": {"cached": 1, "resolved": 1, "failed": 0, "refused": 0},
            "backoffs": {"429": 1, "503": 0},
            "redirects": {"followed": 1, "too_many": 0, "invalid": 0},
            "robots_fetches": {"answered": 1, "unanswered": 0},
            "loop_silent_seconds": 0.0,
            "group": {
                "lag_seeds": {"seeds": 5},
                "lag_age_seconds": {"seeds": 1.5},
                "dead_letters": {"seeds.dead-letters": 1},
                "retention_seconds": {"seeds": 604800.0},
                "members": 4,
                "partitions_unowned": {"seeds": 0},
            },
        },
    }  # fmt: skip


def _filled(histogram: Histogram) -> Histogram:
    for bound in (*histogram.bounds, 2 * histogram.bounds[-1]):
        histogram.observe(bound)
    return histogram


def exported_names() -> set[str]:
    """The names of all samples."""
    return {name for metric in METRICS for name in metric.samples}
