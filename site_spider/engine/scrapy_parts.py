"""Scrapy's middlewares for cookies, offsite and statistics, at less cost.

Each does what the one of Scrapy does that it takes the place of, with the same settings;
tests/engine/test_middlewares.py compares them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from http.cookiejar import Cookie
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

import scrapy
import w3lib.encoding
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.downloadermiddlewares.stats import DownloaderStats, get_status_size
from scrapy.dupefilters import RFPDupeFilter
from scrapy.exceptions import NotConfigured
from scrapy.extensions.corestats import CoreStats
from scrapy.http import Headers, Response
from scrapy.http.cookies import CookieJar
from scrapy.logformatter import LogFormatter
from scrapy.settings import BaseSettings
from scrapy.signalmanager import SignalManager
from scrapy.spidermiddlewares.referer import DefaultReferrerPolicy
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import load_object
from scrapy.utils.request import RequestFingerprinter
from twisted.internet._resolver import GAIResolver
from twisted.python.failure import Failure

from site_spider import meta_keys
from site_spider.engine.cookies import Jars, bounded, said_of
from site_spider.errors import ConfigError
from site_spider.ledger.completion import SeedListener
from site_spider.ledger.ledger import SeedInFlight
from site_spider.page.url import is_public_suffix, is_safe, plain_url
from site_spider.seed.fields import ENCODINGS, Cookies
from site_spider.text import for_log

ROBOTS_COUNTED = "robotstxt/"  # stands before Scrapy's name where what is robots.txt is counted again


class _NamesOfPages(dict[str, str]):
    """What encodings are that pages name; others are none. Punycode is quadratic: megabytes hold up the event loop."""

    def get(self, name: str, _default: str = "") -> str:  # type: ignore[override] # w3lib asks so
        return super().get(name, name if name in ENCODINGS else "none of pages")


w3lib.encoding.DEFAULT_ENCODING_TRANSLATION = _NamesOfPages(w3lib.encoding.DEFAULT_ENCODING_TRANSLATION)


class LeanCookies(CookiesMiddleware):
    """Makes a jar when there is a first cookie, and looks into it when there is one; all are bounded.

    What a site may set for others it learns from the list of public suffixes that is installed:
    Scrapy's would fetch it, on the event loop, with the first cookie of all.
    """

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self.jars: Jars = Jars()  # type: ignore[assignment] # of bounded jars
        is_public_suffix("com")  # reads the list now, which takes 0.1 s

    def process_request(self, request: Request) -> Any:  # type: ignore[override] # without the spider
        meta = request.meta
        key = meta.get(meta_keys.COOKIEJAR)
        if request.cookies or key in self.jars or self.debug:
            if request.cookies:
                self.jars[key].make_room_for(len(request.cookies))
            super().process_request(request)
            self._settle(key)
        elif not meta.get("dont_merge_cookies", False):
            dict.pop(request.headers, b"Cookie", None)

    def process_response(self, request: Request, response: Response) -> Any:  # type: ignore[override]
        """As Scrapy's; the answer to a seed that was lost, with its jar, makes none anew."""
        headers = response.headers
        if b"Set-Cookie" not in headers or request.meta.get("dont_merge_cookies", False):
            return response
        key = request.meta.get(meta_keys.COOKIEJAR)
        if key not in self.jars and _is_lost(key):
            return response
        jar = self.jars[key]
        counted = Response(response.url, headers={"Set-Cookie": bounded(headers.getlist("Set-Cookie"))})
        self._process_cookies(jar.make_cookies(counted, request), jar=jar, request=request)
        self._debug_set_cookie(response)
        self._settle(key)
        return response

    def _process_cookies(self, cookies: Iterable[Cookie], *, jar: CookieJar, request: Request) -> None:
        host = (urlparse_cached(request).hostname or "").lower()
        for cookie in cookies if host else ():
            domain = cookie.domain.removeprefix(".")
            if cookie.domain_specified and domain and is_public_suffix(domain):
                if domain != host:
                    continue
                cookie.domain = host
            jar.set_cookie_if_ok(cookie, request)

    def _settle(self, key: Hashable) -> None:
        if _is_lost(key):
            self.jars.pop(key)  # made for this one request
        else:
            self.jars.settle(key)


def _is_lost(key: Hashable) -> bool:
    return isinstance(key, SeedInFlight) and (not key.live or key.holds == 0)


