"""What results say of pages beyond the answer: text, directives for robots, duplicates, canonical URLs.

A page is read by the process that extracts (sources/extractor.py). What cannot be read is a note in
`page_notes`, and no failure.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, Self

from scrapy.http import Response
from scrapy.settings import BaseSettings

from site_spider import options
from site_spider.bounded_dict import BoundedDict
from site_spider.errors import ConfigError
from site_spider.ledger.completion import Job, id_of_page
from site_spider.page.decode import is_html, media_type
from site_spider.page.directives import canonical_of_header, directives, forbids
from site_spider.results.document import Result
from site_spider.sources.extractor import MAX_TEXT_BYTES, Extractor, NotExtracted, PageBody
from site_spider.spiders.sitemaps import is_page_of_seed

_MOST_TEXTS = 50_000  # that a duplicate is told by, of all hosts: about 15 MB
_MOST_PAGES = 20_000  # that canonical URLs are compared with: about 20 MB
_MOST_URLS = 100  # of one document
_LONGEST = 1_000  # characters of notes and directives
_OF_CANONICAL = (
    "url_id", "url", "final_url", "host", "registered_domain", "method", "task_id", "depth", "parent_url_id",
    "seed_url_id", "meta", "canonical", "duplicate_of",
)  # fmt: skip
_READ = (
    "title", "text", "language", "text_hash", "meta_description", "published_at", "links_out", "canonical",
)  # fmt: skip
_ROBOTS = "X-Robots-Tag"
_identity = attrgetter(*_OF_CANONICAL)


def forbids_following(response: Response) -> bool:
    """Whether the header X-Robots-Tag says so."""
    return _ROBOTS in response.headers and forbids(directives(_header(response, _ROBOTS)), "nofollow")


def _header(response: Response, name: str) -> list[str]:
    return [value.decode("latin-1") for value in response.headers.getlist(name)]


class _KnownPage(NamedTuple):
    """A page that was fetched well; `canonical` is the id of another one that it names."""

    identity: tuple[Any, ...]  # see _OF_CANONICAL
    text_hash: str | None
    robots: str | None
    canonical: str | None
    urls: list[str]  # of the pages merged into it

    def with_page(self, result: Result) -> Result:
        """Its document with the content of a page that names it as the canonical one."""
        if result.url and result.url not in self.urls and len(self.urls) < _MOST_URLS:
            self.urls.append(result.url)
        identity = dict(zip(_OF_CANONICAL, self.identity, strict=True))
        return replace(result, **identity, additional_urls=list(self.urls))


class PageTexts:
    """Of one crawl; on the event loop's thread only."""

    def __init__(self, mode: str = "robots", *, drops_noindex: bool = False, merges: bool = False) -> None:
        self._mode = mode  # plain, main, or robots: directives alone
        self._drops_noindex = drops_noindex
        self._merges = merges
        self._first: BoundedDict[tuple[str | None, str | None, str], str] = BoundedDict(_MOST_TEXTS)
        self._pages: BoundedDict[str, _KnownPage] = BoundedDict(_MOST_PAGES)

    @classmethod
    def read(cls, settings: BaseSettings) -> Self | None:
        """None when no setting asks for anything. Raises ConfigError."""
        mode = options.choice(settings, "SITE_TEXT", ("off", "plain", "main"))
        drops = options.choice(settings, "SITE_NOINDEX", ("keep", "drop_body")) == "drop_body"
        merges = options.choice(settings, "SITE_CANONICAL", ("note", "merge")) == "merge"
        if merges and mode == "off":
            raise ConfigError("SITE_CANONICAL is 'merge', which compares texts: set SITE_TEXT as well.")
        if mode != "off" and importlib.util.find_spec("resiliparse") is None:
            raise ConfigError(f"SITE_TEXT is {mode!r}: it needs pip install 'site-spider[text]'")
        if mode == "off" and not drops:
            return None
        return cls("robots" if mode == "off" else mode, drops_noindex=drops, merges=merges)

    async def fill(
        self, result: Result, response: Response, extractor: Extractor | None, scope: str | None
    ) -> None:
        """Fill in what the page says of itself; `scope` is within what it is compared with others."""
        fields, notes = await self._read(response, extractor)
        robots = [*directives(_header(response, _ROBOTS)), *(fields.get("robots") or [])]
        result.robots_meta = ", ".join(dict.fromkeys(robots))[:_LONGEST] or None
        for name in _READ:
            setattr(result, name, fields.get(name))
        result.canonical = result.canonical or canonical_of_header(_header(response, "Link"), response.url)
        result.duplicate_of = self._first_with(result, scope)
        if self._drops_noindex and (forbids(robots, "noindex") or fields.get("robots", []) is None):
            notes += _without_body(result)
        result.page_notes = "; ".join(notes)[:_LONGEST] or None

    def _first_with(self, result: Result, scope: str | None) -> str | None:
        """The first page with the text of this one; None if that is it."""
        if result.text_hash is None:
            return None
        key = (scope, result.host, result.text_hash)
        first = self._first.get(key)
        if first is None:
            self._first[key] = first = result.url_id
        return None if first == result.url_id else first

    def fill_failed(self, result: Result, response: Response) -> None:
        """Of a page whose callback failed: nothing can be waited for, so it may say noindex."""
        if self._drops_noindex and 200 <= response.status < 300:
            result.page_notes = "; ".join(_without_body(result))

    async def _read(
        self, response: Response, extractor: Extractor | None
    ) -> tuple[dict[str, Any], list[str]]:
        """Fields and notes; `robots` is None where it could not be read."""
        kind = _content_type(response)
        is_well = 200 <= response.status < 300 and response.body and extractor is not None
        if not is_well or not (is_html(response.body, kind) or media_type(kind) == "text/plain"):
            return {}, []
        assert extractor is not None
        page, notes = PageBody(response.url, response.body, kind), []
        if len(response.body) > MAX_TEXT_BYTES and self._mode != "robots":
            notes.append(f"text: of the first {MAX_TEXT_BYTES} of {len(response.body)} bytes")
        for mode in dict.fromkeys((self._mode, "robots")):  # in linear time, so no page can be too slow
            try:
                fields = await extractor.read(page, mode)
            except NotExtracted as error:
                notes.append(str(error))
            else:
                return fields, notes + fields.get("notes", [])
        return {"robots": None}, notes

    # --- canonical URLs ---------------------------------------------------------------------------

    def merged(self, result: Result, job: Job, *, is_in_scope: bool) -> Result | None:
        """The document of its canonical page, with this page's content; None if it stays one of its own.

        Only a link is merged, and only when nothing of it is lost: its text is that of the canonical page,
        which was fetched well here before. A seed has a document under its own `url_id` always.
        """
        if not self._merges or result.method != "GET" or not 200 <= (result.status or 0) < 300:
            return None
        own = {id_of_page(url, job.page_scope) for url in (result.url, result.final_url) if url}
        named = result.canonical and id_of_page(result.canonical, job.page_scope)
        points_to = named if named and named not in own else None
        known = self._pages.get(points_to) if points_to else None
        reason = "" if points_to is None else _why_not(result, known, own, is_in_scope=is_in_scope)
        if points_to and not reason and is_page_of_seed(job):
            reason = "this page is a seed's"
        if known is not None and not reason:
            return known.with_page(result)
        self._remember(result, own, points_to)
        if reason:
            note = f"canonical not merged: {reason}"
            result.page_notes = f"{result.page_notes}; {note}" if result.page_notes else note
        return None

    def _remember(self, result: Result, own: set[str], points_to: str | None) -> None:
        earlier = next((known for one in own if (known := self._pages.get(one)) is not None), None)
        urls = [] if earlier is None else earlier.urls
        known = _KnownPage(_identity(result), result.text_hash, result.robots_meta, points_to, urls)
        for one in own:
            self._pages[one] = known
        result.additional_urls = list(urls) or None


def _why_not(result: Result, known: _KnownPage | None, own: set[str], *, is_in_scope: bool) -> str:
    if not is_in_scope:
        return "it is outside of the link scope"
    if known is None:
        return "it was not fetched well here before this page"
    if known.canonical is not None:
        return "the two name each other" if known.canonical in own else "it names another page itself"
    if result.text_hash is None or known.text_hash != result.text_hash:
        return "its text is another"
    return "" if known.robots == result.robots_meta else "its directives for robots are others"


def _without_body(result: Result) -> list[str]:
    result.body = result.body_base64 = result.text = None
    result.body_truncated = False
    return ["body and text are not kept: SITE_NOINDEX=drop_body"]


def _content_type(response: Response) -> str | None:
    value = response.headers.get("Content-Type")
    return None if value is None else value[:_LONGEST].decode("latin-1")
