"""Scrapy's Request and its parts, with less work for what nearly every page has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from scrapy import Request
from scrapy.http import Headers
from scrapy.spidermiddlewares.referer import DefaultReferrerPolicy

from site_spider import meta_keys

_NAMES: Final = (
    "Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Content-Encoding", "Content-Length",
    "Content-Type", "Cookie", "Host", "Location", "Referer", "Retry-After", "Server",
    "Set-Cookie", "User-Agent",
)  # fmt: skip
_SPELLED: Final[dict[str | bytes, bytes]] = {
    key: name.encode() for name in _NAMES for key in (name, name.encode())
}


class QuickHeaders(Headers):
    """Behaves as Headers; twelve names a page are spelled, and seven values normalized."""

    def normkey(self, key: str | bytes) -> bytes:
        """As Scrapy's."""
        return _SPELLED.get(key) or super().normkey(key)

    def normvalue(self, value: Any) -> list[bytes]:
        """As Scrapy's."""
        if isinstance(value, bytes):
            return [value]
        return [value.encode(self.encoding)] if isinstance(value, str) else super().normvalue(value)

    def get(self, key: str | bytes, def_val: Any = None) -> bytes | None:
        """As Scrapy's, which also refuses a wrong default where there is a value."""
        values: list[bytes] | None = dict.get(self, self.normkey(key))
        return values[-1] if values else super().get(key, def_val)

    def setdefault(self, key: str | bytes, def_val: Any = None) -> Any:
        """As Scrapy's, with the same difference."""
        name = self.normkey(key)
        values = dict.get(self, name)
        return dict.setdefault(self, name, self.normvalue(def_val)) if values is None else values


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
    request.headers = QuickHeaders(headers, request.encoding)
    return request


_stripped = lru_cache(maxsize=64)(DefaultReferrerPolicy().stripped_referrer)  # all links of a page have one


class QuickReferrerPolicy(DefaultReferrerPolicy):
    """Scrapy's default, which parses three URLs for each link."""

    def referrer(self, response_url: str, request_url: str) -> str | None:
        """As Scrapy's, for URLs that a Request may have."""
        if response_url.startswith("http://") or (
            response_url.startswith("https://") and request_url.startswith("https://")
        ):
            return _stripped(response_url)
        return super().referrer(response_url, request_url)
