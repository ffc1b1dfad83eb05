"""Refuses private hosts before a proxy is asked for them.

A proxy resolves the name by itself, out of our sight. So we resolve it first, and refuse a host
that has any private address. A proxy that sees other addresses than we do is not caught by this.
"""

from __future__ import annotations

import asyncio

from scrapy.exceptions import CannotResolveHostError

from site_spider.bounded_dict import BoundedDict
from site_spider.download.address import is_metadata_name, is_public
from site_spider.download.resolver import PrivateHostError, addresses_of

_TTL_SECONDS = 60.0
_MOST_HOSTS = 10_000


class PublicTargets:
    """Remembers for a minute which hosts may be asked for through a proxy."""

    def __init__(self) -> None:
        self._known: BoundedDict[str, tuple[float, bool]] = BoundedDict(_MOST_HOSTS)

    async def check(self, host: str) -> None:
        """Raises PrivateHostError, or CannotResolveHostError when we find no address."""
        loop = asyncio.get_running_loop()
        until, may_pass = self._known.get(host, (0.0, False))
        if until <= loop.time():
            may_pass = not is_metadata_name(host) and all(map(is_public, await _addresses(host)))
            self._known[host] = (loop.time() + _TTL_SECONDS, may_pass)
        if not may_pass:
            raise PrivateHostError(
                f"{host} has a private address, and no proxy is asked for such a host; "
                "set SITE_ALLOW_PRIVATE_HOSTS=true to crawl private ones"
            )


async def _addresses(host: str) -> list[str]:
    found = await addresses_of(host, unfiltered=True)
    if not found:
        raise CannotResolveHostError(f"no address for host {host}")
    return found
