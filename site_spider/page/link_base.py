"""Joins the links of a page to URLs as browsers do.

Most links are plain: for them joining is one concatenation. The rest goes the way the
URL standard describes, and both give the same result for a plain link.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from w3lib.url import safe_url_string

from site_spider.errors import SeedError
from site_spider.page.markup import unescape
from site_spider.page.url import MAX_URL_BYTES, USUAL_PORT, check_url

_SHORT = 300  # characters of a link, and of the folder it is in: its URL is kept, for links repeat
_BLANK = "".join(map(chr, range(0x21)))  # what browsers strip around a URL
_INNER_BLANK = str.maketrans("", "", "\t\n\r")

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*+):")
_PLAIN = re.compile(r"[A-Za-z0-9\-._~/=&%+,:;@!$*()?]++")
_TRIMMED = re.compile(r"[A-Za-z0-9\-._~/=%+,;@!$*()?]{1,1000}+")
_PLAIN_ABSOLUTE = re.compile(
    r"https?://(?=[^:/]{1,253}[:/])[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})*+" + USUAL_PORT + "/.*+"
)
_OF_PAGE = re.compile(r"\?|https?:(?!//)", re.IGNORECASE)  # may lead to the page's own path
_NON_ASCII = re.compile(r"[^\x00-\x7f]++")


def trimmed(written: str) -> str:
    """A link as browsers read it, without its fragment; empty if it leads nowhere else by http."""
    if _TRIMMED.fullmatch(written):  # the common case: nothing to do
        return written
    if len(written) > MAX_URL_BYTES:
        return ""
    href = unescape(written).strip(_BLANK)
    if "\n" in href or "\t" in href or "\r" in href:
        href = href.translate(_INNER_BLANK)
    href = href.partition("#")[0]
    if ":" in href and (scheme := _SCHEME.match(href)) and scheme[1].lower() not in ("http", "https"):
        return ""
    return href


@dataclass(frozen=True, slots=True)
class LinkBase:
    """A URL that others are relative to, cut into the pieces that joining needs."""

    scheme: str  # empty if the base is of no use: then only absolute links lead anywhere
    origin: str
    path: str
    codec: str
    folder: str  # origin and path up to the last slash

    @classmethod
    def parse(cls, url: str, codec: str) -> LinkBase:
        """Never raises; see `scheme`."""
        nowhere = cls("", "", "", codec, "")
        href = trimmed(url)
        absolute = nowhere.join(href) if href else None
        if absolute is None:
            return nowhere
        end = absolute.index("/", len("https://"))  # what is joined has a path
        origin, path = absolute[:end], absolute[end:].partition("?")[0]
        folder = origin + path[: path.rfind("/") + 1]
        return cls(origin.partition(":")[0], origin, path, codec, folder)

    def find_short(self, written: str) -> tuple[str, str | None] | None:
        """The link trimmed, and as `join` has it; None for one that is not worth keeping."""
        if not self.scheme or len(written) > _SHORT or len(self.folder) > _SHORT:
            return None
        return _find(self.origin, self.folder, self.codec, written)

    def join(self, href: str) -> str | None:
        """The absolute URL of a trimmed link, or None if it is malformed or too long."""
        url = self._join_plain(href)
        if url is None:
            try:
                url = self._join_any(href)
            except (SeedError, ValueError):  # of hosts that cannot be, and characters that are none
                return None
        return url if url and len(url) <= MAX_URL_BYTES else None

    def _join_plain(self, href: str) -> str | None:
        """One concatenation, or None if the link needs more care."""
        if href[0] == "?" and self.scheme:
            return self.origin + self.path + href if _is_plain(href) else None
        return _plain_url(self.origin, self.folder, href)

    def _join_any(self, href: str) -> str | None:
        """By the URL standard. Raises SeedError and ValueError."""
        before, mark, query = href.partition("?")
        before = before.replace("\\", "/")
        scheme, rest = _split_scheme(before)
        if rest.startswith("//") or (scheme and scheme != self.scheme):
            authority, slash, path = rest.lstrip("/").partition("/")
            origin = check_url(f"{scheme or self.scheme}://{authority.removesuffix(':')}/")[:-1]
            path = slash + path
        else:
            origin = self.origin
            path = self._join_path(rest)
        if not origin:
            return None
        url = origin + _without_dots(path or "/") + mark + self._in_page_encoding(query)
        return str(safe_url_string(url))

    def _join_path(self, path: str) -> str:
        if not path:
            return self.path
        return path if path[0] == "/" else self.path[: self.path.rfind("/") + 1] + path

    def _in_page_encoding(self, query: str) -> str:
        if self.codec == "utf-8" or query.isascii():
            return query
        return _NON_ASCII.sub(self._percent_encoded, query)

    def _percent_encoded(self, run: re.Match[str]) -> str:
        return quote(run[0].encode(self.codec, "xmlcharrefreplace"), safe="")


def _is_plain(href: str) -> bool:
    """Whether nothing of it has to be resolved or encoded."""
    if "/." in href or href.endswith("?") or not _PLAIN.fullmatch(href):
        return False
    return "%2e" not in href and "%2E" not in href  # which mean a dot


def _plain_url(origin: str, folder: str, href: str) -> str | None:
    """The URL of a trimmed link that does not begin with a query, or None if it needs more care."""
    up = href.startswith("../") and bool(folder)
    if up:
        folder, href = _parent(origin, folder), href[3:]
    if not _is_plain(href):
        return None
    if href[0] == "/":
        return origin + href if origin and href[1:2] != "/" and not up else None
    if href[0] in ".?" or ":" in href:
        return href if not up and _PLAIN_ABSOLUTE.fullmatch(href) else None
    return folder + href if folder else None


def _parent(origin: str, folder: str) -> str:
    """The folder above; of the topmost, itself."""
    end = folder.rfind("/", len(origin), -1)
    return folder if end < 0 else folder[: end + 1]


@lru_cache(maxsize=16_384)  # about 15 MB
def _find(origin: str, folder: str, codec: str, written: str) -> tuple[str, str | None] | None:
    """See `LinkBase.find_short`: only what does not depend on more of the base than its folder is kept."""
    href = trimmed(written)
    if not href or not href.isascii() or _OF_PAGE.match(href):
        return None
    page = LinkBase(origin.partition(":")[0], origin, folder[len(origin) :], codec, folder)
    return href, page.join(href)


def _split_scheme(href: str) -> tuple[str, str]:
    found = _SCHEME.match(href)
    return (found[1].lower(), href[found.end() :]) if found else ("", href)


def _without_dots(path: str) -> str:
    """Resolve `.` and `..` segments, percent-encoded ones too."""
    if "/." not in path and "/%2" not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")[1:]
    for index, segment in enumerate(segments):
        dots = segment.lower().replace("%2e", ".")
        if dots == ".." and kept:
            kept.pop()
        if dots not in (".", ".."):
            kept.append(segment)
        elif index == len(segments) - 1:
            kept.append("")
    return "/" + "/".join(kept)
