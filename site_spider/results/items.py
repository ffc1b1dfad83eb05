"""Items of spiders on their way to the sinks: each is a document of its own.

It is stored under its `item_id`, or else under its page's url_id and its place there, so doing a seed
again leaves the same documents. What cannot be stored makes the seed a dead letter that names the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import Any

from itemadapter import ItemAdapter

from site_spider import runtime
from site_spider.contracts.sink import Record
from site_spider.errors import SinkRejected
from site_spider.results.json_values import JsonValues
from site_spider.results.page_of import SeedPage

PAGE = "_page"
_OVERHEAD_BYTES = 600  # of a record besides its document's text
_SHOWN_CHARACTERS = 300  # of a URL


def item_record(item: Any, page: SeedPage, place: int, spider: str) -> Record:
    """The record of an item that stands at this place of a page. Raises SinkRejected."""
    values = JsonValues()
    document = values.fields(item if isinstance(item, Mapping) else ItemAdapter(item))
    if PAGE in document:
        raise SinkRejected(f"the item has a field {PAGE!r} of its own; it stands for the page: rename yours")
    key = _identity(document.get("item_id")) or f"{page.url_id}-{place}"
    document[PAGE] = {
        "url_id": page.url_id,
        "url": page.url,
        "task_id": page.task_id,
        "seed_url_id": page.seed_url_id,
        "depth": page.depth,
        "fetched_at": runtime.now(UTC).isoformat(timespec="milliseconds"),
        "spider": spider,
    }
    return Record(key, document, values.size_bytes + _OVERHEAD_BYTES + len(page.url), "item")


def refusal_of(record: Record, reason: str) -> str:
    """Why a record cannot be stored; for an item with its page."""
    if record.kind == "result":
        return reason
    return of_page(record.document[PAGE]["url"], f"item {record.key[:_SHOWN_CHARACTERS]}: {reason}")


def of_page(url: str, reason: str) -> str:
    """A reason with the page it is about."""
    return f"{reason} (page {url[:_SHOWN_CHARACTERS]})"


def _identity(value: Any) -> str:
    """An `item_id` as text; empty for one that says nothing. Raises SinkRejected."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SinkRejected(f"item_id is {str(value)[:80]!r}, but must be text or a whole number")
    return str(value)