class SeedCookies(SeedListener):
    """A jar for each seed: doing one twice, or beside others, gives the same result (rule 4).

    It is in Scrapy's middleware, under the seed, and is thrown away when that ends.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    def for_request(self, request: Request, entry: SeedInFlight) -> Cookies:
        """The cookies that would go out with a request of this seed."""
        middleware = self._middleware
        return {} if middleware is None or entry not in middleware.jars else said_of(middleware.jars[entry], request)

    def ended(self, entry: SeedInFlight) -> None:
        if (middleware := self._middleware) is not None and entry in middleware.jars:
            middleware.jars.pop(entry)

    fenced = ended

    @cached_property
    def _middleware(self) -> CookiesMiddleware | None:
        return self._crawler.get_downloader_middleware(CookiesMiddleware)


_MOST_DOMAINS = 10_000  # of which the first request is logged: pages may link to any number


class LeanOffsite(OffsiteMiddleware):
    """Looks at no request of a spider without `allowed_domains`."""

    def process_request(self, request: Request) -> None:  # type: ignore[override]
        if getattr(self.crawler.spider, "allowed_domains", None):
            if len(self.domains_seen) >= _MOST_DOMAINS:
                self.domains_seen.clear()
            super().process_request(request)


class LeanDownloaderStats(DownloaderStats):
    """Counts bytes without writing the request out, and without spelling headers anew.

    What is fetched for robots.txt counts as in Scrapy, and a second time by itself: it is no link downloaded.
    """

    def process_request(self, request: Request) -> None:  # type: ignore[override]
        count = self.stats.inc_value
        count("downloader/request_count")
        count(f"downloader/request_method_count/{request.method}")
        size = request_bytes(request)
        count("downloader/request_bytes", size)
        if meta_keys.FOR_ROBOTS in request.meta:
            count(f"{ROBOTS_COUNTED}downloader/request_count")  # redirects of the file, too
            count(f"{ROBOTS_COUNTED}downloader/request_bytes", size)

    def process_response(  # type: ignore[override]
        self, request: Request, response: Response
    ) -> Response:
        self._count_response("", response.status, size := response_bytes(response))
        if meta_keys.FOR_ROBOTS in request.meta:
            self._count_response(ROBOTS_COUNTED, response.status, size)
        return response

    def _count_response(self, prefix: str, status: int, size: int) -> None:
        count = self.stats.inc_value
        count(f"{prefix}downloader/response_count")
        count(f"{prefix}downloader/response_status_count/{status}")
        count(f"{prefix}downloader/response_bytes", size)


_status_bytes = lru_cache(maxsize=1_000)(get_status_size)  # Twisted's table of them is behind a slow proxy


def response_bytes(response: Response) -> int:
    """About what the response weighed on its way, as Scrapy estimates it."""
    size = len(response.body)
    for name, values in dict.items(response.headers):
        for value in values:
            size += len(name) + len(value) + 2
    return size + 2 * (len(response.headers) - 1) + _status_bytes(response.status) + 4


def request_bytes(request: Request) -> int:
    """The length of what `request_httprepr` writes."""
    size = len(request.method) + len("  HTTP/1.1\r\nHost: \r\n\r\n") + _url_bytes(request)
    lines: dict[bytes, list[bytes]] = request.headers
    for name, values in dict.items(lines):
        for value in values:
            size += len(name) + len(value) + 4
    return size + len(request.body)


def _url_bytes(request: Request) -> int:
    """Of the URL, what stands in the request: host and target."""
    plain = plain_url(request.url)
    if plain is not None:
        return len(plain.host) + len(plain.target)
    parsed = urlparse_cached(request)
    target = len(parsed.path or "/") + bool(parsed.params) + len(parsed.params)
    return target + bool(parsed.query) + len(parsed.query) + len(parsed.hostname or "")


# --- stats: Scrapy's statistics collectors at less cost --------------------------------------------------


class QuickStatsCollector(MemoryStatsCollector):
    """Takes a `spider` argument without the warning that it is deprecated, which costs a check each time."""

    __getattribute__ = object.__getattribute__  # in C, as if nobody had ever replaced it


class QuickCoreStats(CoreStats):
    """Lets others count responses and items: to be told of each by a signal costs more than a count."""

    def hand_over(self, connected: SignalManager) -> dict[object, str]:
        """From now on these signals are to be counted under these keys by whoever sends them."""
        connected.disconnect(self.response_received, signals.response_received)
        connected.disconnect(self.item_scraped, signals.item_scraped)
        return {signals.response_received: "response_received_count", signals.item_scraped: "item_scraped_count"}


# --- Log records without control characters, whichever handler writes them -------------------------------
# Every text of a record passes here: its message, with the arguments filled in, and its traceback. A
# message of ours is one line; others, such as Scrapy's tables, keep their line ends.

_OURS = "site_spider"


class EscapedRecord(logging.LogRecord):
    """A record of the standard library, escaped (escape) and with long lines cut."""

    line_prefix: ClassVar[str] = ""  # of each line but the first, which LOG_FORMAT begins
    unescaped = logging.LogRecord.getMessage

    def getMessage(self) -> str:  # noqa: N802 - the name is logging's
        text = for_log(self.unescaped(), one_line=self.name.startswith(_OURS))
        return text.replace("\n", f"\n{self.line_prefix}") if self.line_prefix else text

    @property
    def exc_text(self) -> str | None:
        """The traceback, which the first formatter leaves here for itself and the others."""
        return self._exc_text

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        lines = [] if text is None else for_log(text, one_line=False).split("\n")
        self._exc_text = "\n".join(self.line_prefix + line for line in lines) if lines else None


def begin_lines_with(prefix: str) -> None:
    """From now on each further line of a record begins so."""
    EscapedRecord.line_prefix = prefix


class LastingLogFile(logging.FileHandler):
    """A disk that takes no lines is said once, on stderr, and ends nothing. Scrapy closes it amid a start."""

    _has_said = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as above
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_said:
            self._has_said = True
            with suppress(OSError):
                print(
                    for_log(f"{self.baseFilename} cannot be written: {error.strerror}", one_line=True), file=sys.stderr
                )

    def close(self) -> None:
        with suppress(OSError):
            super().close()


def install() -> None:
    """From now on records and log files of this process are of these classes; a factory of such records stays."""
    logging.FileHandler = LastingLogFile  # type: ignore[misc] # of which Scrapy makes one
    made = logging.getLogRecordFactory()("", logging.NOTSET, "", 0, "", (), None)
    if not isinstance(made, EscapedRecord):
        logging.setLogRecordFactory(EscapedRecord)


# --- The frames that an error holds: those that are shown, and freeing them after it was handled ---------

_MOST_CAUSES = 10  # of an error
_PACKAGE: Final = Path(__file__).parents[1]
# whatever calls a callback: the engine's way to it is the same for all
_CALLERS: Final = (f"{Path(scrapy.__file__).parent}/", f"{_PACKAGE}/engine/", f"{_PACKAGE}/results/pipeline.py")


def without_callers(error: BaseException | None) -> TracebackType | None:
    """The traceback of an error of a callback, from the spider on; whole when that is not in it."""
    if error is None:
        return None
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_CALLERS):
        found = found.tb_next
    if found is not None:
        error.__traceback__ = found
    return error.__traceback__


def forget_frames(error: BaseException | None) -> None:
    """For an error and its causes.

    Frames hold the error in turn; freeing thousands of such circles at once holds up the event loop.
    """
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


# --- log format: Scrapy's log lines for pages, escaped, and made only where they are written -------------


def writes_debug(settings: BaseSettings) -> bool:
    """Whether LOG_LEVEL lets lines of DEBUG through."""
    level = settings.get("LOG_LEVEL")
    number = level if isinstance(level, int) else logging.getLevelNamesMapping().get(str(level).upper(), 0)
    return number <= logging.DEBUG


class PageLogFormatter(LogFormatter):
    """Scrapy makes a log record of each page and item, also when LOG_LEVEL keeps it from being written."""

    is_verbose = True

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        install()
        made = super().from_crawler(crawler)
        made.is_verbose = writes_debug(crawler.settings) and crawler.settings.getbool("LOG_ENABLED")
        return made

    def crawled(self, *arguments: Any) -> Any:
        return super().crawled(*arguments) if self.is_verbose else None

    def spider_error(self, failure: Failure, *arguments: Any) -> Any:
        """As Scrapy's, with the lines of the spider: without those that led to it."""
        failure.tb = without_callers(failure.value)
        return super().spider_error(failure, *arguments)

    def scraped(self, *arguments: Any) -> Any:
        return super().scraped(*arguments) if self.is_verbose else None


