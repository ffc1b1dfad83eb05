"""The class of reasons a failure belongs to: a short fixed list, for metrics and dashboards.

A description says what happened to one page, with host, numbers and words of others. Its class is one of
REASONS and never anything from outside.
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import Final

REASONS: Final = (
    "dns", "connect", "tls", "timeout", "reset", "http_protocol", "http_status", "too_large", "robots",
    "proxy", "redirect_loop", "address_refused", "callback", "other",
)  # fmt: skip

_LOOKED_AT: Final = 200  # characters: what comes behind is not ours
_BY_NAME: Final = MappingProxyType({  # what stands before the first colon
    "DNSLookupError": "dns",
    "CannotResolveHostError": "dns",
    "ConnectionRefusedError": "connect",
    "ConnectError": "connect",
    "TimeoutError": "timeout",
    "CertificateError": "tls",
    "ResponseDataLossError": "reset",
    "DownloadCancelledError": "too_large",
    "OversizedAnswer": "too_large",
    "ProxyFailed": "proxy",
    "TunnelError": "proxy",
    "TooManyRedirects": "redirect_loop",
    "PrivateHostError": "address_refused",
    "CallbackTimeout": "callback",
    "CallbackCancelled": "callback",
    "CodingError": "http_protocol",
})  # fmt: skip
_BY_WORDS: Final = (  # the first that is found
    (" in the spider", "callback"),
    (" in an item pipeline", "callback"),
    ("the item was dropped", "callback"),
    ("Forbidden by robots.txt", "robots"),
    ("robots.txt could not be fetched", "robots"),
    ("SSL", "tls"),
    ("certificate", "tls"),
    ("CertificateError", "tls"),
    ("DOWNLOAD_MAXSIZE", "too_large"),
    ("Ignored response", "too_large"),
    ("getaddrinfo", "dns"),
    ("gaierror", "dns"),
    ("ConnectionReset", "reset"),
    ("ConnectionLost", "reset"),
    ("ConnectionDone", "reset"),
    ("ConnectionAborted", "reset"),
    ("BrokenPipe", "reset"),
    ("ended before the head", "reset"),
    ("no answer: ", "reset"),
    ("not HTTP", "http_protocol"),
    ("not well-formed", "http_protocol"),
    ("ParseError", "http_protocol"),
    ("BadStatusLine", "http_protocol"),
    ("OddAnswer", "http_protocol"),
    ("OSError", "connect"),
    ("ConnectionRefused", "connect"),
    ("unreachable", "connect"),
    ("TimeoutError", "timeout"),
    ("timed out", "timeout"),
)


@lru_cache(maxsize=1_000)  # what is looked at longest says the same each time
def reason_of(description: str) -> str:
    """One of REASONS, for the description of a failure or for the name of an exception."""
    said = description[:_LOOKED_AT]
    if said.startswith("HTTP "):
        return "http_status"
    by_name = _BY_NAME.get(said.partition(":")[0].partition(" (after ")[0])
    if by_name is not None:
        return by_name
    return next((reason for words, reason in _BY_WORDS if words in said), "other")
