"""Scrapy's middleware for the depth, which leaves the pages of one list at one depth."""

from __future__ import annotations

from scrapy import Request
from scrapy.http import Response
from scrapy.spidermiddlewares.depth import DepthMiddleware

from site_spider import meta_keys


class PageDepth(DepthMiddleware):
    """A list of 50 pages would else end at DEPTH_LIMIT; the source's own limit counts for it."""

    def get_processed_request(self, request: Request, response: Response | None) -> Request | None:
        """As Scrapy asks; for the next page the depth of this one."""
        if response is None or request.meta.get(meta_keys.PAGE_NUMBER, 1) <= response.meta.get(
            meta_keys.PAGE_NUMBER, 1
        ):
            return super().get_processed_request(request, response)
        request.meta["depth"] = response.meta["depth"]
        return request
