"""Snapshots of processes as they come from a topic, for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

NOW = 1_800_000_000.0


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def snapshot(number: int = 1, at: float = NOW, **fields: Any) -> dict[str, Any]:
    """Of a process that has consumed 100 seeds; `fields` replace what is there."""
    return {
        "at": iso(at),
        "spider": "crawl_spider",
        "group": "site_spider",
        "topic": "seeds",
        "process": f"machine-{number}-1799999000",
        "slot": f"machine-{number}",
        "host_name": "machine",
        "pid": number,
        "started_at": iso(NOW - 100),
        "seeds": seeds(100, 60, 10),
        "downloads": {"page": {"answers": 80, "response_bytes": 800_000}},
        "reasons": {"dns": 10},
        "newest_failures": [],
        "tasks": {"largest": [], "others": {"tasks": 0}},
        "queues": {"seeds": 20, "links": 5},
        "waiting": 25,
        "hosts": {"waiting": 3, "busy": 2, "ready": 1},
        "largest_hosts": [host(f"h{n}.test", 8) for n in range(3)],
        "requests_out": 8,
        "pause": {"cause": "", "said": ""},
        "paused_seconds": {"sink": 0.0},
        "log_is_away": False,
        "sinks": [sink("elasticsearch")],
        "seeds_in_flight": {f"seeds/{number}": 30},
        "memory": {"rss_bytes": 100_000_000},
        "loop_lag_max_seconds": 0.01,
        "clock_ahead_seconds": -0.2,
    } | fields


def seeds(consumed: int, results: int, failures: int, **more: int) -> dict[str, int]:
    """Conserved: what has not ended is in flight."""
    ended = results + failures + sum(more.values())
    return {
        "consumed": consumed,
        "completed": ended,
        "completed_with_result": results,
        "completed_with_failure": failures,
        **more,
        "in_flight": consumed - ended,
        "handed_back": 0,
    }


def host(name: str, waiting: int, reason: str = "busy") -> dict[str, Any]:
    return {"host": name, "waiting": waiting, "out": 8, "reason": reason, "next_in_seconds": None}


def sink(name: str, available: bool = True, backlog: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "available": available,
        "backlog": backlog,
        "backlog_bytes": backlog * 1000,
        "backlog_limit_bytes": 64_000_000,
        "last_accept_at": iso(NOW - 5),
    }


def task(name: str | None, results: int, failures: int, **reasons: int) -> dict[str, Any]:
    return {
        "task_id": name,
        "pages": results + failures,
        "bytes": 1000 * results,
        "outcomes": {"result": results, "failure": failures},
        "reasons": reasons,
    }
