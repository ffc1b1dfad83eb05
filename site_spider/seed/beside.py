"""Fields of a seed's meta that producers put beside the URL instead: taken as if they stood in meta."""

from __future__ import annotations

from typing import Any, Final

from site_spider.seed import fields as check
from site_spider.text import refused, shown

FIELDS: Final = {
    "task_id": check.optional_identifier,
    "url_id": check.identifier,
    "NotExtract": check.flag,
    "depth": check.depth,
}


def gathered(message: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    """The meta, with what stands beside the URL. Raises SeedError for a contradiction."""
    names = FIELDS.keys() & message.keys()
    if not names:
        return meta
    return meta | {name: _agreed(name, message[name], meta.get(name)) for name in sorted(names)}


def _agreed(name: str, beside: object, inside: object) -> object:
    if beside is None or inside is None:
        return inside if beside is None else beside
    read = FIELDS[name]
    if read(name, beside) != read(f"meta.{name}", inside):
        raise refused(name, f"{shown(beside)}, but meta.{name} is {shown(inside)}; leave one of them out")
    return inside
