"""What Scrapy's statistics say of downloads, retries and links.

Statistics may have any number of keys, since spiders and extensions add their own. So what is wanted is asked
for by its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from site_spider.engine.scrapy_parts import ROBOTS_COUNTED
from site_spider.frontier.retry import RETRIES_COUNTED
from site_spider.observe.document import Totals
from site_spider.results.failures import REASONS

Stats = Mapping[str, Any]

_STATUSES: Final = tuple(
    (str(status), f"downloader/response_status_count/{status}") for status in range(100, 1000)
)
_LINKS: Final = (
    ("accepted", "links/accepted"),
    ("filtered", "dupefilter/filtered"),
    ("spilled", "spill/sent"),
    ("offsite", "offsite/filtered"),
    ("failed", "scheduler/failed"),
)


def totals(stats: Stats, prefix: str = "") -> Totals:
    """Answered downloads and their bytes; the prefix ROBOTS_COUNTED: of robots.txt alone."""
    names = ("response_count", "response_bytes", "request_bytes")
    return Totals(*(number(stats, f"{prefix}downloader/{name}") for name in names))


def pages(stats: Stats) -> Totals:
    """Those of pages, without robots.txt."""
    return totals(stats).minus(totals(stats, ROBOTS_COUNTED))


def statuses(stats: Stats) -> dict[str, int]:
    """Answers to pages by status."""
    return _difference(_statuses(stats, ""), _statuses(stats, ROBOTS_COUNTED))


def downloads(stats: Stats) -> dict[str, Any]:
    """By kind: attempts, answers, bytes, and answers by status."""
    of_robots = number(stats, "robotstxt/request_count")
    found = {
        "page": _kind(number(stats, "downloader/request_count") - of_robots, pages(stats), statuses(stats)),
        "robots": _kind(of_robots, totals(stats, ROBOTS_COUNTED), _statuses(stats, ROBOTS_COUNTED)),
    }
    return {**found, "exceptions": number(stats, "downloader/exception_count")}


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


def _kind(attempts: int, sums: Totals, by_status: dict[str, int]) -> dict[str, Any]:
    return {
        "attempts": max(0, attempts),
        "answers": sums.num,
        "response_bytes": sums.response_size,
        "request_bytes": sums.request_size,
        "statuses": by_status,
    }


def _statuses(stats: Stats, prefix: str) -> dict[str, int]:
    keys = _STATUSES if not prefix else [(status, prefix + key) for status, key in _STATUSES]
    return {status: number(stats, key) for status, key in keys if key in stats}


def _difference(counts: Mapping[str, int], less: Mapping[str, int]) -> dict[str, int]:
    left = {name: count - less.get(name, 0) for name, count in counts.items()}
    return {name: count for name, count in left.items() if count}
