"""Finds the encoding of a body as browsers do, and tells text, binary content, sitemaps and feeds apart.

The encoding is the first of these that there is: byte order mark, charset of the
Content-Type header, declaration in the first bytes of the markup, UTF-8 if the body
reads as UTF-8, what a detector (chardetng, the one in Firefox) makes of a sample.
Labels mean what the Encoding Standard says (`latin-1` is windows-1252, `gb2312` is
gb18030); a label it does not know counts as no label, and so do those that it maps to
`replacement`, where a browser would show nothing of the page.

Decoding (page/decode.py) never fails: bytes that mean nothing become U+FFFD. No lone surrogates come out.
"""

from __future__ import annotations

import codecs
import re
import zlib
from base64 import b64encode
from collections.abc import Generator, Iterator
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from chardetng_py import EncodingDetector
from webencodings.labels import LABELS

# --- codec: decodes bytes of a known encoding in slices -------------------------------------------------
# Theory of operation. A codec runs in C and lets no other thread run meanwhile, so a call works on one
# slice. The decoders are incremental: what a slice ends in the middle of is kept for the next one, and the
# slices together are what one call for the whole body gives. A body that is sound and small is decoded in
# one call, which no error handler makes slow.
#
# - Bytes that mean nothing become U+FFFD. Each costs up to a quarter of a microsecond, so behind the
#   first `MAX_FAULTS` of them nothing is decoded: such a body is no text.
# - `iso2022_jp_ext` gives up when more than eight bytes wait for the end of an escape sequence, so a slice
#   ends before the last of these.

AT_ONCE_BYTES = 200_000  # a sound body up to here takes one call: 1 ms at most
SLICE_BYTES = 16_384  # 2 ms at most, when all of it is faults
MAX_FAULTS = 250_000  # U+FFFD in the text

_MENDED_SLICE_BYTES = 2_048
_MAX_MENDED = 1_000  # faults for which Python code runs, 5 µs each
_LONGEST_ESCAPE = 16  # bytes
_FAULT = "\ufffd"

PYTHON_CODECS = {
    "big5": "big5hkscs",
    "euc-kr": "cp949",
    "iso-2022-jp": "iso2022_jp_ext",
    "iso-8859-8-i": "iso8859-8",
    "macintosh": "mac-roman",
    "shift_jis": "cp932",
    "windows-874": "cp874",
    "x-mac-cyrillic": "mac-cyrillic",
}
_MULTI_BYTE = frozenset(
    ("utf-8", "utf-16le", "utf-16be", "gb18030", "big5", "euc-jp", "euc-kr", "iso-2022-jp", "shift_jis")
)
_MENDED = frozenset(("gb18030", "euc-jp"))
_MEND = "site_spider.mend"


class Decoding:
    """Gives the text of a body, piece by piece. `is_whole` is True when all of it was given."""

    def __init__(self, body: bytes, encoding: str, start: int = 0) -> None:
        self.is_whole = False
        self._body = body
        self._encoding = encoding
        self._position = start
        self._mends_left = _MAX_MENDED if encoding in _MENDED else 0

    def pieces(self) -> Iterator[str]:
        """To be iterated once."""
        return self._of_multi_byte() if self._encoding in _MULTI_BYTE else self._of_single_byte()

    def _of_single_byte(self) -> Iterator[str]:
        table = _byte_table(self._encoding)
        while self._position < len(self._body):
            yield codecs.charmap_decode(self._next_slice(SLICE_BYTES), "strict", table)[0]
        self.is_whole = True

    def _of_multi_byte(self) -> Iterator[str]:
        codec = PYTHON_CODECS.get(self._encoding, self._encoding)
        decoder: Any = codecs.getincrementaldecoder(codec)("replace")
        size = _MENDED_SLICE_BYTES if self._encoding in _MENDED else SLICE_BYTES
        faults = 0
        while self._position < len(self._body):
            before = decoder.getstate() if self._mends_left else None
            data = self._next_slice(size)
            is_last = self._position == len(self._body)
            try:
                text: str = decoder.decode(data, is_last)
            except UnicodeError:  # of ISO-2022-JP: it keeps no more of an escape sequence without an end
                decoder.reset()
                text = decoder.decode(data, True)
            found = text.count(_FAULT)
            if 0 < found <= self._mends_left:
                text = self._mended(decoder, before, data, is_last)
                self._mends_left -= found
            yield text
            faults += found
            if faults > MAX_FAULTS:
                return
        self.is_whole = True

    def _mended(self, decoder: Any, before: Any, data: bytes, is_last: bool) -> str:
        decoder.setstate(before)
        decoder.errors = _MEND
        text: str = decoder.decode(data, is_last)
        decoder.errors = "replace"
        return text

    def _next_slice(self, size: int) -> bytes:
        begin, end = self._position, self._position + size
        if self._encoding == "iso-2022-jp" and end < len(self._body):
            escape = self._body.find(b"\x1b", end - _LONGEST_ESCAPE, end)
            end = end if escape < 0 else escape
        self._position = min(end, len(self._body))
        return self._body[begin : self._position]


