"""WARC 1.1 records (ISO 28500) and the lines of their CDXJ index, as bytes. Pure.

A result is these records, each a gzip member of its own:
- `response` and `request` for each exchange, redirects first: the head as it was received, and the body as it
  was but for chunks. Its line `Transfer-Encoding` is named `X-Orig-Transfer-Encoding`, as other archivers do,
  since readers would look for chunks. A payload that the same page had before is a `revisit`.
- `resource` for content without an exchange, which is what WARC calls it: text as UTF-8, or the bytes.
- `metadata`: the rest of the result document as JSON; all that there is of a page that nothing answered for.

No value of a site or a seed can end a line of a record's head, and lengths are counted here, so none can
forge a record.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from site_spider.contracts.sink import Exchange, Record
from site_spider.errors import SinkRejected
from site_spider.page.decode import media_type
from site_spider.results.document import encode

PROFILE = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
NOT_MODIFIED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"
LOOKED_AT_BYTES = 1_000_000  # of a record, for its line in the index: both heads
_READ_BYTES = 65_536
_STEP_BYTES = 1_000_000  # of what is unpacked: a body may be a thousand times as long as what is packed
_URI_SIGNS = "!#$%&'()*+,/:;=?@[]~"  # that stay as they are
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]+")
_CHUNKED = re.compile(rb"^Transfer-Encoding(?=[ \t]*:)", re.IGNORECASE | re.MULTILINE)
_STATUS = re.compile(rb"HTTP/\S+ (\d{3})")
_TYPE = re.compile(rb"^Content-Type[ \t]*:[ \t]*([^\s;,]+)", re.IGNORECASE | re.MULTILINE)
_URL = re.compile(r"([^:/?#]+)://(?:[^/?#]*@)?(?:www\d*\.)?(\[.*?\]|[^\[/?#:]+)(?::0*(\d*))?([^?#]*)\??([^#]*)")
_KEY_SIGNS = "!\"$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # that a key has without an escape
_SESSION_SEGMENT = re.compile(r"/\((?:[0-9a-z]{24}|(?:[a-z]\([0-9a-z]{24}\))+)\)(?=/[^?]+\.aspx)")
_ID = "=[0-9a-z]{32}"
_SESSIONS = f"jsessionid{_ID} phpsessid{_ID} sid{_ID} aspsessionid[a-z]{{8}}=[a-z]{{24}} cfid=[^&]++&cftoken=[^&]++"
_SESSION_ARGUMENTS = [re.compile(f"^(.*){argument}(?:&|$)(.*)") for argument in _SESSIONS.split()]
_LISTED = ("response", "revisit", "resource")

NewId = Callable[[], object]


class Earlier(NamedTuple):
    """A record with the payload of the same page."""

    record_id: str
    date: str


Find = Callable[[str, str | None], Earlier | None]  # by place and digest of the payload; None: whatever it is


class WarcRecord(NamedTuple):
    """A record before it is packed: its head without the length, and its block in pieces."""

    headers: dict[str, str]
    block: tuple[bytes, ...]
    place: str = ""  # where a later one of the page with its payload finds it; of a failure another than the page's

    @property
    def head(self) -> bytes:
        lines = "".join(f"{name}: {_CONTROLS.sub(' ', value)}\r\n" for name, value in self.headers.items())
        length = sum(map(len, self.block))
        return f"WARC/1.1\r\n{lines}Content-Length: {length}\r\n\r\n".encode("utf-8", "replace")

    @property
    def beginning(self) -> bytes:
        """What the index is made of: both heads."""
        return self.head + self.block[0][:LOOKED_AT_BYTES]

    def packed(self) -> bytes:
        packer = zlib.compressobj(wbits=31)
        pieces = [packer.compress(piece) for piece in (self.head, *self.block, b"\r\n\r\n")]
        return b"".join((*pieces, packer.flush()))


def digest(*pieces: bytes) -> str:
    """As WARC writes it."""
    found = hashlib.sha1(usedforsecurity=False)
    for piece in pieces:
        found.update(piece)
    return f"sha1:{base64.b32encode(found.digest()).decode()}"


def warcinfo(name: str, about: dict[str, str], date: str, new_id: NewId) -> WarcRecord:
    """The record at the beginning of a file that says what it is."""
    fields = {
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
        **about,
    }
    block = "".join(f"{field}: {_CONTROLS.sub(' ', said)}\r\n" for field, said in fields.items()).encode()
    headers = {"WARC-Filename": name, "WARC-Date": date, "Content-Type": "application/warc-fields"}
    return _made("warcinfo", headers, (block,), new_id)


def records_of(record: Record, now: float, new_id: NewId, earlier: Find) -> list[WarcRecord]:
    """Those of one result. Raises SinkRejected."""
    document = {"url_id": record.key, **record.document}
    about = {"Site-Url-Id": quote(record.key, safe="", errors="replace")}
    made: list[WarcRecord] = []
    for exchange in record.exchanges:
        made += _of_exchange(exchange, about, new_id, earlier)
    if record.exchanges:
        document.pop("body", None)
        document.pop("body_base64", None)
    page = document.get("final_url") or document.get("url") or f"urn:x-url-id:{document['url_id']}"
    about |= {"WARC-Target-URI": uri(str(page)), "WARC-Date": _date_of(document, now)}
    return [*made, *_of_document(document, about, made, new_id)]


def _of_document(
    document: dict[str, Any], about: dict[str, str], made: list[WarcRecord], new_id: NewId
) -> list[WarcRecord]:
    found: list[WarcRecord] = []
    if (content := _content(document)) is not None:
        truncated = {"WARC-Truncated": "length"} if document.get("body_truncated") else {}
        found.append(_made("resource", {**about, **truncated, "Content-Type": content[0]}, (content[1],), new_id))
    for last in [*found, *made[-2:]][:1]:  # of an exchange the response, not its request
        about["WARC-Concurrent-To"] = last.headers["WARC-Record-ID"]
    headers = {**about, "WARC-Target-URI": f"urn:metadata:{about['WARC-Target-URI']}"}  # no capture of the page
    headers["Content-Type"] = "application/json"
    return [*found, _made("metadata", headers, (encode(document),), new_id)]


def _of_exchange(exchange: Exchange, about: dict[str, str], new_id: NewId, earlier: Find) -> list[WarcRecord]:
    url, date = uri(exchange.url), date_of(exchange.began)
    common = {**about, "WARC-Target-URI": url, "WARC-Date": date}
    if exchange.address:
        common["WARC-IP-Address"] = exchange.address
    payload = digest(exchange.body)
    is_same, has_payload = exchange.status == 304, not exchange.is_cut and not exchange.request.startswith(b"HEAD ")
    place = url if is_same or 200 <= exchange.status < 300 else f"{exchange.status} {url}"
    before = earlier(place, None if is_same else payload) if is_same or (exchange.body and has_payload) else None
    response = _response(exchange, {**common, "WARC-Payload-Digest": payload}, before, new_id)
    response = response._replace(place=place if has_payload and response.headers["WARC-Type"] == "response" else "")
    asked = {**common, "WARC-Concurrent-To": response.headers["WARC-Record-ID"]}
    asked["Content-Type"] = "application/http;msgtype=request"
    asked["WARC-Payload-Digest"] = digest(exchange.request.partition(b"\r\n\r\n")[2])
    return [response, _made("request", asked, (exchange.request,), new_id)]


def _response(exchange: Exchange, headers: dict[str, str], before: Earlier | None, new_id: NewId) -> WarcRecord:
    headers["Content-Type"] = "application/http;msgtype=response"
    headers |= {"WARC-Truncated": "disconnect"} if exchange.is_cut else {}
    head = _CHUNKED.sub(b"X-Orig-Transfer-Encoding", exchange.head)
    if before is not None:
        headers |= {"WARC-Refers-To": before.record_id, "WARC-Refers-To-Date": before.date}
        headers |= {"WARC-Refers-To-Target-URI": headers["WARC-Target-URI"]}
    if exchange.status == 304:  # which is about the last answer that had a body, so it has no payload
        del headers["WARC-Payload-Digest"]
        return _made("revisit", {**headers, "WARC-Profile": NOT_MODIFIED}, (head,), new_id)
    if before is None:
        return _made("response", headers, (head, exchange.body), new_id)
    return _made("revisit", {**headers, "WARC-Profile": PROFILE}, (head,), new_id)


def _made(kind: str, headers: dict[str, str], block: tuple[bytes, ...], new_id: NewId) -> WarcRecord:
    first = {"WARC-Type": kind, "WARC-Record-ID": f"<urn:uuid:{new_id()}>"}
    return WarcRecord({**first, **headers, "WARC-Block-Digest": digest(*block)}, block)


def _content(document: dict[str, Any]) -> tuple[str, bytes] | None:
    """Media type and bytes of the content, which is taken out of the document. Raises SinkRejected."""
    given = media_type(str(document.get("content_type") or ""))
    if isinstance(document.get("body"), str) and document["body"]:
        content = document.pop("body").encode("utf-8", "replace")
        return f"{given or 'text/plain'}; charset=utf-8", content
    if document.get("body_base64") is None:
        return None
    try:
        content = base64.b64decode(document.pop("body_base64"), validate=True)
    except (TypeError, ValueError) as error:
        raise SinkRejected(f"body_base64 is not base64: {error}") from None
    return given or "application/octet-stream", content


def uri(url: str) -> str:
    """A URL as it may stand in a line."""
    return quote(url, safe=_URI_SIGNS, errors="replace")


def date_of(moment: float) -> str:
    """Seconds since 1970, as WARC writes dates."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def _date_of(document: dict[str, Any], now: float) -> str:
    """When the result was fetched, else the time of writing."""
    try:
        return date_of(datetime.fromisoformat(document["fetched_at"]).timestamp())
    except (KeyError, TypeError, ValueError, OverflowError):
        return date_of(now)


