"""Cookie jars with the bounds of browsers (RFC 6265, section 6.1), and a bound on all of them together.

A jar drops the cookies that were set longest ago. When all jars together are too large, the largest one
does, so a site that fills the jars of its own seeds takes none from others.
"""

from __future__ import annotations

import http.cookiejar
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Sequence
from http.cookiejar import Cookie, DefaultCookiePolicy
from itertools import count
from typing import Any

from scrapy import Request
from scrapy.http.cookies import CookieJar, WrappedRequest
from scrapy.utils.httpobj import urlparse_cached

from site_spider.seed.fields import MAX_HEADERS, MAX_HEADERS_BYTES, Cookies

_MOST_OF_DOMAIN = 50
_MOST_OF_JAR = 3_000
_MOST_OF_ANSWER = 50  # of one domain more would push each other out
_MOST_LINE_BYTES = 4_096  # a cookie with its attributes
_MOST_ATTRIBUTES = 20  # there are seven
_MOST_SENT_BYTES = 65_536  # of a Cookie header: as much as a seed may bring
MOST_OF_ALL_BYTES = 64_000_000
_COOKIE_BYTES = 1_000  # one as an object, and its place in the books, without the texts
_Place = tuple[str, str, str]  # domain, path, name


class _Cookies(http.cookiejar.CookieJar):
    """What a jar holds: Python's, with books on the order in which cookies were set."""

    def __init__(self, policy: DefaultCookiePolicy) -> None:
        super().__init__(policy)
        self.most_of_domain = _MOST_OF_DOMAIN
        self.size_bytes = 0
        self._numbers = count()
        # the one set longest ago first: its number in this order, and its bytes
        self._order: OrderedDict[_Place, tuple[int, int]] = OrderedDict()

    def set_cookie(self, cookie: Cookie) -> None:
        place = (cookie.domain, cookie.path, cookie.name)
        self.size_bytes -= self._order.pop(place, (0, 0))[1]
        super().set_cookie(cookie)
        size = _COOKIE_BYTES + sum(map(len, place)) + len(cookie.value or "")
        self._order[place] = next(self._numbers), size
        self.size_bytes += size
        paths = self._cookies[cookie.domain]  # type: ignore[attr-defined] # as in said_of
        most = self.most_of_domain
        if len(self._order) > most and sum(map(len, paths.values())) > most:
            places = ((cookie.domain, path, name) for path, names in paths.items() for name in names)
            self.clear(*min(places, key=self._order.__getitem__))
        if len(self._order) > _MOST_OF_JAR:
            self.clear(*next(iter(self._order)))

    def clear(self, domain: str | None = None, path: str | None = None, name: str | None = None) -> None:
        """As Python's, which leaves empty the path and the domain of a cookie. Raises KeyError when there is none."""
        super().clear(domain, path, name)
        paths = self._cookies.get(domain)  # type: ignore[attr-defined] # as in said_of
        if paths is not None:
            if path is not None and not paths.get(path, True):
                del paths[path]
            if not paths:
                super().clear(domain)
        struck: Sequence[Any] = [(domain, path, name)]
        if name is None:
            struck = [one for one in self._order if domain in (None, one[0]) and path in (None, one[1])]
        for place in struck:
            self.size_bytes -= self._order.pop(place)[1]

    def halve(self) -> None:
        for place in list(self._order)[: (len(self._order) + 1) // 2]:
            self.clear(*place)


class BoundedJar(CookieJar):
    """A jar of Scrapy's with bounds."""

    def __init__(self) -> None:
        super().__init__()
        lock = self.jar._cookies_lock  # type: ignore[attr-defined] # Scrapy's, which costs nothing
        self.cookies = self.jar = _Cookies(self.policy)  # type: ignore[arg-type]
        self.jar._cookies_lock = lock  # type: ignore[attr-defined]

    def make_room_for(self, count: int) -> None:
        """A request brings so many cookies of its own; no server pushes them out."""
        self.cookies.most_of_domain = max(self.cookies.most_of_domain, _MOST_OF_DOMAIN + count)

    def add_cookie_header(self, request: Request) -> None:
        """As Scrapy's; what is too long is cut off behind a cookie."""
        super().add_cookie_header(request)
        header = request.headers.get("Cookie")
        if header is not None and len(header) > _MOST_SENT_BYTES:
            request.headers["Cookie"] = header[: _MOST_SENT_BYTES + 1].rpartition(b"; ")[0]


class Jars(defaultdict[Hashable, BoundedJar]):
    """All jars of a crawl, each under the key that requests name it by."""

    def __init__(self) -> None:
        super().__init__(BoundedJar)
        self.size_bytes = 0
        self._sizes: dict[Hashable, int] = {}

    def settle(self, key: Hashable) -> None:
        """Account for what a jar holds now, and keep the bound of all; an empty jar goes."""
        if key in self:
            self._weigh(key)
        while self.size_bytes > MOST_OF_ALL_BYTES:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self[largest].cookies.halve()
            self._weigh(largest)

    def pop(self, key: Hashable, default: Any = None) -> Any:
        """As of every mapping, but a key that is not there is no error."""
        self.size_bytes -= self._sizes.pop(key, 0)
        return super().pop(key, default)

    def _weigh(self, key: Hashable) -> None:
        size = self[key].cookies.size_bytes
        if not size:
            self.pop(key)
            return
        self.size_bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size


def said_of(jar: CookieJar, request: Request) -> Cookies:
    """The cookies that would go out with a request, as a seed says them: also where else they go, if need be."""
    asked = request.copy()
    jar.add_cookie_header(asked)  # tells the jar what time it is
    found = [cookie for cookie in jar.jar._cookies_for_request(WrappedRequest(asked)) if cookie.value is not None]  # type: ignore[attr-defined]
    found.sort(key=lambda cookie: len(cookie.path), reverse=True)
    parts = urlparse_cached(request)
    usual = parts.path[: parts.path.rfind("/")] or "/", parts.scheme == "https"
    size, said = 0, list[dict[str, str | bool]]()
    for cookie in found[:MAX_HEADERS]:
        where = {"domain": cookie.domain} if cookie.domain_specified else {}
        texts = {"name": cookie.name, "value": str(cookie.value), "path": cookie.path, **where}
        size += sum(len(text.encode("utf-8", "replace")) for text in texts.values())
        if size <= MAX_HEADERS_BYTES:
            said.append({**texts, "secure": cookie.secure})
    if all("domain" not in each and (each["path"], each["secure"]) == usual for each in said):
        return {str(each["name"]): str(each["value"]) for each in said}
    return said


def bounded(lines: Sequence[bytes]) -> list[bytes]:
    """The Set-Cookie lines of an answer that count: the last ones, none longer than browsers take."""
    taken = (line for line in lines[-_MOST_OF_ANSWER:] if len(line) <= _MOST_LINE_BYTES)
    return [b";".join(line.split(b";", _MOST_ATTRIBUTES + 1)[: _MOST_ATTRIBUTES + 1]) for line in taken]
