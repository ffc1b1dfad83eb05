"""Saved objects of Kibana 8.8 and later: data views, searches, dashboards, and the file of them.

A Kibana refuses objects that are newer than itself and migrates older ones, so each has the lowest version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tools.kibana.description import Dashboard, Description, Panel
from tools.kibana.lens import described, lens

COLUMNS = 48  # of a dashboard
CORE = "8.8.0"
VERSIONS = {"index-pattern": "8.0.0", "search": "8.0.0", "dashboard": "8.9.0"}
_SEARCHED_INDEX = "kibanaSavedObjectMeta.searchSourceJSON.index"
_PREFIX = "site-spider-"
_OPTIONS = {
    "useMargins": True,
    "syncColors": True,
    "syncCursor": True,
    "syncTooltips": False,
    "hidePanelTitles": False,
}


def exported(description: Description) -> str:
    """The file: an object a line, and a last line that counts them."""
    objects = list(_objects(description))
    end = {
        "excludedObjects": [],
        "excludedObjectsCount": 0,
        "exportedCount": len(objects),
        "missingRefCount": 0,
        "missingReferences": [],
    }
    return "".join(f"{_json(one)}\n" for one in (*objects, end))


def _objects(description: Description) -> Iterator[dict[str, Any]]:
    for name, view in description.views.items():
        yield _object("index-pattern", name, _view(view), [])
    for name, dashboard in description.dashboards.items():
        for number, panel in enumerate(dashboard.panels):
            if panel.show == "search":
                time_field = description.views[panel.of]["time"]
                yield _object(
                    "search", f"search-{name}-{number}", _search(panel, time_field), [_searches(panel)]
                )
        attributes, references = _dashboard(name, dashboard, description)
        yield _object("dashboard", f"dashboard-{name}", attributes, references)


def _object(
    kind: str, name: str, attributes: dict[str, Any], references: list[dict[str, str]]
) -> dict[str, Any]:
    return {
        "attributes": attributes,
        "coreMigrationVersion": CORE,
        "id": f"{_PREFIX}{name}",
        "managed": False,
        "references": references,
        "type": kind,
        "typeMigrationVersion": VERSIONS[kind],
    }


def _view(view: Any) -> dict[str, Any]:
    return {
        "title": view["title"],
        "name": view["name"],
        "timeFieldName": view["time"],
        "allowHidden": False,
        "fieldAttrs": "{}",
        "fieldFormatMap": "{}",
        "fields": "[]",
        "runtimeFieldMap": "{}",
        "sourceFilters": "[]",
    }


def _searches(panel: Panel) -> dict[str, str]:
    return {"name": _SEARCHED_INDEX, "type": "index-pattern", "id": f"{_PREFIX}{panel.of}"}


def _search(panel: Panel, time_field: str) -> dict[str, Any]:
    source = {**_nothing_asked(), "indexRefName": _SEARCHED_INDEX, "highlightAll": True, "version": True}
    return {
        "title": f"site_spider: {panel.title}",
        "description": described(panel),
        "columns": list(panel.columns),
        "sort": [[time_field, "desc"]],
        "grid": {},
        "hideChart": False,
        "isTextBasedQuery": False,
        "timeRestore": False,
        "kibanaSavedObjectMeta": {"searchSourceJSON": _json(source)},
    }


def _dashboard(
    name: str, dashboard: Dashboard, description: Description
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    panels, references = [], []
    for number, (panel, place) in enumerate(zip(dashboard.panels, _places(dashboard), strict=True)):
        shown, reference = _panel(f"search-{name}-{number}", str(number), panel, description)
        panels.append({"gridData": place, "panelIndex": str(number), "title": panel.title, **shown})
        references.append(reference)
    return {
        "title": dashboard.title,
        "description": dashboard.about,
        "timeRestore": True,
        "timeFrom": "now-24h",
        "timeTo": "now",
        "refreshInterval": {"pause": False, "value": 30_000},
        "kibanaSavedObjectMeta": {"searchSourceJSON": _json(_nothing_asked())},
        "optionsJSON": _json(_OPTIONS),
        "panelsJSON": _json(panels),
        "version": 1,
    }, references


def _panel(
    name: str, index: str, panel: Panel, description: Description
) -> tuple[dict[str, Any], dict[str, str]]:
    """The panel, and the reference of the dashboard that it needs."""
    if panel.show == "search":
        reference = {"name": f"{index}:panel_{index}", "type": "search", "id": f"{_PREFIX}{name}"}
        return {
            "type": "search",
            "embeddableConfig": {"enhancements": {}},
            "panelRefName": f"panel_{index}",
        }, reference
    attributes = lens(panel, f"{_PREFIX}{panel.of}", description.views[panel.of]["time"])
    (own,) = attributes["references"]
    config = {"attributes": attributes, "enhancements": {}}
    return {"type": "lens", "embeddableConfig": config}, {**own, "name": f"{index}:{own['name']}"}


def _places(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    """From left to right, and below the highest of a row when it is full."""
    x = y = row = 0
    for number, panel in enumerate(dashboard.panels):
        if x + panel.width > COLUMNS:
            x, y, row = 0, y + row, 0
        yield {"x": x, "y": y, "w": panel.width, "h": panel.height, "i": str(number)}
        x, row = x + panel.width, max(row, panel.height)


def _nothing_asked() -> dict[str, Any]:
    return {"query": {"query": "", "language": "kuery"}, "filter": []}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
