"""Adjusts the mapping of an index that existed before.

It gets the fields that later versions write: a strict mapping refuses no result for them, and others map them
as a new index does.

And `meta` of one producer harms no other results. Elasticsearch makes a field of every new key of an
object, up to 1,000 in an index; beyond them it refuses whatever has a new key, whoever sends it. In an index
of ours `meta` is one field, whatever is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from site_spider.adapters.elasticsearch.template import TEXT

_CLOSED = {"false", "strict"}  # values of `dynamic` with which no field is made
LATER = ("absent", "reason", "registered_domain", TEXT)  # fields that earlier versions did not write
_NOT_MAPPED = re.compile(r"strict_dynamic_mapping_exception.*?introduction of \[(\w+)\] within \[_doc\]")


def added_fields(answer: object, wanted: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The later fields that each index, in an answer about mappings, lacks, as `wanted` maps them.

    An index whose mapping ignores unknown fields stays as it is.
    """
    for index, mappings in _mappings(answer):
        properties = mappings.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        added = {name: wanted[name] for name in LATER if name in wanted and name not in known}
        if added and str(mappings.get("dynamic")).lower() != "false":
            yield index, added


def has_field(answer: object, field: str) -> bool:
    """Whether an index, in an answer about mappings, has this field."""
    return any(field in (mappings.get("properties") or ()) for _, mappings in _mappings(answer))


def not_mapped(reason: str) -> str | None:
    """The later field for which a strict mapping refused a document; None when it was for another reason."""
    found = _NOT_MAPPED.search(reason)
    return found[1] if found and found[1] in LATER else None


def _mappings(answer: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, found in answer.items() if isinstance(answer, Mapping) else ():
        mappings = found.get("mappings") if isinstance(found, Mapping) else None
        if isinstance(mappings, Mapping):
            yield str(index), mappings


def closing_changes(
    answer: object, field: str, wanted: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The change to the properties of each index, in an answer about mappings, that makes fields of `field`.

    `wanted` is the mapping of one that is not there yet. What is mapped already stays.
    """
    for index, mappings in _mappings(answer):
        if change := _change(mappings, field, wanted):
            yield index, {field: change}


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
