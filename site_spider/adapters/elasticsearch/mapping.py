"""Adjusts the mapping of an index that existed before, so that `meta` of one producer harms no other results.

Elasticsearch makes a field of every new key of an object, up to 1,000 in an index; beyond them it refuses
whatever has a new key, whoever sends it. In an index of ours `meta` is one field, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_CLOSED = {"false", "strict"}  # values of `dynamic` with which no field is made


def closing_changes(
    answer: object, field: str, wanted: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The change to the properties of each index, in an answer about mappings, that makes fields of `field`.

    `wanted` is the mapping of one that is not there yet. What is mapped already stays.
    """
    for index, found in answer.items() if isinstance(answer, Mapping) else ():
        mappings = found.get("mappings") if isinstance(found, Mapping) else None
        if isinstance(mappings, Mapping) and (change := _change(mappings, field, wanted)):
            yield str(index), {field: change}


def _change(mappings: Mapping[str, Any], field: str, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    properties = mappings.get("properties")
    now = properties.get(field) if isinstance(properties, Mapping) else None
    if now is None:
        return None if _is_closed(mappings) else dict(wanted)
    if not isinstance(now, Mapping) or now.get("type", "object") not in ("object", "nested"):
        return None
    # an object that says nothing does as those above it
    closed = _is_closed(now) or ("dynamic" not in now and _is_closed(mappings))
    return None if closed else {"type": now.get("type", "object"), "dynamic": False}


def _is_closed(mapping: Mapping[str, Any]) -> bool:
    return str(mapping.get("dynamic", "true")).lower() in _CLOSED
