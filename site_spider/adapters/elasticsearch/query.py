"""Filters of documents as a query."""

from __future__ import annotations

from typing import Any

from site_spider.contracts.sink import Fields, StatusFilter
from site_spider.page.url import beginnings_of

Query = dict[str, Any]


def query(status: StatusFilter, task_id: str | None, fields: Fields, *, of_items: bool) -> Query:
    """The documents that fit all filters."""
    conditions: list[Query] = []
    if isinstance(status, int):
        conditions.append({"term": {"status": status}})
    elif status is not None:
        conditions.append({"bool": {"must_not": {"exists": {"field": "status"}}}})
    wanted = dict(fields) if task_id is None else {**fields, "task_id": task_id}
    for name, value in wanted.items():
        if of_items:
            conditions.append(_of_host(value) if name == "host" else _is(f"_page.{name}", value))
        else:
            conditions.append(_is(name, value))
    return {"bool": {"filter": conditions}}


def _is(name: str, value: str) -> Query:
    """The second is for an index that was there before us, with mappings that were guessed."""
    return {"bool": {"should": [{"term": {field: value}} for field in (name, f"{name}.keyword")]}}


def _of_host(host: str) -> Query:
    fields = ("_page.url", "_page.url.keyword")
    return {
        "bool": {"should": [{"prefix": {field: begin}} for field in fields for begin in beginnings_of(host)]}
    }
