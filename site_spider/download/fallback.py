"""Scrapy's HTTP/1.1 handler, with bounds on what servers send.

It says so when a host was refused for its address or certificate, or an answer for its size.
"""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadFailedError,
    ResponseDataLossError,
)
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached
from twisted.web.client import HTTPConnectionPool

from site_spider import meta_keys
from site_spider.download.descriptors import most_kept_by_twisted
from site_spider.download.resolver import (
    PrivateHostError,
    addresses_of,
    check_shortage,
    is_refused,
    proxy_address,
)
from site_spider.engine.bounded_client import BoundedClientFactory, oversized
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


class _BoundedPool(HTTPConnectionPool):
    """Keeps connections for the next request, a few of all servers together, the last ones used."""

    most_kept = 1

    def _putConnection(self, key: Any, connection: Any) -> None:  # noqa: N802 - the name is Twisted's
        super()._putConnection(key, connection)  # type: ignore[no-untyped-call]
        while len(self._timeouts) > self.most_kept:
            self._close_oldest()
        if len(self._connections) > 2 * self.most_kept:
            self._connections = {key: kept for key, kept in self._connections.items() if kept}

    def _close_oldest(self) -> None:
        oldest = next(iter(self._timeouts))
        self._timeouts[oldest].cancel()
        key = next(key for key, kept in self._connections.items() if oldest in kept)
        self._removeConnection(key, oldest)  # type: ignore[no-untyped-call]


class PublicHTTP11DownloadHandler(HTTP11DownloadHandler):
    """Tells a refused host from one that does not exist; a proxy may have a private address."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

        pool = _BoundedPool(reactor, persistent=True)  # type: ignore[no-untyped-call]
        pool.maxPersistentPerHost, pool._factory = self._pool.maxPersistentPerHost, BoundedClientFactory
        pool.most_kept = most_kept_by_twisted()
        self._pool = pool

    async def download_request(self, request: Request) -> Response:
        """Download. Raises PrivateHostError and CertificateError besides what Scrapy's own handler raises."""
        proxy = request.meta.get(meta_keys.PROXY)
        try:
            if proxy:
                return await self._download_through(proxy, request)
            return await super().download_request(request)
        except CannotResolveHostError as error:
            host = urlparse_cached(request).hostname or ""
            if not proxy and is_refused(host):
                raise PrivateHostError.of(host) from error
            check_shortage(host)
            raise
        except (DownloadFailedError, ResponseDataLossError) as error:
            if (refused := oversized(error)) is not None:
                raise DownloadCancelledError(str(refused)) from error
            if _WRONG_CERTIFICATE in str(error):
                raise CertificateError.of(urlparse_cached(request).hostname or "") from error
            raise

    async def _download_through(self, proxy: str, request: Request) -> Response:
        """By the proxy's address: of its name, Twisted would ask the resolver at a later moment."""
        parts = urlsplit(proxy)
        address = await _address_of(parts.hostname or "")
        shown = f"[{address}]" if ":" in address else address
        request.meta[meta_keys.PROXY] = f"{parts.scheme or 'http'}://{shown}:{parts.port or 80}"
        proxy_address.set(address)
        try:
            return await super().download_request(request)
        finally:
            proxy_address.set(None)
            request.meta[meta_keys.PROXY] = proxy


async def _address_of(host: str) -> str:
    found = await addresses_of(host, unfiltered=True)
    if not found:
        raise CannotResolveHostError(f"no address for the proxy {host}")
    return found[0]
