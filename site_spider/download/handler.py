"""The download handler for plain requests and well-formed answers, on the event loop.

What is plain is done here at a fraction of the cost: GET and HEAD without a body, straight to
the server, answered by well-formed HTTP/1 (download/answer.py). All else is left to Scrapy's own
handler, with the same guard and its own pool: proxies, bound addresses, other methods, and
listeners to `headers_received` and `bytes_received`, who may stop a download. A server whose
answer turns out to be odd is asked once more through that handler, which is patient with
odd answers, and directly through it from then on. So an odd answer costs one request more,
once a server, and has the outcome that it has with Scrapy. An answer beyond the bounds that both
handlers have is not asked for again. Only our connections are watched for surplus, so Scrapy's handler
keeps none, but for those to proxies.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple, NoReturn, Self

from scrapy import Request, signals
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    ResponseDataLossError,
)
from scrapy.http import Headers, Response

from site_spider import options, runtime
from site_spider.bounded import BoundedDict
from site_spider.contracts.sink import Exchange
from site_spider.download import names
from site_spider.download.answer import BodyEnd, HttpAnswer, NoAnswer, OddAnswer, class_of, headers_of, rebuilt
from site_spider.download.bodies import LARGE_BYTES, Bodies
from site_spider.download.connections import Server, Wires
from site_spider.download.names import HostNames, is_shortage
from site_spider.download.tls import CertificateError, TlsClient, tls_context
from site_spider.download.wire import NothingCame, Wire
from site_spider.engine.callback_guard import OversizedAnswer
from site_spider.engine.flow import is_heard
from site_spider.engine.scrapy_parts import part_of, provide
from site_spider.ledger.completion import Unattributed, job_of

logger = logging.getLogger(__name__)

# --- watch: bounds one download in time and size, and pauses its reading ---------------------------------

_LOOK_SECONDS = 1.0  # for a download that is paused


class DownloadLimits(NamedTuple):
    """Of requests that say nothing else; 0 bytes: none."""

    seconds: float
    most_bytes: int
    warn_bytes: int


class DownloadWatch:
    """Over one download: its time, its size, and its pauses while large bodies fill the memory."""

    def __init__(self, request: Request, usual: DownloadLimits, bodies: Bodies | None) -> None:
        self._request = request
        meta = self._meta = request.meta
        self._seconds = meta.get("download_timeout") or usual.seconds
        self._most_bytes = meta.get("download_maxsize", usual.most_bytes)
        self._warn_bytes = meta.get("download_warnsize", usual.warn_bytes)
        self._began = runtime.monotonic()
        self._is_warned = False
        self._bodies = bodies
        self._wire: Wire
        self._timer: asyncio.TimerHandle
        self._paused_at: float | None = None

    def begin(self, wire: Wire) -> None:
        """The request is sent on this wire."""
        self._wire = wire
        self._timer = asyncio.get_running_loop().call_later(self.seconds_left(), self._look_at_clock)

    def end(self) -> None:
        """The answer is there, or none will be."""
        self._timer.cancel()
        if self._paused_at is not None:  # what was read before the pause was all
            self._pause(False)
        if self._bodies is not None:
            self._bodies.arrived(self._request)

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
        """Until the timeout."""
        return max(0.0, self._seconds - (runtime.monotonic() - self._began))

    def has_waited(self, seconds: float) -> None:
        """For a place of ours, which is not the server's fault."""
        self._began += seconds

    def timed_out(self) -> DownloadTimeoutError:
        """The error of a download that has taken too long."""
        return DownloadTimeoutError(f"Getting {self._request.url} took longer than {self._seconds} seconds.")

    def head_came(self, answer: HttpAnswer) -> None:
        """Raises DownloadCancelledError for a body that is said to be too large."""
        self._meta["download_latency"] = runtime.monotonic() - self._began
        if answer.length is not None and self._request.method != "HEAD":
            self._look_at(answer.length)

    def more_came(self, answer: HttpAnswer) -> None:
        """Likewise for one that is."""
        if answer.length is None:
            self._look_at(answer.received)
        if answer.received >= LARGE_BYTES and self._bodies is not None:
            self._bodies.arriving(self._request, answer.received, self._pause)

    def _look_at(self, size: int) -> None:
        if self._most_bytes and size > self._most_bytes:
            self._refuse(size)
        if self._warn_bytes and size > self._warn_bytes and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s has %d bytes or more: over the %d of DOWNLOAD_WARNSIZE", self._request, size, self._warn_bytes
            )

    def _refuse(self, size: int) -> NoReturn:
        said = f"{size} bytes or more, over the {self._most_bytes} of DOWNLOAD_MAXSIZE"
        logger.warning("%s has %s", self._request, said)
        raise DownloadCancelledError(said)


