"""Scrapy's HTTP/1.1 handler, which says so when a host was refused for its private address."""

from __future__ import annotations

from scrapy import Request
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.exceptions import CannotResolveHostError
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached

from site_spider.crawl.resolver import is_refused
from site_spider.errors import SiteSpiderError


class PrivateHostError(SiteSpiderError):
    """The host has private addresses only. Never retried: another attempt finds the same."""


class PublicHTTP11DownloadHandler(HTTP11DownloadHandler):
    """Tells a refused host from one that does not exist."""

    async def download_request(self, request: Request) -> Response:
        """Download. Raises PrivateHostError besides what Scrapy's own handler raises."""
        try:
            return await super().download_request(request)
        except CannotResolveHostError as error:
            host = urlparse_cached(request).hostname or ""
            if is_refused(host):
                raise PrivateHostError(
                    f"{host} has no public address; set SITE_ALLOW_PRIVATE_HOSTS=true to crawl private ones"
                ) from error
            raise
