"""What results say of the text of pages: directives for robots, duplicates, canonical URLs.

A page is read by the process that extracts (sources/extraction_process.py). What cannot be read is a note in
`page_notes`, and no failure.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.settings import BaseSettings

from site_spider import meta_keys, options
from site_spider.bounded import BoundedDict
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.engine.scrapy_parts import part_of
from site_spider.errors import ConfigError
from site_spider.ledger.completion import Completion, Job, id_of_page
from site_spider.ledger.ledger import SeedInFlight
from site_spider.page.decode import is_html, media_type
from site_spider.page.directives import as_stored, canonical_of_header, directives, forbids
from site_spider.results.document import Result, content_type_of, header_texts, result_fields
from site_spider.sources.extraction_process import Extractor, NotExtracted, PageBody
from site_spider.spiders.conditional import NOT_KEPT, StoredPages
from site_spider.spiders.sitemap_rules import is_page_of_seed

_MOST_TEXTS = 50_000  # that a duplicate is told by, of all hosts: about 15 MB
_MOST_PAGES = 10_000  # that canonical URLs are compared with: about 20 MB
_MOST_URLS = 100  # of one document
_CANONICAL_SECONDS = 2.0  # after which a page is asked for again, at the earliest
_LONGEST = 1_000  # characters of notes


class _KnownPage(NamedTuple):
    """A page that was fetched well; `canonical` is the id of another one that it names."""

    url_id: str
    url: str | None
    text_hash: str | None
    robots: str | None
    canonical: str | None
    urls: list[str]  # of the pages merged into it
    job: Job | None  # None: nothing is merged
    own: set[str]  # ids of its URLs

    @property
    def is_well(self) -> bool:
        """Whether its document went to the sinks, and none has refused it; nor was it dropped with its partition."""
        if self.job is None:
            return True
        entry = self.job.entry
        return self.job.written and self.job.error is None and not entry.is_set_aside and entry.live


class PageTexts:
    """Of one crawl; on the event loop's thread only."""

    def __init__(self, mode: str = "robots", *, drops_noindex: bool = False, merges: bool = False) -> None:
        self._mode = mode  # plain, main, or robots: directives alone
        self._drops_noindex = drops_noindex
        self._merges = merges
        self._first: BoundedDict[tuple[str | None, str | None, str], str] = BoundedDict(_MOST_TEXTS)
        self._pages: BoundedDict[str, _KnownPage | None] = BoundedDict(_MOST_PAGES)  # None: it has failed
        # canonical pages that did not come, and who has asked for each: with that it is dropped
        self._missed: BoundedDict[str, SeedInFlight] = BoundedDict(_MOST_PAGES)

    @classmethod
    def read(cls, settings: BaseSettings) -> Self | None:
        """None when no setting asks for anything. Raises ConfigError."""
        mode = options.choice(settings, "SITE_TEXT", ("off", "plain", "main"))
        drops = options.choice(settings, "SITE_NOINDEX", ("keep", "drop_body")) == "drop_body"
        merges = options.choice(settings, "SITE_CANONICAL", ("note", "merge")) == "merge"
        if merges and mode == "off":
            raise ConfigError("SITE_CANONICAL is 'merge', which compares texts: set SITE_TEXT as well.")
        if merges and (fields := result_fields(settings)) and "additional_urls" not in fields:
            raise ConfigError("SITE_CANONICAL is 'merge': add additional_urls to SITE_RESULT_FIELDS.")
        if mode != "off" and importlib.util.find_spec("resiliparse") is None:
            raise ConfigError(f"SITE_TEXT is {mode!r}: install its extra 'text': pip install '.[text]' in a checkout")
        if mode == "off" and not drops:
            return None
        return cls("robots" if mode == "off" else mode, drops_noindex=drops, merges=merges)

    async def fill(
        self, result: Result, response: Response, extractor: Extractor | None, scope: str | None
    ) -> dict[str, Any] | None:
        """Fill in what the page says of itself; `scope` is within what it is compared with others.

        Returns its text and body, and whether that is cut, if nothing of them is to be kept.
        """
        fields, notes = await self._read(response, extractor)
        read = fields.pop("robots", [])
        robots = directives([*header_texts(response, b"X-Robots-Tag"), *(read or [result.robots_meta or ""])])
        result.robots_meta = as_stored(robots)
        _fill_in(result, response, fields)
        result.duplicate_of = self._first_with(result, scope)
        is_dropped = self._drops_noindex and (read is None or forbids(robots, "noindex"))
        dropped = _without_body(result) if is_dropped else None
        notes += [NOT_KEPT] if is_dropped else []
        result.page_notes = "; ".join(dict.fromkeys(notes))[:_LONGEST] or None
        return dropped

    async def says_noindex(self, response: Response, extractor: Extractor | None) -> bool:
        """Whether nothing of the body of a page is to be kept that is not read otherwise."""
        of_robots = PageTexts(drops_noindex=self._drops_noindex)
        return await of_robots.fill(Result(""), response, extractor, None) is not None

    def _first_with(self, result: Result, scope: str | None) -> str | None:
        """The first page with the text of this one; None if that is it."""
        if result.text_hash is None:
            return None
        key = (scope, result.host, result.text_hash)
        first = self._first.get(key)
        if first is None:
            self._first[key] = first = result.url_id
        return None if first == result.url_id else first

    def recall(self, result: Result, known: Mapping[str, Any], scope: str | None) -> None:
        """Take what is stored of the text of a page that is unchanged for that of the page."""
        if isinstance(text_hash := known.get("text_hash"), str):
            self._first.setdefault((scope, result.host, text_hash), known.get("duplicate_of") or result.url_id)

    def fill_failed(self, result: Result) -> bool:
        """Of a page whose callback failed: nothing can be waited for, so it may say noindex, and is not kept: False."""
        if self._drops_noindex:
            _without_body(result)
            result.page_notes = NOT_KEPT
        return not self._drops_noindex

    async def _read(self, response: Response, extractor: Extractor | None) -> tuple[dict[str, Any], list[str]]:
        """Fields and notes; `robots` is None where it could not be read."""
        kind = content_type_of(response)
        is_read = is_html(response.body, kind) or media_type(kind) == "text/plain"
        is_well = 200 <= response.status < 300
        if extractor is None or not (response.body and is_read and (is_well or self._drops_noindex)):
            return {}, []
        notes, until = [], asyncio.get_running_loop().time() + extractor.patience_seconds
        # robots takes linear time: no page is too slow for it
        modes = (self._mode, "robots") if is_well else ("robots",)
        for mode in dict.fromkeys(modes):
            try:
                fields = await extractor.read(PageBody(response.url, response.body, kind), mode, until)
            except NotExtracted as error:
                notes.append(str(error))
            else:
                return fields, notes + fields.pop("notes", [])
        return {"robots": None}, notes

    # --- canonical URLs ---------------------------------------------------------------------------

    async def merged(self, result: Result, job: Job, stored: StoredPages | None, *, is_in_scope: bool) -> Result | None:
        """With the `url_id` of its canonical page, to whose document its URL is added; None if it stays.

        Only a link is merged, and only when nothing of it is lost: its text is that of the canonical page,
        which was fetched well here before. A seed has a document under its own `url_id` always. `stored`
        knows `additional_urls`, from which those of earlier processes are taken.
        """
        if result.description is not None or not self._is_compared(result):
            self.forget(job)
            return None
        own, points_to = _ids(result, job)
        known = self._pages.get(points_to) if points_to else None
        if not self._merges:
            reason = _why_not(result, known, own, None) if result.text_hash and points_to in self._pages else ""
        else:
            reason = _why_not(result, known, own, job) if is_in_scope else "it is outside of the link scope"
        if self._merges and known is not None and not reason:
            if not await _has_earlier_urls(known, stored):
                reason = "its stored document could not be read"
            elif not (reason := _why_not(result, known, own, job)):  # of what has come of it meanwhile
                self._is_no_first(result, job)
                return _as_canonical(result, known)
        self._remember(result, own, points_to, job if self._merges else None)
        if points_to and reason:
            result.add_note(f"canonical {'not merged' if self._merges else 'doubtful'}: {reason}")
        return None

    def again(self, result: Result, request: Request, job: Job, crawler: Crawler) -> Request | None:
        """For the page once more, behind its canonical page, where that was not fetched here before.

        Once: a canonical page that has not come by then is waited for by no other page.
        """
        own, points_to = _ids(result, job)
        is_of_many = self._merges and self._is_compared(result) and result.text_hash is not None
        if points_to is None or not is_of_many or is_page_of_seed(job):
            return None
        known, spilled = self._pages.get(points_to), job.seed.spilled
        if not _why_not(result, known, own, job):
            self._is_no_first(result, job)
        came = None if known is None else known.job
        was_here = came is not None and (came.written or came.error is not None) and came.entry.live
        if was_here or ((missed := self._missed.get(points_to)) is not None and missed.live):
            return None
        if _never_comes(points_to, result.canonical or "", job, crawler):
            return None
        if meta_keys.AGAIN in request.meta or (spilled is not None and not spilled.is_link):
            self._missed[points_to] = job.entry
            return None
        self._is_no_first(result, job)
        later = asyncio.get_running_loop().time() + _CANONICAL_SECONDS
        meta = {**request.meta, meta_keys.AGAIN: True, meta_keys.NOT_BEFORE: later}
        meta.pop("download_latency", None)  # Scrapy warns of it
        return request.replace(dont_filter=True, priority=request.priority - 2, meta=meta)

    def _is_no_first(self, result: Result, job: Job) -> None:
        """Of the pages with its text: it may get no document."""
        of_text = job.seed.page_scope, result.host, result.text_hash or ""
        if self._first.get(of_text) == result.url_id:
            del self._first[of_text]

    def _is_compared(self, result: Result) -> bool:
        return self._mode != "robots" and result.method == "GET" and 200 <= (result.status or 0) < 300

    def forget(self, job: Job) -> None:
        """Of a page that is fetched again: nothing is merged into what it was."""
        page = id_of_page(job.url, job.seed.page_scope)  # a seed may name another url_id
        known = self._pages.get(page)
        for one in {page} if known is None else known.own:
            if self._pages.get(one) is known:
                self._pages.pop(one, None)
                if self._mode != "robots" and not self._merges:  # that it failed is told where nothing is merged
                    self._pages[one] = None

    def _remember(self, result: Result, own: set[str], points_to: str | None, job: Job | None) -> None:
        earlier = next((known for one in own if (known := self._pages.get(one)) is not None), None)
        urls = [] if earlier is None else earlier.urls
        known = _KnownPage(result.url_id, result.url, result.text_hash, result.robots_meta, points_to, urls, job, own)
        for one in own:
            self._pages[one] = known


