"""Finds the links of a page.

What counts: `<a href>`, `<area href>`, and `<frame src>` and `<iframe src>`, which
browsers navigate to by themselves. Forms, scripts, images and `<link>` do not.

A page decides how many links it has, how long and how odd they are. So they are found in
slices, each of which takes a few milliseconds at the most.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from html.entities import html5
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote

from w3lib.url import safe_url_string

from site_spider.errors import SeedError
from site_spider.page.decode import (
    BodyLimits,
    Decoding,
    KeptBody,
    KeptText,
    decode_small,
    find_encoding,
    is_html,
    is_text,
    keep_binary,
    keep_text,
    python_codec,
)
from site_spider.page.url import MAX_HOST_CHARACTERS, MAX_URL_BYTES, USUAL_PORT, check_url

# --- link base: joins the links of a page to URLs as browsers do -----------------------------------------
# Most links are plain: for them joining is one concatenation. The rest goes the way the URL standard
# describes, and both give the same result for a plain link.

_LONGEST_BASE = 4 * MAX_URL_BYTES  # the URL of a page may be a seed's, percent-encoded
_SHORT = 300  # characters of a link, and of the folder it is in: its URL is kept, for links repeat
_BLANK = "".join(map(chr, range(0x21)))  # what browsers strip around a URL
_INNER_BLANK = str.maketrans("", "", "\t\n\r")

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*+):")
_PLAIN = re.compile(r"[A-Za-z0-9\-._~/=&%+,:;@!$*()?]++")
_TRIMMED = re.compile(r"[A-Za-z0-9\-._~/=%+,;@!$*()?]{1,1000}+")
_PLAIN_ABSOLUTE = re.compile(
    r"https?://(?=[^:/]{1,253}[:/])[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})*" + USUAL_PORT + "/.*+"
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


class LinkBase(NamedTuple):
    """A URL that others are relative to, cut into the pieces that joining needs."""

    scheme: str  # empty if the base is of no use: then only absolute links lead anywhere
    origin: str
    path: str
    codec: str
    folder: str  # origin and path up to the last slash

    @classmethod
    def parse(cls, url: str, codec: str) -> LinkBase:
        """Of an absolute URL. Never raises; see `scheme`."""
        nowhere = cls("", "", "", codec, "")
        href = url.partition("#")[0]
        absolute = nowhere.join(href, _LONGEST_BASE) if href else None
        if absolute is None:
            return nowhere
        end = absolute.index("/", len("https://"))  # what is joined has a path
        origin, path = absolute[:end], absolute[end:].partition("?")[0]
        folder = origin + path[: path.rfind("/") + 1]
        return cls(origin.partition(":")[0], origin, path, codec, folder)

    def join(self, href: str, longest: int = MAX_URL_BYTES) -> str | None:
        """The absolute URL of a trimmed link, or None if it is malformed or too long."""
        url = self._join_plain(href)
        if url is None:
            try:
                url = self._join_any(href)
            except (SeedError, ValueError):  # of hosts that cannot be, and characters that are none
                return None
        return url if url and len(url) <= longest else None

    def _join_plain(self, href: str) -> str | None:
        """One concatenation, or None if the link needs more care."""
        if href[0] == "?" and self.scheme:
            return self.origin + self.path + href if _is_plain(href) else None
        return _plain_url(self.origin, self.folder, href)

    def _join_any(self, href: str) -> str | None:
        """By the URL standard. Raises SeedError and ValueError."""
        before, mark, query = href.partition("?")
        before = before.replace("\\", "/")
        found = _SCHEME.match(before)
        scheme, rest = (found[1].lower(), before[found.end() :]) if found else ("", before)
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
        """Raises ValueError where what it would stand behind is too long already: such a page costs no more."""
        if path and path[0] == "/":
            return path
        before = self.path[: self.path.rfind("/") + 1] if path else self.path
        while len(before) > MAX_URL_BYTES and path[:3] in ("../", ".."):
            before, path = before[: before.rfind("/", 0, -1) + 1] or "/", path[3:]
        if len(before) > MAX_URL_BYTES:
            raise ValueError("the path of the page is longer than a link may be")
        return before + path

    def _in_page_encoding(self, query: str) -> str:
        if self.codec == "utf-8" or query.isascii():
            return query
        return _NON_ASCII.sub(self._percent_encoded, query)

    def _percent_encoded(self, run: re.Match[str]) -> str:
        return quote(run[0].encode(self.codec, "xmlcharrefreplace"), safe="!$()*,/:?@")


def _is_plain(href: str) -> bool:
    """Whether nothing of it has to be resolved or encoded."""
    if "/." in href or href.endswith("?") or not _PLAIN.fullmatch(href):
        return False
    return "%2e" not in href and "%2E" not in href  # which mean a dot


def _plain_url(origin: str, folder: str, href: str) -> str | None:
    """The URL of a trimmed link that does not begin with a query, or None if it needs more care."""
    up = href.startswith("../") and bool(folder)
    if up:
        href, end = href[3:], folder.rfind("/", len(origin), -1)
        folder = folder if end < 0 else folder[: end + 1]  # above the topmost is itself
    if not _is_plain(href):
        return None
    if href[0] == "/":
        return origin + href if origin and href[1:2] != "/" and not up else None
    if href[0] in ".?" or ":" in href:
        return href if not up and _PLAIN_ABSOLUTE.fullmatch(href) else None
    return folder + href if folder else None


@lru_cache(maxsize=16_384)  # about 15 MB
def _find(origin: str, folder: str, codec: str, written: str) -> tuple[str, str | None] | None:
    """The link trimmed, and as `LinkBase.join` has it; None for one that depends on more of it than the folder."""
    href = trimmed(written)
    if not href or not href.isascii() or _OF_PAGE.match(href):
        return None
    page = LinkBase(origin.partition(":")[0], origin, folder[len(origin) :], codec, folder)
    return href, page.join(href)


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


MAX_LINKS = 10_000
MAX_TOTAL_CHARS = 2_097_152  # of all links as written and joined: a long <base href> multiplies
SLICE_LINKS = 100  # joined in one go
SLICE_CHARS = 10_000  # likewise, counted as those of MAX_TOTAL_CHARS
SLICE_TAGS = 300  # tags and their attributes, read in one go
_MAX_ROBOTS = 10  # meta tags for robots that are told
NEW_HOST_FACTOR = 100  # so many times its length an international host costs when first met: IDNA is slow

_LINK_ATTRIBUTE = {"a": "href", "area": "href", "frame": "src", "iframe": "src"}


def link_slices(
    text: str, base_url: str, robots: list[str] | None = None, *, encoding: str = "utf-8", follow_nofollow: bool = False
) -> Iterator[list[str]]:
    """The links of an HTML page that was found at `base_url`, some at a time; some slices are empty.

    They are absolute http and https URLs without fragment, each once, in the order of the page.

    `encoding` is the page's: queries are percent-encoded in it, as browsers do. Links that the page marks nofollow,
    one by one or with a robots meta tag for all, are left out unless `follow_nofollow`. Malformed links, and those
    that `check_url` would refuse in a seed (too long, with a password), are passed over. What meta tags say to all
    robots is added to `robots`. Never raises.
    """
    hrefs, base_href = yield from _read(text, follow_nofollow, [] if robots is None else robots)
    codec = python_codec(encoding)
    page = LinkBase.parse(base_url, codec)
    if base_href is not None and (href := trimmed(base_href)) and (based := page.join(href)):
        page = LinkBase.parse(based, codec)
    yield from _joined(hrefs, page)


def _read(
    text: str, follow_nofollow: bool, robots: list[str]
) -> Generator[list[str], None, tuple[Collection[str], str | None]]:
    """What stands in the page: distinct links as written, and the first base."""
    found: dict[str, None] = {}
    base: str | None = None
    left = SLICE_TAGS
    for tag in tags(text):
        if tag is None:
            yield []
            continue
        name, attributes = tag
        attribute = _LINK_ATTRIBUTE.get(name)
        if attribute is None:
            if name == "base":
                base = attributes.get("href") if base is None else base
            elif said := said_to_robots(attributes):  # a meta tag
                if len(robots) < _MAX_ROBOTS:
                    robots.append(said)
                if not follow_nofollow and forbids_following(said):
                    return (), base
        elif (href := attributes.get(attribute)) and (
            "rel" not in attributes or follow_nofollow or "nofollow" not in attributes["rel"].lower().split()
        ):
            found[href] = None
        left -= 1 + len(attributes)
        if left <= 0:
            left = SLICE_TAGS
            yield []
    return found, base


def said_to_robots(meta: Mapping[str, str]) -> str:
    """What a meta tag says to all robots; nothing if it is not about them."""
    return unescape(meta.get("content", "")) if meta.get("name", "").strip().lower() == "robots" else ""


def forbids_following(said: str) -> bool:
    """Whether it is nofollow."""
    return not {"nofollow", "none"}.isdisjoint(said.lower().replace(",", " ").split())


def _joined(hrefs: Collection[str], page: LinkBase) -> Iterator[list[str]]:
    urls: dict[str, None] = {}
    seen: set[str] = set()
    hosts: set[str] = set()
    chars = MAX_TOTAL_CHARS
    given, until_links, until_chars = 0, SLICE_LINKS, chars - SLICE_CHARS
    origin, folder, codec = page.origin, page.folder, page.codec
    longest = _SHORT if page.scheme and len(folder) <= _SHORT else -1
    for written in hrefs:
        # Counted by attempts, not by results: malformed links are the slow ones.
        if len(seen) >= until_links or chars <= until_chars:
            yield list(islice(urls, given, None))
            given, until_links, until_chars = len(urls), len(seen) + SLICE_LINKS, chars - SLICE_CHARS
        if len(seen) >= MAX_LINKS or chars <= 0:
            break
        chars -= len(written)
        short = _find(origin, folder, codec, written) if len(written) <= longest else None
        href = trimmed(written) if short is None else short[0]
        if href and href not in seen:
            seen.add(href)
            url = page.join(href) if short is None else short[1]
            if url:
                urls[url] = None
                chars -= len(url)
            if short is None and not href.isascii() and _met_new_host(url, hosts):
                chars -= NEW_HOST_FACTOR * min(len(href), MAX_HOST_CHARACTERS)
    yield list(islice(urls, given, None))


def _met_new_host(url: str | None, hosts: set[str]) -> bool:
    """Whether joining had to spell an international host, or failed to; adds it to `hosts`."""
    host = url.split("/", 3)[2] if url else ""
    if url and ("xn--" not in host or host in hosts):
        return False
    hosts.add(host)
    return True


# --- Reads a body: decodes it, finds its links, cuts it --------------------------------------------------
# Theory of operation. Reading is a generator that yields after each step of some milliseconds at most, so
# that whoever runs it can do other things in between. A small body that is sound is one step. Of
# another one, text is decoded only as far as it is kept or read for links: a body of 31 MB can be
# 124 MB of text, and nobody asks for the end of it.

_BLOCK_CHARS = 500_000  # many small texts would leave the memory in pieces


class Page(NamedTuple):
    """What was read from a body; `encoding` is None for binary content."""

    kept: KeptBody
    encoding: str | None
    links: tuple[list[str], ...]  # in slices
    body_hash: str | None = None
    robots: Sequence[str] = ()  # what it says to all robots, where its links were read


class PageText(NamedTuple):
    """What is kept of a text, and what is read of it for links."""

    kept: KeptBody
    read: str
    encoding: str


def read_page(
    body: bytes,
    content_type: str | None,
    base_url: str,
    *,
    wants_links: bool,
    follow_nofollow: bool = False,
    limits: BodyLimits = BodyLimits(),  # noqa: B008 - immutable
) -> Generator[None, None, Page]:
    """Decode a body and find its links, also in the part that is not kept; and tell its hash."""
    digest = hash_of(body)
    if body and not is_text(body, content_type):
        return Page((yield from keep_binary(body, limits)), None, (), digest)
    wants_links = wants_links and is_html(body, content_type)
    text = yield from read_text(body, content_type, limits, MAX_PAGE_CHARS if wants_links else 0)
    if not wants_links:
        return Page(text.kept, text.encoding, (), digest)
    links: list[list[str]] = []
    robots: list[str] = []
    for some in link_slices(text.read, base_url, robots, encoding=text.encoding, follow_nofollow=follow_nofollow):
        if some:
            links.append(some)
        yield
    return Page(text.kept, text.encoding, tuple(links), digest, robots)


def hash_of(body: bytes) -> str:
    """By which two bodies are compared."""
    return hashlib.sha1(body, usedforsecurity=False).hexdigest()


def read_text(
    body: bytes, content_type: str | None, limits: BodyLimits, read_chars: int
) -> Generator[None, None, PageText]:
    """Decode what is kept of a body, and at least `read_chars` of it."""
    small = decode_small(body, content_type)
    if small is not None:
        text, encoding = small
        return PageText(keep_text(text, limits), text, encoding)
    encoding, start = yield from find_encoding(body, content_type)
    decoding, kept = Decoding(body, encoding, start), KeptText(limits, read_chars)
    for block in _blocks(decoding.pieces()):
        if block:
            kept.add(block)
            if kept.is_enough:
                break
        yield
    found = kept.body(is_whole=decoding.is_whole)
    return PageText(found, kept.read_text(found.text or ""), encoding)


def _blocks(pieces: Iterator[str]) -> Iterator[str]:
    """The pieces joined to larger ones; in between, empty ones."""
    waiting: list[str] = []
    chars = 0
    for piece in pieces:
        waiting.append(piece)
        chars += len(piece)
        if chars < _BLOCK_CHARS:
            yield ""
            continue
        yield "".join(waiting)
        waiting, chars = [], 0
    yield "".join(waiting)


# --- Reads the tags that can hold links from HTML, in linear time ----------------------------------------
# There is no tree: where a link leads depends on tags and attributes only, and building trees is where
# hostile pages hurt (one tag of 50,000 attributes keeps libxml2 busy for 22 seconds, 200,000 nested
# elements do the same to others). This is the tokenizer of the HTML standard, cut down:
#
# - `_CANDIDATE` runs over the text in C and stops at a `<` that matters: a wanted tag, an element whose
#   content is text, a comment, and any tag that is not plainly skippable (one whose quoted values hide a
#   `<` or `>`, say). Everything else costs no Python.
# - A tag ends at the first `>` outside a quoted attribute value. What is never closed (comment, tag,
#   script) takes the rest of the page with it, as it does in browsers.
# - No position is looked at by more than a fixed number of passes: a search that fails ends the scan,
#   repeats are bounded or possessive over single characters only. Keep it so: a retry after a failed
#   search is a quadratic trap.
# - What a page can cost is bounded on top of that by the limits below.
# - One search looks at a window of the text, because a match in C lets nothing else run. What is found is
#   the same as without windows: what a match that was cut off says is not believed, see `_next_candidate`.

MAX_PAGE_CHARS = 5_000_000  # what stands behind is not read
MAX_TAG_CHARS = 16_384  # a longer tag is passed over
_SHORT_TAG = 300  # characters of a tag; what was read of such tags is kept: about 8 MB
MAX_PAGE_WORK = 250_000  # candidates and attributes; what stands behind is not read
_WINDOW = 32_768  # characters searched in one call: 2 ms at most
_LONGEST_TAG = 65_536  # a longer tag is read as an odd one, in windows
_LONGEST_END = 32  # characters that the end of a comment or of an element's text is shorter than
_STEP = 500  # candidates and attributes between two yields

_WANTED = "a|area|base|meta|frame|iframe"
_TEXT_ONLY = "script|style|title|textarea|xmp|noembed|noframes"

# Every alternative is settled by its first character, so that nothing is tried twice; at
# most so many values, because each pass of a group costs memory until the match is over.
# Classes name both cases: one that ignores case is called for each character.
_CANDIDATE = re.compile(
    rf"""(?-i:<(?!/[a-zA-Z0-9]*+>|[a-zA-Z][a-zA-Z0-9]?+>)(?=[a-zA-Z/!?]))(?:
      (?-i:(?=[abfimABFIM]))(?P<wanted>{_WANTED})(?=[\s/>])
      (?P<written>[^=>]*+(?:=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+|(?=>))[^=>]*+){{0,100}})>
    | (?-i:(?=[npstxNPSTX]))(?P<text>{_TEXT_ONLY}|plaintext)(?=[\s/>])
    | (?P<comment>!--)
    | (?-i:(?!/?[a-zA-Z][^<>"']*+(?:(?:"[^"<>]*+"|'[^'<>]*+')[^<>"']*+){{0,40}}>
           |[!?][^<>]*+>|/[^a-zA-Z<>][^<>]*+>)
      (?P<other>/?[!?a-zA-Z]?))
    )""",
    re.IGNORECASE | re.ASCII | re.VERBOSE,
)
# Quotes mean something behind `=` only, so this is all it takes to find the end of a tag.
_TAG_REST = re.compile(r"""(?:()(?:[^=>]++|=\s*+(?:"[^"]*+"?|'[^']*+'?|[^\s>"'][^\s>]*+)?)){0,500}""", re.ASCII)
_NOT_BLANK = re.compile(r"\S", re.ASCII)
_VALUE_END = re.compile(r"[\s>]", re.ASCII)
_ATTRIBUTE = re.compile(r"""([^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?:"([^"]*+)"?|'([^']*+)'?|([^\s>]*+)))?""", re.ASCII)
_COMMENT_END = re.compile("--!?>")
_TEXT_END = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE | re.ASCII) for name in [*_TEXT_ONLY.split("|"), "iframe"]
}
_REFERENCE = re.compile(r"&(?:#[0-9]++|#[xX][0-9a-fA-F]++|[a-zA-Z][a-zA-Z0-9]*+);?+=?+")


