"""Which indices make fields of a producer's keys, and what they are told."""

from __future__ import annotations

from typing import Any

import pytest

from site_spider.adapters.elasticsearch.client import closing_changes

WANTED = {"type": "flattened"}
CLOSED = {"type": "object", "dynamic": False}


@pytest.mark.parametrize(
    ("mappings", "change"),
    [
        ({}, WANTED),
        ({"properties": {"url": {"type": "keyword"}}}, WANTED),
        ({"properties": {"meta": {"properties": {}}}}, CLOSED),
        ({"properties": {"meta": {"type": "object", "dynamic": "true"}}}, CLOSED),
        ({"dynamic": "strict", "properties": {"meta": {"dynamic": "runtime"}}}, CLOSED),
        ({"properties": {"meta": {"type": "nested"}}}, {"type": "nested", "dynamic": False}),
        ({"properties": {"meta": {"type": "flattened"}}}, None),
        ({"properties": {"meta": {"type": "keyword"}}}, None),
        ({"properties": {"meta": {"dynamic": "false"}}}, None),
        ({"properties": {"meta": {"dynamic": False}}}, None),
        ({"properties": {"meta": {"dynamic": "strict"}}}, None),
        ({"dynamic": "false"}, None),
        ({"dynamic": "strict", "properties": {"meta": {"properties": {}}}}, None),
    ],
)
def test_an_index_is_closed_unless_it_is(mappings: dict[str, Any], change: dict[str, Any] | None) -> None:
    """What somebody has closed already is his."""
    found = list(closing_changes({"index": {"mappings": mappings}}, "meta", WANTED))
    assert found == ([("index", {"meta": change})] if change else [])


@pytest.mark.parametrize("answer", [None, [], 7, "x", {"a": False}, {"i": {"mappings": []}}, {"i": None}])
def test_an_answer_that_is_none_changes_nothing(answer: Any) -> None:
    """A proxy's, say."""
    assert not list(closing_changes(answer, "meta", WANTED))
