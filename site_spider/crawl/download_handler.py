"""Scrapy's HTTP/1.1 handler, which says so when a host was refused for its address or certificate."""

from __future__ import annotations

from typing import Self

from scrapy import Request
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.exceptions import CannotResolveHostError, DownloadFailedError
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached

from site_spider.crawl.resolver import PrivateHostError, is_refused
from site_spider.errors import SiteSpiderError

_WRONG_CERTIFICATE = "certificate verify failed"  # in the words of OpenSSL


class CertificateError(SiteSpiderError):
    """The host's certificate is wrong. Never retried: another attempt finds the same."""

    @classmethod
    def of(cls, host: str) -> Self:
        """The error of this host."""
        return cls(
            f"the certificate of {host} cannot be verified; set DOWNLOAD_VERIFY_CERTIFICATES=false "
            "to take any"
        )


class PublicHTTP11DownloadHandler(HTTP11DownloadHandler):
    """Tells a refused host from one that does not exist, or that fails for a while."""

    async def download_request(self, request: Request) -> Response:
        """Download. Raises PrivateHostError and CertificateError besides what Scrapy's own handler raises."""
        try:
            return await super().download_request(request)
        except CannotResolveHostError as error:
            host = urlparse_cached(request).hostname or ""
            if is_refused(host):
                raise PrivateHostError.of(host) from error
            raise
        except DownloadFailedError as error:
            if _WRONG_CERTIFICATE in str(error):
                raise CertificateError.of(urlparse_cached(request).hostname or "") from error
            raise
