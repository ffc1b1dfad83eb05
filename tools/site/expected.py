"""A model crawler: walks the pure pages and says what a right crawl stores.

It follows redirects (20 at most), keeps cookies, and tries three times what may pass,
as Scrapy does with its default settings. What was measured of Scrapy 2.19 where one
could argue is written down in `FAULTS` and beside the pages (`lenient`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urldefrag, urljoin

from tools.site.exchange import PAGES, Answer, Ask, Fault, split_url
from tools.site.pages import LOOP, of_text

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

    def mismatches(self, document: Document) -> list[str]:
        """What is wrong with the document, a line each; empty when it is as expected."""
        wrong = [*self._mismatches(document)]
        return [] if any(not other.mismatches(document) for other in self.alternatives) else wrong

    def _mismatches(self, document: Document) -> Iterator[str]:
        """Fields beside the contract are checked when they are there; `final_url` must be, if redirected."""
        if document.get("status") not in self.status:
            yield f"status is {document.get('status')!r}, expected one of {self.status}"
        yield from self.wrong_body(document.get("body"))
        description = document.get("description")
        if self.description is None and description is not None:
            yield f"description is {description!r}, expected null"
        elif self.description is not None and not re.search(self.description, description or ""):
            yield f"description {description!r} does not match {self.description!r}"
        found = json.loads(document.get("headers") or "{}").items()
        stored = {name.lower(): values for name, values in found}
        for name, values in self.headers.items():
            if stored.get(name.lower()) != list(values):
                yield f"header {name} is {stored.get(name.lower())!r:.120}, expected {list(values)!r:.120}"
        size, final_url = document.get("response_size"), document.get("final_url")
        if None not in (size, self.response_size) and size != self.response_size:
            yield f"response_size is {size}, expected {self.response_size}"
        is_told = None not in self.status and (final_url or self.final_url != self.url)
        if is_told and page_url(final_url or "") != page_url(self.final_url):
            yield f"final_url is {final_url!r}, expected {self.final_url!r}"
        mime = (self.content_type or "").split(";")[0].strip().lower()
        if document.get("content_type") and not str(document["content_type"]).lower().startswith(mime):
            yield f"content_type is {document['content_type']!r}, expected {mime!r}"

    def wrong_body(self, body: str | None) -> list[str]:
        if self.body_pattern is not None:
            fits = re.search(self.body_pattern, body or "") is not None
            return [] if fits else [f"body {body!r:.120} does not match {self.body_pattern!r:.80}"]
        return [] if body == self.body else [f"body is {body!r:.120}, expected {self.body!r:.120}"]


RETRIED = {408, 429, 500, 502, 503, 504, 522, 524}
REDIRECTED = {301, 302, 303, 307, 308}
TRIES = 3
MOST_REDIRECTS = 20
DEPTH_LIMIT = 3
REFUSED_PORT = 1

# What the description says, by fault. The class differs between download handlers and with
# the moment at which the connection broke.
_CONNECTION = r"^\w*(DataLoss|DownloadFailed|ResponseFailed|Disconnected|Connection\w*)\w*"
FAULTS = {
    Fault.RESET: _CONNECTION,
    Fault.SHORT: _CONNECTION,
    Fault.NO_ANSWER: _CONNECTION,
    Fault.GARBAGE: r"^\w*(DownloadFailed|ResponseFailed|Parse|Bad\w+)\w*",
    Fault.HANG: r"(?i)^\w*time(d )?-?out",
}
REFUSED = r"(?i)^\w*(refused|connect)"


def answer(ask: Ask) -> Answer:
    page = PAGES.get(ask.parts[0])
    if page is None:
        return of_text(f"<p>There is nothing at {ask.target}</p>", status=404)
    try:
        return page(ask)
    except (LookupError, ValueError) as error:
        return of_text(f"<p>Not a page: {ask.target} ({type(error).__name__})</p>", status=404)


def phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else "Unknown"


@dataclass
class _Walk:
    """The way from a URL to its final answer."""

    url: str
    method: str
    headers: Mapping[str, list[str]]
    body: bytes
    cookies: dict[tuple[str, str], str] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    redirects: int = 0

    def attempt(self) -> Answer | None:
        """The answer after the retries; None when the connection is refused."""
        host, port, target = split_url(self.url)
        if port == REFUSED_PORT:
            return None
        mine = "; ".join(f"{name}={value}" for (owner, name), value in self.cookies.items() if owner == host)
        headers = {**self.headers, "cookie": [mine]} if mine else self.headers
        for attempt in range(TRIES):
            self.requests[urldefrag(self.url).url] += 1
            found = answer(Ask(host, port, self.method, target, headers, self.body, attempt))
            if found.fault is Fault.NONE and found.status not in RETRIED:
                break
        return found

    def moves(self, found: Answer) -> bool:
        location = found.header("location")
        target = urljoin(self.url, location) if location and found.status in REDIRECTED else ""
        if not target.startswith("http://"):
            return False
        host = split_url(self.url)[0]
        for name, value in found.headers:
            if name == "Set-Cookie":
                cookie, _, content = value.split(";")[0].partition("=")
                self.cookies[host, cookie] = content
        if (found.status in {301, 302} and self.method == "POST") or (
            found.status == 303 and self.method not in {"GET", "HEAD"}
        ):
            self.method, self.body = "GET", b""
        self.url, self.redirects = target, self.redirects + 1
        return True


def expected(
    url: str,
    method: str = "GET",
    *,
    headers: Mapping[str, list[str]] | None = None,
    body: bytes = b"",
    extract: bool = True,
    depth: int = 0,
) -> Expectation:
    """What must be stored for a URL; with `extract` also for all that is discovered from it.

    `headers` are those of the seed, names in lower case.
    """
    walk = _Walk(url, method, headers or {}, body)
    seen = set()
    while True:
        state = (walk.url, tuple(walk.cookies.items()))
        found = walk.attempt()
        if found is None:
            return _failure(url, walk, REFUSED)
        if found.fault is not Fault.NONE:
            return _failure(url, walk, FAULTS[found.fault])
        if state in seen or walk.redirects > MOST_REDIRECTS:
            return _endless(url, walk)
        seen.add(state)
        if not walk.moves(found):
            break
    result = _answered(url, walk, found)
    if found.declared_length is not None and found.declared_length < len(found.body):
        # Measured: the HTTP11 handler keeps what Content-Length covers, the aiohttp one takes
        # the rest for a broken answer and fails.
        twice = dict.fromkeys(walk.requests, (1, 2 * TRIES))
        other = replace(_failure(url, walk, FAULTS[Fault.GARBAGE]), requests=twice)
        result = replace(result, requests=twice, alternatives=(other,))
    if len(seen) > len({address for address, _ in seen}):
        # The way leads through one URL twice, with a cookie the second time. To be filtered
        # as a duplicate is what Scrapy does without dont_filter.
        result = replace(result, alternatives=(_endless(url, walk),))
    if not extract or not found.links:
        return result
    return replace(
        result,
        links=found.links,
        optional_links=found.optional_links,
        tree=_tree({url, result.final_url}, found, depth),
    )


def _requests(walk: _Walk, extra: int = 1) -> dict[str, tuple[int, int]]:
    return {url: (count, count * extra) for url, count in walk.requests.items()}


def _failure(url: str, walk: _Walk, description: str) -> Expectation:
    """Nothing usable came. A client may repeat a request by itself on a kept connection that closed."""
    return Expectation(
        url=url, final_url=walk.url, status=(None,), description=description, requests=_requests(walk, 2)
    )


def _endless(url: str, walk: _Walk) -> Expectation:
    """Redirects without end: stopped at the first repetition or at the limit, as failure or last answer."""
    return Expectation(
        url=url,
        final_url=url,
        status=(None, 301, 302),
        body_pattern="",
        description=LOOP,
        requests=dict.fromkeys(walk.requests, (0, MOST_REDIRECTS + 1)) | {url: (1, MOST_REDIRECTS + 1)},
    )


def _answered(url: str, walk: _Walk, found: Answer) -> Expectation:
    is_head, is_success = walk.method == "HEAD", 200 <= found.status < 300
    size = len(found.body) if found.size is None else found.size
    result = Expectation(
        url=url,
        final_url=walk.url,
        status=(found.status,),
        body="" if is_head else found.text,
        description=None if is_success else rf"^HTTP {found.status}\b",
        headers=_stored_headers(found),
        content_type=found.header("content-type"),
        response_size=0 if is_head else size,
        requests=_requests(walk),
    )
    lenient: Mapping[str, Any] = {} if is_head else found.lenient
    return replace(result, **lenient)


def _stored_headers(found: Answer) -> dict[str, tuple[str, ...]]:
    """Lines of the answer by name; those that are consumed, or not ASCII, are left out."""
    result: dict[str, tuple[str, ...]] = {}
    for name, value in found.headers:
        if name != "Content-Encoding" and value.isascii():
            result[name.lower()] = (*result.get(name.lower(), ()), value.strip())
    return result


def _tree(known: set[str], found: Answer, depth: int) -> dict[str, Expectation]:
    """Every document that must come of the links, level by level, down to the depth limit."""
    known, level, result = {urldefrag(url).url for url in known}, found.links, {}
    for _ in range(depth, DEPTH_LIMIT):
        fresh = {urldefrag(link).url for link in level} - known
        known |= fresh
        children = {link: expected(link, depth=DEPTH_LIMIT) for link in fresh}
        result.update({link: replace(child, tree={}) for link, child in children.items()})
        level = frozenset(link for child in children.values() for link in child.links)
    return result
