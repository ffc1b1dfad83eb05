"""Panels of Lens, by value: what is shown, and how."""

from __future__ import annotations

from typing import Any

from tools.kibana.columns import columns_of
from tools.kibana.description import Panel

LAYER = "l1"
LAYER_REFERENCE = f"indexpattern-datasource-layer-{LAYER}"
_SERIES = {"line": "line", "area": "area_stacked", "bar": "bar_stacked", "rows": "bar_horizontal"}
_TYPES = {"metric": "lnsMetric", "table": "lnsDatatable", "pie": "lnsPie"} | dict.fromkeys(_SERIES, "lnsXY")


def lens(panel: Panel, view_id: str, time_field: str) -> dict[str, Any]:
    """The attributes of a Lens visualization."""
    columns, groups, values = columns_of(panel, time_field)
    layer = {"columnOrder": [*columns], "columns": columns, "incompleteColumns": {}, "sampling": 1}
    return {
        "title": panel.title,
        "description": described(panel),
        "type": "lens",
        "visualizationType": _TYPES[panel.show],
        "references": [{"type": "index-pattern", "id": view_id, "name": LAYER_REFERENCE}],
        "state": {
            "adHocDataViews": {},
            "internalReferences": [],
            "filters": [],
            "query": {"query": panel.where, "language": "lucene" if panel.where else "kuery"},
            "datasourceStates": {"formBased": {"layers": {LAYER: layer}}},
            "visualization": _visualization(panel.show, groups, values),
        },
    }


def described(panel: Panel) -> str:
    """What a panel shows, with its unit."""
    return f"{panel.about}. Unit: {panel.unit}"


def _visualization(show: str, groups: list[str], values: list[str]) -> dict[str, Any]:
    layer = {"layerId": LAYER, "layerType": "data"}
    if show == "metric":
        return {**layer, "metricAccessor": values[0]}
    if show == "table":
        return {**layer, "columns": [{"columnId": column} for column in (*groups, *values)]}
    if show == "pie":
        return {"shape": "donut", "layers": [{**layer, **_slices(groups, values)}]}
    return _curves(_SERIES[show], layer, groups, values)


def _slices(groups: list[str], values: list[str]) -> dict[str, Any]:
    return {
        "primaryGroups": groups,
        "metrics": values,
        "numberDisplay": "percent",
        "categoryDisplay": "default",
        "legendDisplay": "default",
        "nestedLegend": False,
    }


def _curves(series: str, layer: dict[str, Any], groups: list[str], values: list[str]) -> dict[str, Any]:
    split = {"splitAccessor": groups[1]} if len(groups) > 1 else {}
    return {
        "legend": {"isVisible": len(groups) > 1 or len(values) > 1, "position": "right"},
        "valueLabels": "hide",
        "fittingFunction": "None",
        "preferredSeriesType": series,
        "layers": [
            {
                **layer,
                "seriesType": series,
                "xAccessor": groups[0],
                "accessors": values,
                "position": "top",
                "showGridlines": False,
                **split,
            }
        ],
    }