# A start tag: lower-case name, and lower-case attribute names with their values as written.
# A bare tuple, because there are as many of these as links.
Tag = tuple[str, Mapping[str, str]]


def tags(text: str) -> Generator[Tag | None, None, bool | None]:
    """The start tags of a, area, base, meta, frame and iframe elements, in the order of the page.

    None stands between them after each milliseconds of work without one. Never raises; ends early at what
    browsers read as the end of the page, and at this module's limits. Returns True unless it had too much work.
    """
    end = min(len(text), MAX_PAGE_CHARS)
    position, work, pause = 0, MAX_PAGE_WORK, MAX_PAGE_WORK - _STEP
    search = _CANDIDATE.search
    while work > 0:
        if work <= pause:
            pause = work - _STEP
            yield None
        cut = position + _WINDOW
        found = search(text, position, cut if cut < end else end)
        if found is None:
            if cut >= end:
                return True
            position = cut - (text[cut - 1] == "<")  # of all others the `>` was seen
            yield None
            continue
        work -= 1
        wanted, written = found.group(1, 2)  # by number, as a look-up by name takes a tenth of the search
        if written is None:
            position, found = _looked_at_again(text, found, end)
            if found is None:
                continue
            wanted, written = found.group(1, 2)
        else:
            position = found.end()
        if len(written) <= MAX_TAG_CHARS:
            tag, count = (_short_tag if len(written) <= _SHORT_TAG else _tag)(wanted, written)
            work -= count
            yield tag
        if len(wanted) == len("iframe"):  # it is the longest
            position = _content_end(text, "iframe", position, end)
    return None


