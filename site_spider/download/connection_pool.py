"""Opens connections, to public addresses only, and keeps idle ones for the next request.

The guard against private addresses stands where sockets are made: every address that a name,
or a literal in whatever spelling, resolves to passes it, for each new connection. A
connection that is kept was let through before.

Every connection has a place (download/connection_pool.py), whether it carries a request or is kept for the next.

A host that has sent bytes nobody asked for (download/connection.py) gets a connection for each request, for an
hour.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, NamedTuple

from aiohappyeyeballs import AddrInfoType, start_connection
from scrapy.exceptions import CannotResolveHostError

from site_spider import runtime
from site_spider.bounded import BoundedDict
from site_spider.download.address import is_address, is_metadata_name, is_public
from site_spider.download.answer import MAX_HEAD_BYTES
from site_spider.download.connection import Connection
from site_spider.download.descriptors import for_connections
from site_spider.download.names import HostNames, PrivateHostError
from site_spider.download.tls import TlsClient, TlsStream

# --- Bounds the connections to sites that are open at a time; a download without a place waits for one ---
# A connection has its place from before it is made until it is lost, so those that are kept for later have
# one too. When all are taken, one that is kept is closed. When descriptors run out all the same, because
# others took them, the number of places shrinks to what there was, and grows again with every connection
# that succeeds.

logger = logging.getLogger(__name__)

_FEWEST = 4
_PAUSE_SECONDS = 0.2  # after a shortage, before the next attempt; doubled up to the longest
_LONGEST_PAUSE_SECONDS = 2.0


class ConnectionSlots:
    """On the event loop's thread only."""

    def __init__(self, count: Callable[[], int], close_idle: Callable[[], bool]) -> None:
        """`count` is asked when a place is taken, until it has more than a few; `close_idle` closes one connection."""
        self._count = count
        self._close_idle = close_idle
        self._usual = 0
        self._now = 0
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pause = _PAUSE_SECONDS
        self._closed_until = 0.0
        self._has_said = False

    async def take(self) -> float:
        """Take a place. Returns the seconds that it was waited for."""
        if self._usual <= _FEWEST:
            self._usual = self._now = max(_FEWEST, self._count())
        loop = asyncio.get_running_loop()
        began = runtime.monotonic()
        while (pause := self._closed_until - loop.time()) > 0 or self._taken >= self._now:
            await self._changed(pause)
        self._taken += 1
        return runtime.monotonic() - began

    @property
    def are_wanted(self) -> bool:
        """Whether a download waits, so that no connection is to be kept."""
        return bool(self._waiting)

    def give_back(self) -> None:
        self._taken -= 1
        self._wake_one()

    def succeeded(self) -> None:
        if self._now < self._usual:
            self._now += 1
            self._wake_one()
        self._pause = _PAUSE_SECONDS

    def ran_out(self) -> None:
        """A descriptor was refused, though a place was taken."""
        if not self._has_said:
            self._has_said = True
            logger.warning(
                "No file descriptor is left with %d connections open: connections that are kept are closed, "
                "downloads wait. Raise the limit (ulimit -n). This is logged once",
                self._taken,
            )
        closed = sum(1 for _ in iter(self._close_idle, False))
        self._now = max(_FEWEST, min(self._now, self._taken - closed))
        self._closed_until = asyncio.get_running_loop().time() + self._pause
        self._pause = min(_LONGEST_PAUSE_SECONDS, 2 * self._pause)

    async def _changed(self, pause_seconds: float) -> None:
        if pause_seconds > 0:
            await asyncio.sleep(pause_seconds)
            return
        self._close_idle()
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_one()  # it was this one's turn
            raise

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


_IDLE_SECONDS = 75.0  # a connection is kept; servers close theirs after 5 to 75
_MOST_IDLE = 2_000  # of all servers; with TLS one takes 44 KB
_MOST_IDLE_OF_PROXIES = 64  # which have bounds of their own
_NEXT_ADDRESS_SECONDS = 0.25  # before the next address of a server is tried as well
_SWEEP_SECONDS = 5.0
_MOST_REMEMBERED = 10_000  # servers or hosts, the oldest forgotten first
_SURPLUS_SECONDS = 3_600.0
_TUNNEL_STATUS = re.compile(rb"HTTP/1\.. ([0-9]{3})(.{,1000})")
_SHOWN_BYTES = 1_000  # of what a proxy said


class ProxyPlace(NamedTuple):
    """The way to a server. The operator chose it, so it may have a private address."""

    host: str
    port: int
    authorization: bytes  # a line of the head of CONNECT


