"""The download handler for http and https, on the event loop.

A request goes straight to the server, or through a proxy. One that may be repeated (idempotent, and without a
body) takes a connection that is kept, when there is one; any other one gets a new connection, on which nothing
can be lost. The first answer of a connection is read with patience (download/answer.py); an odd one on a
connection that was kept may be surplus of the one before, and is asked for again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from functools import lru_cache
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from scrapy import Request, signals
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    ResponseDataLossError,
    StopDownload,
    UnsupportedURLSchemeError,
)
from scrapy.http import Headers, Response
from twisted.python.failure import Failure
from twisted.web.http_headers import Headers as SentHeaders

from site_spider import options, runtime
from site_spider.contracts.sink import Exchange
from site_spider.download import names
from site_spider.download.answer import BodyEnd, HttpAnswer, NoAnswer, OddAnswer, OversizedAnswer, class_of, headers_of
from site_spider.download.bodies import LARGE_BYTES, Bodies
from site_spider.download.connection import Connection, NothingCame
from site_spider.download.connection_pool import ConnectionPool, ProxyPlace, Server
from site_spider.download.descriptors import is_shortage
from site_spider.download.names import HostNames
from site_spider.download.proxy_pool import authorization_of
from site_spider.download.tls import CertificateError, TlsClient, tls_context
from site_spider.engine.flow import is_heard
from site_spider.engine.scrapy_parts import part_of, provide
from site_spider.ledger.completion import Unattributed, job_of

logger = logging.getLogger(__name__)

# --- watch: bounds one download in time and size, and pauses its reading ---------------------------------

_LOOK_SECONDS = 1.0  # for a download that is paused
_USUAL_SECONDS = 10.0  # as Scrapy's handler has it, where no middleware sets download_timeout


class DownloadWatch:
    """Over one download: its time, its size, and its pauses while large bodies fill the memory."""

    def __init__(self, request: Request, most_bytes: int, warn_bytes: int, bodies: Bodies | None) -> None:
        """The bytes are for a request that says nothing else; 0: any number."""
        self._request = request
        meta = self._meta = request.meta
        self._seconds = meta.get("download_timeout") or _USUAL_SECONDS
        self._most_bytes = meta.get("download_maxsize", most_bytes)
        self._warn_bytes = meta.get("download_warnsize", warn_bytes)
        self._began = runtime.monotonic()
        self._is_warned = self._has_head = False
        self._bodies = bodies
        self._arrives_in: Bodies | None = None  # as a large one
        self._wire: Connection
        self._timer: asyncio.TimerHandle
        self.heard_by: Crawler | None = None  # whose listeners may stop the download
        self.told = 0  # bytes of the body that they were told of
        self._paused_at: float | None = None

    def begin(self, wire: Connection) -> None:
        self._wire, self.told, self._has_head = wire, 0, False
        self._timer = asyncio.get_running_loop().call_later(self.seconds_left(), self._look_at_clock)

    def end(self) -> None:
        """The answer is there, or none will be."""
        self._timer.cancel()
        if self._paused_at is not None:  # what was read before the pause was all
            self._pause(False)
        if self._arrives_in is not None:
            self._arrives_in.arrived(self._request)

    def _look_at_clock(self) -> None:
        is_ours = self._paused_at is not None or self._wire.is_withholding
        left = _LOOK_SECONDS if is_ours else self.seconds_left()
        if left > 0:  # the time in which we took nothing does not count
            self._timer = asyncio.get_running_loop().call_later(left, self._look_at_clock)
        else:
            self._wire.fail(self.timed_out())

    def _pause(self, is_paused: bool) -> None:
        now = runtime.monotonic()
        if self._paused_at is not None:
            self._began += now - self._paused_at
        self._paused_at = now if is_paused else None
        (self._wire.hold if is_paused else self._wire.release)()

    def seconds_left(self) -> float:
        return max(0.0, self._seconds - (runtime.monotonic() - self._began))

    def has_waited(self, seconds: float) -> None:
        """For a place of ours, which is not the server's fault."""
        self._began += seconds

    def timed_out(self) -> DownloadTimeoutError:
        return DownloadTimeoutError(f"Getting {self._request.url} took longer than {self._seconds} seconds.")

    def came(self, answer: HttpAnswer) -> None:
        """The head, then more of the body. Raises DownloadCancelledError for too large a one, also as it is said."""
        if not self._has_head:
            self._has_head = True
            self._meta["download_latency"] = runtime.monotonic() - self._began
            if self.heard_by is not None:
                size, headers = -1 if answer.length is None else answer.length, headers_of(answer.headers)
                self._tell(self.heard_by, signals.headers_received, headers=headers, body_length=size)
            if answer.length is not None and self._request.method != "HEAD":
                self._look_at(answer.length)
        if self.heard_by is not None and answer.received > self.told:
            data, self.told = answer.body_from(self.told), answer.received
            self._tell(self.heard_by, signals.bytes_received, data=data)
        if answer.length is None:
            self._look_at(answer.received)
        if answer.received >= LARGE_BYTES and self._bodies is not None:
            self._arrives_in = self._bodies
            self._bodies.arriving(self._request, answer.received, self._pause)

    def _tell(self, crawler: Crawler, signal: object, **said: Any) -> None:
        """Raises StopDownload."""
        found = crawler.signals.send_catch_log(signal, request=self._request, spider=crawler.spider, **said)
        for _, result in found:
            if isinstance(result, Failure) and isinstance(result.value, StopDownload):
                raise result.value

    def _look_at(self, size: int) -> None:
        if self._most_bytes and size > self._most_bytes:
            said = f"{size} bytes or more, over the {self._most_bytes} of DOWNLOAD_MAXSIZE"
            logger.warning("%s has %s", self._request, said)
            raise DownloadCancelledError(said)
        if self._warn_bytes and size > self._warn_bytes and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s has %d bytes or more: over the %d of DOWNLOAD_WARNSIZE", self._request, size, self._warn_bytes
            )


