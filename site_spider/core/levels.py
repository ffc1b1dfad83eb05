"""Which level a request waits on (design, section 2).

A level is the negative of Scrapy's priority: the lowest level is served first. Level 0 is
the seeds' alone: a new request of priority 0 moves to priority 1, ahead of the seeds, so
that begun work is finished first; a retry that comes out at 0 (a discovered link, lowered
once) moves to -1, behind the seeds, as retries do. Far behind the retries is the level of
requests that need a proxy.
"""

from __future__ import annotations

SEED_LEVEL = 0
PROXY_LEVEL = (
    10_000_000  # behind every retry, whatever the priority of its seed; a redirect lowers it a little
)
_LOWEST_OF_PROXIES = PROXY_LEVEL // 2


def placed_priority(priority: int, *, is_retry: bool) -> int:
    """The priority under which a request is queued; never 0."""
    if priority:
        return priority
    return -1 if is_retry else 1


def needs_proxy(level: int) -> bool:
    """Whether requests that go through a proxy wait on this level."""
    return level >= _LOWEST_OF_PROXIES


def level_of(priority: int) -> int:
    """The level of a (placed) priority."""
    return -priority
