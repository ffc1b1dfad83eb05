"""Looks up the names of hosts, public addresses only; downloads of one host share a lookup."""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401 - or the first name that is looked up reads it, which takes a descriptor
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Self, cast

from scrapy.crawler import Crawler
from scrapy.utils.reactor import is_reactor_installed
from twisted.internet.base import ReactorBase
from twisted.internet.interfaces import IAddress, IHostnameResolver, IResolutionReceiver
from zope.interface import implementer

from site_spider import options, runtime
from site_spider.bounded import BoundedDict, Histogram
from site_spider.download.address import is_metadata_name, is_public
from site_spider.download.descriptors import DescriptorShortage, are_short, is_shortage
from site_spider.engine.scrapy_parts import threaded_resolver
from site_spider.errors import SiteSpiderError

# --- lookups: counts the lookups of host names in this process, whichever thread makes them --------------


class Lookups:
    """Outcomes, and the time of those that were not answered from the cache."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(("cached", "resolved", "failed", "refused"), 0)
        self.seconds = Histogram()
        self._lock = runtime.Lock()  # lookups run on several threads

    def count(self, outcome: str) -> None:
        """One that took no time."""
        with self._lock:
            self.outcomes[outcome] += 1

    def took(self, seconds: float, *, found: bool) -> None:
        """One that asked the system."""
        with self._lock:
            self.outcomes["resolved" if found else "failed"] += 1
            self.seconds.observe(seconds)


LOOKUPS: Final = Lookups()  # of the process, as the resolver is


# --- Resolves names to public addresses only, with a cache that expires ----------------------------------
# Every way to write a host passes here, also literal addresses (`127.1`, `0x7f000001`,
# `[::ffff:127.0.0.1]`), at every hop of a redirect: Twisted resolves the host of each connection by name.
# Scrapy's own cache has no time to live.
#
# The addresses that were judged are the ones that are connected to: no name is looked up between. Our own
# connections are judged where they are made (download/connection_pool.py).

_TTL_SECONDS = 60.0
_MOST_HOSTS = 10_000
_MOST_ADDRESSES = 8  # of a host and of each family; an answer may have thousands
_FAMILIES = (socket.AF_INET6, socket.AF_INET)
_LONGEST_NAME = 253  # characters; longer ones cannot be asked for
_short: BoundedDict[str, None] = BoundedDict(_MOST_HOSTS)  # hosts whose last look-up failed for want of descriptors


class PrivateHostError(SiteSpiderError):
    """The host has private addresses only. Never retried: another attempt finds the same."""

    @classmethod
    def of(cls, host: str) -> Self:
        return cls(f"{host} has no public address; set SITE_ALLOW_PRIVATE_HOSTS=true to crawl private ones")


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


@implementer(IHostnameResolver)
class PublicHostResolver:
    """Wraps the reactor's resolver, IPv4 and IPv6."""

    def __init__(self, reactor: ReactorBase, *, allow_private: bool) -> None:
        self._reactor: Any = reactor
        self._original: Any = threaded_resolver(reactor, look_up)
        self._allow_private = allow_private
        self._known: BoundedDict[str, tuple[float, list[IAddress]]] = BoundedDict(_MOST_HOSTS)

    @classmethod
    def from_crawler(cls, crawler: Crawler, reactor: ReactorBase) -> Self:
        """As Scrapy asks for TWISTED_DNS_RESOLVER; `crawler` only has settings."""
        return cls(reactor, allow_private=options.boolean(crawler.settings, "SITE_ALLOW_PRIVATE_HOSTS"))

    def install_on_reactor(self) -> None:
        self._reactor.installNameResolver(self)

    def resolveHostName(  # noqa: N802 - the name is Twisted's
        self,
        resolutionReceiver: Any,  # noqa: N803
        hostName: str,  # noqa: N803
        portNumber: int = 0,  # noqa: N803
        addressTypes: Sequence[type[IAddress]] | None = None,  # noqa: N803
        transportSemantics: str = "TCP",  # noqa: N803
    ) -> Any:
        """Addresses of a host, private ones left out."""
        resolution = _Resolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)

        def pass_on(found: list[Any]) -> None:
            for each in found:
                if self._allow_private or is_public(each.host):
                    resolutionReceiver.addressResolved(type(each)(each.type, each.host, portNumber))
            resolutionReceiver.resolutionComplete()

        if not self._allow_private and is_metadata_name(hostName):
            LOOKUPS.count("refused")
            pass_on([])
        else:
            self.all_addresses(pass_on, hostName, portNumber, addressTypes, transportSemantics)
        return resolution

    def all_addresses(self, done: Callable[[list[Any]], None], host: str, *more: Any) -> None:
        """Hand over private ones, too, perhaps from the cache: for who judges them by itself."""

        def learn(found: list[IAddress]) -> None:
            if found := found[: _MOST_ADDRESSES * len(_FAMILIES)]:
                self._known[host] = (self._reactor.seconds() + _TTL_SECONDS, found)
            done(found)

        until, known = self._known.get(host, (0.0, []))
        if until > self._reactor.seconds():
            LOOKUPS.count("cached")
            done(known)
        else:
            self._original.resolveHostName(_Collector(learn), host, *more)


