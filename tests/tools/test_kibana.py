"""The objects for Kibana: what their description says, and each panel has a figure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from site_spider.observe.counters import CAUSES
from site_spider.results.failures import REASONS
from tools.kibana import COLUMNS, FILE, exported, value


def panels(export: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The Lens attributes of each panel by value, with the name of their dashboard."""
    for one in map(json.loads, export.splitlines()[:-1]):
        if one["type"] == "dashboard":
            for panel in json.loads(one["attributes"]["panelsJSON"]):
                if panel["type"] == "lens":
                    yield one["attributes"]["title"], panel["embeddableConfig"]["attributes"]


def layer_of(lens: Mapping[str, Any]) -> dict[str, Any]:
    (layer,) = lens["state"]["datasourceStates"]["formBased"]["layers"].values()
    return dict(layer)


def mistakes(where: str, lens: dict[str, Any]) -> Iterator[str]:
    """What the description of a panel can make wrong: figures without a unit, a rate without time, a column unseen."""
    if not lens["title"] or ". Unit: " not in lens["description"]:
        yield f"{where}: has no title, meaning or unit"
    columns, shown = layer_of(lens)["columns"], lens["state"]["visualization"]
    has_time = any(column["operationType"] == "date_histogram" for column in columns.values())
    for column in columns.values():
        if "timeScale" in column and not (has_time and column["operationType"] in {"count", "sum"}):
            yield f"{where}: a rate of what has no time"
    used = [column for layer in shown.get("layers", [shown]) for column in _accessors(layer)]
    if sorted(used) != sorted(columns):
        yield f"{where}: shows {used} of {list(columns)}"


def _accessors(layer: dict[str, Any]) -> list[str]:
    single = [layer[name] for name in ("metricAccessor", "xAccessor", "splitAccessor") if name in layer]
    several = [*layer.get("accessors", ()), *layer.get("primaryGroups", ()), *layer.get("metrics", ())]
    return [*single, *several, *(column["columnId"] for column in layer.get("columns", ()))]


EXPORT = FILE.read_text(encoding="utf-8")


def test_the_file_is_what_its_description_says() -> None:
    """Run `python -m tools.kibana` after a change."""
    assert exported() == EXPORT


def test_every_panel_can_be_drawn_and_shows_all_that_is_said_of_it() -> None:
    assert [said for where, lens in panels(EXPORT) for said in mistakes(f"{where} {lens['title']!r}", lens)] == []
    dashboards = [one for one in map(json.loads, EXPORT.splitlines()) if one.get("type") == "dashboard"]
    places = [one["gridData"] for board in dashboards for one in json.loads(board["attributes"]["panelsJSON"])]
    assert all(0 < place["w"] <= COLUMNS and place["h"] > 0 for place in places)


def test_every_class_of_failures_and_every_pause_has_a_figure() -> None:
    fields = {column.get("sourceField") for _, lens in panels(EXPORT) for column in layer_of(lens)["columns"].values()}
    assert {*(f"reasons.{name}" for name in REASONS), *(f"paused_seconds.{name}" for name in CAUSES)} <= fields


def test_there_are_three_dashboards_and_four_data_views() -> None:
    objects = [json.loads(line) for line in EXPORT.splitlines()[:-1]]
    of = lambda kind: [one["attributes"]["title"] for one in objects if one["type"] == kind]  # noqa: E731
    assert of("dashboard") == [f"site_spider: {name}" for name in ("Crawl", "Results", "Operations")]
    assert of("index-pattern") == ["site_results*", "site_items*", "site_stats*", "site_dead_letters*"]
    assert len([*panels(EXPORT)]) > 30


def test_the_fields_of_panels_are_mapped_before_the_first_document() -> None:
    """By a template of ours; a Kibana shows no panel whose field it does not know."""
    mapped = {field for name in ("results", "items", "stats") for field in _mapped(_properties(name))}
    layers = [layer_of(lens) for _, lens in panels(EXPORT)]
    read = {
        column["sourceField"] for layer in layers for column in layer["columns"].values() if "sourceField" in column
    }
    assert read - mapped == {"___records___"}


def _properties(name: str) -> dict[str, Any]:
    file = FILE.parents[1] / "elasticsearch" / f"{name}-template.json"
    properties: dict[str, Any] = json.loads(file.read_text())["template"]["mappings"]["properties"]
    return properties


def _mapped(properties: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, said in properties.items():
        yield f"{above}{name}"
        yield from _mapped({**said.get("properties", {}), **said.get("fields", {})}, f"{above}{name}.")


@pytest.mark.parametrize("text", ["sums(x)", "p5(x)", "sum(x", "", "sum(x) is y"])
def test_a_value_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="x"):
        value(text, "x")
