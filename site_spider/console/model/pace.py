"""How fast a fleet is, and how long the rest takes."""

from __future__ import annotations

from typing import NamedTuple

from site_spider.console.model.curves import STEP_SECONDS, Curves
from site_spider.console.model.fleet import BYTES, CONSUMED, DONE, PAGES, WINDOW_SECONDS

NOW_SECONDS = 60
_UNITS = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1))
_WINDOWS = (60, 300, 900)  # whose rates make the range


class PaceRates(NamedTuple):
    """Per second, over a time."""

    done: float
    pages: float
    bytes: float
    consumed: float


class Range(NamedTuple):
    """Seconds, at the fastest and at the slowest of the rates of late."""

    shortest: float
    longest: float


def settled(now: float, interval_seconds: float) -> float:
    """Up to when the curves are complete: processes speak once in an interval."""
    return (now - interval_seconds) // STEP_SECONDS * STEP_SECONDS


def rates(curves: Curves, until: float, seconds: float) -> PaceRates | None:
    """The mean over the time before `until`; None without a step in it."""
    steps = list(curves.between(until - seconds, until))
    if not steps:
        return None
    covered = until - steps[0].number * STEP_SECONDS
    sums = [sum(step.counts[name] for step in steps) / covered for name in (DONE, PAGES, BYTES, CONSUMED)]
    return PaceRates(*sums)


def average(curves: Curves, until: float) -> PaceRates | None:
    """The mean over what is known of the last hour."""
    return rates(curves, until, WINDOW_SECONDS)


def time_left(curves: Curves, until: float, lag: int) -> Range | None:
    """The range for this lag, if no more seeds come; None while nothing gets done."""
    if lag == 0:
        return Range(0.0, 0.0)
    found = [rates(curves, until, seconds) for seconds in _WINDOWS]
    speeds = [rate.done for rate in found if rate is not None and rate.done > 0]
    if not speeds:
        return None
    return Range(lag / max(speeds), lag / min(speeds))


def duration(seconds: float) -> str:
    """As people say it: two units at most."""
    whole = max(0, round(seconds))
    for unit, size, smaller, part in (
        ("d", 86_400, "h", 3_600),
        ("h", 3_600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // part
            shown = rest and whole < 10 * size
            return f"{whole // size} {unit} {rest} {smaller}" if shown else f"{whole // size} {unit}"
    return f"{whole} s"


def _rounded(seconds: float) -> float:
    """A forecast needs no seconds beside minutes."""
    return round(seconds / 60) * 60 if seconds > 120 else seconds


def spoken(left: Range | None) -> str:
    """The range in words."""
    if left is None:
        return "unknown"
    shortest, longest = (duration(_rounded(seconds)) for seconds in left)
    if left.longest == 0:
        return "none"
    return shortest if shortest == longest else f"{shortest} to {longest}"
