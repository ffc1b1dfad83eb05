"""Resolves names to public addresses only, with a cache that expires.

Every way to write a host passes here, also literal addresses (`127.1`, `0x7f000001`,
`[::ffff:127.0.0.1]`), at every hop of a redirect: Twisted resolves the host of each
connection by name. Scrapy's own cache has no time to live.

The addresses that were judged are the ones that are connected to: no name is looked up between.
"""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401 - or the first name that is looked up reads it, which takes a descriptor
import socket
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Self, cast

from scrapy.crawler import Crawler
from scrapy.utils.reactor import is_reactor_installed
from twisted.internet.base import ReactorBase
from twisted.internet.interfaces import IAddress, IHostnameResolver, IResolutionReceiver
from zope.interface import implementer

from site_spider import options, runtime
from site_spider.bounded_dict import BoundedDict
from site_spider.download.address import is_metadata_name, is_public
from site_spider.download.descriptors import DescriptorShortage, are_short, is_shortage
from site_spider.download.lookups import LOOKUPS
from site_spider.engine.bases import threaded_resolver
from site_spider.errors import SiteSpiderError

_TTL_SECONDS = 60.0
_MOST_HOSTS = 10_000
_MOST_ADDRESSES = 8  # of a host and of each family; an answer may have thousands
_FAMILIES = (socket.AF_INET6, socket.AF_INET)
_LONGEST_NAME = 253  # characters; longer ones cannot be asked for
# The proxy that a download connects to: it is the operator's choice and may have a private address.
# Only for that one connection, or a seed could ask for what else listens there.
proxy_address: ContextVar[str | None] = ContextVar("proxy_address", default=None)
_refused: BoundedDict[str, None] = BoundedDict(_MOST_HOSTS)  # hosts that have private addresses only
_short: BoundedDict[str, None] = BoundedDict(
    _MOST_HOSTS
)  # hosts whose last look-up failed for want of descriptors


class PrivateHostError(SiteSpiderError):
    """The host has private addresses only. Never retried: another attempt finds the same."""

    @classmethod
    def of(cls, host: str) -> Self:
        """The error of this host."""
        return cls(f"{host} has no public address; set SITE_ALLOW_PRIVATE_HOSTS=true to crawl private ones")


def is_refused(host: str) -> bool:
    """Whether this host was found to have private addresses only."""
    return host in _refused


def check_shortage(host: str) -> None:
    """Raises DescriptorShortage when that is why the last look-up of this host found nothing."""
    if host in _short:
        raise DescriptorShortage


def look_up(host: str, *arguments: Any) -> list[Any]:
    """As socket.getaddrinfo, for a thread; a name that cannot be asked for has no address.

    Raises socket.gaierror only: Twisted waits for ever after any other error.
    """
    _short.pop(host, None)
    if len(host) > _LONGEST_NAME:
        raise socket.gaierror(socket.EAI_NONAME, f"a name of {len(host)} characters")
    began, found = runtime.perf_counter(), False
    try:
        addresses = _first_ones(socket.getaddrinfo(host, *arguments))
        found = True
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
    except OSError as error:
        if is_shortage(error) or are_short():
            _short[host] = None
        raise socket.gaierror(socket.EAI_AGAIN, str(error)) from error
    finally:
        LOOKUPS.took(runtime.perf_counter() - began, found=found)
    return addresses


def _first_ones(found: list[Any]) -> list[Any]:
    by_family = ([entry for entry in found if entry[0] == family] for family in _FAMILIES)
    return [entry for entries in by_family for entry in entries[:_MOST_ADDRESSES]]


class _Cache:
    """Addresses by host, the oldest forgotten first."""

    def __init__(self, reactor: ReactorBase) -> None:
        self._seconds = reactor.seconds
        self._known: BoundedDict[str, tuple[float, list[IAddress]]] = BoundedDict(_MOST_HOSTS)

    def get(self, host: str) -> list[IAddress] | None:
        until, addresses = self._known.get(host, (0.0, []))
        return addresses if until > self._seconds() else None

    def put(self, host: str, addresses: list[IAddress]) -> None:
        self._known[host] = (self._seconds() + _TTL_SECONDS, addresses)