_CLOSE = b"Connection: close\r\n"
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(
    r"(https?)://([!$-.0-9;=A-Z_a-z~]+|\[[0-9A-Fa-f:.]+\])(?::([1-9][0-9]{0,4}))?((?:[/?][!-\"$-~]*)?)(?:#[!-~]*)?"
)
_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE_END = re.compile(rb"[\x00\r\n]+")
_NOT_COPIED = frozenset((b"Content-Length", b"Transfer-Encoding", b"Proxy-Authorization"))
_REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS", "DELETE", "TRACE"))
_WITH_LENGTH = frozenset(("POST", "PUT"))  # also without a body
_CACHED_BYTES = 200  # of a header: most requests have the same few


class Plan(NamedTuple):
    """Where a request goes and what is sent."""

    server: Server
    head: bytes
    body: bytes
    for_proxy: bytes  # a line of the head that the site is not to see
    may_repeat: bool


class PlainDownloadHandler(BaseDownloadHandler):
    """For http and https: one for both, so that they share the connections and the bound on them."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        settings, spider = crawler.settings, crawler.spider
        most_of_server = options.integer(settings, "CONCURRENT_REQUESTS_PER_DOMAIN")
        self._wires = ConnectionPool(
            TlsClient(tls_context(settings), most_of_server),
            HostNames(names.addresses_of),
            allow_private=options.boolean(settings, "SITE_ALLOW_PRIVATE_HOSTS"),
            most_idle_of_server=most_of_server,
        )
        self._most_bytes = getattr(spider, "download_maxsize", options.integer(settings, "DOWNLOAD_MAXSIZE"))
        self._warn_bytes = getattr(spider, "download_warnsize", options.integer(settings, "DOWNLOAD_WARNSIZE"))
        self._fails_on_loss = options.boolean(settings, "DOWNLOAD_FAIL_ON_DATALOSS")
        self._bind_address = settings.get("DOWNLOAD_BIND_ADDRESS")
        self._logs_tls = options.boolean(settings, "DOWNLOADER_CLIENT_TLS_VERBOSE_LOGGING")
        self._warned_of_loss = False
        self._archives = "warc" in options.names(settings, "SITE_SINKS")

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The one of this crawl: Scrapy asks for each scheme."""
        made = part_of(crawler, cls)
        if type(made) is not cls:
            made = cls(crawler)
            provide(crawler, made)
        return made

    async def download_request(self, request: Request) -> Response:
        """Download. Raises Scrapy's errors of downloads, PrivateHostError, and ValueError for what cannot be sent."""
        if self._archives and (job := job_of(request)) is not None:
            job.asks_anew()
        plan = plan_of(request, self._bind_address)
        watch = DownloadWatch(request, self._most_bytes, self._warn_bytes, part_of(self.crawler, Bodies))
        if is_heard(self.crawler, signals.headers_received, signals.bytes_received):
            watch.heard_by = self.crawler
        wire = self._wires.take_idle(plan.server) if plan.may_repeat else None
        if wire is not None:
            try:
                return await self._exchange(wire, request, plan, watch)
            except NothingCame:  # the server has closed what was kept, or it may be the answer to another
                pass
            except OddAnswer as error:
                logger.debug("%s answers oddly: %s", plan.server.host, error)
                self._wires.keep_none(plan.server)
        wire = await self._open(plan.server, watch)
        try:
            return await self._exchange(wire, request, plan, watch)
        except NothingCame as error:
            raise DownloadFailedError(f"no answer: {error}") from error

    async def close(self) -> None:
        self._wires.close()

    async def _open(self, server: Server, watch: DownloadWatch) -> Connection:
        while True:
            watch.has_waited(await self._wires.places.take())
            try:
                wire = await self._open_once(server, watch)
            except Exception as error:
                if not is_shortage(error):
                    raise
                self._wires.places.ran_out()
            else:
                return wire

    async def _open_once(self, server: Server, watch: DownloadWatch) -> Connection:
        try:
            async with asyncio.timeout(watch.seconds_left()):
                with Unattributed():  # an idle connection outlives the request
                    wire = await self._wires.open(server)
        except TimeoutError as error:
            raise watch.timed_out() from error
        except ssl.SSLCertVerificationError as error:
            raise CertificateError.of(server.host) from error
        except ConnectionRefusedError as error:
            raise DownloadConnectionRefusedError(str(error)) from error
        except (OSError, RuntimeError, ValueError) as error:  # ValueError: of a host that TLS has no name for
            raise DownloadFailedError(f"{type(error).__name__}: {error}") from error
        if self._logs_tls and wire.tls is not None:
            wire.tls.log(server.host)
        return wire

    async def _exchange(self, wire: Connection, request: Request, plan: Plan, watch: DownloadWatch) -> Response:
        answer = HttpAnswer(to_head=request.method == "HEAD", takes_odd=wire.is_new)
        head = plan.head if self._wires.keeps(plan.server) else plan.head[:-2] + _CLOSE + b"\r\n"
        message = (head[:-2] + plan.for_proxy + b"\r\n" if plan.for_proxy else head) + plan.body
        stop: StopDownload | None = None
        watch.begin(wire)
        began = runtime.time() if self._archives else 0.0
        try:
            await wire.ask(message, answer, watch.came)
            wire.check()
        except NoAnswer as error:
            raise DownloadFailedError(str(error)) from error
        except OversizedAnswer as error:
            raise DownloadCancelledError(str(error)) from error
        except StopDownload as error:
            stop = error
        except BaseException:
            wire.abort()  # also when the task is cancelled
            raise
        finally:
            watch.end()
        if answer.is_reusable:
            self._wires.keep(plan.server, wire)
        url, body = request.url.partition("#")[0], answer.body
        if stop is not None:
            body = body[: watch.told]
        if self._archives and (job := job_of(request)) is not None:
            is_cut = stop is not None or answer.ending is BodyEnd.CUT
            place = None if plan.server.proxy else str(wire.address)
            job.exchanged(Exchange(url, head + plan.body, answer.head, body, began, place, is_cut))
        if stop is None:
            flags = [] if answer.ending is BodyEnd.WHOLE else [self._flag(request, answer)]
            return self._response(answer, wire, url, body, flags)
        stop.response = self._response(answer, wire, url, body, ["download_stopped"])
        if stop.fail:
            raise stop
        return stop.response

    def _flag(self, request: Request, answer: HttpAnswer) -> str:
        """Of a body that ended with the connection. Raises ResponseDataLossError."""
        assert answer.ending is not None
        if answer.ending is BodyEnd.CUT and request.meta.get("download_fail_on_dataloss", self._fails_on_loss):
            if not self._warned_of_loss:
                self._warned_of_loss = True
                logger.warning(
                    "%s sent a shorter body than announced; set DOWNLOAD_FAIL_ON_DATALOSS=false to accept it. "
                    "This is logged once",
                    request.url,
                )
            raise ResponseDataLossError
        return answer.ending.value

    @staticmethod
    def _response(answer: HttpAnswer, wire: Connection, url: str, body: bytes, flags: list[str]) -> Response:
        headers = headers_of(answer.headers)
        response = class_of(headers, url, body)(
            url,
            status=answer.status,
            body=body,
            flags=flags,
            certificate=None if wire.tls is None else wire.certificate,
            ip_address=wire.address,
            protocol=answer.version.decode(),
        )
        response.headers = headers  # the constructor would spell them anew
        return response


