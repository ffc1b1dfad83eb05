"""Scrapy's HTTP/1.1 handler with a bounded pool of idle connections and a bounded client."""

from __future__ import annotations

from typing import Any

from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.crawler import Crawler
from twisted.web.client import HTTPConnectionPool

from site_spider.engine.bounded_client import BoundedClientFactory


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


class BoundedHttp11Handler(HTTP11DownloadHandler):
    """Keeps at most `most_kept` idle connections."""

    def __init__(self, crawler: Crawler, most_kept: int) -> None:
        super().__init__(crawler)
        from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

        pool = _BoundedPool(reactor, persistent=True)  # type: ignore[no-untyped-call]
        pool.maxPersistentPerHost, pool._factory = self._pool.maxPersistentPerHost, BoundedClientFactory
        pool.most_kept = most_kept
        self._pool = pool
