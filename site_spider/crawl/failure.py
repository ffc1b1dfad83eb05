"""Says in one line why a download failed: the `description` of a failure result."""

from __future__ import annotations

from http import HTTPStatus

from scrapy import Request
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadTimeoutError,
    IgnoreRequest,
)
from scrapy.utils.httpobj import urlparse_cached

_LONGEST = 500  # characters


def describe_status(status: int) -> str | None:
    """None for a success (2xx), else such as `HTTP 404 Not Found`."""
    if 200 <= status < 300:
        return None
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def describe_exception(error: BaseException, request: Request) -> str:
    """Such as `DNSLookupError: no address for host x.test`."""
    url = urlparse_cached(request)
    if isinstance(error, CannotResolveHostError):
        return f"DNSLookupError: no address for host {url.hostname}"
    if isinstance(error, DownloadConnectionRefusedError):
        return f"ConnectionRefusedError: {url.netloc} refuses connections"
    if isinstance(error, DownloadTimeoutError):
        seconds = request.meta.get("download_timeout")
        return (
            f"TimeoutError: no complete answer within {seconds:g} s" if seconds else f"TimeoutError: {error}"
        )
    if isinstance(error, IgnoreRequest):
        return _said_of_ignored(error, request)
    return _one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _said_of_ignored(error: IgnoreRequest, request: Request) -> str:
    if "max redirections" in str(error):
        times = request.meta.get("redirect_times", 0)
        return f"TooManyRedirects: still redirected after {times} redirects"
    return _one_line(str(error) or "the request was dropped by a middleware")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
