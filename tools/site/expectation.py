"""What must be known about a URL after the crawl, and how to compare a stored document with it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urldefrag

Document = Mapping[str, Any]


def page_url(url: str) -> str:
    """The URL without its fragment, which is never sent: what pages are told apart by."""
    return urldefrag(url).url


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """The result document of one URL, and the requests that lead to it.

    `description` and `body_pattern` are regular expressions (searched for); a
    description of None means that the field must be null. With a `body_pattern` the
    body need not equal `body`. Statuses, and the whole of `alternatives`, list what is
    acceptable where a crawler's behaviour is arguable.
    """

    url: str
    final_url: str
    status: tuple[int | None, ...] = (200,)
    body: str | None = None
    body_pattern: str | None = None
    description: str | None = None
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    content_type: str | None = None
    response_size: int | None = None  # bytes after decompression; None: not checked
    requests: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # URL -> fewest, most in one crawl
    links: frozenset[str] = frozenset()  # direct links of the final page that must be followed
    optional_links: frozenset[str] = frozenset()  # those that may be
    tree: Mapping[str, Expectation] = field(default_factory=dict)  # all documents of discovered links
    alternatives: tuple[Expectation, ...] = ()

    @property
    def succeeds(self) -> bool:
        """Whether the final answer is a 2xx."""
        return self.description is None

    def mismatches(self, document: Document) -> list[str]:
        """What is wrong with the document, a line each; empty when it is as expected."""
        wrong = self._mismatches(document)
        if wrong and any(not other.mismatches(document) for other in self.alternatives):
            return []
        return wrong

    def _mismatches(self, document: Document) -> list[str]:
        wrong = []
        if document.get("status") not in self.status:
            wrong.append(f"status is {document.get('status')!r}, expected one of {self.status}")
        return (
            wrong
            + self.wrong_body(document.get("body"))
            + self._wrong_description(document.get("description"))
            + self._wrong_headers(document.get("headers"))
            + self._wrong_extras(document)
        )

    def wrong_body(self, body: str | None) -> list[str]:
        """What is wrong with a stored body."""
        if self.body_pattern is not None:
            fits = re.search(self.body_pattern, body or "") is not None
            return [] if fits else [f"body {body!r:.120} does not match {self.body_pattern!r:.80}"]
        return [] if body == self.body else [f"body is {body!r:.120}, expected {self.body!r:.120}"]

    def _wrong_description(self, description: str | None) -> list[str]:
        if self.description is None:
            return [] if description is None else [f"description is {description!r}, expected null"]
        fits = re.search(self.description, description or "") is not None
        return [] if fits else [f"description {description!r} does not match {self.description!r}"]

    def _wrong_headers(self, headers: str | None) -> list[str]:
        stored = {name.lower(): values for name, values in json.loads(headers or "{}").items()}
        return [
            f"header {name} is {stored.get(name.lower())!r:.120}, expected {list(values)!r:.120}"
            for name, values in self.headers.items()
            if stored.get(name.lower()) != list(values)
        ]

    def _wrong_extras(self, document: Document) -> list[str]:
        """Fields beside the contract are checked when they are there; `final_url` must be, if redirected."""
        wrong = []
        size, final_url = document.get("response_size"), document.get("final_url")
        if None not in (size, self.response_size) and size != self.response_size:
            wrong.append(f"response_size is {size}, expected {self.response_size}")
        is_answered, is_redirected = None not in self.status, self.final_url != self.url
        if (
            is_answered
            and (final_url or is_redirected)
            and page_url(final_url or "") != page_url(self.final_url)
        ):
            wrong.append(f"final_url is {final_url!r}, expected {self.final_url!r}")
        mime = (self.content_type or "").split(";")[0].strip().lower()
        if document.get("content_type") and not str(document["content_type"]).lower().startswith(mime):
            wrong.append(f"content_type is {document['content_type']!r}, expected {mime!r}")
        return wrong
