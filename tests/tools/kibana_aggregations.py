"""Columns of Lens as the aggregations that Kibana makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.tools.kibana_structure import layer_of

_More = Callable[[Mapping[str, Any], str], dict[str, Any]]
_PLAIN: _More = lambda params, step: {}  # noqa: E731
_OF_FIELD: dict[str, tuple[str, _More]] = {
    "count": ("value_count", _PLAIN),
    "sum": ("sum", _PLAIN),
    "average": ("avg", _PLAIN),
    "max": ("max", _PLAIN),
    "min": ("min", _PLAIN),
    "unique_count": ("cardinality", _PLAIN),
    "median": ("percentiles", lambda params, step: {"percents": [50]}),
    "percentile": ("percentiles", lambda params, step: {"percents": [params["percentile"]]}),
    "terms": ("terms", lambda params, step: {"size": params["size"]}),
    "date_histogram": ("date_histogram", lambda params, step: {"fixed_interval": step, "min_doc_count": 1}),
}
_NUMERIC = {"sum", "average", "max", "min", "median", "percentile"}
_NUMBERS = {"long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float"}


def request_of(lens: Mapping[str, Any], step: str = "1s") -> dict[str, Any]:
    """The search of a panel; `step` is what Kibana chooses by the time range."""
    layer = layer_of(lens)
    columns = [(name, layer["columns"][name]) for name in layer["columnOrder"]]
    values = {name: aggregation(column, step) for name, column in columns if not column["isBucketed"]}
    aggs = {name: one for name, one in values.items() if one is not None}
    for name, column in reversed([one for one in columns if one[1]["isBucketed"]]):
        group = aggregation(column, step)
        assert group is not None
        aggs = {name: {**group, **({"aggs": aggs} if aggs else {})}}
    asked = lens["state"]["query"]["query"]
    query = {"query_string": {"query": asked}} if asked else {"match_all": {}}
    return {"size": 0, "query": query, "aggs": aggs, "track_total_hits": True}


def aggregation(column: Mapping[str, Any], step: str) -> dict[str, Any] | None:
    """None for a count of documents, which every bucket has."""
    operation, field, params = column["operationType"], column.get("sourceField"), column["params"]
    if operation == "count" and field == "___records___":
        return None
    if operation == "filters":
        asked = {one["label"]: {"query_string": {"query": one["input"]["query"]}} for one in params["filters"]}
        return {"filters": {"filters": asked}}
    if operation == "last_value":
        newest = {"size": 1, "sort": [{params["sortField"]: "desc"}], "_source": False, "fields": [field]}
        return {"filter": {"exists": {"field": field}}, "aggs": {"last": {"top_hits": newest}}}
    name, more = _OF_FIELD[operation]
    return {name: {"field": field, **more(params, step)}}


def fields_of(lens: Mapping[str, Any]) -> Iterator[tuple[str, set[str]]]:
    """Each field that a panel reads, and the types that it may have; no type: any that can be aggregated."""
    for column in layer_of(lens)["columns"].values():
        field = column.get("sourceField", "___records___")
        if field != "___records___":
            is_number = column["operationType"] in _NUMERIC
            is_time = column["operationType"] == "date_histogram"
            yield field, _NUMBERS if is_number else {"date"} if is_time else set()
            yield (
                field,
                ({"date"} if column["dataType"] == "date" else _NUMBERS)
                if (column["dataType"] != "string" and column["operationType"] in ("terms", "last_value"))
                else set(),
            )


def empty_columns(lens: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """The columns that nothing is shown in, and those where a filter has found no document at any time."""
    layer = layer_of(lens)
    levels = [*_levels(answer, layer["columnOrder"])]
    return [
        name
        for name in layer["columnOrder"]
        if not any(_has_figure(name, level) for level in levels) or _empty_filters(name, levels)
    ]


def _empty_filters(name: str, levels: list[tuple[int, Mapping[str, Any]]]) -> set[str]:
    """The labels of a column of filters without documents: each may have them in another step of time."""
    counts: dict[str, int] = {}
    for _, level in levels:
        buckets = level.get(name, {}).get("buckets", [])
        for label, bucket in buckets.items() if isinstance(buckets, dict) else []:
            counts[label] = counts.get(label, 0) + bucket["doc_count"]
    return {label for label, count in counts.items() if not count}


def _levels(answer: Mapping[str, Any], names: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The whole answer, and each bucket of it, with the number of documents."""
    total = answer["hits"]["total"]["value"]
    waiting: list[tuple[int, Mapping[str, Any]]] = [(total, answer.get("aggregations", {}))]
    while waiting:
        count, level = waiting.pop()
        yield count, level
        for name in names:
            buckets = level.get(name, {}).get("buckets", [])
            found = buckets.values() if isinstance(buckets, dict) else buckets
            waiting += [(bucket["doc_count"], bucket) for bucket in found]


def _has_figure(name: str, level: tuple[int, Mapping[str, Any]]) -> bool:
    count, values = level
    found = values.get(name)
    if found is None:  # a count of documents, or a column of another level
        return name.startswith("y") and count > 0
    if "buckets" in found:
        return bool(found["buckets"])
    if "last" in found:
        return bool(found["last"]["hits"]["hits"])
    if "values" in found:
        return any(value is not None for value in found["values"].values())
    return found["value"] is not None