def _looked_at_again(text: str, found: re.Match[str], end: int) -> tuple[int, re.Match[str] | None]:
    """Where to go on after a candidate, and the candidate if it is a wanted tag that a window cut off."""
    start = found.start()
    whole = _CANDIDATE.match(text, start, min(start + _LONGEST_TAG, end))
    if whole is None:
        return start + 1, None
    if whole["written"] is None:
        return _behind(text, whole, end), None
    return whole.end(), whole


def _tag(name: str, written: str) -> tuple[Tag, int]:
    """And how many attributes were written."""
    found = _ATTRIBUTE.findall(written)
    # Backwards, because the first of several attributes of one name counts.
    return (name.lower(), {key.lower(): a or b or c for key, a, b, c in found[::-1]}), len(found)


_short_tag = lru_cache(maxsize=8_192)(_tag)  # the same menu is on every page of a site


def unescape(value: str) -> str:
    """Resolve the character references in an attribute value, by the rule for attributes.

    That rule leaves `&copy=1` alone, which is a parameter of a query and no sign.
    """
    return _REFERENCE.sub(_referenced, value) if "&" in value else value


def _referenced(found: re.Match[str]) -> str:
    reference = found[0]
    tail = "=" if reference.endswith("=") else ""
    name = reference[1:].removesuffix("=")
    if name.startswith("#"):
        # Python refuses to read integers of thousands of digits.
        return (html.unescape(f"&{name}") if len(name) < 20 else "\ufffd") + tail
    if name not in html5 or (tail and not name.endswith(";")):
        return reference
    return html5[name] + tail


