"""Fetches a page again only if it has changed: seeds with `if_changed`.

Theory of operation. Before the download the stored document of the page is looked up, for all that wait in
one question; its `etag` and `last_modified` become conditions of the request. An answer 304, or a body with
the hash of the stored one, leaves the document as it is: what is written says `unchanged` and `checked_at`.
Where the store does not answer in time the page is fetched as usual, so that nothing depends on it. A check
that fails says so in the document, and leaves the content that is stored.

A document that was written after the seed had been produced is the work of an attempt that a crash undid: the
page is fetched whole, and what that attempt said of a change stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import inf
from typing import Any, NamedTuple, Self

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response

from site_spider import meta_keys, options
from site_spider.contracts.sink import ResultReader
from site_spider.download.bodies import LARGE_BYTES
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.engine.background import Background
from site_spider.engine.scrapy_parts import part_of, takes_seeds
from site_spider.errors import ConfigError, SiteSpiderError
from site_spider.ledger.completion import Job, job_of
from site_spider.page.directives import directives, forbids
from site_spider.page.links import hash_of
from site_spider.results import recrawl
from site_spider.results.document import Fields, Result, header_texts, result_fields
from site_spider.seed.fields import VALIDATOR
from site_spider.seed.seed import first_written_ms
from site_spider.service import config as parts
from site_spider.sources.extraction_process import Extractor

logger = logging.getLogger(__name__)

LOOK_UP_SECONDS = 2.0  # then a page is fetched without conditions
_AWAY_SECONDS = 10.0  # for which a store that did not answer is not asked
MOST_AT_ONCE = 200
_FACTS = (
    *recrawl.FACTS, "method", "final_url", "etag", "last_modified", "body_hash", "changed_at",
    "unchanged", "robots_meta", "page_notes", "description", "text_hash", "duplicate_of",
)  # fmt: skip
NOT_KEPT = "body and text are not kept: SITE_NOINDEX=drop_body"  # in page_notes
_HEADERS = {"etag": "If-None-Match", "last_modified": "If-Modified-Since"}

Known = Mapping[str, Any]  # the facts of a document; empty: there is none


class StoredPages:
    """What the store of results says of pages. On the event loop's thread only."""

    def __init__(
        self, reader: ResultReader, names: Fields, start: Callable[..., object], facts: Sequence[str] = _FACTS
    ) -> None:
        self._reader = reader
        self._names = {name: names.get(name, name) for name in facts if not names or name in names}
        self._start = start
        self._asked: dict[str, asyncio.Future[Known | None]] = {}
        self._is_asking = False
        self._away_until = -inf

    @classmethod
    def for_crawler(
        cls, crawler: Crawler, names: Fields, facts: Sequence[str] = _FACTS, *, of_items: bool = False
    ) -> Self:
        """In the first store that can be read, until the spider is closed. Raises ConfigError."""
        reader = parts.reader(crawler.settings, of_items=of_items)
        crawler.signals.connect(reader.close, signals.spider_closed)
        return cls(reader, names, Background.of(crawler).start, facts)

    def have(self, *facts: str) -> bool:
        """Whether they are stored, where they have a value."""
        return self._names.keys() >= {*facts}

    async def of(self, url_id: str) -> Known | None:
        """The facts; None when the store does not answer in time."""
        if (loop := asyncio.get_running_loop()).time() < self._away_until:
            return None
        answer = self._asked.setdefault(url_id, loop.create_future())
        if not self._is_asking:
            self._is_asking = True
            self._start(self._ask(), "look-up of stored pages")
        try:
            return await asyncio.wait_for(asyncio.shield(answer), LOOK_UP_SECONDS)
        except TimeoutError:
            self._asked.pop(url_id, None)
            self._give_up(f"{self._reader.address} has not answered within {LOOK_UP_SECONDS:.0f} s.")
            return None

    async def _ask(self) -> None:
        try:
            while self._asked:
                some = dict(islice(self._asked.items(), MOST_AT_ONCE))
                for url_id in some:
                    del self._asked[url_id]
                found = await self._found(list(some))
                for url_id, answer in some.items():
                    if not answer.done():
                        answer.set_result(None if found is None else self._facts(found.get(url_id, {})))
        finally:
            self._is_asking = False

    async def _found(self, url_ids: list[str]) -> Mapping[str, Known] | None:
        try:
            return await asyncio.to_thread(self._reader.known, url_ids, list(self._names.values()))
        except Exception as error:  # noqa: BLE001 - of a reader of somebody's own: nothing depends on it
            self._give_up(str(error) if isinstance(error, SiteSpiderError) else repr(error))
            return None

    def _facts(self, document: Known) -> Known:
        return {name: document[key] for name, key in self._names.items() if document.get(key) is not None}

    def _give_up(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._away_until:
            self._away_until = now + _AWAY_SECONDS
            logger.warning("Stored documents are not looked up for a while: %s", reason)


class Checked(NamedTuple):
    """What came of comparing an answer with the stored document; an empty time is now, None not known."""

    unchanged: bool | None  # None: it failed, and what may be stored stays
    changed_at: str | None
    known: Known
    check: recrawl.Check | None = None  # None: nothing is known of the checks before
    is_for_body: bool = False  # unchanged, and written whole all the same: no link is followed


class ConditionalFetch:
    """Scrapy's downloader middleware for it, behind all that changes an answer or asks again."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._rules = recrawl.CheckRules.read(crawler.settings)
        self._drops_noindex = options.choice(crawler.settings, "SITE_NOINDEX", ("keep", "drop_body")) == "drop_body"

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not takes_seeds(crawler):
            raise NotConfigured
        return cls(crawler)

    def process_request(self, request: Request) -> Coroutine[Any, Any, None] | None:
        if (job := _compared_job(request)) is None:
            request.meta.pop(meta_keys.CHECKED, None)  # of a page whose meta it was given
            return None
        return self._look_up_link(request, job) if job.is_link else self._add_conditions(request, job)

    def process_response(
        self, request: Request, response: Response
    ) -> Response | Coroutine[Any, Any, Response | Request]:
        if meta_keys.KNOWN_PAGE in request.meta and (compared := _compared_job(request)) is not None:
            return self._compared(request, compared, response)
        job = job_of(request) if response.status == 304 and _has_conditions(request) else None
        if job is not None and job.parent is None:  # by headers of the seed
            request.meta[meta_keys.CHECKED] = Checked(True, None, {})
            request.callback = self._crawler.spider.unchanged  # type: ignore[union-attr]
        return response

    async def process_exception(self, request: Request, exception: Exception) -> None:  # noqa: ARG002
        """As Scrapy asks, of the last attempt: there is no answer, or robots.txt forbids to ask."""
        if meta_keys.KNOWN_PAGE not in request.meta and (job := _compared_job(request)) is not None:
            await self._look_up(request, job)

    def _failed(self, job: Job, known: Known | None, status: int | None) -> Checked:
        is_whole = known is None if self._pages is None else known == {}
        return Checked(False if is_whole else None, None, known or {}, self._check(job, known, status, same=False))

    async def _look_up(self, request: Request, job: Job) -> Known | None:
        known = None if self._pages is None else await self._pages.of(job.url_id)
        request.meta[meta_keys.KNOWN_PAGE] = known
        request.meta[meta_keys.CHECKED] = self._failed(job, known, None)  # unless an answer comes through
        return known

    async def _look_up_link(self, request: Request, job: Job) -> None:
        """Without conditions: links of a page that has changed are followed, and so are theirs.

        Also where a check of its own is on its way: that follows no links of what is unchanged, and a seed
        whose process died may count on this one for them.
        """
        await self._look_up(request, job)
        request.meta["follow_unchanged"] = True

    async def _add_conditions(self, request: Request, job: Job) -> None:
        known = await self._look_up(request, job)
        # a failure would stay, as would another page's answer
        is_other = known and (not _is_usable(known, request) or known.get("final_url", request.url) != request.url)
        is_needed = known and (self._was_dropped(known) or _is_earlier_attempt(known, job))  # the body
        is_unknown = known is None and self._pages is not None
        said = known or {**_own_conditions(job), **request.meta}  # a seed's own are not about what is stored
        if is_other or is_needed or is_unknown or request.meta.get("follow_unchanged"):
            said = {}
        for name, header in _HEADERS.items():
            request.headers.pop(header, None)
            if isinstance(value := said.get(name), str) and VALIDATOR.fullmatch(value):
                request.headers[header] = value.encode("latin-1")

    async def _compared(self, request: Request, job: Job, response: Response) -> Response | Request:
        known: Known | None = request.meta.pop(meta_keys.KNOWN_PAGE)
        same: bool | None = response.status == 304 and _has_conditions(request)
        is_good = same or recrawl.is_well(response.status)
        has_version = bool(known and is_good and _has_version(known, request))
        if known and has_version and response.status != 304:
            is_head = request.method == "HEAD"
            same = _has_same_head(response, known) if is_head else await _has_same_body(response, known)
        is_compared = known is not None and (not known or has_version) and same is not None
        changed_at = (known or {}).get("changed_at") if same else "" if is_compared else None
        is_well = not known or recrawl.is_well(known.get("status"))
        check = self._check(job, known, response.status, same=same if is_well else False)
        checked = Checked(bool(same) and (not known or _is_usable(known, request)), changed_at, known or {}, check)
        if not is_good:
            checked = self._failed(job, known, response.status)
        says_noindex = self._drops_noindex and forbids(directives(header_texts(response, b"X-Robots-Tag")), "noindex")
        if same and says_noindex and response.status == 304:  # its body has to be dropped
            return request.replace(meta={**request.meta, "follow_unchanged": True}, dont_filter=True)
        if same and self._drops_noindex and response.status != 304 and not says_noindex:
            says_noindex = await self._crawler.spider.page_texts.says_noindex(  # type: ignore[union-attr]
                response, part_of(self._crawler, Extractor)
            )
        if known and checked.unchanged:
            follows = bool(request.meta.get("follow_unchanged")) or _is_earlier_attempt(known, job)
            is_needed = says_noindex or self._was_dropped(known) or _is_earlier_attempt(known, job)
            checked = checked._replace(unchanged=not is_needed, is_for_body=is_needed and not follows)
        request.meta[meta_keys.CHECKED] = checked
        if checked.is_for_body or (checked.unchanged and not request.meta.get("follow_unchanged")):
            request.callback = self._crawler.spider.unchanged  # type: ignore[union-attr]
        elif not job.is_link and (dupefilter := part_of(self._crawler, SeenDupeFilter)) is not None:
            dupefilter.has_changed(request, job)
        return response

    def _check(self, job: Job, known: Known | None, status: int | None, *, same: bool | None) -> recrawl.Check | None:
        if known is None:
            return None
        is_due = not job.is_link or recrawl.is_well(status) or recrawl.is_due(known)
        if job.is_link and (same is not False or not (is_due or recrawl.in_a_row(self._rules, known, "failed_checks"))):
            return None  # left to its own check
        is_repeat = not is_due or recrawl.is_checked_since(known, first_written_ms(job.entry.message))
        return recrawl.check_of(self._rules, known, status, is_same=same, is_repeat=is_repeat)

    def _was_dropped(self, known: Known) -> bool:
        """Whether the page said noindex, so that a body is stored as soon as it does not any more.

        Or could not be read: too many others waited, say. Or nobody can tell: SITE_RESULT_FIELDS leaves that out.
        """
        if not self._drops_noindex or (self._pages is not None and not self._pages.have("robots_meta", "page_notes")):
            return self._drops_noindex
        notes = str(known.get("page_notes") or "")
        is_unread = NOT_KEPT in notes and "its text " in notes
        return is_unread or forbids(str(known.get("robots_meta") or "").split(","), "noindex")

    @cached_property
    def _pages(self) -> StoredPages | None:
        """None when nothing can be read back: a seed's own `etag` and `last_modified` count even so."""
        try:
            return StoredPages.for_crawler(self._crawler, result_fields(self._crawler.settings))
        except ConfigError as error:
            logger.warning("if_changed of seeds has no stored documents to compare with: %s", error)
            return None


def describe_check(result: Result, response: Response) -> None:
    """Fill in what an answer says of its version, and what came of comparing it."""
    assert response.request is not None
    result.etag, result.last_modified = _validators(response)
    result.checked_at = result.fetched_at
    checked: Checked | None = response.request.meta.get(meta_keys.CHECKED)
    if checked is None:
        return
    if result.fetched_at and (job := job_of(response.request)) is not None:
        result.checked_at = recrawl.at_least(result.fetched_at, first_written_ms(job.entry.message))
    if checked.unchanged:
        is_its_answer = checked.known.get("final_url", response.url) == response.url
        for name in _HEADERS:  # what the stored document has no value for would count as a producer's
            if not is_its_answer or name not in checked.known:
                setattr(result, name, None)
    elif result.description is None and checked.changed_at is not None:
        result.changed_at = checked.changed_at or result.checked_at


def is_for_body(request: Request) -> bool:
    """Whether a check found its page unchanged, and it is read for what is not stored of it alone."""
    return getattr(request.meta.get(meta_keys.CHECKED), "is_for_body", False)


def renews(request: Request) -> bool:
    """Whether a check found a stored document, which would say what the page was before, a failure, say."""
    return bool(getattr(request.meta.get(meta_keys.CHECKED), "known", None))


def describe_outcome(result: Result, checked: Checked) -> None:
    """Fill in what came of a check of a page, with or without an answer, and when the next one is due."""
    result.unchanged = checked.unchanged
    if (check := checked.check) is None or result.fetched_at is None:
        return
    result.interval_s = check.interval_s
    result.next_at = recrawl.later(result.fetched_at, check.wait_s)
    if check.failed_checks or checked.known.get("failed_checks"):
        result.failed_checks, result.gone_checks = check.failed_checks, check.gone_checks
    if check.is_gone:
        result.gone_at = checked.known.get("gone_at") or result.fetched_at


def _validators(response: Response) -> list[str | None]:
    """ETag and Last-Modified."""
    found: list[str | None] = []
    headers = response.headers
    for name in (b"Etag", b"Last-Modified"):
        values = dict.get(headers, name)  # past Scrapy's slow look-up
        text = values[-1].decode("latin-1").strip() if values else ""
        found.append(text if text and VALIDATOR.fullmatch(text) else None)
    return found


def _has_conditions(request: Request) -> bool:
    return any(name in request.headers for name in _HEADERS.values())


def _own_conditions(job: Job) -> dict[str, str]:
    """The headers of the seed that are some, by the names of their fields."""
    written = {name.lower(): value for name, value in job.seed.headers}
    return {name: written[header.lower()] for name, header in _HEADERS.items() if header.lower() in written}


def _compared_job(request: Request) -> Job | None:
    """That of a seed with `if_changed`, or of a link that is followed for it."""
    job = job_of(request) if request.method in ("GET", "HEAD") else None
    return job if job is not None and job.seed.directives.get("if_changed") else None


def _is_usable(known: Known, request: Request) -> bool:
    """Whether it is a good answer to the same question."""
    return _has_version(known, request) and known.get("description") is None


def _has_version(known: Known, request: Request) -> bool:
    """Whether it has content of the page: a good answer's, perhaps read in vain, or left by a check that failed."""
    is_content = recrawl.is_well(known.get("status")) or known.keys() >= {"description", "changed_at"}
    return is_content and "body_hash" in known and known.get("method") in (None, request.method)  # HEAD has no body


def _is_earlier_attempt(known: Known, job: Job) -> bool:
    """Whether the version that is stored was, or may have been, found after the seed had been produced.

    Who found it may have died before its links were followed; a later check says only that it is the same.
    """
    written_ms = first_written_ms(job.entry.message)
    is_new = not known.get("unchanged") and recrawl.is_checked_since(known, written_ms)
    return is_new or recrawl.has_changed_since(known, written_ms)


def _has_same_head(response: Response, known: Known) -> bool | None:
    """None where neither has anything to compare by: there is no body."""
    pairs = zip(_validators(response), map(known.get, _HEADERS), strict=True)
    return next((new == old for new, old in pairs if new and old), None)


async def _has_same_body(response: Response, known: Known) -> bool:
    body = response.body
    found = hash_of(body) if len(body) < LARGE_BYTES else await asyncio.to_thread(hash_of, body)
    return bool(found == known["body_hash"])
