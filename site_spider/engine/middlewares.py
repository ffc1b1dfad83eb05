"""Scrapy's middlewares for cookies, offsite and statistics, at less cost.

Each does what the one of Scrapy does that it takes the place of, with the same settings;
tests/engine/test_middlewares.py compares them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from http.cookiejar import Cookie
from typing import Any

from scrapy import Request
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.downloadermiddlewares.stats import DownloaderStats, get_status_size
from scrapy.http import Response
from scrapy.http.cookies import CookieJar
from scrapy.utils.httpobj import urlparse_cached

from site_spider import meta_keys
from site_spider.engine.cookie_jar import Jars, bounded
from site_spider.ledger.ledger import Entry
from site_spider.page.url import is_public_suffix, plain_url

ROBOTS_COUNTED = "robotstxt/"  # stands before Scrapy's name where what is robots.txt is counted again


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
        """As Scrapy's."""
        key = request.meta.get(meta_keys.COOKIEJAR)
        if request.cookies or key in self.jars or self.debug:
            if request.cookies:
                self.jars[key].make_room_for(len(request.cookies))
            super().process_request(request)
            self._settle(key)
        elif not request.meta.get("dont_merge_cookies", False):
            request.headers.pop(b"Cookie", None)

    def process_response(self, request: Request, response: Response) -> Any:  # type: ignore[override]
        """As Scrapy's; the answer to a seed that was lost, with its jar, makes none anew."""
        headers = response.headers
        assert headers is not None
        key = request.meta.get(meta_keys.COOKIEJAR)
        if b"Set-Cookie" not in headers or request.meta.get("dont_merge_cookies", False):
            return response
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
    return isinstance(key, Entry) and (not key.live or key.holds == 0)


class LeanOffsite(OffsiteMiddleware):
    """Looks at no request of a spider without `allowed_domains`."""

    def process_request(self, request: Request) -> None:  # type: ignore[override]
        """As Scrapy's."""
        if getattr(self.crawler.spider, "allowed_domains", None):
            super().process_request(request)


class LeanDownloaderStats(DownloaderStats):
    """Counts bytes without writing the request out, and without spelling headers anew.

    What is fetched for robots.txt counts as in Scrapy, and a second time by itself: it is no link downloaded.
    """

    def process_request(self, request: Request) -> None:  # type: ignore[override]
        """As Scrapy's."""
        count = self.stats.inc_value
        count("downloader/request_count")
        count(f"downloader/request_method_count/{request.method}")
        size = request_bytes(request)
        count("downloader/request_bytes", size)
        if meta_keys.FOR_ROBOTS in request.meta:
            count(f"{ROBOTS_COUNTED}downloader/request_bytes", size)

    def process_response(  # type: ignore[override]
        self,
        request: Request,
        response: Response,
    ) -> Response:
        """As Scrapy's."""
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
    lines: dict[bytes, list[bytes]] = response.headers or {}
    size = sum(len(name) + len(value) + 2 for name in lines for value in dict.__getitem__(lines, name))
    return len(response.body) + size + 2 * (len(lines) - 1) + _status_bytes(response.status) + 4


def request_bytes(request: Request) -> int:
    """The length of what `request_httprepr` writes."""
    size = len(request.method) + len("  HTTP/1.1\r\nHost: \r\n\r\n") + _url_bytes(request)
    lines: dict[bytes, list[bytes]] = request.headers
    if lines:
        size += sum(len(name) + len(value) + 4 for name in lines for value in dict.__getitem__(lines, name))
    return size + len(request.body)


def _url_bytes(request: Request) -> int:
    """Of the URL, what stands in the request: host and target."""
    plain = plain_url(request.url)
    if plain is not None:
        return len(plain.host) + len(plain.target)
    parsed = urlparse_cached(request)
    target = len(parsed.path or "/") + bool(parsed.params) + len(parsed.params)
    return target + bool(parsed.query) + len(parsed.query) + len(parsed.hostname or "")
