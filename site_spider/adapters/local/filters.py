"""Filters of documents as conditions of SQL. The clauses are constants, their values are bound."""

from __future__ import annotations

from typing import Any

from site_spider.adapters.local.store import ITEMS, Table
from site_spider.contracts.sink import Fields, StatusFilter
from site_spider.page.url import beginnings_of

# a document may be somebody else's text
_FIELD = "CASE WHEN json_valid(document) THEN json_extract(document, '$.{}') END"


def conditions(
    table: Table, status: StatusFilter, task_id: str | None, fields: Fields
) -> tuple[str, list[Any]]:
    """A WHERE clause, empty if there is no filter, and its values."""
    found: list[tuple[str, list[Any]]] = []
    if isinstance(status, int):
        found.append(("status = ?", [status]))
    elif status is not None:
        found.append(("status IS NULL", []))
    wanted = dict(fields) if task_id is None else {**fields, "task_id": task_id}
    found += [_condition(table, name, value) for name, value in wanted.items()]
    clauses, values = [clause for clause, _ in found], [value for _, some in found for value in some]
    return ("WHERE " + " AND ".join(clauses) if clauses else ""), values


def _condition(table: Table, name: str, value: str) -> tuple[str, list[Any]]:
    if name in table.columns:
        return f"{name} = ?", [value]
    if table is not ITEMS:
        return f"{_FIELD.format(name)} = ?", [value]
    if name == "host":
        return _of_host(_FIELD.format("_page.url"), value)
    return f"{_FIELD.format(f'_page.{name}')} = ?", [value]


def _of_host(url: str, host: str) -> tuple[str, list[Any]]:
    beginnings = beginnings_of(host)
    either = " OR ".join([f"substr({url}, 1, ?) = ?"] * len(beginnings))
    return f"({either})", [value for begin in beginnings for value in (len(begin), begin)]