# --- reading: what is whole in a file, and the index of it ----------------------------------------------


class PackedRecord(NamedTuple):
    """A whole record of a file."""

    offset: int
    length: int
    beginning: bytes  # unpacked


def members(file: BinaryIO) -> Iterator[PackedRecord]:
    """The whole records from the beginning on, until one that is not. In bounded memory."""
    offset = position = 0
    unpacker, beginning = zlib.decompressobj(wbits=31), bytearray()
    while chunk := file.read(_READ_BYTES):
        position += len(chunk)
        while chunk:
            try:
                piece = unpacker.decompress(chunk, _STEP_BYTES)
            except zlib.error:
                return
            beginning += piece[: LOOKED_AT_BYTES - len(beginning)]
            chunk = unpacker.unconsumed_tail
            if unpacker.eof:
                chunk = unpacker.unused_data
                end = position - len(chunk)
                yield PackedRecord(offset, end - offset, bytes(beginning))
                offset, unpacker, beginning = end, zlib.decompressobj(wbits=31), bytearray()


def index_line(member: PackedRecord, file_name: str) -> bytes | None:
    """The line of a record in the CDXJ index, without its end; None for one that is not listed."""
    head, _, block = member.beginning.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode("utf-8", "replace").split("\r\n")[1:])
    kind = headers["WARC-Type"]
    if kind not in _LISTED or headers.get("WARC-Profile") == NOT_MODIFIED:  # of which readers show an empty page
        return None
    said = head if kind == "resource" else block.partition(b"\r\n\r\n")[0]
    status, mime = _STATUS.match(said), _TYPE.search(said)
    fields = {
        "url": headers["WARC-Target-URI"],
        "mime": "warc/revisit" if kind == "revisit" else mime[1].decode("latin-1") if mime else "unk",
        "status": status[1].decode() if status else "200",
        "digest": headers.get("WARC-Payload-Digest", headers["WARC-Block-Digest"]),
        "length": str(member.length),
        "offset": str(member.offset),
        "filename": file_name,
    }
    stamp = re.sub(r"\D", "", headers["WARC-Date"])[:14]
    return f"{surt(fields['url'])} {stamp} {json.dumps(fields)}".encode()


def surt(url: str) -> str:
    """The key that pywb looks up: the host from its end on, then path and sorted query."""
    found = _URL.match(url.lower())
    if found is None:
        return url.lower()
    scheme, host, port, path, query = found.groups("")
    place = ",".join(reversed(host.replace("..", ".").strip(".[]").split(".")))
    if port and (scheme, port) not in (("http", "80"), ("https", "443")):
        place += f":{port}"
    segments: list[str] = []
    for segment in _bare(path).split("/")[1:]:
        if segment == ".." and segments:
            segments.pop()
        elif segment != ".":
            segments.append(segment)
    path, query = _SESSION_SEGMENT.sub("", "/" + "/".join(filter(None, segments))), _bare(query)
    for session in _SESSION_ARGUMENTS:
        query = session.sub(r"\1\2", query)
    query = "&".join(sorted(query.split("&"), key=lambda argument: argument.partition("=")))
    return f"{place}){path}{'?' if query else ''}{query}"


def _bare(part: str) -> str:
    """In lower case, without escapes that a key does not have."""
    found = unquote_to_bytes(part)
    while found != (bare := unquote_to_bytes(found)):
        found = bare
    return quote(found, safe=_KEY_SIGNS).lower()
