"""How failures are described, and the class of reasons that each belongs to.

A description says what happened to one page, with host, numbers and words of others. Its class is one of
REASONS, a short fixed list for metrics and dashboards, and never anything from outside.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from typing import Any, Final
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadTimeoutError,
    IgnoreRequest,
)
from scrapy.utils.httpobj import urlparse_cached

from site_spider import meta_keys
from site_spider.text import cut

# --- Describes why a download failed: the `description` of a failure result ------------------------------

LONGEST_SAID = 500  # characters of a description
_NAMES: dict[type[BaseException], str] = {  # those of everybody's, where Scrapy has its own
    CannotResolveHostError: "DNSLookupError",
    DownloadConnectionRefusedError: "ConnectionRefusedError",
    DownloadTimeoutError: "TimeoutError",
}


class _OfTunnels(type):
    def __instancecheck__(cls, error: object) -> bool:
        http11 = sys.modules.get("scrapy.core.downloader.handlers.http11")
        return http11 is not None and isinstance(error, http11.TunnelError)


class TunnelError(Exception, metaclass=_OfTunnels):
    """Stands for Scrapy's, whose module takes a tenth of a start: nobody has raised one where it is not loaded."""


def name_of(error: BaseException | type[BaseException]) -> str:
    """The standard name of the nearest base class that has one, else the name of the class itself."""
    kind = error if isinstance(error, type) else type(error)
    return next((_NAMES[base] for base in kind.__mro__ if base in _NAMES), kind.__name__)


