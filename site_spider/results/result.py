"""The result of one URL."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any


@dataclass(slots=True)
class Result:
    """One result document; `url_id` is its `_id`.

    The first four fields after it are the contract with existing indices. Every field is written,
    also as null, so that nothing of an earlier result of the same `url_id` stays; but for `meta`, which
    holds fields of the producer's own.
    """

    url_id: str
    status: int | None = None  # HTTP status; None when nothing answered
    headers: str | None = None  # response headers: a JSON object of name -> list of values
    body: str | None = None  # decoded text; None for binary content and when nothing answered
    description: str | None = None  # why the download failed; None on success
    url: str | None = None  # as asked for
    final_url: str | None = None  # as answered, after redirects
    host: str | None = None  # of `url`
    registered_domain: str | None = None  # of `host`, by the public suffix list
    method: str | None = None
    task_id: str | None = None
    depth: int | None = None  # hops from the seed
    parent_url_id: str | None = None  # of a discovered link: the page it was found on
    seed_url_id: str | None = None  # of a discovered link: the seed it descends from
    content_type: str | None = None
    encoding: str | None = None  # that `body` was decoded with
    body_base64: str | None = None  # binary content, with SITE_KEEP_BINARY
    body_truncated: bool = False  # True: the beginning, up to SITE_BODY_MAX_BYTES
    response_size: int | None = None  # bytes of the whole body, decompressed
    proxy: str | None = None  # that the answer came through, without credentials; None when directly
    latency_ms: float | None = None  # from sending the request to the end of the answer's head
    retries: int | None = None
    redirects: int | None = None
    reason: str | None = None  # kind of the failure, without host and counts: `HTTP 404`; None on success
    fetched_at: str | None = None  # ISO 8601, UTC
    spider: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)  # extra fields of the seed's meta

    def document(self) -> dict[str, Any]:
        """The document as it is stored, without `url_id`'s own key being lost: it stays a field."""
        found = dict(zip(_NAMES, _values(self), strict=True))
        if not self.meta:
            del found["meta"]
        return found


_NAMES = tuple(field.name for field in fields(Result))
_values = attrgetter(*_NAMES)