_FALLBACK = "site_spider.download.fallback"
_MOST_ODD = 10_000  # servers that are remembered, the oldest forgotten first
_CONNECT_SECONDS = 10.0  # as Scrapy's handler has it, where no middleware sets download_timeout
_CLOSE = b"Connection: close\r\n\r\n"
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(
    r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([1-9][0-9]{0,4}))?((?:[/?][!-\"$-~]*)?)(?:#[!-~]*)?"
)
_VALUE = re.compile(rb"[^\x00\r\n]*")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset((b"Host", b"Connection", b"Proxy-Connection", b"Content-Length", b"Transfer-Encoding"))
_CACHED_BYTES = 200  # of a header: most requests have the same few


class Plan(NamedTuple):
    """A plain request: where it goes and what is sent."""

    server: Server
    message: bytes


class PlainDownloadHandler(BaseDownloadHandler):
    """For http and https: one for both, so that they share the connections and the bound on them."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        settings = crawler.settings
        most_of_server = options.integer(settings, "CONCURRENT_REQUESTS_PER_DOMAIN")
        self._wires = Wires(
            TlsClient(tls_context(settings), most_of_server),
            HostNames(names.addresses_of),
            allow_private=options.boolean(settings, "SITE_ALLOW_PRIVATE_HOSTS"),
            most_idle_of_server=most_of_server,
        )
        self._limits = DownloadLimits(
            _CONNECT_SECONDS,
            options.integer(settings, "DOWNLOAD_MAXSIZE"),
            options.integer(settings, "DOWNLOAD_WARNSIZE"),
        )
        self._fails_on_loss = options.boolean(settings, "DOWNLOAD_FAIL_ON_DATALOSS")
        self._leaves_all = bool(settings.get("DOWNLOAD_BIND_ADDRESS")) or options.boolean(
            settings, "DOWNLOADER_CLIENT_TLS_VERBOSE_LOGGING"
        )
        self._odd: BoundedDict[Server, None] = BoundedDict(_MOST_ODD)
        self._patient: dict[bool, BaseDownloadHandler] = {}  # by whether they keep connections
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
        """Download. Raises Scrapy's errors of downloads, and PrivateHostError."""
        if self._archives and (job := job_of(request)) is not None:
            job.asks_anew()
        is_left = self._leaves_all or is_heard(self.crawler, signals.headers_received, signals.bytes_received)
        plan = None if is_left else plan_of(request)
        if plan is None or plan.server in self._odd:
            return await self._download_patiently(request)
        try:
            return await self._download(request, plan)
        except OddAnswer as error:
            logger.debug("%s is left to Scrapy's handler: %s", plan.server, error)
            self._odd[plan.server] = None
        return await self._download_patiently(request)

    async def close(self) -> None:
        """End all connections."""
        self._wires.close()
        while self._patient:
            await self._patient.popitem()[1].close()

    async def _download_patiently(self, request: Request) -> Response:
        keeps = bool(request.meta.get("proxy"))
        if keeps not in self._patient:
            fallback = await asyncio.to_thread(import_module, _FALLBACK)
            if keeps not in self._patient:  # another request may have been sooner
                self._patient[keeps] = fallback.PublicHTTP11DownloadHandler(self.crawler, keeps=keeps)
        patient = self._patient[keeps]
        began = runtime.time()
        response = await self._wires.places.lend(lambda: patient.download_request(request))
        if self._archives and (job := job_of(request)) is not None:
            job.exchanged(rebuilt(request, response, began))
        return response

    async def _download(self, request: Request, plan: Plan) -> Response:
        watch = DownloadWatch(request, self._limits, part_of(self.crawler, Bodies))
        wire = self._wires.take_idle(plan.server)
        if wire is not None:
            try:
                return await self._exchange(wire, request, plan, watch)
            except NothingCame:  # the server has closed what was kept, or it may be the answer to another
                pass
        wire = await self._open(plan.server, watch)
        try:
            return await self._exchange(wire, request, plan, watch)
        except NothingCame as error:
            raise DownloadFailedError(f"no answer: {error}") from error

    async def _open(self, server: Server, watch: DownloadWatch) -> Wire:
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

    async def _open_once(self, server: Server, watch: DownloadWatch) -> Wire:
        try:
            async with asyncio.timeout(watch.seconds_left()):
                with Unattributed():  # an idle connection outlives the request
                    return await self._wires.open(server)
        except TimeoutError as error:
            raise watch.timed_out() from error
        except ssl.SSLCertVerificationError as error:
            raise CertificateError.of(server.host) from error
        except ConnectionRefusedError as error:
            raise DownloadConnectionRefusedError(str(error)) from error
        except (OSError, RuntimeError) as error:
            raise DownloadFailedError(f"{type(error).__name__}: {error}") from error
        except (ValueError, UnicodeError) as error:  # a host that TLS has no name for
            raise OddAnswer(str(error)) from error

    async def _exchange(self, wire: Wire, request: Request, plan: Plan, watch: DownloadWatch) -> Response:
        answer = HttpAnswer(to_head=request.method == "HEAD")
        message = plan.message if self._wires.keeps(plan.server) else plan.message[:-2] + _CLOSE
        watch.begin(wire)
        began = runtime.time() if self._archives else 0.0
        try:
            await wire.ask(message, answer, watch.head_came, watch.more_came)
            wire.check()
        except NoAnswer as error:
            raise DownloadFailedError(str(error)) from error
        except OversizedAnswer as error:
            raise DownloadCancelledError(str(error)) from error
        except BaseException:
            wire.abort()  # also when the task is cancelled
            raise
        finally:
            watch.end()
        if answer.is_reusable:
            self._wires.keep(plan.server, wire)
        url, body = request.url.partition("#")[0], answer.body
        if self._archives and (job := job_of(request)) is not None:
            is_cut, place = answer.ending is BodyEnd.CUT, str(wire.address)
            job.exchanged(Exchange(url, message, answer.head, body, began, place, is_cut))
        return self._response(request, answer, wire, url, body)

    def _response(self, request: Request, answer: HttpAnswer, wire: Wire, url: str, body: bytes) -> Response:
        flags = []
        if answer.ending is not BodyEnd.WHOLE:
            assert answer.ending is not None
            flags = [answer.ending.value]
            if answer.ending is BodyEnd.CUT and request.meta.get("download_fail_on_dataloss", self._fails_on_loss):
                self._warn_of_loss(request)
                raise ResponseDataLossError
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

    def _warn_of_loss(self, request: Request) -> None:
        if not self._warned_of_loss:
            self._warned_of_loss = True
            logger.warning(
                "%s sent a shorter body than announced; set DOWNLOAD_FAIL_ON_DATALOSS=false to accept it. "
                "This is logged once",
                request.url,
            )


def plan_of(request: Request) -> Plan | None:
    """None for a request that is not plain."""
    meta = request.meta
    if request.method not in ("GET", "HEAD") or request.body or meta.get("proxy") or meta.get("bindaddress"):
        return None
    headers = request.headers
    found = _URL.fullmatch(request.url)
    if found is None:
        return None
    scheme, host, port = found[1], found[2], int(found[3] or _PORTS[found[1]])
    if port > 65535:
        return None
    lines = _request_lines(headers)
    if lines is None:
        return None
    target = found[4] if found[4].startswith("/") else f"/{found[4]}"
    place = host if port == _PORTS[scheme] else f"{host}:{port}"
    host_line = b"" if dict.__contains__(headers, b"Host") else b"Host: %s\r\n" % place.encode()
    message = b"%s %s HTTP/1.1\r\n%s%s\r\n" % (request.method.encode(), target.encode(), host_line, lines)
    return Plan(Server(scheme, host.strip("[]"), port), message)


def _request_lines(headers: Headers) -> bytes | None:
    """The header as it is sent; None when it has what this handler decides itself, or what cannot be sent."""
    lines = []
    for name, values in dict.items(headers):  # as they are kept: in their spelling, as lists
        if name == b"Proxy-Authorization":
            continue
        if name in _OURS and name != b"Host":
            return None
        for value in values:
            line = _line(name, value) if len(value) <= _CACHED_BYTES else _line.__wrapped__(name, value)
            if line is None:
                return None
            lines.append(line)
    return b"".join(lines)


@lru_cache(maxsize=1_000)
def _line(name: bytes, value: bytes) -> bytes | None:
    return b"%s: %s\r\n" % (name, value) if _VALUE.fullmatch(value) and _NAME.fullmatch(name) else None
