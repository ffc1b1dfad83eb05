"""The overview: are all seeds accounted for, how fast is it, how long will it take, and why is it slow."""

from __future__ import annotations

from collections import Counter
from typing import Any

from site_spider.console.model import pace
from site_spider.console.model.causes import causes, verdict
from site_spider.console.model.curves import STEP_SECONDS
from site_spider.console.model.fleet import BYTES, DONE, PAGES, WINDOW_SECONDS, Life, summed
from site_spider.console.model.scene import Weight
from site_spider.console.pages.tasks import states
from site_spider.console.pages.view import Document, View, moment
from site_spider.observe.progress import Progress

OUTCOMES = ("result", "failure", "filtered", "dead_letter", "spilled", "cancelled")
_COUNTED = (DONE, PAGES, BYTES)
_GAUGES = ("in_flight", "waiting", "lag", "memory_bytes")
_MOST_CAUSES = 12
_NOTHING = Progress(0, 0, 0, 0)  # of a topic that does not exist yet


def overview(view: View) -> Document:
    """The document."""
    scene = view.scene
    found = causes(scene)
    return {
        **view.heading("overview"),
        "conservation": conservation(view),
        "verdict": verdict(scene, found),
        "causes": [
            {"weight": Weight(cause.weight).name.lower(), "text": cause.text, "page": cause.page}
            for cause in found[:_MOST_CAUSES]
        ],
        "progress": _progress(view),
        "rates": _rates(view),
        "processes": lives(view),
        "tasks": {"count": len(view.tasks), "states": states(view.tasks), "parked": scene.parked},
        "other_groups": list(view.others),
        "curves": curves(view),
    }


def conservation(view: View) -> Document:
    """Rule 10, over all processes that are known: consumed = outcomes + in flight."""
    states = [seen.state for seen in view.fleet.seen.values()]
    outcomes = dict.fromkeys(OUTCOMES, 0) | summed(state.outcomes for state in states)
    missing = [state for state in states if state.missing]
    return {
        "conserved": not missing,
        "consumed": sum(state.consumed for state in states),
        "outcomes": outcomes,
        "in_flight": sum(state.in_flight for state in states),
        "missing": sum(state.missing for state in states),
        "processes_with_missing": [state.name for state in missing],
        "processes": len(states),
    }


def lives(view: View) -> dict[str, int]:
    """How many processes run, are silent, have ended."""
    counts = Counter(seen.life(view.now) for seen in view.fleet.seen.values())
    return {life.value: counts[life] for life in Life}


def _progress(view: View) -> Document | None:
    if view.log is None:
        return None
    whole, until = view.log.total, view.until
    left = pace.time_left(view.fleet.curves, until, whole.lag)
    return {
        "at": moment(view.log.at),
        "done": whole.done,
        "in_flight": whole.in_flight,
        "lag": whole.lag,
        "end": whole.end,
        "partitions": len(view.log.partitions),
        "tiers": {topic: _counts(view.log.tiers.get(topic, _NOTHING)) for topic in view.topic.split(",")},
        "seconds_left": None if left is None else [round(left.shortest, 1), round(left.longest, 1)],
        "time_left": pace.spoken(left),
    }


def _counts(part: Progress) -> dict[str, int]:
    return {"done": part.done, "in_flight": part.in_flight, "lag": part.lag, "end": part.end}


def _rates(view: View) -> Document:
    found = {
        "now": pace.rates(view.fleet.curves, view.until, pace.NOW_SECONDS),
        "average": pace.average(view.fleet.curves, view.until),
    }
    return {
        name: None if rate is None else {field: round(value, 3) for field, value in rate._asdict().items()}
        for name, rate in found.items()
    }


def curves(view: View) -> Document:
    """For each stretch of ten seconds of the last hour: rates per second, and what was held."""
    steps = list(view.fleet.curves.between(view.until - WINDOW_SECONDS, view.until))
    found: dict[str, list[Any]] = {"time": [step.number * STEP_SECONDS for step in steps]}
    for name in _COUNTED:
        found[name] = [round(step.counts[name] / STEP_SECONDS, 3) for step in steps]
    for name in _GAUGES:
        found[name] = [step.gauges.get(name) for step in steps]
    return found
