"""Ends the pagination of a list where an earlier crawl has been: `stop_when_known` of a source.

Theory of operation. The entries of a list are its items that have an `item_id`, or else the links that the
rules of the source follow. One is known when its document was written well before the seed of this crawl was
produced. So what this crawl itself has written does not count: entries move to the next page when new ones
come above them, and would end the list before its new entries were seen. Counted are known entries in a row,
over the ends of pages. Without an answer of the store nothing is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any, Self

from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider import meta_keys, runtime
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.errors import ConfigError, SinkRejected
from site_spider.ledger.completion import Job, id_of_page
from site_spider.results.document import PAGE, identity_of, result_fields
from site_spider.seed.seed import first_written_ms
from site_spider.sources.extraction import NEXT_PAGE, Extracted
from site_spider.spiders.conditional import MOST_AT_ONCE, StoredPages

logger = logging.getLogger(__name__)

_SKEW_MS = 60_000  # of the clocks of producers and crawlers
_BEGAN_MS = 10_000  # of these, to tell the crawls of a seed that is repeated apart


class KnownItems:
    """Of one crawl; on the event loop's thread only."""

    def __init__(self, items: StoredPages, pages: StoredPages) -> None:
        self._items, self._pages = items, pages

    @classmethod
    def of(cls, crawler: Crawler) -> Self:
        names, facts = result_fields(crawler.settings), ("status", "fetched_at", "description")
        items = StoredPages.for_crawler(crawler, {}, (PAGE,), of_items=True)
        return cls(items, StoredPages.for_crawler(crawler, names, facts))

    async def cut(self, most: int, found: Extracted, response: Response, job: Job) -> Extracted:
        """What was found, without the next page if so many entries in a row are known up to here."""
        run, before_ms = response.meta[meta_keys.KNOWN_RUN]
        async for is_known in self._are_known(found, job, before_ms):
            run = run + 1 if is_known else 0
            if run >= most:
                return replace(found, links=[link for link in found.links if link.rule != NEXT_PAGE])
        response.meta[meta_keys.KNOWN_RUN] = run, before_ms
        return found

    async def _are_known(self, found: Extracted, job: Job, before_ms: int) -> AsyncIterator[bool]:
        """Some are looked up at a time: a page may have thousands."""
        ids = [url_id for item in found.items if (url_id := _identity(item))]
        urls = (link.url for link in found.links if link.rule != NEXT_PAGE)
        wanted = iter(ids or (id_of_page(url, job.seed.page_scope) for url in urls))
        of = self._items.of if ids else self._pages.of
        while some := list(islice(wanted, MOST_AT_ONCE)):
            for document in await asyncio.gather(*map(of, some)):
                yield document is not None and _is_before(document, before_ms)


class LookUps:
    """In the stores of one crawl, each of which is opened when it is first asked."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @cached_property
    def items(self) -> KnownItems | None:
        try:
            return KnownItems.of(self._crawler)
        except ConfigError as error:
            logger.warning("stop_when_known has nothing to look entries up in: %s", error)
            return None

    @cached_property
    def urls(self) -> StoredPages | None:
        """`additional_urls` of pages. None when no store has them: then those of this process count."""
        names, wanted = result_fields(self._crawler.settings), "additional_urls"
        if names and wanted not in names:
            return None
        with suppress(ConfigError):
            return StoredPages.for_crawler(self._crawler, names, (wanted,))
        return None


def begin(response: Response, job: Job, dupefilter: SeenDupeFilter | None) -> None:
    """The crawl of a list is told from others, and what it has stored from what is known, by when it was asked for.

    And by when its seed began here, within some seconds: one that is repeated, or was produced twice at a time, is
    another crawl of the list, whose entries have moved on to pages that were read before. A later page that is
    repeated is told by nothing, or each would read the rest of the list once more.
    """
    assert response.request is not None
    if meta_keys.KNOWN_RUN in response.meta:
        return
    before_ms = min(first_written_ms(job.entry.message), int(runtime.time() * 1000)) - _SKEW_MS  # it may be behind
    before_ms += int(job.entry.began_at * 1000) % _BEGAN_MS
    response.meta[meta_keys.KNOWN_RUN] = 0, max(1, before_ms)
    if dupefilter is not None:
        dupefilter.list_begins(response.request, job)


def _identity(item: Mapping[str, Any]) -> str:
    with suppress(SinkRejected):
        return identity_of(item.get("item_id"))
    return ""


def _is_before(document: Mapping[str, Any], moment_ms: int) -> bool:
    """Whether an item, or a page that was fetched well, was written then."""
    with suppress(KeyError, TypeError, ValueError):
        page = document.get(PAGE) or document
        is_well = page is not document or (200 <= document["status"] < 300 and document.get("description") is None)
        return is_well and datetime.fromisoformat(page["fetched_at"]).timestamp() * 1000 < moment_ms
    return False
