"""Scrapy's HTTP/1.1 handler for requests that are not plain, with bounds on what servers send.

It says so when a host was refused for its address or certificate, or an answer for its size. Imported when
the first such request comes, because Twisted's client takes a tenth of a start.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadFailedError,
    DownloadTimeoutError,
    ResponseDataLossError,
)
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached

from site_spider import meta_keys
from site_spider.download.names import (
    PrivateHostError,
    addresses_of,
    check_shortage,
    is_refused,
    most_kept_by_twisted,
    proxy_address,
)
from site_spider.download.tls import CertificateError
from site_spider.engine.bounded_client import BoundedHttp11Handler, oversized

_CONNECT_SECONDS = 10.0  # as Scrapy has it, where no middleware sets download_timeout
_LATE_SECONDS = 1.0  # behind Twisted's own clock, which stops nothing where uvloop has closed its poll on a reset
_WRONG_CERTIFICATE = ("certificate verify failed", "service_identity.exceptions.")  # of OpenSSL and Twisted


class PublicHTTP11DownloadHandler(BoundedHttp11Handler):
    """Tells a refused host from one that does not exist; a proxy may have a private address."""

    def __init__(self, crawler: Crawler, *, keeps: bool = True) -> None:
        super().__init__(crawler, most_kept_by_twisted() if keeps else 0)

    async def download_request(self, request: Request) -> Response:
        """Download. Raises PrivateHostError and CertificateError besides what Scrapy's own handler raises."""
        proxy = request.meta.get(meta_keys.PROXY)
        seconds = request.meta.get("download_timeout") or _CONNECT_SECONDS
        try:
            async with asyncio.timeout(seconds + _LATE_SECONDS):
                if proxy:
                    return await self._download_through(proxy, request)
                return await super().download_request(request)
        except TimeoutError as error:
            raise DownloadTimeoutError(f"Getting {request.url} took longer than {seconds} seconds.") from error
        except CannotResolveHostError as error:
            host = urlparse_cached(request).hostname or ""
            if not proxy and is_refused(host):
                raise PrivateHostError.of(host) from error
            check_shortage(host)
            raise
        except (DownloadFailedError, ResponseDataLossError) as error:
            if (refused := oversized(error)) is not None:
                raise DownloadCancelledError(str(refused)) from error
            if any(words in str(error) for words in _WRONG_CERTIFICATE):
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