def plan_of(request: Request, bind_address: Any = None) -> Plan:
    """Raises ValueError for what cannot be sent, UnsupportedURLSchemeError for a proxy of another kind."""
    meta, method, body = request.meta, request.method, request.body
    found = _URL.fullmatch(request.url)
    if found is None:
        raise ValueError(f"{request.url!r} cannot be asked for")
    scheme, host, port = found[1], found[2], int(found[3] or _PORTS[found[1]])
    if port > 65535:
        raise ValueError(f"{port} is no port")
    target = found[4] if found[4].startswith("/") else f"/{found[4]}"
    place = host if port == _PORTS[scheme] else f"{host}:{port}"
    bound = meta.get("bindaddress") or bind_address
    bound = (bound, 0) if isinstance(bound, str) else bound
    server, for_proxy = Server(scheme, host.strip("[]"), port, None, bound), b""
    if proxy := meta.get("proxy"):
        server, for_proxy = _through(proxy, request, server)
        target = target if scheme == "https" else f"http://{place}{target}"
    headers = request.headers
    host_line = b"" if dict.__contains__(headers, b"Host") else b"Host: %s\r\n" % place.encode()
    length = b"Content-Length: %d\r\n" % len(body) if body or method in _WITH_LENGTH else b""
    is_usual = method in _REPEATABLE
    if not is_usual and not _METHOD.fullmatch(method.encode()):
        raise ValueError(f"{method!r} is no method")
    lines = _request_lines(headers)
    head = b"%s %s HTTP/1.1\r\n%s%s%s\r\n" % (method.encode(), target.encode(), host_line, length, lines)
    return Plan(server, head, body, for_proxy, is_usual and not body)


