"""Scrapy's redirect middleware, which leaves a redirect to an invalid URL as it is and says why."""

from __future__ import annotations

from scrapy import Request
from scrapy.downloadermiddlewares.redirect import RedirectMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached

from site_spider import meta_keys
from site_spider.errors import SeedError
from site_spider.page.url import check_url

REDIRECTS_COUNTED = "redirects/"  # stands before what became of a redirect in the statistics


class CheckedRedirectMiddleware(RedirectMiddleware):
    """Follows a redirect only to a URL that a seed could have."""

    def process_response(  # type: ignore[override] # without the spider argument, which is on its way out
        self, request: Request, response: Response
    ) -> Request | Response:
        """As Scrapy's. A target that is no valid URL leaves the response as it is."""
        try:
            result = super().process_response(request, response)
            if isinstance(result, Request):
                check_url(result.url)
                _leave_slot(result, request)
                self._count("followed")
        except IgnoreRequest:
            self._count("too_many")
            raise
        except (SeedError, ValueError) as error:
            self._count("invalid")
            reason = error.reason if isinstance(error, SeedError) else "the Location is no valid URL"
            request.meta[meta_keys.NOT_FOLLOWED] = reason
            return response
        return result

    def _count(self, fate: str) -> None:
        if self.crawler.stats is not None:
            self.crawler.stats.inc_value(f"{REDIRECTS_COUNTED}{fate}")


def _leave_slot(redirected: Request, request: Request) -> None:
    """Scrapy copies the download slot with the meta: the new host would be visited at the old one's pace."""
    if redirected.meta.get(meta_keys.DOWNLOAD_SLOT) == urlparse_cached(request).hostname:
        del redirected.meta[meta_keys.DOWNLOAD_SLOT]
