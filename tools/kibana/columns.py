"""Columns of Lens: what is counted, and by what."""

from __future__ import annotations

import json
import re
from typing import Any

from tools.kibana.description import Group, Panel, Value

RECORDS = "___records___"  # Lens's name of a count of documents
_NUMBERS = re.compile(
    r"(^status|^depth|^retries|^redirects|_size|_ms|_num|_seconds|bytes|^seeds\..*|^queues\..*)$"
)
_BYTES = re.compile(r"(_size|bytes)$")
_EMPTY_AS_NULL = {"count", "sum", "unique_count"}


def columns_of(panel: Panel, time_field: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """The columns by id in Lens's order (groups first), the ids of the groups, the ids of the values."""
    values = {f"y{number}": _of_value(value, time_field) for number, value in enumerate(panel.values)}
    ordered = next(iter(values)) if panel.values[0].operation != "last_value" else None
    groups = {f"x{number}": _of_group(group, time_field, ordered) for number, group in enumerate(panel.by)}
    return {**groups, **values}, list(groups), list(values)


def _of_value(value: Value, time_field: str) -> dict[str, Any]:
    params: dict[str, Any] = {"emptyAsNull": True} if value.operation in _EMPTY_AS_NULL else {}
    if value.percentile is not None:
        params["percentile"] = value.percentile
    if value.field is not None and _BYTES.search(value.field) and value.operation != "unique_count":
        params["format"] = {"id": "bytes", "params": {"decimals": 1}}
    column: dict[str, Any] = {
        "label": value.label,
        "customLabel": True,
        "dataType": "date" if value.field == time_field else "number",
        "operationType": value.operation,
        "isBucketed": False,
        "scale": "ratio",
        "sourceField": value.field or RECORDS,
        "params": params,
    }
    if value.operation == "last_value":
        params["sortField"] = time_field
        column["filter"] = {"query": f"{json.dumps(value.field)}: *", "language": "kuery"}
    if value.is_rate:
        column["timeScale"] = "s"
    return column


def _of_group(group: Group, time_field: str, ordered: str | None) -> dict[str, Any]:
    if group.is_time:
        return _of_time(time_field)
    return _of_queries(group) if group.queries is not None else _of_terms(group, ordered)


def _of_time(field: str) -> dict[str, Any]:
    return {
        "label": field,
        "dataType": "date",
        "operationType": "date_histogram",
        "isBucketed": True,
        "scale": "interval",
        "sourceField": field,
        "params": {"interval": "auto", "includeEmptyRows": True, "dropPartials": False},
    }


def _of_queries(group: Group) -> dict[str, Any]:
    filters = [
        {"input": {"query": query, "language": "lucene"}, "label": name}
        for name, query in (group.queries or {}).items()
    ]
    return {
        "label": "Filters",
        "dataType": "string",
        "operationType": "filters",
        "isBucketed": True,
        "scale": "ordinal",
        "params": {"filters": filters},
    }


def _of_terms(group: Group, ordered: str | None) -> dict[str, Any]:
    assert group.field is not None
    order = {"type": "column", "columnId": ordered} if ordered else {"type": "alphabetical", "fallback": True}
    return {
        "label": group.field,
        "dataType": "number" if _NUMBERS.search(group.field) else "string",
        "operationType": "terms",
        "isBucketed": True,
        "scale": "ordinal",
        "sourceField": group.field,
        "params": {
            "size": group.size,
            "orderBy": order,
            "orderDirection": "desc" if ordered else "asc",
            "otherBucket": ordered is not None,
            "missingBucket": False,
            "parentFormat": {"id": "terms"},
            "include": [],
            "exclude": [],
            "includeIsRegex": False,
            "excludeIsRegex": False,
        },
    }
