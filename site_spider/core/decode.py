"""Turns bodies into text the way browsers do, and says which bodies are text at all.

The encoding is the first of these that there is: byte order mark, charset of the
Content-Type header, declaration in the first bytes of the markup, UTF-8 if the body
reads as UTF-8, what a detector (chardetng, the one in Firefox) makes of a sample.
Labels mean what the Encoding Standard says (`latin-1` is windows-1252, `gb2312` is
gb18030); a label it does not know counts as no label, and so do those that it maps to
`replacement`, where a browser would show nothing of the page.

Decoding never fails: bytes that mean nothing become U+FFFD. No lone surrogates come out.
"""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import NamedTuple

from chardetng_py import EncodingDetector
from webencodings.labels import LABELS

DECLARATION_BYTES = 4_096  # the standard says 1,024; browsers read on to the end of the head
DETECTION_BYTES = 8_192  # behind the first byte that is not ASCII; 2 ms at most
SNIFF_BYTES = 1_024

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

_PYTHON_CODECS = {
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
MAX_MENDED = 1_000  # faults for which Python code runs

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


def decode_body(body: bytes, content_type: str | None = None) -> Decoded:
    """Decode as a browser does; `content_type` is the value of the header. Never raises."""
    for bom, encoding in _BOMS:
        if body.startswith(bom):
            return Decoded(_decode(body[len(bom) :], encoding), encoding)
    declared = _header_encoding(content_type) or _markup_encoding(body, content_type)
    if declared:
        return Decoded(_decode(body, declared), declared)
    return _decode_undeclared(body)


def python_codec(encoding: str) -> str:
    """Python's name for the encoding in which a page of this encoding writes the queries of its URLs.

    Queries are never in UTF-16, whatever the page is in; unknown names mean UTF-8.
    """
    name = _named(encoding) or "utf-8"
    if name.startswith("utf-16") or name == "x-user-defined":
        return "utf-8"
    return _PYTHON_CODECS.get(name, name)


def media_type(content_type: str | None) -> str:
    """Lower-case `type/subtype` of a Content-Type header, empty if there is none or it is none."""
    name = (content_type or "").partition(";")[0].partition(",")[0].strip().lower()
    return name if _MEDIA_TYPE.fullmatch(name) else ""


def is_text(body: bytes, content_type: str | None = None) -> bool:
    """Whether a body is worth decoding: by its type, or by its first bytes where the type says nothing."""
    name = media_type(content_type)
    if _BINARY_TYPE.fullmatch(name):
        return False
    if _TEXT_TYPE.fullmatch(name):
        return True
    if (_header_encoding(content_type) or "").startswith("utf-16"):
        return True
    return not _looks_binary(body[:SNIFF_BYTES])


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


def _decode_undeclared(body: bytes) -> Decoded:
    try:
        return Decoded(body.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        pass
    found = _NOT_ASCII.search(body)
    start = found.start() if found else 0
    sample = body[start : start + DETECTION_BYTES]
    encoding = "utf-8" if _nearly_utf8(sample) else _detected(sample, len(body) <= start + DETECTION_BYTES)
    return Decoded(_decode(body, encoding), encoding)


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


def _decode(body: bytes, encoding: str) -> str:
    if encoding not in _MULTI_BYTE:
        return codecs.charmap_decode(body, "replace", _byte_table(encoding))[0]
    codec = _PYTHON_CODECS.get(encoding, encoding)
    text = body.decode(codec, "replace")
    if encoding in _MENDED and 0 < text.count("\ufffd") <= MAX_MENDED:
        return body.decode(codec, "site_spider.mend")
    return text


@cache
def _byte_table(encoding: str) -> str:
    """The 256 characters of a single-byte encoding; where Python has gaps, the standard has C1 controls."""
    if encoding == "x-user-defined":
        return "".join(chr(byte if byte < 0x80 else 0xF700 + byte) for byte in range(256))
    text = [bytes([byte]).decode(_PYTHON_CODECS.get(encoding, encoding), "replace") for byte in range(256)]
    return "".join(chr(i) if 0x80 <= i < 0xA0 and char == "\ufffd" else char for i, char in enumerate(text))


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
    return "\ufffd", error.end


codecs.register_error("site_spider.mend", _mend)
