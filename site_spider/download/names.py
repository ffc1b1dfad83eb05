"""Looks up the names of hosts: each of them once at a time, and the next host's before its turn.

A lookup may take long, and a download has its place meanwhile. So while no name is looked up, that of the
host that is next in line is. It is rarely a lookup more: whoever connects to that host gets what was found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from scrapy.crawler import Crawler

from site_spider.download.address import is_address, is_metadata_name
from site_spider.download.resolver import addresses_of
from site_spider.engine.parts import part_of, provide
from site_spider.ledger.completion import Unattributed

_AHEAD_SECONDS = 10.0  # what was found counts for so long for who comes next
_LOOKUP_SECONDS = 30.0  # a resolver that has no thread says nothing at all

LookUp = Callable[[str], Coroutine[Any, Any, list[str]]]


class _Lookahead(NamedTuple):
    host: str
    lookup: asyncio.Task[list[str]]
    since: float


class HostNames:
    """On the event loop's thread only."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._under_way: dict[str, asyncio.Task[list[str]]] = {}
        self._ahead: _Lookahead | None = None
        self._looks_ahead = True

    @classmethod
    def of(cls, crawler: Crawler) -> HostNames:
        """Those of a crawl: its handlers, one for each scheme, share them."""
        names = part_of(crawler, HostNames)
        if names is None:
            names = cls(addresses_of)
            provide(crawler, names)
        return names

    async def addresses(self, host: str) -> list[str]:
        """What `look_up` gives or raises, or TimeoutError."""
        lookup = self._taken_ahead(host) or self._under_way.get(host) or self._begin(host)
        return await asyncio.shield(lookup)  # others may wait for it, too

    def look_ahead(self, host: str | None) -> None:
        """This host is next in line."""
        if not self._looks_ahead or not host or self._under_way or is_address(host) or is_metadata_name(host):
            return
        if self._ahead is None or self._ahead.host != host:
            self._ahead = _Lookahead(host, self._begin(host), asyncio.get_running_loop().time())

    def leave_to_proxy(self) -> None:
        """A request has a proxy, which is to look up names: from now on no name is looked up ahead."""
        self._looks_ahead = False

    def close(self) -> None:
        """Nobody waits any more."""
        for lookup in self._under_way.values():
            lookup.cancel()

    def _begin(self, host: str) -> asyncio.Task[list[str]]:
        with Unattributed():  # the task is kept for who comes next
            lookup = asyncio.get_running_loop().create_task(self._bounded(host))
        self._under_way[host] = lookup
        lookup.add_done_callback(lambda ended: self._ended(host, ended))
        return lookup

    async def _bounded(self, host: str) -> list[str]:
        async with asyncio.timeout(_LOOKUP_SECONDS):
            return await self._look_up(host)

    def _ended(self, host: str, lookup: asyncio.Task[list[str]]) -> None:
        self._under_way.pop(host, None)
        if not lookup.cancelled():
            lookup.exception()  # is known to who waits, if anybody does

    def _taken_ahead(self, host: str) -> asyncio.Task[list[str]] | None:
        """The lookup that was begun for who comes next, unless it failed: that may be over."""
        ahead = self._ahead
        if ahead is None or ahead.host != host:
            return None
        self._ahead = None
        lookup = ahead.lookup
        if not lookup.done():
            return lookup
        is_late = asyncio.get_running_loop().time() - ahead.since > _AHEAD_SECONDS
        return None if is_late or lookup.cancelled() or lookup.exception() else lookup
