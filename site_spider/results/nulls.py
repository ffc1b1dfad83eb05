"""Whose a field is that a result has no value for: a producer's value is never replaced by null.

A stored document has a field MARK: the names of those that our last result had no value for, with commas
between them. What has a value all the same is the producer's; what has one and is not among them was written
by us. The fields of the contract are always written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

MARK: Final = "absent"
ALWAYS: Final = frozenset({"url_id", "status", "headers", "body", "description"})
_OF_EARLIER_VERSIONS: Final = ("latency_ms", "redirects")  # which wrote every field, and no mark


def is_marked(document: Mapping[str, Any]) -> bool:
    """Whether a document gets a mark: it is a result, and has fields beyond those of the contract."""
    return document.keys() > ALWAYS


def absent(document: Mapping[str, Any]) -> list[str]:
    """The names of the fields without a value that may be a producer's."""
    return [name for name, value in document.items() if value is None and name not in ALWAYS]


def looked_at(names: Iterable[str]) -> list[str]:
    """What `kept` needs of a stored document."""
    return [*names, MARK, *_OF_EARLIER_VERSIONS]


def kept(stored: Mapping[str, Any], names: Collection[str]) -> set[str]:
    """Those of the names that have a producer's value in the stored document."""
    mark = stored.get(MARK)
    if isinstance(mark, str):
        names = set(mark.split(",")) & set(names)
    elif all(name in stored for name in _OF_EARLIER_VERSIONS):
        return set()
    return {name for name in names if stored.get(name) is not None}


def marked(document: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The document of a result as it is stored where there is none yet."""
    return {**document, MARK: ",".join(names)}


def settled(stored: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is written over a stored document: without nulls for what is a producer's, and with the mark."""
    if not is_marked(document):
        return document
    names = absent(document)
    theirs = kept(stored, names)
    over = {name: value for name, value in document.items() if name not in theirs} if theirs else document
    return marked(over, names)


def without_mark(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stored document as readers see it."""
    return {name: value for name, value in document.items() if name != MARK}
