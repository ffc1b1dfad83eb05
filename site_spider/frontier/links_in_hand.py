"""Bounds the links of pages that are parsed and not enqueued yet.

A page of 10,000 links is 7 MB of requests, and enqueuing them takes many turns of the event
loop. So a large page waits, in the order of arrival, until those before it are through. One that
holds nothing is let in when it is alone, whatever its size. On the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque

from scrapy import Request

MOST_LINKS = 20_000  # of all pages under way, about 15 MB
_COUNTED_BYTES = 16_000  # of a body; smaller pages do not count
_LINK_BYTES = 16  # of a page, at the least


class LinksInHand:
    """Of one crawl; a request counts from `begin` until it has ended."""

    def __init__(self, most: int = MOST_LINKS) -> None:
        self._most = most
        self._held: dict[Request, int] = {}
        self._sum = 0
        self._waiting: deque[tuple[Request, int, asyncio.Future[None]]] = deque()

    async def begin(self, request: Request, body_bytes: int) -> None:
        """Wait until the links of a page may be read."""
        if body_bytes < _COUNTED_BYTES:
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, min(body_bytes // _LINK_BYTES, self._most), place))
        self._let_in()
        await place

    def found(self, request: Request, links: int) -> None:
        """A page that may be read has so many."""
        if request in self._held:
            self._hold(request, links)
            self._let_in()

    def ended(self, request: Request) -> None:
        """Its links are enqueued, or it has none."""
        if request in self._held:
            self._sum -= self._held.pop(request)
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            request, links, place = self._waiting[0]
            if not place.done():  # else it was cancelled
                if self._sum + links > self._most:
                    return
                self._hold(request, links)
                place.set_result(None)
            self._waiting.popleft()

    def _hold(self, request: Request, links: int) -> None:
        self._sum += links - self._held.get(request, 0)
        self._held[request] = links
