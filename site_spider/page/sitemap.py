"""Sitemaps, indexes of sitemaps, and feeds (RSS, Atom, JSON Feed): the entries of a response that is one.

What a response is, its root element or its keys say, never its URL. It is read as a stream, by an expat that
sees no entities, in steps that leave the event loop to others. Broken XML is mended where readers of feeds do so,
and read on from the next entry where not. What is small when it is packed cannot take long: tags, elements,
faults and URLs have bounds of their own. Formats: sitemaps.org, RSS 2.0 and 1.0, RFC 4287, jsonfeed.org.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from html import unescape
from html.entities import html5
from itertools import chain, islice
from sys import getsizeof
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin
from xml.parsers.expat import ExpatError, ParserCreate, XMLParserType, errors
from xml.sax.saxutils import escape

import orjson

from site_spider.page.decode import BOM, GZIP, URL_LINE, UTF_16, beginning_of, declared_encoding, python_codec
from site_spider.page.unpack import CodingError, CodingTooLarge, unpacked

MOST_ENTRIES: Final = 50_000  # of one file, as sitemaps.org has it
DEEPEST_INDEX: Final = 5  # indexes that lead to each other
MOST_BYTES: Final = 52_428_800  # of one file, unpacked, likewise
_MOST_URL_BYTES: Final = 25_000_000  # of all URLs of a file and what is said of them, in memory
_MOST_PARTS: Final = 2_000_000  # elements and attributes, or signs of JSON: two seconds of CPU time
_DATE_PARTS: Final = 10  # as long as so many of these it takes to compare two dates
_MOST_NAMES: Final = 10_000  # of elements and attributes, which expat keeps: 200 bytes each
_LONGEST_TAG: Final = 65_536  # which expat looks at anew with each piece
_MOST_ROBOTS_BYTES: Final = 512_000  # of a robots.txt, as RFC 9309 has it
_ENTRY_BYTES: Final = 100  # of a dict
_PIECE_BYTES: Final = 4_096  # between two looks at the clock: some milliseconds at most
_LONGEST: Final = 8_192  # characters of a value, as of a URL
_LONGEST_WORD: Final = 64  # characters of what is said beside a URL
_DEEPEST: Final = 64  # elements within each other

_LEAD: Final = re.compile(rb"(?:\xef\xbb\xbf|\s)*")  # before the XML declaration, where expat wants nothing
_JSON_SIGN: Final = re.compile(rb'["\[\]{},:]')
_OF_ITEM: Final = (b"url", b"date_modified", b"date_published")
_JSON_TEXT: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # up to the quotation mark
_HTTP: Final = re.compile(r"https?://", re.IGNORECASE)
_SITEMAP_LINE: Final = re.compile(
    rb"(?:\A\xef\xbb\xbf|^|\r)[ \t]*sitemap[ \t]*:[ \t]*([^\s#][^\r\n#]{0,8191})", re.MULTILINE | re.IGNORECASE
)
_MOST_NAMED: Final = 1_000  # sitemaps in one robots.txt
_GAP_PARTS: Final = 20  # as long as so many of these it takes to read on behind a fault
_CDATA, _CDATA_END = b"<![CDATA[", b"]]>"
_LOOSE: Final = re.compile(  # that begins neither a tag nor one of the five names of XML
    rb"&(?!(?:amp|lt|gt|quot|apos);)(#[0-9]{1,7};|#[xX][0-9A-Fa-f]{1,6};|[A-Za-z][A-Za-z0-9]{1,31};)?"
)
_LOOSE_SIGN: Final = re.compile(rb"<(?![A-Za-z_:/!?\x80-\xff])")
_ENTITY: Final = re.compile(r"&[A-Za-z_:][\w:.-]*;")
_CUT: Final = re.compile(rb"(?:&[#A-Za-z0-9]{0,33}|<(?:!(?:\[[CDAT]{0,5})?)?|\]{1,2})\Z")  # may go on in the next piece
_LONGEST_CUT: Final = 100
_CONTROL: Final = bytes([*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20)])
_MISMATCH: Final = errors.codes[errors.XML_ERROR_TAG_MISMATCH]
_MONTH: Final = re.compile(r"\d{4}(-\d\d)?")
_SLASHED: Final = re.compile(r"(\d{4})/(\d\d?)/(\d\d?)(?!\d)")
_ZONED: Final = re.compile(r"(\d{4}-\d\d-\d\d)(Z|[+-]\d\d:\d\d)")  # a day, as the schema of sitemaps has it, too
_PERIODS: Final = {4: timedelta(366), 7: timedelta(31)}  # that a date of this length names
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_REGISTERED: Final = "http://www.iana.org/assignments/relation/"  # may stand before a relation of Atom
_ENTRIES: Final = {"urlset": "url", "sitemapindex": "sitemap", "rss": "item", "RDF": "item", "feed": "entry"}
_FIELDS: Final = {
    **{name: name for name in ("guid", "lastmod", "priority", "changefreq")},
    **dict.fromkeys(("loc", "link"), "loc"),
    **dict.fromkeys(("pubDate", "date", "updated"), "lastmod"),  # date: dc:date
}

ListedAs = tuple[str | None, ...]  # the values of LISTED
LISTED: Final = ("lastmod", "priority", "changefreq", "source")  # in `meta.sitemap` of a page


class ListedPage(NamedTuple):
    """One page, or one further sitemap, with what the file says of it as it stands there."""

    url: str
    lastmod: str | None = None
    priority: str | None = None
    changefreq: str | None = None

    def meta(self, source: str, level: int | None = None) -> dict[str, Any]:
        """What stands as `meta.sitemap` in the result of the page; `source` is the URL of the file.

        `level` counts the indexes above a further file; None for a page.
        """
        said = {**self._asdict(), "source": source, **({} if level is None else {"level": level})}
        del said["url"]
        return said


class Sitemap(NamedTuple):
    """The entries of one file, in its order."""

    entries: list[ListedPage]
    note: str | None = None  # why it may have more
    refusal: str | None = None  # why it was not read at all


class _Fault(Exception):
    """The rest cannot be read: the entries before it count."""


class _Gap(Exception):
    """What comes next cannot be read; the entries behind it can."""


class _Refused(Exception):
    """Nothing of it counts."""


def sitemaps_of_robots(body: bytes) -> list[ListedPage]:
    """What the Sitemap lines of a robots.txt name."""
    return [
        ListedPage(line[1].decode("utf-8", "replace").strip())
        for line in islice(_SITEMAP_LINE.finditer(body[:_MOST_ROBOTS_BYTES]), _MOST_NAMED)
    ]


def is_listing(said: object) -> bool:
    """Whether what a file says of another one is about a sitemap or a robots.txt, and not about a page."""
    return isinstance(said, Mapping) and (said.get("robots") is True or isinstance(said.get("level"), int))


def read_sitemap(
    body: bytes, kind: str, url: str, *, since: datetime | None = None, content_type: str | None = None
) -> Generator[None, None, Sitemap]:
    """The entries of a file of this kind, in steps of about a millisecond.

    An entry whose `lastmod` is before `since` is left out; one without, or with an unreadable one, is not.
    What cannot be read ends the entries with a note; a file beyond MOST_BYTES is refused.
    """
    found = _Entries(since)
    read = {"json": _read_json, "text": _read_text}.get(kind)
    try:
        yield from read(body, url, found) if read else _read_xml(body, kind, url, found, content_type)
    except _Fault as fault:
        return Sitemap(found.pages, f"sitemap read up to {len(found.pages)} entries: {fault}")
    except _Refused as refused:
        return Sitemap([], refusal=f"sitemap not read: {refused}")
    if found.gap is None:
        return Sitemap(found.pages)
    return Sitemap(found.pages, "sitemap read with gaps, the first behind {} entries: {}".format(*found.gap))


def parse_lastmod(text: str | None) -> datetime | None:
    """A date of W3C's, also with slashes, or of e-mails', in UTC; None for what is neither."""
    if not text:
        return None
    if slashed := _SLASHED.match(text):
        text = "{}-{:0>2}-{:0>2}".format(*slashed.groups()) + text[slashed.end() :]
    if _MONTH.fullmatch(text):
        text = f"{text}-01-01"[:10]
    if zoned := _ZONED.fullmatch(text):
        text = "{}T00:00{}".format(*zoned.groups())
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(ValueError, OverflowError):  # such as an offset of years
            at = read(text)
            return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    return None


def _pieces(body: bytes) -> Iterator[bytes]:
    """Of the unpacked file. Raises _Fault and _Refused."""
    codings = ["gzip"] if body.startswith(GZIP) else []
    if not codings and len(body) > MOST_BYTES:
        raise _Refused(_TOO_LARGE)
    try:
        for some in unpacked(body, codings, MOST_BYTES):
            for begin in range(0, len(some), _PIECE_BYTES):
                yield some[begin : begin + _PIECE_BYTES]
    except CodingTooLarge:
        raise _Refused(_TOO_LARGE) from None
    except CodingError as error:
        raise _Fault(f"its gzip is broken: {error}") from None


_TOO_LARGE: Final = f"it has more than {MOST_BYTES} bytes, unpacked"


class _Entries:
    """Those found so far."""

    def __init__(self, since: datetime | None) -> None:
        self.pages: list[ListedPage] = []
        self.gap: tuple[int, str] | None = None  # the first one: how many pages are before it, and its fault
        self._words: dict[str, str] = {}  # most entries have the same
        self._parts_left = _MOST_PARTS
        self._since = since
        self._room_bytes = _MOST_URL_BYTES

    def goes_on_behind(self, fault: str) -> None:
        """To be called at the first gap."""
        self.gap = len(self.pages), fault

    def looked_at(self, parts: int) -> None:
        """Raises _Fault when that was too much."""
        self._parts_left -= parts
        if self._parts_left < 0:
            raise _Fault(f"it has more than {_MOST_PARTS} parts")

    def add(self, entry: ListedPage, base: str) -> None:
        """Raises _Fault when there are too many."""
        if len(self.pages) >= MOST_ENTRIES:
            raise _Fault(f"it has more than {MOST_ENTRIES}")
        if self._since is not None and _is_before(self._since, entry.lastmod):
            return
        try:
            url = urljoin(base, entry.url)
        except ValueError:  # such as a broken IPv6 address: this entry alone is none
            return
        if _HTTP.match(url) and len(url) <= _LONGEST:
            self._room_bytes -= getsizeof(url)
            words = (word and self._once(word) for word in entry[1:])
            self.pages.append(ListedPage(url, *words))
            if self._room_bytes < 0:
                raise _Fault(f"its URLs and dates take more than {_MOST_URL_BYTES} bytes")

    def _once(self, word: str) -> str:
        known = self._words.setdefault(word, word)
        if known is word:
            self._room_bytes -= getsizeof(word) + _ENTRY_BYTES
        return known


def _is_before(since: datetime, lastmod: str | None) -> bool:
    """Whether all of the day, month or year is that it names; of a time, whether that is."""
    if lastmod is None or (at := parse_lastmod(lastmod)) is None:
        return False
    usual = timedelta.resolution if ":" in lastmod and not _ZONED.fullmatch(lastmod) else timedelta(1)
    return since - at >= _PERIODS.get(len(lastmod), usual)


def _read_text(body: bytes, url: str, found: _Entries) -> Generator[None, None, None]:
    rest = b""
    for piece in chain(_in_utf_8(body), [b"\n"]):
        *lines, rest = (rest + piece.replace(b"\r", b"\n")).split(b"\n")
        found.looked_at(len(lines))
        for line in lines:
            text = line.removeprefix(BOM).strip()
            if URL_LINE.fullmatch(text):
                found.add(ListedPage(text.decode("utf-8", "replace")), url)
        rest = rest[: _LONGEST + 1]  # of an endless line the beginning, which is too long
        yield


def _read_json(body: bytes, url: str, found: _Entries) -> Generator[None, None, None]:
    reader = _JsonReader(url, found)
    for piece in _in_utf_8(body):
        found.looked_at(reader.feed(piece))
        yield
    reader.end()


class _JsonReader:
    """The items of a JSON Feed, sign by sign: a parser would hold up the event loop for all of it."""

    def __init__(self, url: str, found: _Entries) -> None:
        self._url, self._found = url, found
        self._rest = b""
        self._open: list[bytes] = []
        self._is_listing = False  # within the items
        self._is_in_text = False
        self._text = self._key = b""  # that were read last
        self._item: dict[bytes, str] = {}

    def feed(self, piece: bytes) -> int:
        """Returns how many signs it has. Raises _Fault."""
        data, at, signs = self._rest + piece, 0, 0
        while at < len(data):
            if not self._is_in_text:
                sign = _JSON_SIGN.search(data, at)
                if sign is None:
                    at = len(data)
                    break
                at = sign.end()
                signs += 1
                self._read_sign(sign[0])
                continue
            begin, at = at, _JSON_TEXT.match(data, at).end()  # type: ignore[union-attr] # also of nothing
            if len(self._text) <= _LONGEST:
                self._text += data[begin:at]
            if data[at : at + 1] != b'"':  # its end is in another piece
                break
            self._is_in_text = False
            at += 1
        self._rest = data[at:]
        return signs

    def end(self) -> None:
        """Raises _Fault."""
        if self._open or self._is_in_text:
            raise _Fault("its JSON ends early")

    def _read_sign(self, sign: bytes) -> None:
        if sign == b'"':
            self._is_in_text, self._text = True, b""
        elif sign == b":":
            self._key, self._text = self._text, b""
        elif sign in (b"{", b"["):
            self._begin(sign)
        else:
            if self._is_listing and len(self._open) == 3 and self._key in _OF_ITEM and self._text:
                self._item[self._key] = _json_text(self._text)
            self._key = self._text = b""
            if sign != b",":
                self._leave(sign)

    def _begin(self, sign: bytes) -> None:
        self._open.append(sign)
        if len(self._open) > _DEEPEST:
            raise _Fault(f"its JSON is nested deeper than {_DEEPEST}")
        if len(self._open) == 2:
            self._is_listing = sign == b"[" and self._key == b"items"
        self._key = self._text = b""

    def _leave(self, sign: bytes) -> None:
        if not self._open or self._open.pop() + sign not in (b"{}", b"[]"):
            raise _Fault("its JSON is broken")
        if len(self._open) == 2 and (said := self._item):
            self._item = {}
            date = said.get(b"date_modified") or said.get(b"date_published") or ""
            if loc := said.get(b"url", "").strip():
                self._found.add(ListedPage(loc, date if 0 < len(date) <= _LONGEST_WORD else None), self._url)


def _json_text(written: bytes) -> str:
    """Empty for one that is broken or too long."""
    try:
        return str(orjson.loads(b'"%b"' % written)) if len(written) <= _LONGEST else ""
    except orjson.JSONDecodeError:
        return ""


def _read_xml(
    body: bytes, kind: str, url: str, found: _Entries, content_type: str | None
) -> Generator[None, None, None]:
    reader = _XmlReader(kind, url, found)
    mender = _Mender()
    declared = declared_encoding(beginning_of(body)) or declared_encoding(b"", content_type)
    for piece in chain(_in_utf_8(body, declared.encoding if declared else "utf-8"), [b""]):
        rest = mender.mended(piece)
        found.looked_at(mender.parts)
        yield
        while rest:
            rest = reader.feed(rest)
            found.looked_at(reader.parts)
            yield
    reader.end()


def _in_utf_8(body: bytes, encoding: str = "utf-8") -> Iterator[bytes]:
    """In pieces of whole characters, from this encoding, or UTF-16 as the first bytes say. Raises _Fault."""
    name = UTF_16.get(beginning_of(body)[:2], encoding)
    decoder = getincrementaldecoder(name if name.startswith("utf-16") else python_codec(name))("replace")
    for piece in _pieces(body):
        try:
            text = decoder.decode(piece)
        except UnicodeError as error:  # of iso2022_jp_ext: an escape sequence without an end
            raise _Fault(f"its encoding is broken: {error}") from None
        if text:  # else half a character: nothing would mean the end
            yield text.encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


class _Mender:
    """Makes XML of what nearly is: without control characters, with a loose `&` or `<` as text, and with the
    characters that the names of HTML mean. So no name of an entity reaches expat.
    """

    def __init__(self) -> None:
        self.parts = 0  # of the last piece: what was mended, and the sections of CDATA
        self._rest = b""
        self._is_in_cdata = False

    def mended(self, piece: bytes) -> bytes:
        """Nothing means the end. Of the end of a piece it may keep back what goes on in the next one."""
        data = self._rest + piece.translate(None, _CONTROL).replace(b"\xef\xbf\xbe", b"").replace(b"\xef\xbf\xbf", b"")
        cut = _CUT.search(data, max(0, len(data) - 40)) if piece else None
        end = cut.start() if cut else len(data)
        self._rest, self.parts = data[end:], 0
        mended, at = [], 0
        while at < end:
            mark = _CDATA_END if self._is_in_cdata else _CDATA
            found = data.find(mark, at, end)
            begin, at = at, end if found < 0 else found + len(mark)
            mended.append(data[begin:at] if self._is_in_cdata else self._as_text(data[begin:at]))
            self._is_in_cdata ^= found >= 0
            self.parts += 1
        return b"".join(mended)

    def _as_text(self, data: bytes) -> bytes:
        data, signs = _LOOSE_SIGN.subn(b"&lt;", data)
        data, names = _LOOSE.subn(_meant, data) if b"&" in data else (data, 0)
        self.parts += signs + names
        return data


def _meant(found: re.Match[bytes]) -> bytes:
    if found[1] is None:
        return b"&amp;"
    name = found[1].decode()
    meant = unescape(f"&{name}") if name.startswith("#") else html5.get(name, f"&{name}")
    return escape(meant).encode()


class _XmlReader:
    """Elements by prefix and name, since many files use prefixes that they do not declare.

    An entry's URL has its prefix, none or Atom's: those of images and videos are none. Of dates the latest counts.
    """

    def __init__(self, kind: str, url: str, found: _Entries) -> None:
        self._entry = _ENTRIES[kind]
        self._begins = re.compile(rb"<(?:[\w.-]{1,64}+:)?%b[\s>/]" % self._entry.encode())
        self._prefixes: tuple[str, ...] = ()  # of what an entry says of itself
        self._found = found
        self._bases = [url]  # of the elements that are open
        self._depth = 0
        self._entry_depth = 0  # 0: outside of entries
        self._fields: dict[str, str] = {}
        self._name = ""  # of the field whose text is read
        self._text: list[str] = []
        self._length = 0
        self._fed = 0  # bytes
        self.parts = 0  # elements and attributes of the last piece
        self._has_entities = False  # of its own
        self._lost: bytes | None = None  # behind a gap: what may be the beginning of the next entry
        self._parser = self._new_parser()

    def _new_parser(self) -> XMLParserType:
        parser = ParserCreate("utf-8")  # whatever it declares
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        return parser

    def feed(self, piece: bytes) -> bytes:
        """Returns what is to be fed next, behind a gap. Raises _Fault."""
        self.parts = least = 0  # least: bytes that are passed over
        if self._lost is not None:
            least, piece = 1, self._lost + piece
            begin = self._begins.search(piece)
            if begin is None:
                self._lost = piece[max(0, piece.rfind(b"<", -_LONGEST_CUT)) :][-_LONGEST_CUT:]
                return b""
            piece = piece[begin.start() :]
            self._begin_anew()
        elif not self._fed:
            piece = _LEAD.sub(b"", piece, count=1)
        before, self._fed = self._fed, self._fed + len(piece)
        try:
            self._parser.Parse(piece, False)
        except (ExpatError, _Gap) as error:
            self._lose(error)
            return piece[max(least, self._parser.CurrentByteIndex - before) :]
        if self._fed - self._parser.CurrentByteIndex > _LONGEST_TAG:
            raise _Fault(f"it has a tag of more than {_LONGEST_TAG} bytes")
        if len(self._parser.intern) > _MOST_NAMES:
            raise _Fault(f"it has more than {_MOST_NAMES} names")
        return b""

    def end(self) -> None:
        """Raises _Fault."""
        if self._found.gap is None:
            try:
                self._parser.Parse(b"", True)
            except ExpatError as error:
                raise _Fault(_said_of(error)) from None
        elif len(self._found.pages) == self._found.gap[0]:
            raise _Fault(self._found.gap[1])

    def _lose(self, error: ExpatError | _Gap) -> None:
        """Of the entry at hand what was read counts, when its URL was."""
        self.parts += _GAP_PARTS
        self._lost, depth = b"", self._entry_depth
        if depth:
            self._parser.buffer_text = False  # gives the text before the fault
            if isinstance(error, ExpatError) and error.code == _MISMATCH and self._name:  # for want of its end
                self._end_field()
            if "loc" in self._fields:
                self._end_entry(self._bases[depth])
        if self._found.gap is None:
            self._found.goes_on_behind(_said_of(error))
        del self._bases[(depth or self._depth + 1) :]

    def _begin_anew(self) -> None:
        """Within an element of ours, since those around the entry have begun before."""
        self._lost, self._name = None, ""
        self._bases = self._bases[-1:]
        self._depth = self._entry_depth = self._fed = 0
        self._parser = self._new_parser()
        self._parser.Parse(b"<a>", False)
        self._fed = len(b"<a>")

    def _doctype(self, _name: str, _system: str | None, _public: str | None, has_subset: int) -> None:
        if has_subset:
            self._has_entities = True
            raise _Gap("it has a DOCTYPE with entities of its own, which are not read")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self.parts += 1 + len(attributes)
        if self._depth > _DEEPEST:
            raise _Fault(f"its elements are nested deeper than {_DEEPEST}")
        self._bases.append(_joined(self._bases[-1], attributes.get("xml:base", "")))
        prefix, _, name = tag.rpartition(":")
        if not self._entry_depth:
            if name == self._entry:
                self._entry_depth = self._depth
                self._fields, self._prefixes = {}, (prefix, "", "atom")
            elif name == "base" and len(self._bases) > 1:  # of what follows in the element around it
                self._bases[-2] = _joined(self._bases[-2], attributes.get("href", "").strip())
        elif self._depth == self._entry_depth + 1 and (known := _FIELDS.get(name)):
            self._begin_field(prefix, name, known, attributes)

    def _begin_field(self, prefix: str, name: str, known: str, attributes: dict[str, str]) -> None:
        if known != "lastmod" and prefix not in self._prefixes:
            return
        if name == "link" and self._entry in ("url", "sitemap"):  # another language of the page
            return
        if name == "link" and "href" in attributes:  # Atom's
            if attributes.get("rel", "alternate").lower().removeprefix(_REGISTERED) == "alternate":
                self._fields.setdefault("loc", _joined(self._bases[-1], attributes["href"].strip()))
        elif known != "guid" or attributes.get("isPermaLink") != "false":
            self._name, self._text, self._length = known, [], 0

    def _characters(self, text: str) -> None:
        if self._name and self._depth == self._entry_depth + 1 and self._length <= _LONGEST:
            self._length += len(text)
            self._text.append(text)

    def _end(self, _tag: str) -> None:
        self._depth -= 1
        base = self._bases.pop()
        if self._name and self._depth == self._entry_depth:
            self._end_field()
        elif self._entry_depth and self._depth < self._entry_depth:
            self._entry_depth = 0
            self._end_entry(base)

    def _end_field(self) -> None:
        text = "".join(self._text).strip()
        if text and len(text) <= (_LONGEST if self._name in ("loc", "guid") else _LONGEST_WORD):
            earlier = self._fields.setdefault(self._name, text)
            if self._name == "lastmod" and earlier != text:
                self.parts += _DATE_PARTS
                self._fields["lastmod"] = max(earlier, text, key=lambda date: parse_lastmod(date) or _NEVER)
        self._name = ""

    def _end_entry(self, base: str) -> None:
        said = self._fields
        guid = said.get("guid", "")
        loc = said.get("loc") or (guid if _HTTP.match(guid) else None)  # else a name of any kind
        if loc and not (self._has_entities and _ENTITY.search(loc)):  # nobody knows what it stands for
            self._found.add(ListedPage(loc, *(said.get(name) for name in LISTED[:3])), base)


def _said_of(error: ExpatError | _Gap) -> str:
    return f"its XML is broken: {error}" if isinstance(error, ExpatError) else str(error)


def _joined(base: str, url: str) -> str:
    try:
        joined = urljoin(base, url) if url else base
    except ValueError:
        return base
    return joined if len(joined) <= _LONGEST else base
