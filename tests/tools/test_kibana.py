"""The objects for Kibana: generated, strict as a Kibana 8.9 takes them, and each panel has a figure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tools.kibana import FILE, exported, value

OBJECT = {"attributes", "coreMigrationVersion", "id", "managed", "references", "type", "typeMigrationVersion"}
VERSIONS = {"index-pattern": "8.0.0", "search": "8.0.0", "dashboard": "8.9.0"}
ATTRIBUTES = {
    "index-pattern": {
        "title", "name", "timeFieldName", "allowHidden", "fieldAttrs", "fieldFormatMap", "fields",
        "runtimeFieldMap", "sourceFilters",
    },
    "search": {
        "title", "description", "columns", "sort", "grid", "hideChart", "isTextBasedQuery", "timeRestore",
        "kibanaSavedObjectMeta",
    },
    "dashboard": {
        "title", "description", "kibanaSavedObjectMeta", "timeRestore", "timeFrom", "timeTo",
        "refreshInterval", "panelsJSON", "optionsJSON", "version",
    },
}  # fmt: skip
LENS = {"title", "description", "type", "visualizationType", "references", "state"}
STATE = {
    "adHocDataViews", "internalReferences", "filters", "query", "datasourceStates", "visualization",
}  # fmt: skip
LAYER = {"columnOrder", "columns", "incompleteColumns", "sampling"}
PANEL = {"type", "gridData", "panelIndex", "embeddableConfig", "title"}
COLUMN = {"label", "dataType", "operationType", "isBucketed", "scale", "sourceField", "params"}
MORE = {"customLabel", "timeScale", "filter"}
PARAMS: dict[str, set[str]] = {
    "count": {"emptyAsNull", "format"},
    "sum": {"emptyAsNull", "format"},
    "unique_count": {"emptyAsNull"},
    "average": {"format"},
    "max": {"format"},
    "min": {"format"},
    "median": {"format"},
    "percentile": {"percentile", "format"},
    "last_value": {"sortField", "format"},
    "date_histogram": {"interval", "includeEmptyRows", "dropPartials"},
    "filters": {"filters"},
    "terms": {
        "size", "orderBy", "orderDirection", "otherBucket", "missingBucket", "parentFormat", "include",
        "exclude", "includeIsRegex", "excludeIsRegex",
    },
}  # fmt: skip
NEEDED = {"percentile": "percentile", "last_value": "sortField", "date_histogram": "interval", "filters": "filters"}
BUCKETS = {"date_histogram", "filters", "terms"}
TIMED = {"count", "sum"}  # that can be a rate
VISUALIZATIONS = {
    "lnsMetric": {"layerId", "layerType", "metricAccessor"},
    "lnsDatatable": {"layerId", "layerType", "columns"},
    "lnsPie": {"shape", "layers"},
    "lnsXY": {"legend", "valueLabels", "fittingFunction", "preferredSeriesType", "layers"},
}


def mistakes(export: str) -> list[str]:
    """What a Kibana would refuse or could not draw, in words."""
    *objects, end = [json.loads(line) for line in export.splitlines()]
    return [*_of_end(objects, end), *_of_references(objects), *(said for one in objects for said in _of(one))]


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


def _names(what: str, value: Mapping[str, Any], allowed: set[str], needed: set[str] | None = None) -> Iterator[str]:
    needed = allowed if needed is None else needed
    yield from (f"{what}: unknown {name}" for name in value.keys() - allowed)
    yield from (f"{what}: no {name}" for name in needed - value.keys())


def _of_end(objects: list[dict[str, Any]], end: dict[str, Any]) -> Iterator[str]:
    if end.get("exportedCount") != len(objects) or end.get("missingReferences") != []:
        yield f"the last line says {end}"
    keys = [one["id"] for one in objects]
    if len(set(keys)) < len(keys):
        yield "two objects have one id"


def _of_references(objects: list[dict[str, Any]]) -> Iterator[str]:
    there = {(one["type"], one["id"]) for one in objects}
    for one in objects:
        names = [reference["name"] for reference in one["references"]]
        if len(set(names)) < len(names):
            yield f"{one['id']}: two references have one name"
        for reference in one["references"]:
            if (reference["type"], reference["id"]) not in there:
                yield f"{one['id']}: refers to {reference['id']}, which is not there"


def _of(one: dict[str, Any]) -> Iterator[str]:
    kind, name, attributes = one["type"], one["id"], one["attributes"]
    yield from _names(name, one, OBJECT)
    yield from _names(name, attributes, ATTRIBUTES[kind])
    if one["coreMigrationVersion"] != "8.8.0" or one["typeMigrationVersion"] != VERSIONS[kind]:
        yield f"{name}: is newer than it need be"
    yield from (f"{name}: {field} is no string" for field in _strings(kind) if not isinstance(attributes[field], str))
    if kind == "dashboard":
        yield from _of_dashboard(name, one)
    if kind == "search":
        source = json.loads(attributes["kibanaSavedObjectMeta"]["searchSourceJSON"])
        if [source["indexRefName"]] != [reference["name"] for reference in one["references"]]:
            yield f"{name}: its data view is not referred to"


def _strings(kind: str) -> tuple[str, ...]:
    return {
        "index-pattern": ("title", "fields", "fieldAttrs", "fieldFormatMap", "runtimeFieldMap", "sourceFilters"),
        "search": ("title", "description"),
        "dashboard": ("title", "description", "panelsJSON", "optionsJSON"),
    }[kind]


def _of_dashboard(name: str, one: dict[str, Any]) -> Iterator[str]:
    shown = json.loads(one["attributes"]["panelsJSON"])
    json.loads(one["attributes"]["optionsJSON"])
    json.loads(one["attributes"]["kibanaSavedObjectMeta"]["searchSourceJSON"])
    known = {reference["name"]: reference for reference in one["references"]}
    used = set()
    for panel in shown:
        where = f"{name} {panel.get('title')!r}"
        if panel["type"] == "search":
            yield from _names(where, panel, PANEL | {"panelRefName"})
            used.add(f"{panel['panelIndex']}:{panel.get('panelRefName')}")
        else:
            yield from _names(where, panel, PANEL)
            attributes = panel["embeddableConfig"]["attributes"]
            used |= {f"{panel['panelIndex']}:{reference['name']}" for reference in attributes["references"]}
            yield from _of_lens(where, attributes)
    if used != known.keys():
        yield f"{name}: refers to {known.keys()}, its panels to {used}"
    yield from _of_places(name, [panel["gridData"] for panel in shown], [panel["panelIndex"] for panel in shown])


def _of_places(name: str, places: list[dict[str, Any]], indices: list[str]) -> Iterator[str]:
    if [place["i"] for place in places] != indices or len(set(indices)) < len(indices):
        yield f"{name}: panels are not told apart"
    taken: set[tuple[int, int]] = set()
    for place in places:
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        if cells & taken or place["x"] < 0 or place["x"] + place["w"] > 48 or not cells:
            yield f"{name}: panel {place['i']} lies over another one or outside"
        taken |= cells


def _of_lens(where: str, lens: dict[str, Any]) -> Iterator[str]:
    yield from _names(where, lens, LENS)
    yield from _names(where, lens["state"], STATE)
    if not lens["title"] or ". Unit: " not in lens["description"]:
        yield f"{where}: has no title, meaning or unit"
    ((identifier, layer),) = lens["state"]["datasourceStates"]["formBased"]["layers"].items()
    yield from _names(where, layer, LAYER)
    if [reference["name"] for reference in lens["references"]] != [f"indexpattern-datasource-layer-{identifier}"]:
        yield f"{where}: its layer has no data view"
    if sorted(layer["columnOrder"]) != sorted(layer["columns"]):
        yield f"{where}: columns are not in order"
    buckets = [layer["columns"][column]["isBucketed"] for column in layer["columnOrder"]]
    if buckets != sorted(buckets, reverse=True):
        yield f"{where}: groups come behind values"
    for column in layer["columns"].values():
        yield from _of_column(where, column, layer["columns"])
    yield from _of_visualization(where, lens, identifier, layer["columns"])


def _of_column(where: str, column: dict[str, Any], columns: Mapping[str, Any]) -> Iterator[str]:
    operation = column["operationType"]
    needed = COLUMN - {"sourceField"} if operation == "filters" else COLUMN
    yield from _names(where, column, COLUMN | MORE, needed)
    yield from _names(where, column["params"], PARAMS[operation], set())
    if operation in NEEDED and NEEDED[operation] not in column["params"]:
        yield f"{where}: {operation} without {NEEDED[operation]}"
    if column["isBucketed"] is not (operation in BUCKETS):
        yield f"{where}: {operation} is not what it is"
    if "timeScale" in column and (operation not in TIMED or not _has_time(columns)):
        yield f"{where}: a rate of what has no time"
    order = column["params"].get("orderBy", {}).get("columnId")
    if order is not None and columns.get(order, {}).get("isBucketed", True):
        yield f"{where}: is in the order of {order}"


def _has_time(columns: Mapping[str, Any]) -> bool:
    return any(column["operationType"] == "date_histogram" for column in columns.values())


def _of_visualization(where: str, lens: dict[str, Any], identifier: str, columns: Mapping[str, Any]) -> Iterator[str]:
    kind, shown = lens["visualizationType"], lens["state"]["visualization"]
    yield from _names(where, shown, VISUALIZATIONS[kind])
    layers = shown.get("layers", [shown])
    if [(layer["layerId"], layer["layerType"]) for layer in layers] != [(identifier, "data")]:
        yield f"{where}: shows another layer"
    used = [column for layer in layers for column in _accessors(layer)]
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


def test_a_kibana_takes_the_objects() -> None:
    assert mistakes(EXPORT) == []


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
