"""Base classes that give private parts of Scrapy's classes public names, for subclasses in other folders.

tests/engine/test_private_parts.py checks that no other folder uses a private part of Scrapy or Twisted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scrapy import Request
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.dupefilters import RFPDupeFilter
from scrapy.http import Response
from scrapy.utils.request import RequestFingerprinter
from twisted.internet._resolver import GAIResolver

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
        """What a request is known by."""
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
        """The codings that can be undone, and those that are left."""
        known, unknown = self._split_encodings(list(lines))
        return known, unknown

    def warn_of_unknown(self, response: Response, codings: list[bytes]) -> None:
        """Log that these codings are not undone."""
        self._warn_unknown_encoding(response, codings)


def threaded_resolver(reactor: Any, look_up: LookUp) -> Any:
    """The reactor's own resolver; where that looks names up in threads, it does so by `look_up`."""
    original = reactor.nameResolver
    return GAIResolver(reactor, getaddrinfo=look_up) if isinstance(original, GAIResolver) else original