def _ids(result: Result, job: Job) -> tuple[set[str], str | None]:
    """Ids of the page itself and of its canonical page, if that is another one."""
    own = {id_of_page(url, job.seed.page_scope) for url in (result.url, result.final_url) if url}
    named = result.canonical and id_of_page(result.canonical, job.seed.page_scope)
    return own, named if named and named not in own else None


def _never_comes(points_to: str, canonical: str, job: Job, crawler: Crawler) -> bool:
    """Whether a link to it would be filtered, as it is compared as one page with this one, and no seed asks for it."""
    pages, completion = part_of(crawler, SeenDupeFilter), part_of(crawler, Completion)
    if pages is None or not pages.are_one(job.url, canonical, job):
        return False
    return completion is None or not completion.ledger.is_asked_for(canonical, points_to)


def _why_not(result: Result, known: _KnownPage | None, own: set[str], job: Job | None) -> str:
    if known is None or not known.is_well:
        return "it was not fetched well here before this page"
    if known.canonical is not None:
        return "the two name each other" if known.canonical in own else "it names another page itself"
    if result.text_hash is None or known.text_hash != result.text_hash:
        return "its text is another"
    if known.robots != result.robots_meta:
        return "its directives for robots are others"
    if result.url not in known.urls and len(known.urls) >= _MOST_URLS:
        return f"{_MOST_URLS} pages are merged into it already"
    return "this page is a seed's" if is_page_of_seed(job) else ""


