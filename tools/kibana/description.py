"""Reads the description of the dashboards: values, groups, panels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

FILE = Path("resources/kibana/dashboards.yaml")
FUNCTIONS = {
    "count": "count",
    "sum": "sum",
    "avg": "average",
    "max": "max",
    "min": "min",
    "median": "median",
    "unique": "unique_count",
    "last": "last_value",
}
_VALUE = re.compile(
    r"(?P<function>[a-z]+[0-9]*)(?:\((?P<field>[^()]+)\))?(?P<rate>/s)?(?: as (?P<label>.+))?"
)
_PERCENTILE = re.compile(r"p([0-9]{2})")


class Value(NamedTuple):
    """A figure: an operation of Lens on a field; `percentile` of that operation alone."""

    operation: str
    field: str | None
    label: str
    is_rate: bool = False
    percentile: int | None = None


class Group(NamedTuple):
    """What a panel is divided by: time, the values of a field, or queries by name."""

    field: str | None = None
    size: int = 0
    queries: Mapping[str, str] | None = None

    @property
    def is_time(self) -> bool:
        return self.field is None and self.queries is None


class Panel(NamedTuple):
    """One line of the description."""

    title: str
    show: str
    of: str
    about: str
    unit: str
    values: tuple[Value, ...] = ()
    columns: tuple[str, ...] = ()  # of a search
    by: tuple[Group, ...] = ()
    where: str = ""
    width: int = 24
    height: int = 15


class Dashboard(NamedTuple):
    """Panels, from left to right and down."""

    title: str
    about: str
    panels: tuple[Panel, ...]


class Description(NamedTuple):
    """The whole file."""

    views: Mapping[str, Mapping[str, str]]
    dashboards: Mapping[str, Dashboard]


def read(path: Path = FILE) -> Description:
    """The description. Raises ValueError for what it cannot contain."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    views = content["views"]
    dashboards = {
        name: Dashboard(said["title"], said["about"], tuple(_panel(one, views) for one in said["panels"]))
        for name, said in content["dashboards"].items()
    }
    return Description(views, dashboards)


def _panel(said: dict[str, Any], views: Mapping[str, Any]) -> Panel:
    values, by = said.pop("values"), said.pop("by", [])
    height = said.pop("height", 6 if said["show"] == "metric" else 15)
    if said["of"] not in views:
        raise ValueError(f"{said['title']}: no data view {said['of']!r}")
    if said["show"] == "search":
        return Panel(**said, columns=tuple(values), height=height)
    return Panel(
        **said,
        values=tuple(value(one, said["title"]) for one in values),
        by=tuple(map(_group, by)),
        height=height,
    )


def value(text: str, title: str) -> Value:
    """Such as `sum(interval_num)/s as Downloads`."""
    found = _VALUE.fullmatch(text)
    if not found:
        raise ValueError(f"{title}: {text!r} is no value")
    function, field = found["function"], found["field"]
    label = found["label"] or title
    if percentile := _PERCENTILE.fullmatch(function):
        return Value("percentile", field, label, percentile=int(percentile[1]))
    if function not in FUNCTIONS:
        raise ValueError(f"{title}: {function!r} is none of {', '.join(FUNCTIONS)}, p50 to p99")
    return Value(FUNCTIONS[function], field, label, is_rate=bool(found["rate"]))


def _group(said: str | dict[str, str]) -> Group:
    if isinstance(said, dict):
        return Group(queries=said)
    if said == "time":
        return Group()
    field, _, size = said.partition(" ")
    return Group(field, int(size))
