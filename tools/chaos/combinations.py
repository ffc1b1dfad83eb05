"""Which options go together, and what those are that nobody gave."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

_SOAK_EVERY_MINUTES = {  # how often what happens in a soak
    "kills": 1.0,
    "terms": 5.0,
    "stops": 6.0,
    "joins": 15.0,
    "broker_restarts": 8.0,
    "elasticsearch_restarts": 8.0,
    "hbase_restarts": 8.0,
    "elasticsearch_blocks": 6.0,
    "proxies": 3.0,
    "added_partitions": 20.0,
    "pauses": 2.0,
    "cancels": 6.0,
    "recreated_topics": 15.0,
}
_USUAL = {"kills": 5, "terms": 1, "broker_restarts": 1, "elasticsearch_restarts": 1, "hbase_restarts": 1}
_OF_SINK = {
    "elasticsearch_restarts": "elasticsearch",
    "elasticsearch_blocks": "elasticsearch",
    "hbase_restarts": "hbase",
}
_OF_SERVERS = ("elasticsearch_blocks", "added_partitions", "recreated_topics", "proxies", "hbase_restarts")
_OF_TASKS = ("pauses", "cancels")
MOST_PARTITIONS = 4  # that a soak adds


def mistake(values: Mapping[str, Any]) -> str:
    """What does not go together, and the remedy; empty when all does."""
    return _wrong_sink(values) or _wrong_tasks(values) or _wrong_topic(values)


def _wrong_sink(values: Mapping[str, Any]) -> str:
    sink = values["sink"] or "elasticsearch"
    if values["embedded"]:
        given = [name for name in ("sink", "exactly_once", *_OF_SERVERS) if values[name]]
        given += ["brokers"] if values["brokers"] > 1 else []
        return f"{_named(given)} needs servers, which --embedded has not: leave one out" if given else ""
    if values["exactly_once"] and sink != "kafka":
        return f"--exactly-once stores results in Kafka, but --sink is {sink}: say --sink kafka"
    for name, needed in _OF_SINK.items():
        if values[name] and sink != needed:
            return f"{_named([name])} needs --sink {needed}, but --sink is {sink}: leave one out"
    return ""


def _wrong_tasks(values: Mapping[str, Any]) -> str:
    tasks, soak = values["tasks"], values["soak"]
    tells_no_end = [name for name in ("exactly_once", "topics") if values[name]]
    if tasks and tells_no_end:
        return f"the end of tasks is not told with {_named(tells_no_end)}: leave --tasks or it out"
    if given := [name for name in _OF_TASKS if values[name] and not tasks and (not soak or tells_no_end)]:
        return f"{_named(given)} needs tasks: say --tasks N"
    if not soak and (values["cancels"] or 0) >= max(1, tasks or 0) and values["cancels"]:
        return f"--cancels is {values['cancels']}, which leaves none of {tasks} tasks: say a larger --tasks"
    if not soak and tasks and tasks > values["seeds"]:
        return f"--tasks is {tasks}, but --seeds is {values['seeds']}: each task needs a seed"
    return ""


def _wrong_topic(values: Mapping[str, Any]) -> str:
    if not values["recreated_topics"]:
        return ""
    if values["tree"] > 1:
        return "--recreated-topics would delete links that were spilled as well: leave --tree or it out"
    if values["tasks"] or (values["soak"] and values["tasks"] is None and _tells_ends(values)):
        return "--recreated-topics would end tasks by positions of the deleted topic: say --tasks 0"
    return ""


def _tells_ends(values: Mapping[str, Any]) -> bool:
    return not (values["exactly_once"] or values["topics"])


def _named(names: list[str]) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in names)


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """With all that nobody gave."""
    found = dict(values)
    found["sink"] = "local" if found["embedded"] else found["sink"] or "elasticsearch"
    if found["embedded"]:  # there are no servers to kill
        found |= {"broker_restarts": 0, "elasticsearch_restarts": 0}
    if found["tasks"] is None:
        found["tasks"] = int(bool(found["soak"] and _tells_ends(found)))
    usual = _of_soak(found) if found["soak"] else _USUAL
    for name in _SOAK_EVERY_MINUTES:
        if found[name] is None:
            found[name] = usual.get(name, 0) if _fits(name, found) else 0
    if found["soak"]:
        found["items"] = True
        found["timeout"] += 60 * found["soak"]
    return found


def _fits(name: str, values: Mapping[str, Any]) -> bool:
    if name in _OF_TASKS:
        return bool(values["tasks"])
    if values["embedded"] and name in _OF_SERVERS:
        return False
    if name == "recreated_topics" and (values["tasks"] or values["tree"] > 1):
        return False
    return name not in _OF_SINK or values["sink"] == _OF_SINK[name]


def _of_soak(values: Mapping[str, Any]) -> dict[str, int]:
    """By chance, about as often as the table says."""
    rng = random.Random(f"soak {values['random_seed']}")
    counts = {}
    for name, minutes in _SOAK_EVERY_MINUTES.items():
        counts[name] = int(values["soak"] / minutes * rng.uniform(0.6, 1.4) + rng.random())
    counts["added_partitions"] = min(MOST_PARTITIONS, counts["added_partitions"])
    return counts