def guard_reactor(crawler: Crawler) -> None:
    """Install the guard where whoever made the process has another resolver, as a script may."""
    if not is_reactor_installed():
        return
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

    resolver: Any = reactor.nameResolver
    if not isinstance(resolver, PublicHostResolver):
        PublicHostResolver.from_crawler(crawler, cast(ReactorBase, reactor)).install_on_reactor()


class _Resolution:
    """One that nobody can cancel."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self) -> None:
        """What is found is for whoever asks next."""


@implementer(IResolutionReceiver)
class _Collector:
    """Hands over all addresses at once."""

    def __init__(self, done: Callable[[list[Any]], None]) -> None:
        self._done = done
        self._found: list[Any] = []

    def resolutionBegan(self, resolution: Any) -> None:  # noqa: N802
        """From Twisted."""

    def addressResolved(self, address: Any) -> None:  # noqa: N802
        self._found.append(address)

    def resolutionComplete(self) -> None:  # noqa: N802
        self._done(self._found)


async def addresses_of(host: str) -> list[str]:
    """The addresses of a host, or of a literal in any spelling, as the reactor's resolver has them: also private ones.

    Empty when the host has none. Raises DescriptorShortage.
    """
    if not is_reactor_installed():  # then TWISTED_DNS_RESOLVER has no meaning either
        return await _addresses_without_reactor(host)
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

    there: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    def done(found: list[Any]) -> None:
        if not there.done():
            there.set_result([address.host for address in found])

    resolver: Any = reactor.nameResolver
    is_ours = isinstance(resolver, PublicHostResolver)
    if is_ours and type(resolver).resolveHostName is PublicHostResolver.resolveHostName:
        resolver.all_addresses(done, host)
        return await there or _none_of(host)
    resolver.resolveHostName(_Collector(done), host)
    if not await there and is_ours:  # somebody's own: it may have left out private ones, which the caller judges
        there = asyncio.get_running_loop().create_future()
        resolver.all_addresses(lambda found: done([one for one in found if not is_public(one.host)]), host)
    return await there or _none_of(host)


def _none_of(host: str) -> list[str]:
    if host in _short:
        raise DescriptorShortage
    return []


async def _addresses_without_reactor(host: str) -> list[str]:
    try:
        found = await asyncio.to_thread(look_up, host, None, 0, socket.SOCK_STREAM)
    except socket.gaierror:
        return _none_of(host)
    return [str(address[4][0]) for address in found]


_LOOKUP_SECONDS = 30.0  # a resolver that has no thread says nothing at all

LookUp = Callable[[str], Coroutine[Any, Any, list[str]]]


class HostNames:
    """On the event loop's thread only."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._under_way: dict[str, asyncio.Task[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """What `look_up` gives or raises, or TimeoutError."""
        lookup = self._under_way.get(host) or self._begin(host)
        return await asyncio.shield(lookup)  # others may wait for it, too

    def close(self) -> None:
        for lookup in self._under_way.values():
            lookup.cancel()

    def _begin(self, host: str) -> asyncio.Task[list[str]]:
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
