"""A cookie jar for each seed, deleted when the seed ends.

Doing a seed twice, or beside others, therefore gives the same result (rule 4). The jar lives
in Scrapy's cookies middleware, under the seed's ledger entry, and goes when the seed ends.
"""

from __future__ import annotations

from functools import cached_property

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware

from site_spider import meta_keys
from site_spider.ledger.completion import SeedListener
from site_spider.ledger.ledger import Entry


def use_jar_of(request: Request, entry: Entry) -> None:
    """Give a request the jar of its seed, unless it names one itself."""
    request.meta.setdefault(meta_keys.COOKIEJAR, entry)


class SeedCookies(SeedListener):
    """Throws jars away."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    def for_request(self, request: Request, entry: Entry) -> dict[str, str]:
        """The cookies that would go out with a request of this seed."""
        middleware = self._middleware
        if middleware is None or entry not in middleware.jars:
            return {}
        asked = request.copy()
        asked.headers.pop("Cookie", None)
        middleware.jars[entry].add_cookie_header(asked)
        sent = (asked.headers.get("Cookie") or b"").decode("latin-1")
        pairs = (pair.partition("=")[::2] for pair in sent.split("; ") if "=" in pair)
        return dict(pairs)

    def ended(self, entry: Entry) -> None:
        """As in SeedListener."""
        self._forget(entry)

    def fenced(self, entry: Entry) -> None:
        """As in SeedListener."""
        self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        if self._middleware is not None:
            self._middleware.jars.pop(entry, None)

    @cached_property
    def _middleware(self) -> CookiesMiddleware | None:
        return self._crawler.get_downloader_middleware(CookiesMiddleware)
