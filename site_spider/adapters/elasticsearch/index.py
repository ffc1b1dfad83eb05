"""The index template of one index, and what becomes of it on a server without the usual text analysis.

Every complete Elasticsearch has the module analysis-common, with html_strip and asciifolding. A slim
distribution refuses a template that names them. There the index of results has a further field, body_text,
for the text of a page, which the sink fills.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from elasticsearch import ApiError

from site_spider.adapters.elasticsearch.client import UnexpectedResponse, explained, version_of
from site_spider.results.document import CHECK_FIELDS, PAGE_FIELDS

TEXT: Final = "body_text"  # the text of `body`, where the server cannot make it
_BODY: Final = "body"
_ANALYZERS: Final = ("page_text", "plain_text")
_REFUSALS: Final = ("char_filter", "failed to find filter")
# by a query that names no field
_SEARCHED: Final = [
    TEXT,
    "title",
    "text",
    "description",
    "url",
    "url_id",
    "host",
    "task_id",
    "reason",
]  # unless fields are named


class IndexTemplate:
    """The template as it is sent."""

    def __init__(self, path: Path, index: str) -> None:
        template: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self.name = f"site_spider-{index}"
        self.version: int = template["version"]
        # Two templates of one priority may not share a name. The longer name is the more
        # specific one, and priorities that people choose themselves (100 and up) win over it.
        self.content: dict[str, Any] = {
            "index_patterns": [index, f"{index}-*"],
            "priority": min(len(index), 99),
            "version": template["version"],
            "meta": template["_meta"],
            "template": template["template"],
        }

    @property
    def properties(self) -> Mapping[str, Any]:
        """The mapping of each field."""
        found: Mapping[str, Any] = self.content["template"]["mappings"]["properties"]
        return found

    def without_analysis(self) -> dict[str, Any]:
        """For a server that lacks the filters of texts."""
        content = copy.deepcopy(self.content)
        template = content["template"]
        template["settings"].pop("analysis")
        _forget_analyzer(template["mappings"])
        if _BODY in self.properties:
            template["mappings"]["properties"][TEXT] = {"type": "text"}
            template["settings"]["index"]["query"] = {"default_field": _SEARCHED}
        return content


def lacks_filters(error: ApiError) -> bool:
    """Whether a template was refused because the server does not know its filters."""
    return error.status_code == 400 and any(said in explained(error) for said in _REFUSALS)


def newest(answer: object, version: int) -> Mapping[str, Any] | None:
    """The template on the server, if it has this version or a newer one. Raises UnexpectedResponse."""
    if not isinstance(answer, Mapping):
        raise UnexpectedResponse("the answer about an index template is no object", answer)
    templates = answer.get("index_templates")
    there = templates if isinstance(templates, list) else []
    found = next((one for one in there if version_of(one) >= version), None)
    return found["index_template"] if isinstance(found, Mapping) else None


def has_text(template: Mapping[str, Any]) -> bool:
    """Whether indices of a template have the field for texts."""
    inner: Any = template
    for name in ("template", "mappings", "properties"):
        inner = inner.get(name) if isinstance(inner, Mapping) else None
    return isinstance(inner, Mapping) and TEXT in inner


def _forget_analyzer(mapping: Any) -> None:
    if isinstance(mapping, dict):
        if mapping.get("analyzer") in _ANALYZERS:
            del mapping["analyzer"]
        for inner in mapping.values():
            _forget_analyzer(inner)
    elif isinstance(mapping, list):
        for inner in mapping:
            _forget_analyzer(inner)


# --- mapping ---------------------------------------------------------------------------------------------
# Adjusts the mapping of an index that existed before.
#
# It gets the fields that later versions write: a strict mapping refuses no result for them, and others map
# them as a new index does.
#
# And `meta` of one producer harms no other results. Elasticsearch makes a field of every new key of an
# object, up to 1,000 in an index; beyond them it refuses whatever has a new key, whoever sends it. In an
# index of ours `meta` is one field, whatever is in it.


_CLOSED = {"false", "strict"}  # values of `dynamic` with which no field is made
LATER = (
    *("etag", "last_modified", "body_hash", "changed_at", "checked_at", "unchanged"),
    "absent",
    "reason",
    "registered_domain",
    TEXT,
    *PAGE_FIELDS,
    *("gone_at", "recrawl", *CHECK_FIELDS),
)  # fields that earlier versions did not write
_NOT_MAPPED = re.compile(r"strict_dynamic_mapping_exception.*?introduction of \[(\w+)\] within \[_doc\]")


def added_fields(answer: object, wanted: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The later fields that each index, in an answer about mappings, lacks, as `wanted` maps them.

    An index that is there gets no new analyzers: new texts have the one that it has for all. One whose
    mapping ignores unknown fields stays as it is.
    """
    for index, mappings in _mappings(answer):
        properties = mappings.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        added = {name: copy.deepcopy(wanted[name]) for name in LATER if name in wanted and name not in known}
        _forget_analyzer(added)
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
        properties = mappings.get("properties")
        now = properties.get(field) if isinstance(properties, Mapping) else None
        # an object that says nothing does as those above it
        if _is_closed(now if isinstance(now, Mapping) and "dynamic" in now else mappings):
            continue
        if now is None:
            yield index, {field: dict(wanted)}
        elif isinstance(now, Mapping) and (kind := now.get("type", "object")) in ("object", "nested"):
            yield index, {field: {"type": kind, "dynamic": False}}


def _is_closed(mapping: Mapping[str, Any]) -> bool:
    return str(mapping.get("dynamic", "true")).lower() in _CLOSED
