"""Describes why a download failed: the `description` of a failure result."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from itertools import groupby
from typing import Any

from scrapy import Request
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadTimeoutError,
    IgnoreRequest,
)
from scrapy.settings import BaseSettings
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import load_object

from site_spider import meta_keys

_LONGEST = 500  # characters
_NAMES: dict[type[BaseException], str] = {  # those of everybody's, where Scrapy has its own
    CannotResolveHostError: "DNSLookupError",
    DownloadConnectionRefusedError: "ConnectionRefusedError",
    DownloadTimeoutError: "TimeoutError",
}


def name_of_class(kind: type[BaseException]) -> str:
    """The name of an exception as descriptions and settings have it."""
    return _NAMES.get(kind, kind.__name__)


def name_of(error: BaseException | type[BaseException]) -> str:
    """The name of the first of its classes that has one of everybody's; else that of its own."""
    kind = error if isinstance(error, type) else type(error)
    return next((_NAMES[base] for base in kind.__mro__ if base in _NAMES), kind.__name__)


def describe_retries(meta: dict[str, Any]) -> str:
    """Such as ` (after 2 retries: ConnectionRefusedError, HTTP 503)`; empty when there were none."""
    retries, reasons = meta.get("retry_times", 0), meta.get(meta_keys.RETRY_REASONS, ())
    if not retries:
        return ""
    said = ": " + ", ".join(_counted(reasons)) if reasons else ""
    return _cut(f" (after {retries} {'retry' if retries == 1 else 'retries'}{said}") + ")"


def _counted(reasons: Sequence[str]) -> list[str]:
    runs = [(reason, sum(1 for _ in run)) for reason, run in groupby(reasons)]
    return [reason if count == 1 else f"{count} x {reason}" for reason, count in runs]


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
        return f"{name_of(error)}: no address for host {url.hostname}"
    if isinstance(error, DownloadConnectionRefusedError):
        return f"{name_of(error)}: {url.netloc} refuses connections"
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
    return _cut(" ".join(text.split()))


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def retried_exceptions(settings: BaseSettings) -> tuple[type[Exception], ...]:
    """The classes of RETRY_EXCEPTIONS: failures that may pass."""
    return tuple(load_object(path) for path in settings.getlist("RETRY_EXCEPTIONS"))
