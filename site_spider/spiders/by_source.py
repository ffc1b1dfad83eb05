"""What a source makes of a page: items, and requests for the links that its rules find."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from scrapy import Request
from scrapy.http import Response

from site_spider import meta_keys
from site_spider.page.url import host_of, in_scope
from site_spider.sources.extraction import NEXT_PAGE, Extracted, FoundLink
from site_spider.sources.extractor import Extractor, NotExtracted, PageBody
from site_spider.sources.model import Source

_LONGEST = 1_000  # characters of a description


async def extracted(extractor: Extractor, source: Source, page: PageBody) -> Extracted:
    """What the source finds; a page that takes too long has nothing but the reason."""
    try:
        return await extractor.extract(source, page)
    except NotExtracted as error:
        return Extracted(lost=[str(error)])


def describe(found: Extracted) -> str | None:
    """What the result of the page says of items that are left out."""
    return f"not extracted: {'; '.join(found.lost)}"[:_LONGEST] if found.lost else None


def requests(
    source: Source, found: Extracted, response: Response, scope: str, anchor: str
) -> Iterator[Request]:
    """For the links within the scope, and for those to hosts of the source."""
    urls = {link.url for link in found.links}
    wanted = set(in_scope(scope, anchor, urls)) | {url for url in urls if _is_host_of(source, host_of(url))}
    for link in found.links:
        if link.url in wanted and (request := _request(source, link, response)) is not None:
            yield request


def _is_host_of(source: Source, host: str) -> bool:
    return any(fnmatchcase(host, pattern) for pattern in source.match.hosts)


def _request(source: Source, link: FoundLink, response: Response) -> Request | None:
    if link.rule == NEXT_PAGE:
        number = response.meta.get(meta_keys.PAGE_NUMBER, 1) + 1
        within = source.pagination is not None and number <= source.pagination.limit
        return Request(link.url, meta={meta_keys.PAGE_NUMBER: number}) if within else None
    rule = (source.follow or ())[link.rule]
    if rule.to is None:
        return Request(link.url)
    return Request(link.url, meta={meta_keys.TO_TOPIC: rule.to, meta_keys.LEAF: rule.not_extract})