class Server(NamedTuple):
    """What a connection leads to. Through a proxy that is the proxy itself, but with https."""

    scheme: str
    host: str
    port: int
    proxy: ProxyPlace | None = None
    bound: tuple[str, int] | None = None  # the address of ours


class _SessionRefused(Exception):
    """A server ended the handshake although its session was offered: it may take a whole one."""


class ConnectionPool:
    """All connections of a crawl. On the event loop's thread only."""

    def __init__(self, tls: TlsClient, names: HostNames, *, allow_private: bool, most_idle_of_server: int) -> None:
        self._tls = tls
        self._names = names
        self._allow_private = allow_private
        self._most_idle_of_server = max(1, most_idle_of_server)
        self._idle: dict[Server, list[Connection]] = {}
        self._idle_order: OrderedDict[Connection, float] = OrderedDict()  # since when; the longest idle first
        self._open: dict[Connection, Server] = {}
        self._without_sessions: BoundedDict[Server, None] = BoundedDict(_MOST_REMEMBERED)
        self._surplus_of: BoundedDict[str, float] = BoundedDict(_MOST_REMEMBERED)  # when it was seen, by host
        self._sweeper: asyncio.TimerHandle | None = None
        self.places = ConnectionSlots(for_connections, self._close_longest_idle)

    def keeps(self, server: Server) -> bool:
        """Whether a connection to it may carry more than one request."""
        seen = self._surplus_of.get(server.host) if self._surplus_of else None
        return seen is None or runtime.monotonic() - seen > _SURPLUS_SECONDS

    def take_idle(self, server: Server) -> Connection | None:
        """A connection that is kept and does not rest, the last one used first."""
        kept = self._idle.get(server)
        if not kept:
            return None
        now = runtime.monotonic()
        for wire in reversed(kept):
            if wire.rests_until <= now:
                self._forget_idle(wire, server)
                return wire
        return None

    def keep_none(self, server: Server) -> None:
        """For an hour."""
        self._surplus_of[server.host] = runtime.monotonic()

    def keep(self, server: Server, wire: Connection) -> None:
        if not wire.is_open:
            return
        if self.places.are_wanted or (self._surplus_of and not self.keeps(server)):
            wire.abort()
            return
        kept = self._idle.setdefault(server, [])
        kept.append(wire)
        loop = asyncio.get_running_loop()
        self._idle_order[wire] = loop.time()
        if len(kept) > self._most_idle_of_server:  # of those that rest the first ones are ready first
            kept[-1 if wire.rests_until else 0].abort()
        if len(self._idle_order) > _MOST_IDLE:
            self._close_longest_idle()
        if server.proxy is not None:
            proxied = [other for other in self._idle_order if self._open[other].proxy is not None]
            if len(proxied) > _MOST_IDLE_OF_PROXIES:
                proxied[0].abort()
        if self._sweeper is None:
            self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep, context=Context())

    async def open(self, server: Server) -> Connection:
        """A new connection, for the place that was taken before; it is given back when there is none.

        Raises CannotResolveHostError, PrivateHostError, TunnelError and OSError, which ssl.SSLError is.
        """
        try:
            addresses = await self._addresses(server)
            try:
                wire = await self._wire_to_one(server, addresses, resumes=server not in self._without_sessions)
            except _SessionRefused:
                wire = await self._wire_to_one(server, addresses, resumes=False)
                self._without_sessions[server] = None
        except BaseException:
            self.places.give_back()
            raise
        self._open[wire] = server
        self.places.succeeded()
        return wire

    async def _wire_to_one(self, server: Server, addresses: list[str], *, resumes: bool) -> Connection:
        port, bound = (server.proxy or server).port, server.bound
        if len(addresses) == 1:  # the loop's own way costs half of that by a socket
            return await self._wire_to(server, resumes, host=addresses[0], port=port, local_addr=bound)
        sock = await start_connection(
            [_address_info(address, port) for address in addresses],
            local_addr_infos=None if bound is None else [_address_info(*bound)],
            happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS,
            interleave=1,
            loop=asyncio.get_running_loop(),
        )
        try:
            return await self._wire_to(server, resumes, sock=sock)
        except BaseException:
            sock.close()
            raise

    async def _wire_to(self, server: Server, resumes: bool, **place: Any) -> Connection:
        is_tls, proxy = server.scheme == "https", server.proxy
        # a session would show the site that two ways to it are of one client
        tls = TlsStream(self._tls, server.host, server.port, resumes=resumes and proxy is None) if is_tls else None
        wire = Connection(self._lost, tls)
        tunnel = _Tunnel(wire, server, proxy) if is_tls and proxy is not None else None
        try:
            await asyncio.get_running_loop().create_connection(lambda: tunnel or wire, **place)
            if tunnel is not None:
                await tunnel.opened
            await wire.ready()
        except BaseException as error:
            wire.abort()  # it may have been made at the moment of the timeout
            if tunnel is not None:
                tunnel.abort()
            may_be_for_it = isinstance(error, OSError) and not isinstance(error, ssl.SSLCertVerificationError)
            if tls is not None and tls.is_resuming and may_be_for_it:
                raise _SessionRefused from error
            raise
        return wire

    async def _addresses(self, server: Server) -> list[str]:
        host = (server.proxy or server).host
        is_guarded = server.proxy is None and not self._allow_private
        if is_guarded and is_metadata_name(host):
            raise PrivateHostError.of(host)
        found = [host] if is_address(host) else await self._names.addresses(host)
        if not found:
            raise CannotResolveHostError(f"no address for {'' if server.proxy is None else 'the proxy '}{host}")
        allowed = [address for address in found if not is_guarded or is_public(address)]
        if not allowed:
            raise PrivateHostError.of(host)
        return allowed

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._names.close()
        for wire in list(self._open):
            wire.abort()

    def _close_longest_idle(self) -> bool:
        for wire in self._idle_order:
            wire.abort()
            return True
        return False

    def _lost(self, wire: Connection) -> None:
        server = self._open.pop(wire, None)
        if server is None:
            return
        asyncio.get_running_loop().call_soon(self.places.give_back)  # by then its descriptor is closed
        if wire in self._idle_order:
            self._forget_idle(wire, server)
        if wire.had_surplus:
            self._distrust(server, wire.unvouched)

    def _distrust(self, server: Server, unvouched: int) -> None:
        was_kept = self.keeps(server)
        self._surplus_of[server.host] = runtime.monotonic()
        for other in [other for other in self._idle_order if self._open[other].host == server.host]:
            other.abort()
        for other, its in self._open.items():
            if its.host == server.host:
                other.doubt()
        if was_kept or unvouched:
            logger.log(
                logging.WARNING if unvouched else logging.INFO,
                "%s sent bytes that nobody asked for: for an hour each of its pages gets its own connection. "
                "Pages that may have the body of another one: %s",
                server.host,
                f"the last {unvouched} of that connection" if unvouched else "none",
            )

    def _forget_idle(self, wire: Connection, server: Server) -> None:
        del self._idle_order[wire]
        kept = self._idle[server]
        kept.remove(wire)
        if not kept:
            del self._idle[server]

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - _IDLE_SECONDS
        for wire in [wire for wire, since in self._idle_order.items() if since <= before]:
            wire.abort()
        self._sweeper = loop.call_later(_SWEEP_SECONDS, self._sweep) if self._idle_order else None


