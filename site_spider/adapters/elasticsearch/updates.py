"""Records as lines of a bulk request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from site_spider.adapters.elasticsearch.answer import Action
from site_spider.results.document import encode

RETRY_ON_CONFLICT = 3


class Update(NamedTuple):
    """The two lines of one document, and the id in them."""

    key: str
    lines: bytes


class TooLarge(NamedTuple):
    """Refused for its size, alone."""

    update: Update
    at: float  # monotonic


# Of a document that is not there, without one to be made: nothing is written.
PROBE: Final = Update("site_spider-probe", b'{"update":{"_id":"site_spider-probe"}}\n{"doc":{}}\n')


def update_of(key: str, document: Mapping[str, Any], action: Action) -> Update:
    """Raises SinkRejected."""
    if action == "index":
        return Update(key, b"%b\n%b\n" % (encode({"index": {"_id": key}}), encode(document)))
    update = encode({"update": {"_id": key, "retry_on_conflict": RETRY_ON_CONFLICT}})
    return Update(key, b'%b\n{"doc_as_upsert":true,"doc":%b}\n' % (update, encode(document)))
