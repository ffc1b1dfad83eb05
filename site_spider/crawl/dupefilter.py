"""The dupefilter: exact, in memory, and obeying rule 5 (seen means done)."""

from __future__ import annotations

from typing import Any

from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter

from site_spider.core.seen import Seen
from site_spider.crawl.lineage import job_of


class SeenDupeFilter(RFPDupeFilter):
    """Filters requests by fingerprint.

    What is met on behalf of a seed stays in flight until that seed is complete, see
    core.seen. For a request that belongs to no seed it is Scrapy's own dupefilter.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen = Seen(self._fingerprints)

    def request_seen(self, request: Request) -> bool:
        """Whether the same request was met before; it is remembered if not."""
        job = job_of(request)
        if job is None:
            return super().request_seen(request)
        return not self.seen.begin(self._fingerprint(request), job.entry)
