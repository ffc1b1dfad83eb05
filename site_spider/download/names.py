"""Looks up the names of hosts, public addresses only; downloads of one host share a lookup."""

from __future__ import annotations

import asyncio
import encodings.idna  # noqa: F401 - or the first name that is looked up reads it, which takes a descriptor
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Self, cast

from scrapy.crawler import Crawler
from scrapy.utils.reactor import is_reactor_installed
from twisted.internet.base import ReactorBase
from twisted.internet.interfaces import IAddress, IHostnameResolver, IResolutionReceiver
from twisted.python import context
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

    def count(self, outcome: str, seconds: float | None = None) -> None:
        """None: it took no time, because nobody was asked."""
        with self._lock:
            self.outcomes[outcome] += 1
            if seconds is not None:
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
_IS_WANTED = "site_spider is wanted"  # in Twisted's context, which goes with a call into its thread
_context: Any = context.theContextTracker
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
    is_wanted: Callable[[], bool] = _context.getContext(_IS_WANTED, lambda: True)
    if not is_wanted():  # while name servers are silent, thousands are given up in an hour
        raise socket.gaierror(socket.EAI_AGAIN, "nobody waits for it any more")
    _short.pop(host, None)
    if len(host) > _LONGEST_NAME:
        raise socket.gaierror(socket.EAI_NONAME, f"a name of {len(host)} characters")
    began, outcome = runtime.perf_counter(), "failed"
    try:
        addresses = _first_ones(socket.getaddrinfo(host, *arguments))
        outcome = "resolved"
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
    except OSError as error:
        if is_shortage(error) or are_short():
            _short[host] = None
        raise socket.gaierror(socket.EAI_AGAIN, str(error)) from error
    finally:
        LOOKUPS.count(outcome, runtime.perf_counter() - began)
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
        """Addresses of a host. Private ones are left out, but for `addresses_of`, whose callers judge by themselves."""
        resolution = _Resolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)
        takes_private = self._allow_private or isinstance(resolutionReceiver, _Collector)

        def pass_on(found: list[Any]) -> None:
            for each in found:
                if takes_private or is_public(each.host):
                    resolutionReceiver.addressResolved(type(each)(each.type, each.host, portNumber))
            resolutionReceiver.resolutionComplete()

        def learn(found: list[IAddress]) -> None:
            if found := found[: _MOST_ADDRESSES * len(_FAMILIES)]:
                self._known[hostName] = (self._reactor.seconds() + _TTL_SECONDS, found)
            pass_on(found)

        until, known = self._known.get(hostName, (0.0, []))
        if not takes_private and is_metadata_name(hostName):
            LOOKUPS.count("refused")
            pass_on([])
        elif until > self._reactor.seconds():
            LOOKUPS.count("cached")
            pass_on(known)
        else:
            more = portNumber, addressTypes, transportSemantics
            self._original.resolveHostName(_Collector(learn), hostName, *more)
        return resolution


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
    """Hands over all addresses at once, private ones too."""

    def __init__(self, done: Callable[[list[Any]], None]) -> None:
        self._done = done
        self._found: list[Any] = []

    def resolutionBegan(self, resolution: Any) -> None:  # noqa: N802
        """From Twisted."""

    def addressResolved(self, address: Any) -> None:  # noqa: N802
        self._found.append(address)

    def resolutionComplete(self) -> None:  # noqa: N802
        self._done(self._found)


_LOOKUP_SECONDS = 30.0  # a resolver that has no thread says nothing at all


async def addresses_of(host: str) -> list[str]:
    """The addresses of a host, or of a literal in any spelling, as the reactor's resolver has them: also private ones.

    Empty when the host has none. Raises DescriptorShortage and TimeoutError.
    """
    async with asyncio.timeout(_LOOKUP_SECONDS):
        # without a reactor TWISTED_DNS_RESOLVER has no meaning either
        found = await (_resolved_by_reactor(host) if is_reactor_installed() else _resolved_in_thread(host))
    if not found and host in _short:
        raise DescriptorShortage
    return found


async def _resolved_by_reactor(host: str) -> list[str]:
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

    resolver: Any = reactor.nameResolver
    found = await _collected(resolver.resolveHostName, host)
    ours = PublicHostResolver.resolveHostName
    if not found and isinstance(resolver, PublicHostResolver) and type(resolver).resolveHostName is not ours:
        # somebody's own, perhaps with another receiver: it may have left out private ones, which the caller judges
        found = [address for address in await _collected(partial(ours, resolver), host) if not is_public(address)]
    return found


async def _collected(resolve: Callable[[Any, str], object], host: str) -> list[str]:
    there: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    def done(found: list[Any]) -> None:
        if not there.done():
            there.set_result([address.host for address in found])

    _context.callWithContext({_IS_WANTED: lambda: not there.done()}, resolve, _Collector(done), host)
    return await there


async def _resolved_in_thread(host: str) -> list[str]:
    try:
        found = await asyncio.to_thread(look_up, host, None, 0, socket.SOCK_STREAM)
    except socket.gaierror:
        return []
    return [str(address[4][0]) for address in found]


LookUp = Callable[[str], Coroutine[Any, Any, list[str]]]


class HostNames:
    """On the event loop's thread only."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._under_way: dict[str, asyncio.Task[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        """What `look_up` gives or raises."""
        lookup = self._under_way.get(host)
        if lookup is None:
            lookup = self._under_way[host] = asyncio.get_running_loop().create_task(self._look_up(host))
            lookup.add_done_callback(partial(self._ended, host))
        return await asyncio.shield(lookup)  # others may wait for it, too

    def close(self) -> None:
        for lookup in self._under_way.values():
            lookup.cancel()

    def _ended(self, host: str, lookup: asyncio.Task[list[str]]) -> None:
        self._under_way.pop(host, None)
        if not lookup.cancelled():
            lookup.exception()  # is known to who waits, if anybody does