# --- requests: Scrapy's Request and its parts, with less work for what nearly every page has -------------

_NAMES: Final = (
    "Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Content-Encoding", "Content-Length",
    "Content-Type", "Cookie", "Host", "Location", "Referer", "Retry-After", "Server", "Set-Cookie",
    "User-Agent",
)  # fmt: skip
_SPELLED: Final[dict[str | bytes, bytes]] = {key: name.encode() for name in _NAMES for key in (name, name.encode())}


class QuickHeaders(Headers):
    """Behaves as Headers; twelve names a page are spelled, and seven values normalized."""

    def __contains__(self, key: str | bytes) -> bool:  # type: ignore[override] # as Scrapy's
        return dict.__contains__(self, _SPELLED.get(key) or super().normkey(key))

    def normkey(self, key: str | bytes) -> bytes:
        return _SPELLED.get(key) or super().normkey(key)

    def normvalue(self, value: Any) -> list[bytes]:
        if isinstance(value, bytes):
            return [value]
        return [value.encode(self.encoding)] if isinstance(value, str) else super().normvalue(value)

    def get(self, key: str | bytes, def_val: Any = None) -> bytes | None:
        """As Scrapy's, which also refuses a wrong default where there is a value."""
        values: list[bytes] | None = dict.get(self, _SPELLED.get(key) or super().normkey(key))
        if values or def_val is None:
            return values[-1] if values else None
        return super().get(key, def_val)

    def setdefault(self, key: str | bytes, def_val: Any = None) -> Any:
        name = _SPELLED.get(key) or super().normkey(key)
        values = dict.get(self, name)
        if values is None:
            value = def_val.encode(self.encoding) if isinstance(def_val, str) else def_val
            values = [value] if isinstance(value, bytes) else self.normvalue(value)
            dict.__setitem__(self, name, values)
        return values


