"""The level of a request, from its priority.

A level is the negative of Scrapy's priority: the lowest level is served first. Level 0 is
the seeds' alone: a new request of priority 0 moves to priority 1, ahead of the seeds, so
that begun work is finished first; a retry that comes out at 0 (a discovered link, lowered
once) moves to -1, behind the seeds, as retries do. Far behind the retries is the level of
requests that need a proxy.

A redirect raises the priority. A retry counts from the priority before: so a redirected
request that is retried waits behind the seeds as well, unless its seed or spider gave it a
priority of its own, which it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

SEED_LEVEL = 0
PROXY_LEVEL = (
    10_000_000  # behind every retry, whatever the priority of its seed; a redirect lowers it a little
)
_LOWEST_OF_PROXIES = PROXY_LEVEL // 2
_MOST = _LOWEST_OF_PROXIES - 1  # of a priority; beyond it a request would pass for one that needs a proxy


class Step(Enum):
    """How a request came to be."""

    NEW = auto()
    RETRY = auto()
    REDIRECT = auto()


class Place(NamedTuple):
    """The priority under which a request is queued, never 0, and what it was before redirects raised it."""

    priority: int
    unraised: int | None = None  # None: it is the priority


def place(priority: int, step: Step, before: Place | None = None) -> Place:
    """Where a request goes; `before` is the place of the request that was retried or redirected."""
    if step is Step.NEW or before is None:
        return Place(priority or (-1 if step is Step.RETRY else 1))
    unraised = before.priority if before.unraised is None else before.unraised
    if step is Step.REDIRECT:
        return Place(priority or 1, unraised)
    return Place(unraised + priority - before.priority or -1)


def bounded(priority: int) -> int:
    """The priority of a new request, which DEPTH_PRIORITY or a spider may have made as large as they like."""
    return max(-_MOST, min(_MOST, priority))


def needs_proxy(level: int) -> bool:
    """Whether requests that go through a proxy wait on this level."""
    return level >= _LOWEST_OF_PROXIES


def level_of(priority: int) -> int:
    """The level of a (placed) priority."""
    return -priority


def queue_lengths(by_level: Mapping[int, int]) -> dict[str, int]:
    """Lengths under the names of the queue model; levels without bound become five fields."""
    return {
        "redirected": sum(n for level, n in by_level.items() if level < -1),
        "discovered": by_level.get(-1, 0),
        "seeds": by_level.get(0, 0),
        "retried": sum(n for level, n in by_level.items() if level > 0 and not needs_proxy(level)),
        "proxied": sum(n for level, n in by_level.items() if needs_proxy(level)),
    }
