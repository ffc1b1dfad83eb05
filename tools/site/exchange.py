"""One request and one answer, as plain values.

Pages are pure functions from `Ask` to `Answer`. The server only puts an answer on the
wire; the model crawler in `expected.py` reads from the same answer what has to be stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

Lines = tuple[tuple[str, str], ...]


def host_name(index: int) -> str:
    """The loopback address of a host: 127.0.1.1, 127.0.1.2, … 250 in each block."""
    block, number = divmod(index, 250)
    return f"127.0.{1 + block}.{1 + number}"


class Fault(Enum):
    NONE = "none"
    RESET = "reset"  # a part of the body, then a TCP reset
    SHORT = "short"  # less body than Content-Length says, then closed
    NO_ANSWER = "no answer"  # closed without a byte
    GARBAGE = "garbage"  # something that is not HTTP
    HANG = "hang"  # nothing, for ever


class Framing(Enum):
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


@dataclass(frozen=True)
class Ask:
    host: str
    port: int
    method: str
    target: str  # path and query, as sent
    headers: Mapping[str, list[str]] = field(default_factory=dict)  # names in lower case
    body: bytes = b""
    attempt: int = 0  # how many requests to this URL the site had before

    @cached_property
    def parts(self) -> list[str]:
        """The path's segments; the first names the kind of page."""
        return self.target.split("#", 1)[0].split("?", 1)[0].strip("/").split("/")

    @property
    def identity(self) -> str:
        return self.parts[-1]

    def url(self, path: str, host: str | None = None) -> str:
        """An absolute URL on this host, or on another with the same port."""
        return f"http://{host or self.host}:{self.port}{path}"

    def cookies(self) -> dict[str, str]:
        pairs = re.findall(r"([^=;\s]+)=([^;]*)", "; ".join(self.headers.get("cookie", [])))
        return dict(pairs)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What goes on the wire, and what a crawler must read from it."""

    status: int = 200
    reason: str | None = None  # None: the usual phrase
    headers: Lines = ()  # Content-Length and the like are added by the server
    body: bytes = b""  # as sent, compressed perhaps
    text: str | None = ""  # what must be stored as body; None for binary
    size: int | None = None  # bytes after decompression; None: as many as `body` has
    framing: Framing = Framing.LENGTH
    declared_length: int | None = None  # a Content-Length that is not the truth
    fault: Fault = Fault.NONE
    close: bool = False
    delay_seconds: float = 0
    prelude: bytes = b""  # sent before the status line
    http_version: str = "1.1"
    links: frozenset[str] = frozenset()  # must be followed
    optional_links: frozenset[str] = frozenset()  # may be followed
    lenient: Mapping[str, Any] = field(default_factory=dict)  # replaces fields of the expectation

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


Page = Callable[[Ask], Answer]
PAGES: dict[str, Page] = {}


def page(name: str) -> Callable[[Page], Page]:
    """Register the function that answers for paths that begin with /name/."""

    def register(function: Page) -> Page:
        PAGES[name] = function
        return function

    return register


def split_url(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.hostname or "", parts.port or 80, target
