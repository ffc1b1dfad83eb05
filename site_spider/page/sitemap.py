"""Sitemaps, indexes of sitemaps, and feeds (RSS, Atom, JSON Feed): the entries of a response that is one.

What a response is, its root element or its keys say, never its URL. It is read as a stream, by an expat that
refuses a DOCTYPE and so has no entities, in steps that leave the event loop to others. Formats: sitemaps.org,
RSS 2.0 and 1.0, RFC 4287, jsonfeed.org.
"""

from __future__ import annotations

import re
import zlib
from codecs import getincrementaldecoder
from collections.abc import Generator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin
from xml.parsers.expat import ExpatError, ParserCreate, XMLParserType

import orjson

from site_spider.page.decode import python_codec

MOST_ENTRIES: Final = 50_000  # of one file, as sitemaps.org has it
DEEPEST_INDEX: Final = 5  # indexes that lead to each other
MOST_BYTES: Final = 52_428_800  # of one file, unpacked, likewise
_MOST_JSON_BYTES: Final = 2_000_000  # which is read in one go
_BEGINNING_BYTES: Final = 4_096  # in which the root element stands, behind comments
_PIECE_BYTES: Final = 16_384  # between two looks at the clock: about a millisecond
_LONGEST: Final = 8_192  # characters of a value, as of a URL
_LONGEST_WORD: Final = 64  # characters of what is said beside a URL
_DEEPEST: Final = 64  # elements within each other

_HTML: Final = (b"<!d", b"<ht")  # as its beginning
_GZIP: Final = b"\x1f\x8b\x08"
_ROOT: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\s|<\?[^>]*>|<!--.*?-->)*+<(?:[\w.-]+:)?(urlset|sitemapindex|rss|feed|RDF)[\s>/]",
    re.DOTALL,
)
_ENCODING: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*<\?xml[^>]{0,99}?\sencoding\s*=\s*[\"']([\w.:-]{1,40})[\"']"
)
_OF_EXPAT: Final = {"utf-8", "utf-16", "utf-16le", "utf-16be", "us-ascii", "iso-8859-1"}
_JSON_FEED: Final = re.compile(rb'"version"\s*:\s*"https?:\\?/\\?/(?:www\.)?jsonfeed\.org\\?/version\\?/')
_TEXT_LINE: Final = re.compile(rb"https?://[^\s<>\"]+")
_SITEMAP_LINE: Final = re.compile(
    rb"^[ \t]*sitemap[ \t]*:[ \t]*(https?://[^\s#]{1,8192})", re.MULTILINE | re.IGNORECASE
)
_MOST_NAMED: Final = 1_000  # sitemaps in one robots.txt
_MONTH: Final = re.compile(r"\d{4}(-\d\d)?")
_ENTRIES: Final = {"urlset": "url", "sitemapindex": "sitemap", "rss": "item", "RDF": "item", "feed": "entry"}
_FIELDS: Final = {
    "loc": "loc",
    "link": "loc",
    "guid": "guid",
    "lastmod": "lastmod",
    "pubDate": "lastmod",
    "date": "lastmod",  # dc:date
    "updated": "lastmod",
    "priority": "priority",
    "changefreq": "changefreq",
}


class ListedPage(NamedTuple):
    """One page, or one further sitemap, with what the file says of it as it stands there."""

    url: str
    lastmod: str | None = None
    priority: str | None = None
    changefreq: str | None = None

    def meta(self, source: str, level: int = 0) -> dict[str, Any]:
        """What stands as `meta.sitemap` in the result of the page; `source` is the URL of the file.

        `level` counts the indexes above a file that an index names; 0 for a page.
        """
        said = {**self._asdict(), "source": source, **({"level": level} if level else {})}
        del said["url"]
        return said


class Sitemap(NamedTuple):
    """The entries of one file, in its order; `note` says what was wrong with it."""

    entries: list[ListedPage]
    note: str | None = None


class _Fault(Exception):
    """The rest cannot be read: the entries before it count."""


class _Refused(Exception):
    """Nothing of it counts."""


def kind_of(body: bytes, media_type: str = "") -> str | None:
    """The root element of a sitemap or feed, `json`, `text`; None for anything else, also behind a DOCTYPE.

    `text` is a list of URLs alone, that says of itself to be plain text.
    """
    if body[:3].lower() in _HTML:  # nearly all pages: the rest takes some microseconds
        return None
    beginning = beginning_of(body)
    if beginning[:2] in (b"\xff\xfe", b"\xfe\xff"):
        beginning = beginning[: len(beginning) & ~1].decode("utf-16", "replace").encode()
    if found := _ROOT.match(beginning):
        return found[1].decode()
    if media_type == "text/plain":
        lines = beginning.removeprefix(b"\xef\xbb\xbf").splitlines()
        whole = lines if len(beginning) < _BEGINNING_BYTES else lines[:-1]
        said = [line.strip() for line in whole if line.strip()]
        return "text" if said and all(_TEXT_LINE.fullmatch(line) for line in said) else None
    is_object = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
    text = beginning if body.startswith(_GZIP) else body
    return "json" if is_object and _JSON_FEED.search(text, 0, _MOST_JSON_BYTES) else None