def _through(proxy: str, request: Request, server: Server) -> tuple[Server, bytes]:
    """The server to connect to, and what only the proxy is told."""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme != "http" or not parts.hostname:
        raise UnsupportedURLSchemeError(f"a proxy is spoken to by http, not by {parts.scheme}")
    host, port = parts.hostname, parts.port or 80
    secret = authorization_of(parts.username, parts.password) or request.headers.get(b"Proxy-Authorization")
    line = b"Proxy-Authorization: %s\r\n" % _VALUE_END.sub(b" ", secret) if secret else b""
    if server.scheme == "https":
        return server._replace(proxy=ProxyPlace(host, port, line)), b""
    return Server("http", host, port, ProxyPlace(host, port, b""), server.bound), line


def _request_lines(headers: Headers) -> bytes:
    """The header as it is sent, without what this handler decides itself. Raises ValueError."""
    lines = []
    for name, values in dict.items(headers):  # as they are kept: in their spelling, as lists
        if name not in _NOT_COPIED:
            for value in values:
                lines.append(_line(name, value) if len(value) <= _CACHED_BYTES else _line.__wrapped__(name, value))
    return b"".join(lines)


@lru_cache(maxsize=1_000)
def _line(name: bytes, value: bytes) -> bytes:
    ((spelled, _),) = SentHeaders({name: ()}).getAllRawHeaders()  # DNT and TE, say; InvalidHeaderName is a ValueError
    return b"%s: %s\r\n" % (spelled, _VALUE_END.sub(b" ", value))