def quick_request(
    url: str,
    *,
    verbatim: bool,
    headers: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Request:
    """As `Request` makes it; `verbatim` where it is sure that it would leave the URL as it is.

    Raises what it raises: ValueError, TypeError.
    """
    request = Request(url, meta={**(meta or {}), meta_keys.VERBATIM_URL: verbatim}, **arguments)
    del request.meta[meta_keys.VERBATIM_URL]  # it was about the URL of this one
    request._headers = QuickHeaders(headers, request._encoding)
    return request


@lru_cache(maxsize=64)  # all links of a page have one
def _stripped(url: str) -> str | None:
    is_stripped = is_safe(url) and ":80/" not in url and ":443/" not in url
    return url if is_stripped else DefaultReferrerPolicy().stripped_referrer(url)


class QuickReferrerPolicy(DefaultReferrerPolicy):
    """Scrapy's default, which parses three URLs for each link."""

    def referrer(self, response_url: str, request_url: str) -> str | None:
        if response_url.startswith("http://") or (
            response_url.startswith("https://") and request_url.startswith("https://")
        ):
            return _stripped(response_url)
        return super().referrer(response_url, request_url)


# --- loading: loads the classes that settings name by dotted path ----------------------------------------

# module > what to install: the extra of this package that has it, as in pyproject.toml
_HBASE = "'happybase>=1.3' 'thriftpy2>=0.7.1'"
_INSTALLS = {"redis": "'redis>=8.1'", "happybase": _HBASE, "thriftpy2": _HBASE}


def load_class(setting: str, path: Any) -> Any:
    """What a dotted path names. Raises ConfigError, with what to install when a client is missing."""
    try:
        return load_object(path)
    except (ImportError, NameError, ValueError, TypeError) as error:
        raise ConfigError(f"{setting} names {path!r}, which cannot be loaded: {error}.{_remedy(error)}") from error


def _remedy(error: Exception) -> str:
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    needed = _INSTALLS.get(missing.partition(".")[0])
    return f" Install it with: pip install {needed}" if needed else ""


# --- parts: serves the parts of a crawl to objects that Scrapy constructs --------------------------------
# Scrapy makes these from the crawler alone. The wiring makes the parts they work with later, as the spider
# opens, and provides them here. Everything else gets its parts by constructor.

T = TypeVar("T")
_PARTS: Final = "site_spider_parts"  # an attribute of the crawler: they are looked up five times a page


class _Purpose:
    takes_seeds = True


def take_no_seeds() -> None:
    """No crawl of this process takes seeds, whatever its spider: it only tries something out."""
    _Purpose.takes_seeds = False


def is_trial() -> bool:
    """Whether it does: Scrapy's `parse` or `shell`, say."""
    return not _Purpose.takes_seeds


def takes_seeds(crawler: Crawler) -> bool:
    """Whether a crawl takes seeds, commits and writes to sinks."""
    return _Purpose.takes_seeds and bool(getattr(crawler.spidercls, "takes_seeds", False))


def provide(crawler: Crawler, *parts: object) -> None:
    """Make parts known under their classes and the bases of these."""
    known: dict[type, object] = vars(crawler).setdefault(_PARTS, {})
    known.update({kind: part for part in parts for kind in type(part).__mro__})


def part_of(crawler: Crawler, kind: type[T]) -> T | None:
    """The part of this class; None before the spider has opened, and for a spider without seeds."""
    known: dict[type, Any] | None = getattr(crawler, _PARTS, None)
    found: T | None = None if known is None else known.get(kind)
    return found


def count(crawler: Crawler, key: str, by: int = 1) -> None:
    """In Scrapy's statistics."""
    assert crawler.stats is not None  # it has been made
    crawler.stats.inc_value(key, by)


# --- remote control: Scrapy's RemoteControl, imported only where it is switched on -----------------------


class LateRemoteControl:
    """Stands for it in EXTENSIONS_BASE: its import of aiohttp.web takes a twelfth of the CPU of a start."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        if not crawler.settings.getbool("REMOTE_CONTROL_ENABLED"):
            raise NotConfigured
        from scrapy.extensions.remote_control import RemoteControl  # noqa: PLC0415

        return RemoteControl.from_crawler(crawler)


# --- bases -----------------------------------------------------------------------------------------------
# Base classes that give private parts of Scrapy's classes public names, for subclasses in other folders.
#
# tests/engine/test_private_parts.py checks that no other folder uses a private part of Scrapy or Twisted.

LookUp = Callable[..., list[Any]]


class RetryBase(RetryMiddleware):
    """Calls `retry` for what Scrapy would retry."""

    def _retry(self, request: Request, reason: str | Exception | type[Exception]) -> Request | None:
        return self.retry(request, reason)

    def retry(self, request: Request, reason: str | Exception | type[Exception]) -> Request | None:
        """The next attempt; None when there is none."""
        return super()._retry(request, reason)


class DupeFilterBase(RFPDupeFilter):
    """Calls `fingerprint` for every request."""

    @property
    def own_fingerprints(self) -> set[bytes]:
        """Scrapy's own memory, as it is."""
        return self._fingerprints

    @property
    def has_default_fingerprints(self) -> bool:
        """Whether neither REQUEST_FINGERPRINTER_CLASS nor a subclass changes what a request is known by."""
        return type(self.fingerprinter) is RequestFingerprinter and not self._legacy_fingerprint

    def _fingerprint(self, request: Request) -> bytes:
        return self.fingerprint(request)

    def fingerprint(self, request: Request) -> bytes:
        return super()._fingerprint(request)


class CompressionBase(HttpCompressionMiddleware):
    """Says what Scrapy's middleware reads from the settings and from a head."""

    @property
    def max_size(self) -> int:
        """DOWNLOAD_MAXSIZE, or what the spider says."""
        return self._max_size

    @property
    def warn_size(self) -> int:
        """DOWNLOAD_WARNSIZE, or what the spider says."""
        return self._warn_size

    def split_codings(self, lines: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
        """The codings that can be undone, and those that are left. Empty ones and `identity` are none."""
        listed = [coding for line in lines for coding in line.split(b",")]
        known, unknown = self._split_encodings([c for c in listed if c.strip().lower() not in (b"", b"identity")])
        return known, unknown

    def warn_of_unknown(self, response: Response, codings: list[bytes]) -> None:
        """Log that these codings are not undone."""
        self._warn_unknown_encoding(response, codings)


def threaded_resolver(reactor: Any, look_up: LookUp) -> Any:
    """The reactor's own resolver; where that looks names up in threads, it does so by `look_up`."""
    original = reactor.nameResolver
    return GAIResolver(reactor, getaddrinfo=look_up) if isinstance(original, GAIResolver) else original