def sitemaps_of_robots(body: bytes) -> list[ListedPage]:
    """What the Sitemap lines of a robots.txt name."""
    return [
        ListedPage(line[1].decode("utf-8", "replace"))
        for line in islice(_SITEMAP_LINE.finditer(body), _MOST_NAMED)
    ]


def read_sitemap(
    body: bytes, kind: str, url: str, *, since: datetime | None = None
) -> Generator[None, None, Sitemap]:
    """The entries of a file of this kind, in steps of about a millisecond.

    An entry whose `lastmod` is before `since` is left out; one without, or with an unreadable one, is not.
    What cannot be read ends the entries with a note; a file beyond MOST_BYTES has no entries.
    """
    found = Sitemap([])
    try:
        if kind == "json":
            _read_json(body, url, found, since)
        elif kind == "text":
            yield from _read_text(body, url, found, since)
        else:
            yield from _read_xml(body, kind, url, found, since)
    except _Fault as fault:
        return Sitemap(found.entries, f"sitemap read up to {len(found.entries)} entries: {fault}")
    except _Refused as refused:
        return Sitemap([], f"sitemap not read: {refused}")
    return found


def parse_lastmod(text: str | None) -> datetime | None:
    """A date of W3C's or of e-mails', in UTC; None for what is neither."""
    if not text:
        return None
    if _MONTH.fullmatch(text):
        text = f"{text}-01-01"[:10]
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(ValueError, OverflowError):  # such as an offset of years
            at = read(text)
            return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    return None


def beginning_of(body: bytes) -> bytes:
    """Of the unpacked file."""
    if not body.startswith(_GZIP):
        return body[:_BEGINNING_BYTES]
    try:
        return zlib.decompressobj(31).decompress(body[:_BEGINNING_BYTES], _BEGINNING_BYTES)
    except zlib.error:
        return b""


def _pieces(body: bytes) -> Iterator[bytes]:
    """Of the unpacked file. Raises _Fault and _Refused."""
    size = 0
    for piece in _unpacked(body) if body.startswith(_GZIP) else _slices(body):
        size += len(piece)
        if size > MOST_BYTES:
            raise _Refused(f"it has more than {MOST_BYTES} bytes, unpacked")
        yield piece


def _slices(body: bytes) -> Iterator[bytes]:
    for begin in range(0, len(body), _PIECE_BYTES):
        yield body[begin : begin + _PIECE_BYTES]


def _unpacked(body: bytes) -> Iterator[bytes]:
    unpack = zlib.decompressobj(31)
    try:
        for packed in _slices(body):
            rest = packed
            while rest:
                if unpack.eof:  # files of several members
                    unpack = zlib.decompressobj(31)
                yield unpack.decompress(rest, _PIECE_BYTES)
                rest = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
    except zlib.error as error:
        raise _Fault(f"its gzip is broken: {error}") from None
    if not unpack.eof:
        raise _Fault("its gzip ends early")


def _add(found: Sitemap, entry: ListedPage, base: str, since: datetime | None) -> None:
    if len(found.entries) >= MOST_ENTRIES:
        raise _Fault(f"it has more than {MOST_ENTRIES}")
    if since is not None and (at := parse_lastmod(entry.lastmod)) is not None and at < since:
        return
    try:
        url = urljoin(base, entry.url)
    except ValueError:  # such as a broken IPv6 address: this entry alone is none
        return
    if url.startswith(("http://", "https://")) and len(url) <= _LONGEST:
        found.entries.append(entry._replace(url=url))


def _read_text(body: bytes, url: str, found: Sitemap, since: datetime | None) -> Generator[None, None, None]:
    rest = b""
    for piece in _pieces(body.removeprefix(b"\xef\xbb\xbf")):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            _add_line(line, url, found, since)
        rest = rest[: _LONGEST + 1]  # of an endless line the beginning, which is too long
        yield
    _add_line(rest, url, found, since)


def _add_line(line: bytes, url: str, found: Sitemap, since: datetime | None) -> None:
    text = line.strip()
    if _TEXT_LINE.fullmatch(text):
        _add(found, ListedPage(text.decode("utf-8", "replace")), url, since)


