"""Writes the dashboards of resources/grafana, made of grafana.yaml: python -m tools.grafana"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).resolve().parents[1] / "resources" / "grafana"
DESCRIPTION: Final = Path(__file__).with_suffix(".yaml")

_COLUMNS: Final = 24
_WIDTH: Final = 8
_HEIGHTS: Final = {"stat": 4, "table": 8, "timeseries": 8, "heatmap": 8}
_SCHEMA_VERSION: Final = 39  # of Grafana 11; newer ones migrate it
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_MATCHERS: Final = {"group": 'group="$group"', "instance": 'instance="$instance"', "slot": 'slot="$slot"'}
_OF_ONE_PROCESS: Final = ", ".join(_MATCHERS.values())

Json = dict[str, Any]


def dashboards() -> dict[str, Json]:
    described = yaml.safe_load(DESCRIPTION.read_text(encoding="utf-8"))
    return {name: _dashboard(name, about) for name, about in described.items()}


def written(dashboard: Json) -> str:
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"


def _dashboard(name: str, about: Json) -> Json:
    return {
        "uid": f"site-spider-{name}",
        "title": about["title"],
        "description": about["description"],
        "tags": ["site_spider"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source_variable(), *_variables(about["variables"])]},
        "links": [_link(other) for other in ("fleet", "group", "process") if other != name],
        "panels": list(_numbered(_placed(about["rows"]))),
    }


def _link(name: str) -> Json:
    head = {"title": name, "type": "link", "url": f"/d/site-spider-{name}", "icon": "external link"}
    kept = {"asDropdown": False, "includeVars": True, "keepTime": True, "targetBlank": False}
    return {**head, "tooltip": "", "tags": [], **kept}


def _source_variable() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variables(names: list[str]) -> Iterator[Json]:
    """Each offers what the ones before it leave."""
    for index, name in enumerate(names):
        matchers = ", ".join(_MATCHERS[before] for before in names[:index])
        query = f"label_values(site_spider_build_info{{{matchers}}}, {name})"
        head = {"name": name, "label": name.capitalize(), "type": "query", "datasource": _SOURCE}
        yield {**head, "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1}


def _placed(rows: list[Json]) -> Iterator[Json]:
    """Rows, and panels from left to right in them."""
    y = 0
    for row in rows:
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        yield {"type": "row", "title": row["title"], "collapsed": False, "panels": [], "gridPos": place}
        x, y, line = 0, y + 1, 0
        for panel in row["panels"]:
            kind, width = panel.get("kind", "timeseries"), panel.get("wide", _WIDTH)
            if x + width > _COLUMNS:
                x, y, line = 0, y + line, 0
            yield _panel(panel, kind) | {"gridPos": {"x": x, "y": y, "w": width, "h": _HEIGHTS[kind]}}
            x, line = x + width, max(line, _HEIGHTS[kind])
        y += line


def _numbered(panels: Iterator[Json]) -> Iterator[Json]:
    for number, panel in enumerate(panels, 1):
        yield {"id": number, **panel}


def _panel(about: Json, kind: str) -> Json:
    return {
        "type": kind,
        "title": about["title"],
        "description": about["what"],
        "datasource": _SOURCE,
        "targets": list(_targets(about["expr"], kind)),
        "fieldConfig": {"defaults": _field(about), "overrides": []},
        "options": _options(kind),
    }


def _field(about: Json) -> Json:
    if "bad_above" not in about:
        return {"unit": about["unit"]}
    steps = [{"color": "green", "value": None}, {"color": "red", "value": about["bad_above"] + 0.001}]
    return {"unit": about["unit"], "thresholds": {"mode": "absolute", "steps": steps}}


def _options(kind: str) -> Json:
    if kind == "stat":
        reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduced, "colorMode": "value"}
    if kind == "timeseries":
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {}


def _targets(given: str | Mapping[str, str], kind: str) -> Iterator[Json]:
    expressions = {"": given} if isinstance(given, str) else given
    for letter, (legend, expression) in zip("ABCDEFGH", expressions.items(), strict=False):
        yield {
            "refId": letter,
            "datasource": _SOURCE,
            "expr": expression.replace("$process", _OF_ONE_PROCESS),
            "legendFormat": legend or "__auto",
            "format": {"table": "table", "heatmap": "heatmap"}.get(kind, "time_series"),
            "instant": kind == "table",
            "range": kind != "table",
        }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, dashboard in dashboards().items():
        (FOLDER / f"{name}.json").write_text(written(dashboard), encoding="utf-8")
