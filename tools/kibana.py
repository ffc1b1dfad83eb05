"""Writes resources/kibana/site_spider.ndjson from its description, a panel a line: python -m tools.kibana.

The saved objects are those of Kibana 8.8 and later. A Kibana refuses objects that are newer than itself and
migrates older ones, so each has the lowest version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

FILE = Path("resources/kibana/site_spider.ndjson")
DESCRIPTION = Path("resources/kibana/dashboards.yaml")
COLUMNS = 48  # of a dashboard
CORE = "8.8.0"
VERSIONS = {"index-pattern": "8.0.0", "search": "8.0.0", "dashboard": "8.9.0"}
LAYER = "l1"
LAYER_REFERENCE = f"indexpattern-datasource-layer-{LAYER}"
RECORDS = "___records___"  # Lens's name of a count of documents
FUNCTIONS = {
    "count": "count", "sum": "sum", "avg": "average", "max": "max", "min": "min", "median": "median",
    "unique": "unique_count", "last": "last_value",
}  # fmt: skip
_SEARCHED_INDEX = "kibanaSavedObjectMeta.searchSourceJSON.index"
_PREFIX = "site-spider-"
_SERIES = {"line": "line", "area": "area_stacked", "bar": "bar_stacked", "rows": "bar_horizontal"}
_TYPES = {"metric": "lnsMetric", "table": "lnsDatatable", "pie": "lnsPie"} | dict.fromkeys(_SERIES, "lnsXY")
_NOTHING_ASKED = {"query": {"query": "", "language": "kuery"}, "filter": []}
_VALUE = re.compile(r"(?P<function>[a-z]+[0-9]*)(?:\((?P<field>[^()]+)\))?(?P<rate>/s)?(?: as (?P<label>.+))?")
_PERCENTILE = re.compile(r"p([0-9]{2})")
_NUMBERS = re.compile(r"(^status|^depth|^retries|^redirects|_size|_ms|_num|_seconds|bytes|^seeds\..*|^queues\..*)$")
_BYTES = re.compile(r"(_size|bytes)$")
_TERMS = {
    **{"missingBucket": False, "parentFormat": {"id": "terms"}, "include": [], "exclude": []},
    **{"includeIsRegex": False, "excludeIsRegex": False},
}
_EMPTY_AS_NULL = {"count", "sum", "unique_count"}


class Value(NamedTuple):
    """A figure: an operation of Lens on a field; `percentile` of that operation alone."""

    operation: str
    field: str | None
    label: str
    is_rate: bool = False
    percentile: int | None = None


class Panel(NamedTuple):
    title: str
    show: str
    of: str
    about: str
    unit: str
    values: tuple[Value, ...] = ()
    columns: tuple[str, ...] = ()  # of a search
    by: tuple[str | Mapping[str, str], ...] = ()  # `time`, a field with a number, or queries by name
    where: str = ""
    width: int = 24
    height: int = 15

    @property
    def description(self) -> str:
        return f"{self.about}. Unit: {self.unit}"


def value(text: str, title: str) -> Value:
    """Such as `sum(interval_num)/s as Downloads`. Raises ValueError."""
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


def _panel(said: dict[str, Any], views: Mapping[str, Any]) -> Panel:
    values, by = said.pop("values"), said.pop("by", [])
    height = said.pop("height", 6 if said["show"] == "metric" else 15)
    if said["of"] not in views:
        raise ValueError(f"{said['title']}: no data view {said['of']!r}")
    if said["show"] == "search":
        return Panel(**said, columns=tuple(values), height=height)
    figures = tuple(value(one, said["title"]) for one in values)
    return Panel(**said, values=figures, by=tuple(by), height=height)


def _of_value(value: Value, time_field: str) -> dict[str, Any]:
    params: dict[str, Any] = {"emptyAsNull": True} if value.operation in _EMPTY_AS_NULL else {}
    if value.percentile is not None:
        params["percentile"] = value.percentile
    if value.field is not None and _BYTES.search(value.field) and value.operation != "unique_count":
        params["format"] = {"id": "bytes", "params": {"decimals": 1}}
    kind = "date" if value.field == time_field else "number"
    column: dict[str, Any] = {"label": value.label, "customLabel": True, "dataType": kind}
    column |= {"operationType": value.operation, "isBucketed": False, "scale": "ratio"}
    column |= {"sourceField": value.field or RECORDS, "params": params}
    if value.operation == "last_value":
        params["sortField"] = time_field
        column["filter"] = {"query": f"{json.dumps(value.field)}: *", "language": "kuery"}
    if value.is_rate:
        column["timeScale"] = "s"
    return column


def _of_group(group: str | Mapping[str, str], time_field: str, ordered: str | None) -> dict[str, Any]:
    """`ordered` is the id of the column by which the values of a field are ordered."""
    if group == "time":
        params: dict[str, Any] = {"interval": "auto", "includeEmptyRows": True, "dropPartials": False}
        return _bucket(time_field, "date", "date_histogram", "interval", params, time_field)
    if not isinstance(group, str):
        filters = [{"input": {"query": query, "language": "lucene"}, "label": name} for name, query in group.items()]
        return _bucket("Filters", "string", "filters", "ordinal", {"filters": filters})
    field, _, size = group.partition(" ")
    order = {"type": "column", "columnId": ordered} if ordered else {"type": "alphabetical", "fallback": True}
    params = {"size": int(size), "orderBy": order, "orderDirection": "desc" if ordered else "asc"}
    params |= {"otherBucket": ordered is not None, **_TERMS}
    kind = "number" if _NUMBERS.search(field) else "string"
    return _bucket(field, kind, "terms", "ordinal", params, field)


def _bucket(
    label: str, kind: str, operation: str, scale: str, params: dict[str, Any], field: str | None = None
) -> dict[str, Any]:
    head = {"label": label, "dataType": kind, "operationType": operation, "isBucketed": True, "scale": scale}
    return {**head, **({"sourceField": field} if field else {}), "params": params}


def _lens(panel: Panel, time_field: str) -> dict[str, Any]:
    """The attributes of a visualization. Groups come first in Lens's order of columns."""
    ordered = "y0" if panel.values[0].operation != "last_value" else None
    groups = {f"x{number}": _of_group(group, time_field, ordered) for number, group in enumerate(panel.by)}
    values = {f"y{number}": _of_value(one, time_field) for number, one in enumerate(panel.values)}
    columns = {**groups, **values}
    layer = {"columnOrder": [*columns], "columns": columns, "incompleteColumns": {}, "sampling": 1}
    return {
        "title": panel.title,
        "description": panel.description,
        "type": "lens",
        "visualizationType": _TYPES[panel.show],
        "references": [{"type": "index-pattern", "id": f"{_PREFIX}{panel.of}", "name": LAYER_REFERENCE}],
        "state": {
            "adHocDataViews": {},
            "internalReferences": [],
            "filters": [],
            "query": {"query": panel.where, "language": "lucene" if panel.where else "kuery"},
            "datasourceStates": {"formBased": {"layers": {LAYER: layer}}},
            "visualization": _visualization(panel.show, [*groups], [*values]),
        },
    }