@cache
def _byte_table(encoding: str) -> str:
    """The 256 characters of a single-byte encoding; where Python has gaps, the standard has C1 controls."""
    if encoding == "x-user-defined":
        return "".join(chr(byte if byte < 0x80 else 0xF700 + byte) for byte in range(256))
    text = [bytes([byte]).decode(PYTHON_CODECS.get(encoding, encoding), "replace") for byte in range(256)]
    return "".join(chr(i) if 0x80 <= i < 0xA0 and char == _FAULT else char for i, char in enumerate(text))


def _mend(error: UnicodeError) -> tuple[str, int]:
    """What Python's codecs lack of the standard's: the euro sign of GBK, and NEC's signs in EUC-JP."""
    assert isinstance(error, UnicodeDecodeError)
    lead, trail = (*error.object[error.start : error.start + 2], 0)[:2]
    if error.encoding == "gb18030" and lead == 0x80:
        return "€", error.start + 1
    if error.encoding == "euc_jp" and lead >= 0xA1 and trail >= 0xA1:
        row, cell = lead - 0xA1, trail - 0xA1
        first = (row >> 1) + (0x81 if row < 62 else 0xC1)
        second = cell + 0x9F if row & 1 else cell + 0x40 + (cell >= 0x3F)
        return bytes((first, second)).decode("cp932", "replace")[:1], error.start + 2
    return _FAULT, error.end


codecs.register_error(_MEND, _mend)


