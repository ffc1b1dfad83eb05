"""Sitemaps as seeds, for spiders mixed with Scrapy's SitemapSpider."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from scrapy.http import Response
from scrapy.spiders import SitemapSpider

from site_spider.download.bodies import LARGE_BYTES

_BEGINNING_BYTES = 4_096  # in which the root element stands, behind comments
_ROOT = re.compile(rb"<(?:[\w.-]+:)?(?:urlset|sitemapindex)[\s>/]")
_GZIP = b"\x1f\x8b\x08"


def callback_names(spider: SitemapSpider) -> Iterator[str]:
    """Methods of the spider that get the pages of its sitemaps, and the sitemaps of an index."""
    yield "_parse_sitemap"
    for _pattern, callback in spider.sitemap_rules:
        name = callback if isinstance(callback, str) else getattr(callback, "__name__", "")
        if getattr(getattr(spider, name, None), "__self__", None) is spider:
            yield name


def is_sitemap(response: Response) -> bool:
    """Whether a page is a sitemap, an index of sitemaps, or a robots.txt, which names some."""
    if not 200 <= response.status < 300:
        return False
    return response.url.endswith("/robots.txt") or bool(_ROOT.search(_beginning(response.body)))


def is_large(response: Response) -> bool:
    """Whether it takes long to read."""
    return len(response.body) >= LARGE_BYTES or response.body.startswith(_GZIP)


def _beginning(body: bytes) -> bytes:
    if not body.startswith(_GZIP):
        return body[:_BEGINNING_BYTES]
    try:
        return zlib.decompressobj(31).decompress(body[:_BEGINNING_BYTES], _BEGINNING_BYTES)
    except zlib.error:
        return b""