def _visualization(show: str, groups: list[str], values: list[str]) -> dict[str, Any]:
    layer = {"layerId": LAYER, "layerType": "data"}
    if show == "metric":
        return {**layer, "metricAccessor": values[0]}
    if show == "table":
        return {**layer, "columns": [{"columnId": column} for column in (*groups, *values)]}
    if show == "pie":
        looks = {"numberDisplay": "percent", "categoryDisplay": "default", "legendDisplay": "default"}
        slices = {**layer, "primaryGroups": groups, "metrics": values, **looks, "nestedLegend": False}
        return {"shape": "donut", "layers": [slices]}
    series = _SERIES[show]
    axes = {"xAccessor": groups[0], "accessors": values, "position": "top", "showGridlines": False}
    split = {"splitAccessor": groups[1]} if len(groups) > 1 else {}
    legend = {"isVisible": len(groups) > 1 or len(values) > 1, "position": "right"}
    looks = {"legend": legend, "valueLabels": "hide", "fittingFunction": "None"}
    return {
        **looks, "preferredSeriesType": series, "layers": [{**layer, "seriesType": series, **axes, **split}]
    }  # fmt: skip


def exported(path: Path = DESCRIPTION) -> str:
    """The file: an object a line, and a last line that counts them. Raises ValueError."""
    objects = list(_objects(yaml.safe_load(path.read_text(encoding="utf-8"))))
    end = {"excludedObjects": [], "excludedObjectsCount": 0, "exportedCount": len(objects)}
    end |= {"missingRefCount": 0, "missingReferences": []}
    return "".join(f"{_json(one)}\n" for one in (*objects, end))