def _read_json(body: bytes, url: str, found: Sitemap, since: datetime | None) -> None:
    try:
        feed = orjson.loads(_whole(body).removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise _Fault(f"it is no JSON: {error}") from None
    items = feed.get("items") if isinstance(feed, dict) else None
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and isinstance(loc := item.get("url"), str) and loc.strip():
            said = item.get("date_modified") or item.get("date_published")
            is_date = isinstance(said, str) and len(said) <= _LONGEST_WORD
            _add(found, ListedPage(loc.strip(), said if is_date else None), url, since)


def _whole(body: bytes) -> bytes:
    """Of a feed that is read at once. Raises _Fault and _Refused."""
    whole = BytesIO()
    for piece in _pieces(body):
        if whole.tell() + len(piece) > _MOST_JSON_BYTES:
            raise _Refused(f"a JSON Feed has at most {_MOST_JSON_BYTES} bytes")
        whole.write(piece)
    return whole.getvalue()


def _read_xml(
    body: bytes, kind: str, url: str, found: Sitemap, since: datetime | None
) -> Generator[None, None, None]:
    codec = _codec_of(beginning_of(body))
    reader = _XmlReader(kind, url, found, since, "utf-8" if codec else None)
    try:
        for piece in _pieces(body) if codec is None else _in_utf_8(_pieces(body), codec):
            reader.feed(piece)
            yield
        reader.feed(b"", is_last=True)
    except ExpatError as error:
        raise _Fault(f"its XML is broken: {error}") from None


def _codec_of(beginning: bytes) -> str | None:
    """Python's name of the encoding that a file declares; None for those that expat knows itself."""
    declared = _ENCODING.match(beginning)
    name = declared[1].decode("ascii", "replace").lower() if declared else "utf-8"
    return None if name in _OF_EXPAT else python_codec(name)


def _in_utf_8(pieces: Iterator[bytes], codec: str) -> Iterator[bytes]:
    decoder = getincrementaldecoder(codec)("replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


class _XmlReader:
    """Elements by their names without prefix, since many files use prefixes that they do not declare.

    `loc` of an image or a video stands deeper than that of the entry, and is none of it.
    """

    def __init__(
        self, kind: str, url: str, found: Sitemap, since: datetime | None, encoding: str | None
    ) -> None:
        self._entry = _ENTRIES[kind]
        self._found = found
        self._since = since
        self._bases = [url]  # of the elements that are open
        self._depth = 0
        self._entry_depth = 0  # 0: outside of entries
        self._fields: dict[str, str] = {}
        self._name = ""  # of the field whose text is read
        self._text: list[str] = []
        self._length = 0
        self._parser = self._new_parser(encoding)

    def _new_parser(self, encoding: str | None) -> XMLParserType:
        parser = ParserCreate(encoding)
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        return parser

    def feed(self, piece: bytes, *, is_last: bool = False) -> None:
        """Raises ExpatError and _Fault."""
        self._parser.Parse(piece, is_last)

    def _doctype(self, *_said: object) -> None:
        raise _Fault("it has a DOCTYPE, which is not read")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _Fault(f"its elements are nested deeper than {_DEEPEST}")
        self._bases.append(_joined(self._bases[-1], attributes.get("xml:base", "")))
        name = tag.rpartition(":")[2]
        if not self._entry_depth:
            if name == self._entry:
                self._entry_depth = self._depth
                self._fields = {}
        elif self._depth == self._entry_depth + 1 and (known := _FIELDS.get(name)):
            self._begin_field(tag, known, attributes)

    def _begin_field(self, tag: str, known: str, attributes: dict[str, str]) -> None:
        if self._entry in ("url", "sitemap"):
            if known == "loc" and not tag.endswith("loc"):  # xhtml:link: another language of the page
                return
        elif known == "loc" and "href" in attributes:  # Atom's
            if attributes.get("rel", "alternate") == "alternate":
                self._fields.setdefault("loc", _joined(self._bases[-1], attributes["href"].strip()))
            return
        elif known == "guid" and attributes.get("isPermaLink") == "false":
            return
        self._name, self._text, self._length = known, [], 0

    def _characters(self, text: str) -> None:
        if self._name and self._length <= _LONGEST:
            self._length += len(text)
            self._text.append(text)

    def _end(self, _tag: str) -> None:
        self._depth -= 1
        base = self._bases.pop()
        if self._name and self._depth == self._entry_depth:
            text = "".join(self._text).strip()
            if text and len(text) <= (_LONGEST if self._name in ("loc", "guid") else _LONGEST_WORD):
                self._fields.setdefault(self._name, text)
            self._name = ""
        elif self._entry_depth and self._depth < self._entry_depth:
            self._entry_depth = 0
            self._end_entry(base)

    def _end_entry(self, base: str) -> None:
        said = self._fields
        loc = said.get("loc") or said.get("guid")
        if loc:
            entry = ListedPage(loc, said.get("lastmod"), said.get("priority"), said.get("changefreq"))
            _add(self._found, entry, base, self._since)


def _joined(base: str, url: str) -> str:
    try:
        joined = urljoin(base, url) if url else base
    except ValueError:
        return base
    return joined if len(joined) <= _LONGEST else base