class _Tunnel(asyncio.Protocol):
    """Asks a proxy for a way to a server, and hands the connection over to the wire."""

    def __init__(self, wire: Connection, server: Server, proxy: ProxyPlace) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wire, self._proxy = wire, proxy
        host = f"[{server.host}]" if ":" in server.host else server.host
        place = f"{host}:{server.port}".encode()
        self._request = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (place, place, proxy.authorization)
        self._said = bytearray()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._said += data
        status = _TUNNEL_STATUS.match(self._said)
        if b"\r\n\r\n" not in self._said and len(self._said) < MAX_HEAD_BYTES:
            return
        if status is None or status[1] != b"200" or len(self._said) >= MAX_HEAD_BYTES:
            self._refuse({"status": int(status[1]), "reason": status[2].strip()} if status else None)
        elif not self.opened.done():
            self._transport.set_protocol(self._wire)
            self._wire.connection_made(self._transport)
            self.opened.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        self._refuse(None)

    def abort(self) -> None:
        """Nobody waits for it any more."""
        self.opened.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, said: dict[str, Any] | None) -> None:
        from scrapy.core.downloader.handlers.http11 import TunnelError  # noqa: PLC0415 - see failures.TunnelError

        if not self.opened.done():
            shown = bytes(self._said[:_SHOWN_BYTES]) if said is None else said
            where = f"{self._proxy.host}:{self._proxy.port} [{shown!r}]"
            self.opened.set_exception(TunnelError(f"Could not open CONNECT tunnel with proxy {where}"))


def _address_info(address: str, port: int) -> AddrInfoType:
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
