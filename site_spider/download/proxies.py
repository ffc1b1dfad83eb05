"""Requests through proxies, for pages that fail without one: SITE_PROXIES, its file, and the middlewares.

No seed names a proxy.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Self

import re2
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    IgnoreRequest,
    NotConfigured,
    ResponseDataLossError,
    StopDownload,
    UnsupportedURLSchemeError,
)
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached

from site_spider import meta_keys, options, runtime
from site_spider.bounded import LogLimit
from site_spider.download.address import is_metadata_name, is_public
from site_spider.download.descriptors import DescriptorShortage
from site_spider.download.names import PrivateHostError, addresses_of
from site_spider.download.proxy_pool import Attempt, Proxy, ProxyError, ProxyOutcome, ProxyPool, parse_lines, parse_list
from site_spider.engine.background import Background
from site_spider.errors import ConfigError, SiteSpiderError
from site_spider.frontier.priority_queue import PROXY_LEVEL
from site_spider.ledger.completion import Job, job_of
from site_spider.results.document import describe_status
from site_spider.results.failures import TunnelError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between two looks at the file
_LOG_LINES, _LOG_SECONDS = 10, 60.0
_LARGEST_FILE_BYTES = 10_000_000
_REMEDY = "Set it to http://user:password@host:port, several with commas, or to the path of a file of them."


class ProxyService:
    """An extension; for spiders that take seeds, where SITE_PROXIES is set."""

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self.patterns = PagePatterns(options.texts(settings, "SITE_PROXY_BODY_PATTERNS"))
        name = "SITE_PROXY_STATUSES"
        self.statuses = {options.integer({name: code}, name, 100, 599) for code in options.names(settings, name)}
        self.unanswered = options.integer(settings, "SITE_PROXY_TIMEOUTS")  # attempts; 0: never for that
        self.attempts = options.integer(settings, "SITE_PROXY_ATTEMPTS", minimum=1)  # through proxies, of one page
        written = options.text(settings, "SITE_PROXIES")
        self._file = None if "://" in written else Path(written)
        try:
            self._read = None if self._file is None else _signature(self._file)
            proxies = parse_list(written) if self._file is None else _proxies_in(self._file)
        except (ProxyError, OSError, ValueError) as error:
            raise ConfigError(f"SITE_PROXIES{_of(self._file)}: {_said(error)}. {_REMEDY}") from None
        self.pool = ProxyPool(proxies)
        self.outcomes = dict.fromkeys((outcome.value for outcome in ProxyOutcome), 0)
        self._limit = LogLimit(_LOG_LINES, _LOG_SECONDS)
        self._all_rest = False
        self._following: asyncio.Task[None] | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks. Raises ConfigError, which never holds a password."""
        takes_seeds = getattr(crawler.spidercls, "takes_seeds", False)
        if not takes_seeds or not options.text(crawler.settings, "SITE_PROXIES"):
            raise NotConfigured
        service = cls(crawler)
        crawler.signals.connect(service._spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(service._spider_closed, signal=signals.spider_closed)
        return service

    @classmethod
    def of(cls, crawler: Crawler) -> Self:
        """The service of a crawl. Raises NotConfigured where there is none."""
        service = crawler.get_extension(cls)
        if service is None:
            raise NotConfigured
        return service

    def take(self, tried: Collection[Proxy]) -> Attempt | None:
        """A proxy for a request that has `tried` some; None when all rest."""
        now = asyncio.get_running_loop().time()
        attempt = self.pool.take(now, tried, runtime.random())  # spreads the load only
        if attempt is None and not self._all_rest:
            seconds = self.pool.next_at(now) - now
            logger.warning("All %d proxies rest; requests that need one wait %.0f s", len(self.pool), seconds)
        self._all_rest = attempt is None
        return attempt

    def end(self, attempt: Attempt, ending: ProxyOutcome, said: str) -> None:
        """An attempt has ended; `said` tells how, in words that follow the proxy's address."""
        now = asyncio.get_running_loop().time()
        self.outcomes[ending.value] += 1
        seconds = self.pool.end(attempt, ending, now)
        if seconds and self._limit.admit(now):
            logger.warning("Proxy %s %s; it rests for %.0f s", attempt.proxy.url, said, seconds)

    def next_at(self) -> float:
        """When `take` may find one, by the event loop's clock."""
        return self.pool.next_at(asyncio.get_running_loop().time())

    def _spider_opened(self, spider: Spider) -> None:
        logger.info("%d proxies for requests that need one", len(self.pool))
        if self._file is not None:
            background = Background.of(spider.crawler)
            self._following = background.start(self._follow(self._file), "file of proxies")

    def _spider_closed(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def _follow(self, file: Path) -> None:
        """Take what the file says when it has changed; what cannot be used changes nothing."""
        read = seen = self._read
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before, seen = seen, await asyncio.to_thread(_signature, file)
            if seen != before or seen == read:  # it may be half-written, or is known
                continue
            read = seen
            try:
                proxies = await asyncio.to_thread(_proxies_in, file)
            except (ProxyError, OSError) as error:
                logger.warning(
                    "SITE_PROXIES%s: %s; the %d proxies read before stay", *(_of(file), _said(error), len(self.pool))
                )
            else:
                self.pool.replace(proxies)
                logger.info("SITE_PROXIES%s: %d proxies from now on", _of(file), len(proxies))


def _signature(path: Path) -> object:
    """Differs when the file has changed; the kind of an error, for one complaint is enough of each."""
    try:
        found = path.stat()
    except OSError as error:
        return type(error)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _proxies_in(path: Path) -> list[Proxy]:
    """Raises ProxyError, OSError."""
    with path.open("rb") as file:
        content = file.read(_LARGEST_FILE_BYTES + 1)
    if len(content) > _LARGEST_FILE_BYTES:
        raise ProxyError(f"it has more than {_LARGEST_FILE_BYTES} bytes")
    return parse_lines(content.decode("utf-8", "replace"))


def _of(file: Path | None) -> str:
    """Which file; nothing for what may be a proxy without http://, and hold a password."""
    return "" if file is None or ":" in str(file) or "@" in str(file) else f" ({file})"


def _said(error: ProxyError | OSError | ValueError) -> str:
    """Without the text of the setting or the file, which may hold a password."""
    if isinstance(error, ProxyError):
        return str(error)
    return f"it cannot be read: {error.strerror if isinstance(error, OSError) else 'it is no path'}"


# --- Regular expressions that are searched in pages: RE2's, so that no page can block the event loop -----

SEARCHED_BYTES = 8192  # of the beginning of a page
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.encoding = re2.Options.Encoding.LATIN1  # bytes as they come


class PagePatterns:
    """Those of SITE_PROXY_BODY_PATTERNS, as one question. Raises ConfigError for the first that RE2 does not take."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [(pattern, _compiled(pattern)) for pattern in patterns]

    def found(self, body: bytes) -> str | None:
        """The first pattern that matches in the beginning of a page; None when none does."""
        beginning = body[:SEARCHED_BYTES]
        return next((text for text, pattern in self._patterns if pattern.search(beginning)), None)


def _compiled(text: str) -> Any:
    try:
        return re2.compile(text.encode(), _OPTIONS)
    except (re2.error, UnicodeError) as error:  # that one for bytes of a command line that are no UTF-8
        said = error.args[0].decode() if isinstance(error, re2.error) else error
        raise ConfigError(f"SITE_PROXY_BODY_PATTERNS: {text!r} is no regular expression of RE2: {said}.") from None


# --- targets: refuses private hosts before a proxy is asked for them -------------------------------------
# A proxy resolves the name by itself, out of our sight. So we resolve it first, and refuse a host that has
# any private address. A proxy that sees other addresses than we do is not caught by this.


async def check_target(host: str) -> None:
    """Raises PrivateHostError, CannotResolveHostError when we find no address, DescriptorShortage and TimeoutError."""
    if not is_metadata_name(host):
        found = await addresses_of(host)
        if not found:
            raise CannotResolveHostError(f"no address for host {host}")
        if all(map(is_public, found)):
            return
    raise PrivateHostError(
        f"{host} has a private address, and no proxy is asked for such a host; "
        "set SITE_ALLOW_PRIVATE_HOSTS=true to crawl private ones"
    )


# --- middlewares: downloader middlewares that try a failed page again through a proxy --------------------
# Two downloader middlewares. `ProxyLevelMiddleware` sees an answer when the retries have let it pass. It
# sends the request to the level of the proxies, where it waits like any other, for its host and, when all
# proxies rest, for the first of them. `ProxyRouteMiddleware` stands next to the downloader: it chooses the
# proxy at the last moment, and takes its address and credentials off the request as soon as the download
# has ended.
#
# From then on the page is fetched through proxies alone: its redirects too, and RETRY_TIMES does not count.
# A link found on it begins without one. Another attempt serves the same job, so the seed is not complete
# before the last of them.

_PROXY, _DONT_RETRY, _AUTHORIZATION = "proxy", "dont_retry", b"Proxy-Authorization"  # as in Scrapy
_PROXY_WANTS_CREDENTIALS = 407
_OF_THE_SITE = frozenset({502, 503, 504})  # to CONNECT: the proxy has not reached it
_TUNNEL_STATUS = re.compile(r"'status': (\d{3})")

_NO_ANSWER = (DownloadTimeoutError, DownloadConnectionRefusedError, DownloadFailedError, ResponseDataLossError)
_NOT_FOR_ANOTHER = (
    IgnoreRequest, SiteSpiderError, DownloadCancelledError, StopDownload, UnsupportedURLSchemeError,
)  # fmt: skip


class ProxyFailed(SiteSpiderError):
    """No proxy brought an answer, and no more are asked."""


class Route:
    """Why a page is fetched through proxies, and what was tried. Its requests share it, one after another."""

    __slots__ = ("attempts", "job", "proxy", "reason", "silent", "tried", "url")

    def __init__(self, job: Job, reason: str) -> None:
        self.job = job
        self.reason = reason  # that the page was not taken without a proxy
        self.proxy: Proxy | None = None  # of the last attempt
        self.url = ""  # of the attempts: a redirect leads to another one, where counting begins anew
        self.attempts = self.silent = 0  # silent: look-ups that brought nothing at all
        self.tried: set[Proxy] = set()

    def begin(self, url: str, attempt: Attempt) -> None:
        if url != self.url:
            self.url, self.attempts, self.silent, self.tried = url, 0, 0, set()
        self.attempts += 1
        self.tried.add(attempt.proxy)
        self.proxy = attempt.proxy

    def another(self, request: Request, reason: str, not_before: float | None = None) -> Request:
        """The request once more, for the level of the proxies."""
        made = request.copy()
        made.dont_filter = True
        made.priority = -PROXY_LEVEL
        made.meta.update({meta_keys.ROUTE: self, _DONT_RETRY: True})
        if reason:
            made.meta[meta_keys.RETRY_REASONS] = (*request.meta.get(meta_keys.RETRY_REASONS, ()), reason)
        if not_before is not None:
            made.meta[meta_keys.NOT_BEFORE] = not_before
        return made


def route_of(request: Request) -> Route | None:
    """The route of a request; None for one that goes without a proxy, though it has copied the meta."""
    route = request.meta.get(meta_keys.ROUTE)
    return route if isinstance(route, Route) and route.job is job_of(request) else None


def proxied_by(request: Request) -> str | None:
    """The proxy that the answer to a request came through, without credentials."""
    route = route_of(request)
    return None if route is None or route.proxy is None else route.proxy.url


class ProxyLevelMiddleware:
    """Behind the retries: sends what was refused, or never answered, to the proxies."""

    def __init__(self, crawler: Crawler) -> None:
        self._service = ProxyService.of(crawler)
        codes = options.names(crawler.settings, "RETRY_HTTP_CODES")
        self._passing = frozenset(int(code) for code in codes)  # what another attempt may mend

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def process_response(self, request: Request, response: Response) -> Request | Response:
        """The response, if it may stay the answer."""
        route = route_of(request)
        job = job_of(request)
        if job is None or (route is None and request.meta.get(_DONT_RETRY)):
            return response
        reason = self._reason(response, through_proxy=route is not None)
        if reason is None or (route is not None and route.attempts >= self._service.attempts):
            return response
        return (route or Route(job, reason)).another(request, reason)

    def process_exception(self, request: Request, exception: Exception) -> Request | None:
        """A request for the proxies when the site has not answered so many times."""
        job = job_of(request)
        if job is None or route_of(request) is not None or request.meta.get(_DONT_RETRY):
            return None
        limit, times = self._service.unanswered, request.meta.get("retry_times", 0) + 1
        if not isinstance(exception, _NO_ANSWER) or not limit or times < limit:
            return None
        reason = type(exception).__name__
        return Route(job, reason).another(request, reason)

    def _reason(self, response: Response, *, through_proxy: bool) -> str | None:
        status = response.status
        if status in self._service.statuses or (through_proxy and status in self._passing):
            return describe_status(status) or f"HTTP {status}"
        pattern = self._service.patterns.found(response.body)
        return None if pattern is None else f"the page matches {pattern!r}"


class ProxyRouteMiddleware:
    """Next to the downloader: gives a request its proxy, and takes it away again."""

    def __init__(self, crawler: Crawler) -> None:
        self._service = ProxyService.of(crawler)
        self._allow_private = options.boolean(crawler.settings, "SITE_ALLOW_PRIVATE_HOSTS")
        self._under_way: dict[Request, Attempt] = {}

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    async def process_request(self, request: Request) -> Request | None:
        """Raises PrivateHostError, CannotResolveHostError."""
        route = route_of(request)
        if route is None:
            if request.meta.pop(meta_keys.ROUTE, None) is not None:
                request.meta.pop(_DONT_RETRY, None)  # copied from the page it was found on
            return None
        if not self._allow_private:
            try:
                await check_target(urlparse_cached(request).hostname or "")
            except DescriptorShortage:
                return route.another(request, "", self._service.next_at())
            except TimeoutError:
                route.silent += 1
                if route.silent >= self._service.attempts:
                    raise CannotResolveHostError(f"no address for host {urlparse_cached(request).hostname}") from None
                return route.another(request, "the look-up of its host timed out", self._service.next_at())
        attempt = self._service.take(route.tried if route.url == request.url else ())
        if attempt is None:
            return route.another(request, "", self._service.next_at())
        route.begin(request.url, attempt)
        self._under_way[request] = attempt
        request.meta[_PROXY] = attempt.proxy.url
        if attempt.proxy.authorization is not None:
            request.headers[_AUTHORIZATION] = attempt.proxy.authorization
        return None

    def process_response(self, request: Request, response: Response) -> Request | Response:
        """The answer, unless it is the proxy's own. Raises ProxyFailed."""
        attempt = self._take_off(request)
        if attempt is None:
            return response
        if response.status == _PROXY_WANTS_CREDENTIALS:
            return self._failed(request, attempt, ProxyOutcome.FAILED, _WANTS_CREDENTIALS)
        self._service.end(attempt, ProxyOutcome.ANSWERED, "answers")
        return response

    def process_exception(self, request: Request, exception: Exception) -> Request | None:
        """Another attempt, when another proxy may do better. Raises ProxyFailed when none is left."""
        attempt = self._take_off(request)
        if attempt is None:
            return None
        if isinstance(exception, _NOT_FOR_ANOTHER):
            self._service.end(attempt, ProxyOutcome.ANSWERED, "answers")
            return None
        return self._failed(request, attempt, *_judged(exception))

    def _take_off(self, request: Request) -> Attempt | None:
        attempt = self._under_way.pop(request, None)
        if attempt is not None:
            request.meta.pop(_PROXY, None)
            request.headers.pop(_AUTHORIZATION, None)
        return attempt

    def _failed(self, request: Request, attempt: Attempt, ending: ProxyOutcome, said: str) -> Request:
        self._service.end(attempt, ending, said)
        route = route_of(request)
        assert route is not None
        reason = f"{attempt.proxy.url} {said}"
        if route.attempts < self._service.attempts:
            return route.another(request, reason)
        # the cause may hold what the proxy was sent
        raise ProxyFailed(f"{reason}, at attempt {route.attempts}; without a proxy: {route.reason}") from None


_WANTS_CREDENTIALS = "wants other credentials (HTTP 407)"


def _judged(error: Exception) -> tuple[ProxyOutcome, str]:
    """Whose fault it is that there is no answer, and how that is said."""
    if isinstance(error, DownloadConnectionRefusedError | CannotResolveHostError):
        return ProxyOutcome.FAILED, "cannot be connected to"
    status = _tunnel_status(error)
    if status is not None or isinstance(error, TunnelError):
        return _judged_by_tunnel(status)
    if isinstance(error, ResponseDataLossError):
        return ProxyOutcome.ANSWERED, "brought a part of the answer"
    if isinstance(error, DownloadTimeoutError | asyncio.TimeoutError):
        return ProxyOutcome.SILENT, "brought no answer in time"
    return ProxyOutcome.SILENT, f"brought no answer ({type(error).__name__})"


def _judged_by_tunnel(status: int | None) -> tuple[ProxyOutcome, str]:
    if status == _PROXY_WANTS_CREDENTIALS:
        return ProxyOutcome.FAILED, _WANTS_CREDENTIALS
    if status in _OF_THE_SITE:
        return ProxyOutcome.ANSWERED, f"does not reach the site (HTTP {status})"
    return ProxyOutcome.FAILED, "opens no tunnel" + ("" if status is None else f" (HTTP {status})")


def _tunnel_status(error: Exception) -> int | None:
    """What a proxy has answered to CONNECT, as the handlers tell it."""
    if isinstance(error, TunnelError):
        found = _TUNNEL_STATUS.search(str(error))
        return None if found is None else int(found[1])
    status = getattr(error.__cause__, "status", None)
    return status if isinstance(status, int) else None
