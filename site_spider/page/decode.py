"""Finds the encoding of a body as browsers do, and tells text from binary content.

The encoding is the first of these that there is: byte order mark, charset of the
Content-Type header, declaration in the first bytes of the markup, UTF-8 if the body
reads as UTF-8, what a detector (chardetng, the one in Firefox) makes of a sample.
Labels mean what the Encoding Standard says (`latin-1` is windows-1252, `gb2312` is
gb18030); a label it does not know counts as no label, and so do those that it maps to
`replacement`, where a browser would show nothing of the page.

Decoding (page/codec.py) never fails: bytes that mean nothing become U+FFFD. No lone surrogates come out.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator
from functools import lru_cache
from typing import NamedTuple

from chardetng_py import EncodingDetector
from webencodings.labels import LABELS

from site_spider.page.codec import PYTHON_CODECS, decoded_at_once

DECLARATION_BYTES = 4_096  # the standard says 1,024; browsers read on to the end of the head
DETECTION_BYTES = 8_192  # behind the first byte that is not ASCII; 2 ms at most
SNIFF_BYTES = 1_024
_SEARCHED_BYTES = 262_144  # of the body in one call: 1 ms at most

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16le"), (codecs.BOM_UTF16_BE, "utf-16be"))
_UTF16_XML = {b"<\0?\0x\0": "utf-16le", b"\0<\0?\0x": "utf-16be"}
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


class Decoded(NamedTuple):
    """Text, and the name of the encoding it came in: lower case, as in the Encoding Standard."""

    text: str
    encoding: str


class Encoded(NamedTuple):
    """What a body is encoded in, and where its text begins: behind the byte order mark."""

    encoding: str
    start: int


def decode_small(body: bytes, content_type: str | None = None) -> Decoded | None:
    """Decode as a browser does; `content_type` is the value of the header.

    None for what takes more than a call: a large body, or one with bytes that mean nothing.
    """
    encoding, start = _declared_of(body, content_type) or Encoded("utf-8", 0)
    text = decoded_at_once(body, encoding, start)
    return None if text is None else Decoded(text, encoding)


def find_encoding(body: bytes, content_type: str | None = None) -> Generator[None, None, Encoded]:
    """The same for any body, in steps of a few milliseconds."""
    declared = _declared_of(body, content_type)
    if declared:
        return declared
    if (yield from _reads_as_utf8(body)):
        return Encoded("utf-8", 0)
    return Encoded((yield from _detect(body)), 0)


def _declared_of(body: bytes, content_type: str | None) -> Encoded | None:
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
    start = body[:SNIFF_BYTES].removeprefix(codecs.BOM_UTF8)
    if name in ("text/xml", "application/xml"):
        return b"<html" in start
    return name in _UNKNOWN_TYPES and _HTML_START.match(start) is not None and is_text(body)


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
    if start[:6] in _UTF16_XML:
        return _UTF16_XML[start[:6]]
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
        name.lower(): double or single or bare
        for name, double, single, bare in reversed(_ATTRIBUTE.findall(written))
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
    return "utf-8" if _nearly_utf8(sample) else _detected(sample, len(body) <= start + DETECTION_BYTES)


def _nearly_utf8(sample: bytes) -> bool:
    """Whether faults are as rare as in a UTF-8 page with a few broken or cut characters."""
    text = sample.decode("utf-8", "replace").rstrip("\ufffd")  # a cut may have split the last one
    faults = text.count("\ufffd")
    sound = len(text) - len(text.encode("ascii", "ignore")) - faults
    return sound > 0 and faults * 20 <= sound


def _detected(sample: bytes, whole: bool) -> str:
    detector = EncodingDetector()
    detector.feed(sample, last=whole)
    return _named(detector.guess(tld=None, allow_utf8=False)) or "windows-1252"