def _behind(text: str, found: re.Match[str], end: int) -> int:
    """Where to go on after a candidate that holds no link."""
    if found.lastgroup == "comment":
        # From its own dashes on, because `<!-->` is a whole comment.
        closed = _search(_COMMENT_END, text, found.start("comment") + 1, end)
        return closed.end() if closed else end
    if found.lastgroup == "text":
        return _content_end(text, found["text"].lower(), _tag_end(text, found.end(), end), end)
    if found["other"][-1:].isalpha():
        return _tag_end(text, found.end(), end)
    # a declaration, where quotes mean nothing
    return (text.find(">", found.end(), end) + 1) or end


def _tag_end(text: str, position: int, end: int) -> int:
    """Behind the `>` of the tag; the end of the text if there is none."""
    while position < end and text[position] != ">":
        cut = min(position + _WINDOW, end)
        rest = _TAG_REST.match(text, position, cut)
        assert rest is not None
        if rest.end() < cut or cut == end:
            position = rest.end()
        elif rest.start(1) > position:
            position = rest.start(1)  # the last part was cut off
        else:
            position = _part_end(text, position, end)
    return min(position + 1, end)


def _part_end(text: str, position: int, end: int) -> int:
    """Behind a part of a tag that is longer than a window."""
    if text[position] != "=":
        return position + _WINDOW
    value = _search(_NOT_BLANK, text, position + 1, end)
    if value is None:
        return end
    if value[0] in "\"'":
        return (text.find(value[0], value.end(), end) + 1) or end
    closed = _search(_VALUE_END, text, value.start(), end)
    return closed.start() if closed else end


def _content_end(text: str, name: str, position: int, end: int) -> int:
    """Behind the content of an element in which tags are only text."""
    # Browsers know self-closing scripts and titles in XHTML and SVG only, where they do occur.
    if text[position - 2 : position] == "/>":
        return position
    closed = _search(_TEXT_END[name], text, position, end) if name in _TEXT_END else None
    return closed.start() if closed else end


def _search(pattern: re.Pattern[str], text: str, position: int, end: int) -> re.Match[str] | None:
    """In windows, for a pattern that matches less than `_LONGEST_END`."""
    for begin in range(position, end, _WINDOW):
        if found := pattern.search(text, begin, min(begin + _WINDOW + _LONGEST_END, end)):
            return found
    return None
