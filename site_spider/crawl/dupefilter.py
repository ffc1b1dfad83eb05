"""The dupefilter: exact, in memory, and obeying rule 5 (seen means done)."""

from __future__ import annotations

import logging
from typing import Self

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.request import RequestFingerprinterProtocol

from site_spider.core.seen import Seen
from site_spider.crawl.lineage import job_of

logger = logging.getLogger(__name__)


class SeenDupeFilter(BaseDupeFilter):
    """Filters requests by fingerprint.

    What is met on behalf of a seed stays in flight until that seed is complete, see
    core.seen. A request that belongs to no seed is remembered at once, as Scrapy's own
    dupefilter does.
    """

    def __init__(self, fingerprinter: RequestFingerprinterProtocol, *, debug: bool = False) -> None:
        self.seen = Seen()
        self._fingerprinter = fingerprinter
        self._debug = debug
        self._said = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks; DUPEFILTER_DEBUG logs every duplicate instead of the first one."""
        return cls(crawler.request_fingerprinter, debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))

    def request_seen(self, request: Request) -> bool:
        """Whether the same request was met before; it is remembered if not."""
        job = job_of(request)
        owner = None if job is None else job.entry
        return not self.seen.begin(self._fingerprinter.fingerprint(request), owner)

    def log(self, request: Request, spider: Spider) -> None:
        """Say that a duplicate was dropped: the first time, or each time with DUPEFILTER_DEBUG."""
        if self._debug or not self._said:
            more = "" if self._debug else " - no more duplicates will be shown (see DUPEFILTER_DEBUG)"
            logger.debug("Filtered duplicate request: %s%s", request, more, extra={"spider": spider})
        self._said = True
        assert spider.crawler.stats is not None
        spider.crawler.stats.inc_value("dupefilter/filtered")