def _objects(said: dict[str, Any]) -> Iterator[dict[str, Any]]:
    views = said["views"]
    for name, view in views.items():
        nothing = {"fieldAttrs": "{}", "fieldFormatMap": "{}", "fields": "[]", "runtimeFieldMap": "{}"}
        own = {"title": view["title"], "name": view["name"], "timeFieldName": view["time"]}
        yield _object("index-pattern", name, {**own, "allowHidden": False, **nothing, "sourceFilters": "[]"}, [])
    for name, dashboard in said["dashboards"].items():
        panels = [_panel(one, views) for one in dashboard["panels"]]
        for number, panel in enumerate(panels):
            if panel.show == "search":
                searched = f"{_PREFIX}{panel.of}"
                reference = {"name": _SEARCHED_INDEX, "type": "index-pattern", "id": searched}
                attributes = _search(panel, views[panel.of]["time"])
                yield _object("search", f"search-{name}-{number}", attributes, [reference])
        yield _object("dashboard", f"dashboard-{name}", *_dashboard(name, dashboard, panels, views))


def _object(kind: str, name: str, attributes: dict[str, Any], references: list[dict[str, str]]) -> dict[str, Any]:
    head = {"attributes": attributes, "coreMigrationVersion": CORE, "id": f"{_PREFIX}{name}"}
    more = {"managed": False, "references": references, "type": kind}
    return {**head, **more, "typeMigrationVersion": VERSIONS[kind]}


def _search(panel: Panel, time_field: str) -> dict[str, Any]:
    source = {**_NOTHING_ASKED, "indexRefName": _SEARCHED_INDEX, "highlightAll": True, "version": True}
    head = {"title": f"site_spider: {panel.title}", "description": panel.description}
    columns = {"columns": list(panel.columns), "sort": [[time_field, "desc"]], "grid": {}}
    off = dict.fromkeys(("hideChart", "isTextBasedQuery", "timeRestore"), False)
    return {**head, **columns, **off, "kibanaSavedObjectMeta": {"searchSourceJSON": _json(source)}}


def _dashboard(
    name: str, said: Mapping[str, Any], panels: list[Panel], views: Mapping[str, Any]
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Panels go from left to right, and below the highest of a row when it is full."""
    shown, references = [], []
    x = y = row = 0
    for number, panel in enumerate(panels):
        if x + panel.width > COLUMNS:
            x, y, row = 0, y + row, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height, "i": str(number)}
        x, row = x + panel.width, max(row, panel.height)
        if panel.show == "search":
            config: dict[str, Any] = {"enhancements": {}}
            one = {"type": "search", "embeddableConfig": config, "panelRefName": f"panel_{number}"}
            searched = f"{_PREFIX}search-{name}-{number}"
            references.append({"name": f"{number}:panel_{number}", "type": "search", "id": searched})
        else:
            attributes = _lens(panel, views[panel.of]["time"])
            (own,) = attributes["references"]
            one = {"type": "lens", "embeddableConfig": {"attributes": attributes, "enhancements": {}}}
            references.append({**own, "name": f"{number}:{own['name']}"})
        shown.append({"gridData": place, "panelIndex": str(number), "title": panel.title, **one})
    looks = {"useMargins": True, "syncColors": True, "syncCursor": True, "syncTooltips": False}
    head = {"title": said["title"], "description": said["about"]}
    time = {"timeRestore": True, "timeFrom": "now-24h", "timeTo": "now"}
    return {
        **head, **time, "refreshInterval": {"pause": False, "value": 30_000},
        "kibanaSavedObjectMeta": {"searchSourceJSON": _json(_NOTHING_ASKED)},
        "optionsJSON": _json({**looks, "hidePanelTitles": False}), "panelsJSON": _json(shown), "version": 1,
    }, references  # fmt: skip


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    FILE.write_text(exported(), encoding="utf-8")