@implementer(IHostnameResolver)
class PublicHostResolver:
    """Wraps the reactor's resolver, IPv4 and IPv6."""

    def __init__(self, reactor: ReactorBase, *, allow_private: bool) -> None:
        self._reactor: Any = reactor
        self._original: Any = threaded_resolver(reactor, look_up)
        self._allow_private = allow_private
        self._cache = _Cache(reactor)

    @classmethod
    def from_crawler(cls, crawler: Crawler, reactor: ReactorBase) -> Self:
        """As Scrapy asks for TWISTED_DNS_RESOLVER; `crawler` only has settings."""
        return cls(reactor, allow_private=options.boolean(crawler.settings, "SITE_ALLOW_PRIVATE_HOSTS"))

    def install_on_reactor(self) -> None:
        """As Scrapy asks."""
        self._reactor.installNameResolver(self)

    @property
    def unfiltered(self) -> Any:
        """The resolver behind the guard: for the operator's proxies, and for who looks at all addresses."""
        return self._original

    def resolveHostName(  # noqa: N802 - the name is Twisted's
        self,
        resolutionReceiver: Any,  # noqa: N803
        hostName: str,  # noqa: N803
        portNumber: int = 0,  # noqa: N803
        addressTypes: Sequence[type[IAddress]] | None = None,  # noqa: N803
        transportSemantics: str = "TCP",  # noqa: N803
    ) -> Any:
        """Addresses of a host, private ones left out."""
        may_be_private = self._allow_private or hostName == proxy_address.get()
        receiver = _Filter(resolutionReceiver, hostName, portNumber, self._cache, may_be_private)
        if not may_be_private and is_metadata_name(hostName):
            LOOKUPS.count("refused")
            return receiver.refuse()
        known = self._cache.get(hostName)
        if known is None:
            return self._original.resolveHostName(
                receiver, hostName, portNumber, addressTypes, transportSemantics
            )
        LOOKUPS.count("cached")
        return receiver.answer(known)


def guard_reactor(crawler: Crawler) -> None:
    """Install the guard where whoever made the process has another resolver, as a script may."""
    if not is_reactor_installed():
        return
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

    resolver: Any = reactor.nameResolver
    if not isinstance(resolver, PublicHostResolver):
        PublicHostResolver.from_crawler(crawler, cast(ReactorBase, reactor)).install_on_reactor()


class _Resolved:
    """A resolution that is over before it begins."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self) -> None:
        """Nothing is under way."""


class _Filter:
    """Receives addresses, passes on those that may be reached, and caches all of them."""

    def __init__(self, receiver: Any, host: str, port: int, cache: _Cache, allow_private: bool) -> None:
        self._receiver = receiver
        self._host = host
        self._port = port
        self._cache = cache
        self._allow_private = allow_private
        self._found: list[IAddress] = []
        self._passed = 0

    def refuse(self) -> _Resolved:
        """Without a look-up."""
        resolution = _Resolved(self._host)
        self._receiver.resolutionBegan(resolution)
        _refused[self._host] = None
        self._receiver.resolutionComplete()
        return resolution

    def answer(self, addresses: list[IAddress]) -> _Resolved:
        """As if they had just been resolved."""
        resolution = _Resolved(self._host)
        self._receiver.resolutionBegan(resolution)
        for address in addresses:
            self.addressResolved(address)
        self._end()
        return resolution

    def resolutionBegan(self, resolution: Any) -> None:  # noqa: N802
        """From Twisted."""
        self._receiver.resolutionBegan(resolution)

    def addressResolved(self, address: Any) -> None:  # noqa: N802
        """From Twisted: an IPv4Address or IPv6Address."""
        if len(self._found) >= _MOST_ADDRESSES * len(_FAMILIES):
            return
        self._found.append(address)
        if self._allow_private or is_public(address.host):
            self._passed += 1
            self._receiver.addressResolved(type(address)(address.type, address.host, self._port))

    def resolutionComplete(self) -> None:  # noqa: N802
        """From Twisted."""
        if self._found:
            self._cache.put(self._host, self._found)
        self._end()

    def _end(self) -> None:
        _refused.pop(self._host, None)
        if self._found and not self._passed:
            _refused[self._host] = None
        self._receiver.resolutionComplete()


async def addresses_of(host: str, *, unfiltered: bool = False) -> list[str]:
    """The addresses of a host, or of a literal in any spelling, as the reactor's resolver has them.

    So with `PublicHostResolver` they are cached and public; `unfiltered`, they are neither.
    Empty when the host has none. Raises DescriptorShortage.
    """
    if not is_reactor_installed():  # then TWISTED_DNS_RESOLVER has no meaning either
        return await _addresses_without_reactor(host)
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

    collector = _Collector(asyncio.get_running_loop().create_future())
    resolver: Any = reactor.nameResolver
    if unfiltered:
        resolver = getattr(resolver, "unfiltered", resolver)
    resolver.resolveHostName(collector, host)
    return await collector.all_there or _none_of(host)


def _none_of(host: str) -> list[str]:
    check_shortage(host)
    return []


async def _addresses_without_reactor(host: str) -> list[str]:
    try:
        found = await asyncio.to_thread(look_up, host, None, 0, socket.SOCK_STREAM)
    except socket.gaierror:
        return _none_of(host)
    return [str(address[4][0]) for address in found]


@implementer(IResolutionReceiver)
class _Collector:
    """Fulfils a future with all addresses at once."""

    def __init__(self, all_there: asyncio.Future[list[str]]) -> None:
        self.all_there = all_there
        self._found: list[str] = []

    def resolutionBegan(self, resolution: Any) -> None:  # noqa: N802
        """From Twisted."""

    def addressResolved(self, address: Any) -> None:  # noqa: N802
        """From Twisted."""
        self._found.append(address.host)

    def resolutionComplete(self) -> None:  # noqa: N802
        """From Twisted."""
        if not self.all_there.done():
            self.all_there.set_result(self._found)