DECLARATION_BYTES = 4_096  # the standard says 1,024; browsers read on to the end of the head
DETECTION_BYTES = 8_192  # behind the first byte that is not ASCII; 2 ms at most
SNIFF_BYTES = 1_024
_SEARCHED_BYTES = 262_144  # of the body in one call: 1 ms at most

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16le"), (codecs.BOM_UTF16_BE, "utf-16be"))
_UTF16_MARKUP = {b"<\0": "utf-16le", b"\0<": "utf-16be"}  # the standard says so of `<?x` alone
_HEADER_CHARSET = re.compile(r"""(?:^|;)[ \t]*charset[ \t]*=[ \t]*["']?([^"';,\s]+)""", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"""\s*<\?xml\s[^>]*?encoding\s*=\s*["']([^"'>]+)["']""", re.IGNORECASE)
_MARKUP = re.compile(
    rb"""<!--.*?(?:-->|\Z)
    | <meta(?=[\s/])(?P<meta>(?:[^=>]++|=\s*+(?:"[^"]*+"?|'[^']*+'?)?)*)
    | </?[a-z](?:[^=>]++|=\s*+(?:"[^"]*+"?|'[^']*+'?)?)*
    | <[!/?][^>]*+""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE = re.compile(rb"""([^\s/>=]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>"']++)))?""")
_CONTENT_CHARSET = re.compile(rb"""charset\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s;"']+))""", re.IGNORECASE)
_NOT_ASCII = re.compile(rb"[\x80-\xff]")

_MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+/[!#$%&'*+.^_`|~0-9a-z-]+")
_TEXT_TYPE = re.compile(
    r"text/(?!plain$).*|.*\+(?:xml|json)|application/(?:json|xml|(?:x-)?javascript|ecmascript|x-www-form-urlencoded"
    r"|xml-dtd|jsonl|(?:x-)?ndjson|json-seq|(?:x-)?yaml|toml|sql|graphql|x-sh|x-tex|n-triples|n-quads|trig)"
)
_BINARY_TYPE = re.compile(
    r"(?:image|audio|video|font|model)/(?!svg\+xml$).*|application/(?:octet-stream|pdf|zip|(?:x-)?gzip|x-tar"
    r"|x-7z-compressed|(?:x-rar-compressed|vnd\.rar)|wasm|msword|vnd\.ms-.*|vnd\.openxmlformats-.*)"
)
_MARKUP_TYPES = frozenset(("text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml"))
_UNKNOWN_TYPES = frozenset(("", "*/*", "unknown/unknown", "application/unknown"))
_MAGIC = (
    *(b"%PDF-", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"\xff\xd8\xff", b"PK\x03\x04", b"\x1f\x8b"),
    *(b"wOFF", b"wOF2", b"OggS\0", b"Rar!\x1a", b"7z\xbc\xaf", b"BZh9", b"\x28\xb5\x2f\xfd", b"\0asm"),
)
_CONTROL = bytes([*range(0x09), 0x0B, *range(0x0E, 0x1B), *range(0x1C, 0x20)])
_HTML_START = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--|<(?:!doctype\s+html|html|head|script|iframe|h1|div|font|table|a|style|title"
    rb"|b|body|br|p|meta|link)[\s>])",
    re.IGNORECASE,
)
_XML_HTML = re.compile(rb"\s*+<html[\s/>]", re.IGNORECASE)  # as its root element


class Encoded(NamedTuple):
    """An encoding, lower-case as in the Encoding Standard, and where the text begins: behind the byte order mark."""

    encoding: str
    start: int


def decode_small(body: bytes, content_type: str | None = None) -> tuple[str, str] | None:
    """The text as a browser decodes it, and its encoding; `content_type` is the value of the header.

    None for what takes more than a call: a large body, or one with bytes that mean nothing.
    """
    if len(body) > AT_ONCE_BYTES:
        return None
    encoding, start = declared_encoding(body, content_type) or Encoded("utf-8", 0)
    data = body[start:] if start else body
    if encoding not in _MULTI_BYTE:
        return codecs.charmap_decode(data, "strict", _byte_table(encoding))[0], encoding
    try:
        return data.decode(PYTHON_CODECS.get(encoding, encoding)), encoding
    except UnicodeError:
        return None


def find_encoding(body: bytes, content_type: str | None = None) -> Generator[None, None, Encoded]:
    """The same for any body, in steps of a few milliseconds."""
    declared = declared_encoding(body, content_type)
    if declared:
        return declared
    if (yield from _reads_as_utf8(body)):
        return Encoded("utf-8", 0)
    return Encoded((yield from _detect(body)), 0)


def declared_encoding(body: bytes, content_type: str | None = None) -> Encoded | None:
    """What the mark, the header or the beginning of a body says, in this order."""
    for bom, encoding in _BOMS:
        if body.startswith(bom):
            return Encoded(encoding, len(bom))
    declared = _header_encoding(content_type) or _markup_encoding(body, content_type)
    return Encoded(declared, 0) if declared else None


def python_codec(encoding: str) -> str:
    """Python's name for the encoding in which a page of this encoding writes the queries of its URLs.

    Queries are never in UTF-16, whatever the page is in; unknown names mean UTF-8.
    """
    name = _named(encoding) or "utf-8"
    if name.startswith("utf-16") or name == "x-user-defined":
        return "utf-8"
    return PYTHON_CODECS.get(name, name)


@lru_cache(maxsize=128)  # a crawl meets a few
def media_type(content_type: str | None) -> str:
    """Lower-case `type/subtype` of a Content-Type header, empty if there is none or it is none."""
    name = (content_type or "").partition(";")[0].partition(",")[0].strip().lower()
    return name if _MEDIA_TYPE.fullmatch(name) else ""


def is_text(body: bytes, content_type: str | None = None) -> bool:
    """Whether a body is worth decoding: by its type, or by its first bytes where the type says nothing."""
    by_type = _is_text_type(media_type(content_type))
    if by_type is not None:
        return by_type
    if (_header_encoding(content_type) or "").startswith("utf-16"):
        return True
    return not _looks_binary(body[:SNIFF_BYTES])


@lru_cache(maxsize=128)
def _is_text_type(name: str) -> bool | None:
    """None for a type that says nothing."""
    return False if _BINARY_TYPE.fullmatch(name) else True if _TEXT_TYPE.fullmatch(name) else None


def is_html(body: bytes, content_type: str | None = None) -> bool:
    """Whether links are to be looked for."""
    name = media_type(content_type)
    if name in _MARKUP_TYPES:
        return True
    start = body[:_BEGINNING_BYTES].removeprefix(codecs.BOM_UTF8)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        start = start.decode("utf-16", "ignore").encode("utf-8", "ignore")
    if name in ("text/xml", "application/xml"):
        return _XML_HTML.match(start, _behind_prolog(start)) is not None
    return name in _UNKNOWN_TYPES and _HTML_START.match(start, 0, SNIFF_BYTES) is not None and is_text(body)


def _looks_binary(start: bytes) -> bool:
    if start.startswith(tuple(bom for bom, _ in _BOMS)):
        return False
    return start.startswith(_MAGIC) or len(start.translate(None, _CONTROL)) < len(start)


def _named(label: str) -> str | None:
    name: str | None = LABELS.get(label.strip("\t\n\f\r ").lower())
    if name == "replacement":
        return None
    return "gb18030" if name == "gbk" else name


@lru_cache(maxsize=128)
def _header_encoding(content_type: str | None) -> str | None:
    found = _HEADER_CHARSET.search(content_type[:SNIFF_BYTES]) if content_type else None
    return _named(found[1]) if found else None


def _markup_encoding(body: bytes, content_type: str | None) -> str | None:
    """What an XML declaration or a meta tag says, for types in which there can be one."""
    name = media_type(content_type)
    if not (name in _MARKUP_TYPES or name in _UNKNOWN_TYPES or name.endswith(("/xml", "+xml"))):
        return None
    start = body[:DECLARATION_BYTES]
    if start[:2] in _UTF16_MARKUP:
        return _UTF16_MARKUP[start[:2]]
    found = _XML_ENCODING.match(start)
    return (found and _declared(found[1])) or _meta_encoding(start)


def _meta_encoding(start: bytes) -> str | None:
    if b"charset" not in start.lower():
        return None
    for tag in _MARKUP.finditer(start):
        if tag["meta"] and (label := _meta_label(tag["meta"])) and (encoding := _declared(label)):
            return encoding
    return None


def _meta_label(written: bytes) -> bytes | None:
    found: dict[bytes, bytes] = {
        name.lower(): double or single or bare for name, double, single, bare in _ATTRIBUTE.findall(written)[::-1]
    }
    if b"charset" in found:
        return found[b"charset"]
    inner = _CONTENT_CHARSET.search(found.get(b"content", b""))
    if inner and found.get(b"http-equiv", b"").lower() == b"content-type":
        return inner[1] or inner[2] or inner[3] or None
    return None


def _declared(label: bytes) -> str | None:
    """The encoding a declaration means, which was read as ASCII and so cannot be UTF-16."""
    name = _named(label.decode("latin-1"))
    if name and name.startswith("utf-16"):
        return "utf-8"
    return "windows-1252" if name == "x-user-defined" else name


def _reads_as_utf8(body: bytes) -> Generator[None, None, bool]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for begin in range(0, len(body), _SEARCHED_BYTES):
            end = begin + _SEARCHED_BYTES
            decoder.decode(body[begin:end], end >= len(body))
            yield
    except UnicodeDecodeError:
        return False
    return True


def _detect(body: bytes) -> Generator[None, None, str]:
    """The encoding of a body that is not in UTF-8, or nearly."""
    start = 0
    for begin in range(0, len(body), _SEARCHED_BYTES):
        if found := _NOT_ASCII.search(body, begin, begin + _SEARCHED_BYTES):
            start = found.start()
            break
        yield
    sample = body[start : start + DETECTION_BYTES]
    if _nearly_utf8(sample):
        return "utf-8"
    detector = EncodingDetector()
    detector.feed(sample, last=len(body) <= start + DETECTION_BYTES)
    return _named(detector.guess(tld=None, allow_utf8=False).replace("cp", "windows-")) or "windows-1252"  # cp874


def _nearly_utf8(sample: bytes) -> bool:
    """Whether faults are as rare as in a UTF-8 page with a few broken or cut characters."""
    text = sample.decode("utf-8", "replace").rstrip("\ufffd")  # a cut may have split the last one
    faults = text.count("\ufffd")
    sound = len(text) - len(text.encode("ascii", "ignore")) - faults
    return sound > 0 and faults * 20 <= sound


# --- body: cuts a body to what is kept: text, or on request the bytes of binary content -----------------

LONGEST_CHARACTER_BYTES = 4  # in UTF-8
_SLICE_BYTES = 49_152  # encoded in one call; a multiple of three


class BodyLimits(NamedTuple):
    """The settings SITE_BODY_MAX_BYTES (0: no limit) and SITE_KEEP_BINARY."""

    max_bytes: int = 10_000_000
    keep_binary: bool = False


class KeptBody(NamedTuple):
    """Text, or bytes as base64 text, or neither; `truncated` when it is only the beginning."""

    text: str | None = None
    base64: str | None = None
    truncated: bool = False


def keep_text(text: str, limits: BodyLimits) -> KeptBody:
    """A small text, cut between two characters so that its UTF-8 fits."""
    if not limits.max_bytes or len(text) * LONGEST_CHARACTER_BYTES <= limits.max_bytes:
        return KeptBody(text)  # what nearly every page is, without encoding it
    kept = KeptText(limits, 0)
    kept.add(text)
    return kept.body(is_whole=True)


def keep_binary(body: bytes, limits: BodyLimits) -> Generator[None, None, KeptBody]:
    """The bytes, if they are wanted at all; in steps of less than a millisecond."""
    if not limits.keep_binary or not body:
        return KeptBody()
    size = min(len(body), limits.max_bytes or len(body))
    pieces: list[str] = []
    for begin in range(0, size, _SLICE_BYTES):
        pieces.append(b64encode(body[begin : min(begin + _SLICE_BYTES, size)]).decode("ascii"))
        yield
    return KeptBody(base64="".join(pieces), truncated=size < len(body))


class KeptText:
    """Takes a text piece by piece, until what is kept of it and what is read of it are there."""

    def __init__(self, limits: BodyLimits, read_chars: int) -> None:
        self._is_bounded = limits.max_bytes > 0
        self._left_bytes, self._left_chars = limits.max_bytes, read_chars  # to be kept, and to be read
        self._pieces: list[str] = []
        self._cut: tuple[int, str] | None = None  # the piece that does not fit, and what fits of it

    @property
    def is_enough(self) -> bool:
        """Whether no more pieces are of use."""
        return self._cut is not None and self._left_chars <= 0

    def add(self, piece: str) -> None:
        """The next piece."""
        if self._is_bounded and self._cut is None:
            encoded = piece.encode("utf-8", "replace")
            if len(encoded) > self._left_bytes:
                self._cut = len(self._pieces), encoded[: self._left_bytes].decode("utf-8", "ignore")
            self._left_bytes -= len(encoded)
        self._pieces.append(piece)
        self._left_chars -= len(piece)

    def body(self, *, is_whole: bool) -> KeptBody:
        """What is kept; `is_whole` when all pieces of the text were added."""
        if self._cut is None:
            return KeptBody("".join(self._pieces), truncated=not is_whole)
        count, rest = self._cut
        return KeptBody("".join([*self._pieces[:count], rest]), truncated=True)

    def read_text(self, kept: str) -> str:
        """The text to be read, which is `kept` if that is as long."""
        if self._cut is None or self._left_chars + sum(map(len, self._pieces[self._cut[0] :])) <= 0:
            return kept
        return "".join(self._pieces)


# --- Tells sitemaps and feeds from other pages, by how they begin ----------------------------------------

_SEARCHED: Final = 2_000_000  # bytes that may stand before a JSON Feed says to be one
_BEGINNING_BYTES: Final = 65_536  # in which the root element stands, behind comments
_TEXT_BYTES: Final = 4_096  # of which all lines must be URLs
_HTML: Final = (b"<!doctype html", b"<ht")  # as its beginning
_ROOT: Final = re.compile(rb"\s*+<(?:[\w.-]+:)?(urlset|sitemapindex|rss|feed|RDF)[\s>/]")
_BEFORE: Final = re.compile(  # what may stand before it, up to these; a whole DOCTYPE:
    rb"""\s*+(<!--|<\?|<!doctype\b[^>\[]*+
    (?:\[(?:"[^"]*+"|'[^']*+'|<!--.*?-->|[^]"'<]++|<(?!!--))*+\]\s*+)?+>)""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_ENDS: Final = {b"<!--": b"-->", b"<?": b"?>"}
_MOST_BEFORE: Final = 100  # of them
_JSON_FEED: Final = re.compile(rb'"version"\s*:\s*"https?:\\?/\\?/(?:www\.)?jsonfeed\.org\\?/version\\?/')
_OBJECT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*+\{")
BOM: Final = codecs.BOM_UTF8
GZIP: Final = b"\x1f\x8b\x08"
URL_LINE: Final = re.compile(rb"https?://[^\s<>\"]+", re.IGNORECASE)
UTF_16: Final = {  # by the first two bytes: a mark, or the first character
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
    **{bytes((sign, 0)): "utf-16-le" for sign in b"<{ \t\r\n"},
    **{bytes((0, sign)): "utf-16-be" for sign in b"<{ \t\r\n"},
}


def kind_of(body: bytes, media_type: str = "") -> str | None:
    """The root element of a sitemap or feed, `json`, `text`; None for anything else.

    `text` is a list of URLs alone, that says of itself to be plain text or is packed.
    """
    if body[:14].lower().startswith(_HTML):  # nearly all pages: the rest takes some microseconds
        return None
    beginning = _in_utf_8(beginning_of(body))
    if (root := _ROOT.match(beginning, _behind_prolog(beginning))) is not None:
        return root[1].decode()
    if media_type == "text/plain" or body.startswith(GZIP):
        lines = beginning[:_TEXT_BYTES].removeprefix(BOM).splitlines()
        whole = lines if len(beginning) < _TEXT_BYTES else lines[:-1]
        said = [line.strip() for line in whole if line.strip()]
        if said and all(URL_LINE.fullmatch(line) for line in said):
            return "text"
    if _OBJECT.match(beginning) is None:
        return None
    texts = (beginning_of(body, most) for most in (_BEGINNING_BYTES, _SEARCHED))  # nothing, of gzip that breaks there
    return "json" if any(_JSON_FEED.search(_in_utf_8(text)) for text in texts) else None


def _in_utf_8(beginning: bytes) -> bytes:
    codec = UTF_16.get(beginning[:2])
    return beginning.decode(codec, "replace").encode() if codec else beginning


def _behind_prolog(beginning: bytes) -> int:
    """Where the root element of XML stands; the end, when something before it has none."""
    at = len(BOM) if beginning.startswith(BOM) else 0
    for _ in range(_MOST_BEFORE):
        if (before := _BEFORE.match(beginning, at)) is None:
            break
        end = _ENDS.get(before[1], b"")
        if (found := beginning.find(end, before.end())) < 0:
            return len(beginning)
        at = found + len(end)
    return at


def beginning_of(body: bytes, most: int = _BEGINNING_BYTES) -> bytes:
    """Of the unpacked file, up to so many bytes."""
    if not body.startswith(GZIP):
        return body[:most]
    try:
        return zlib.decompressobj(31).decompress(body[:most], most)
    except zlib.error:
        return b""