def describe_exception(error: BaseException, request: Request) -> str:
    """Such as `DNSLookupError: no address for host x.test`."""
    if isinstance(error, CannotResolveHostError):
        kind, _, host = _peer(request)
        return f"{name_of(error)}: no address for {kind or 'host'} {host}"
    if isinstance(error, DownloadConnectionRefusedError):
        kind, place, _ = _peer(request)
        return f"{name_of(error)}: {kind and kind + ' '}{place} refuses connections"
    said = text_of(error)
    if isinstance(error, DownloadTimeoutError):
        seconds = request.meta.get("download_timeout")
        return f"TimeoutError: no complete answer within {seconds:g} s" if seconds else f"TimeoutError: {said}"
    if isinstance(error, IgnoreRequest):
        if "max redirections" in said:
            times = request.meta.get("redirect_times", 0)
            return f"TooManyRedirects: still redirected after {times} redirects"
        return _one_line(said or "the request was dropped by a middleware")
    return _one_line(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def _peer(request: Request) -> tuple[str, str, str | None]:
    """What the connection leads to: `the proxy`, if a spider has named one, its place, and its host."""
    proxy = str(request.meta.get("proxy") or "")
    with suppress(ValueError):
        if proxy and (parts := urlsplit(proxy if "://" in proxy else f"http://{proxy}")).hostname:
            return "the proxy", parts.netloc.rpartition("@")[2], parts.hostname
    url = urlparse_cached(request)
    return "", url.netloc, url.hostname


def text_of(error: BaseException | None) -> str:
    """What it says, cut."""
    try:
        return cut(str(error), LONGEST_SAID)
    except Exception as odd:  # noqa: BLE001 - a class of the spider's
        return f"its text cannot be had: {type(odd).__name__}"


def _one_line(text: str) -> str:
    return cut(" ".join(text.split()), LONGEST_SAID)


def describe_retries(meta: dict[str, Any]) -> str:
    """Such as ` (after 2 retries: ConnectionRefusedError, HTTP 503)`; empty when there were none."""
    retries, reasons = meta.get("retry_times", 0), meta.get(meta_keys.RETRY_REASONS, ())
    if not retries:
        return ""
    said = ": " + ", ".join(_counted(reasons)) if reasons else ""
    return cut(f" (after {retries} {'retry' if retries == 1 else 'retries'}{said}", LONGEST_SAID) + ")"


def _counted(reasons: Sequence[str]) -> list[str]:
    runs = [(reason, sum(1 for _ in run)) for reason, run in groupby(reasons)]
    return [reason if count == 1 else f"{count} x {reason}" for reason, count in runs]


# --- reasons: the class of a description ------------------------------------------------------------------

REASONS: Final = (
    "dns", "connect", "tls", "timeout", "reset", "http_protocol", "http_status", "too_large", "robots",
    "proxy", "redirect_loop", "address_refused", "callback", "other",
)  # fmt: skip

_LOOKED_AT: Final = 200  # characters: what comes behind is not ours
_NAMES_OF: Final = {  # what stands before the first colon
    "dns": ("DNSLookupError", "CannotResolveHostError"),
    "connect": ("ConnectionRefusedError", "ConnectError"),
    "timeout": ("TimeoutError",),
    "tls": ("CertificateError",),
    "reset": ("ResponseDataLossError",),
    "too_large": ("DownloadCancelledError", "OversizedAnswer"),
    "proxy": ("ProxyFailed", "TunnelError"),
    "redirect_loop": ("TooManyRedirects",),
    "address_refused": ("PrivateHostError",),
    "callback": ("CallbackTimeout", "CallbackCancelled"),
    "http_protocol": ("CodingError",),
}
_BY_NAME: Final = {name: reason for reason, names in _NAMES_OF.items() for name in names}
_WORDS_OF: Final = {  # the first that has one of its own in the description
    "callback": (" in the spider", " in an item pipeline", "the item was dropped"),
    "robots": ("Forbidden by robots.txt", "robots.txt could not be fetched"),
    "tls": ("SSL", "certificate", "CertificateError"),
    "too_large": ("DOWNLOAD_MAXSIZE", "Ignored response"),
    "dns": ("getaddrinfo", "gaierror"),
    "reset": (
        "ConnectionReset",
        "ConnectionLost",
        "ConnectionDone",
        "ConnectionAborted",
        "BrokenPipe",
        "ended before the head",
        "no answer: ",
    ),
    "http_protocol": ("not HTTP", "not well-formed", "ParseError", "BadStatusLine", "OddAnswer"),
    "connect": ("OSError", "ConnectionRefused", "unreachable"),
    "timeout": ("TimeoutError", "timed out"),
}


@lru_cache(maxsize=1_000)  # what is looked at longest says the same each time
def reason_of(description: str) -> str:
    """One of REASONS, for the description of a failure or for the name of an exception."""
    said = description[:_LOOKED_AT]
    if said.startswith("HTTP "):
        return "http_status"
    by_words = (reason for reason, words in _WORDS_OF.items() if any(one in said for one in words))
    return _BY_NAME.get(said.partition(":")[0].partition(" (after ")[0]) or next(by_words, "other")


# --- The kind of a failure, from its description: few values, fit to be counted and grouped by -----------
# A description begins with the kind and goes on with what differs from page to page. What others write,
# such as a middleware of one's own, may name a host or a number anywhere.

_LONGEST_NAME: Final = 80  # characters
_OTHER: Final = "other"
_STATUS: Final = re.compile(r"HTTP [0-9]{3}\b")
_NAME: Final = re.compile(r"[A-Za-z_]\w*(?: in the spider| in an item pipeline)?")
_OWN_FILES: Final = "robots.txt"  # has a dot, and is no host
_VARYING: Final = re.compile(rf"""(?<!\S)(?!{re.escape(_OWN_FILES)}(?:\s|$))\S*[0-9./@'"`<>\[\]]\S*""")


def failure_name(description: str) -> str:
    """Such as `DNSLookupError`, `HTTP 404`, `TimeoutError` or `Forbidden by robots.txt`."""
    return _name(description[:LONGEST_SAID])


@lru_cache(maxsize=1_000)  # most descriptions come again
def _name(description: str) -> str:
    if status := _STATUS.match(description):
        return status[0]
    kind = description.partition(": ")[0].partition(" (after ")[0].strip(" :")
    if not _NAME.fullmatch(kind):
        kind = " ".join(_VARYING.sub("", kind).split())
    return kind[:_LONGEST_NAME].strip() or _OTHER
