"""Builds Scrapy's Response from a plain answer."""

from __future__ import annotations

from functools import lru_cache

from scrapy.http import Headers, Response
from scrapy.responsetypes import responsetypes

from site_spider.engine.requests import QuickHeaders


def headers_of(lines: list[tuple[bytes, bytes]]) -> Headers:
    """As `Headers(lines)` makes them, which spells every name once more."""
    headers = QuickHeaders()
    for name, value in lines:
        dict.setdefault(headers, name.title(), []).append(value)
    return headers


def class_of(headers: Headers, url: str, body: bytes) -> type[Response]:
    """As Scrapy finds it; for most pages the type in their headers says it."""
    content_types = dict.get(headers, b"Content-Type")
    if content_types and not dict.get(headers, b"Content-Encoding"):
        kind = _class_of_type(content_types[-1])
        if kind is not Response:
            return kind
    return responsetypes.from_args(headers=headers, url=url, body=body)


@lru_cache(maxsize=256)
def _class_of_type(content_type: bytes) -> type[Response]:
    return responsetypes.from_content_type(content_type)