async def _has_earlier_urls(known: _KnownPage, stored: StoredPages | None) -> bool:
    """Take over the stored URLs, some of which others may have merged meanwhile; False when the store does not say."""
    document = {} if stored is None else await stored.of(known.url_id)
    said = (document or {}).get("additional_urls")
    urls = said if isinstance(said, list) else [said]
    known.urls.extend(url for url in urls if isinstance(url, str) and url not in known.urls)
    return document is not None


def _as_canonical(result: Result, known: _KnownPage) -> Result:
    if result.url and result.url not in known.urls:
        known.urls.append(result.url)
    # `unchanged` was said of a document that it had itself: here it would be said of its canonical page
    return replace(result, url_id=known.url_id, url=known.url, additional_urls=list(known.urls), unchanged=False)


def _fill_in(result: Result, response: Response, fields: Mapping[str, Any]) -> None:
    result.title, result.text = fields.get("title"), fields.get("text")
    result.language, result.text_hash = fields.get("language"), fields.get("text_hash")
    result.meta_description = fields.get("meta_description")
    result.published_at, result.links_out = fields.get("published_at"), fields.get("links_out")
    result.canonical = fields.get("canonical")
    if result.canonical is None and 200 <= response.status < 300:
        result.canonical = canonical_of_header(header_texts(response, b"Link"), response.url)


def _without_body(result: Result) -> dict[str, Any]:
    dropped = {"text": result.text, "body": result.body, "body_truncated": result.body_truncated}
    result.body = result.body_base64 = result.text = None
    result.body_truncated = False
    return dropped
