"""Reads one HTTP/1 answer from bytes.

Theory of operation. Bytes go in through `feed` as they come, `ended` says that no more will. Each
head is collected until its empty line and goes to llhttp in one piece, and so do the chunks of a
body, step by step. Whatever llhttp refuses is odd, and so is what it takes although readers differ on
it (a transfer coding other than chunked, chunks in HTTP/1.0, a body where the status allows none). So
no two readers can differ on where the body of any other answer ends.

What is odd raises OddAnswer, unless the answer `takes_odd`: then it is read as Scrapy's client reads it,
and the connection carries no other one, for nobody can be sure of what is behind it.

- The outcome follows from the bytes alone, however they are cut: each rule looks at a whole head,
  or at a fixed place of the stream.
- What no reader could make anything of is NoAnswer, so that it is not asked for again. What is
  larger than any reader should take is OversizedAnswer; nor is that.
- Of a body with a length, what is missing or too much is seen; of one that the end of the
  connection ends, nothing can be.
- One call of `feed` does a bounded step of work, and no byte is looked at twice.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

from httptools import HttpParserError, HttpResponseParser
from scrapy.http import Headers, Response
from scrapy.responsetypes import responsetypes

from site_spider.engine.scrapy_parts import QuickHeaders

MAX_HEAD_BYTES = 65_536  # of all heads of an answer: interim answers (1xx) have one each
MAX_HEAD_LINES = 4_000
MAX_INTERIM_ANSWERS = 100
MAX_FRAMING_BYTES = 65_536  # of chunk lines, extensions and trailers, beyond as many as of content


class OddAnswer(Exception):
    """The answer is not plain HTTP/1; it says why."""


class NoAnswer(Exception):
    """What came is no answer at all, and no reader would make one of it."""


class OversizedAnswer(Exception):
    """One of the bounds is passed; it says which."""


# --- chunks: reads chunked bodies, with bounds on the bytes that are not content -------------------------
# llhttp reads them in C and says what it is given; it does not say where a message ended, nor how long a
# line is. So the bytes are fed in steps that end at fixed places of the stream, and the bounds are looked
# at there: the outcome does not depend on how the bytes came.

_STEP_BYTES = 16_384  # about 0.3 ms of chunks of one byte
_HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
_LAST_BYTES = 5  # one more than a message ends with: CR LF CR LF


class Chunks:
    """A chunked body. What `feed` raised once, it is not to be called after."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.has_surplus = False  # more came than the body
        self._events = _Events(self.body)
        self._parser = HttpResponseParser(self._events)
        self._parser.feed_data(_HEAD)
        self._fed = 0
        self._to_bound = _STEP_BYTES  # bytes until the bounds are looked at
        self._content_before = 0  # when they were the last time
        self._last = b""

    @property
    def is_whole(self) -> bool:
        return self._events.is_complete

    def feed(self, data: bytes) -> int:
        """Read a step, and return how many bytes that were. Raises OddAnswer and OversizedAnswer."""
        step = data if len(data) <= self._to_bound else data[: self._to_bound]
        try:
            self._parser.feed_data(step)
        except HttpParserError as error:
            if not self.is_whole:
                raise OddAnswer(f"a chunk is not well-formed: {error}") from error
            self.has_surplus = True
        self._last = (self._last + step[-_LAST_BYTES:])[-_LAST_BYTES:]
        if self.is_whole:
            is_more = len(data) > len(step) or not self._last.strip(b"\r\n")  # llhttp does not speak of line ends
            self.has_surplus = self.has_surplus or is_more
            return len(data)
        self._fed += len(step)
        self._to_bound -= len(step)
        if not self._to_bound:
            self._check_bounds()
        return len(step)

    def _check_bounds(self) -> None:
        content = len(self.body)
        if content == self._content_before:
            raise OversizedAnswer(f"{_STEP_BYTES} bytes of the chunks have no content")
        if self._fed - content > MAX_FRAMING_BYTES + content:
            raise OversizedAnswer(
                f"{self._fed - content} bytes of chunk lines came for {content} of content; "
                f"{MAX_FRAMING_BYTES} more than content is the limit"
            )
        self._content_before = content
        self._to_bound = _STEP_BYTES


class _Events:
    """What llhttp calls."""

    def __init__(self, body: bytearray) -> None:
        self.on_body = body.extend
        self.is_complete = False
        self._is_behind_head = False

    def on_headers_complete(self) -> None:
        self._is_behind_head = True

    def on_header(self, name: bytes, _value: bytes) -> None:
        """From httptools: a trailer. It refuses a length there by itself."""
        if self._is_behind_head and name.lower() == b"transfer-encoding":
            raise OddAnswer("a transfer coding is among the trailers")

    def on_message_complete(self) -> None:
        self.is_complete = True


_LONGEST_VERSION = 64  # before a slash, of any reader's patience
_NO_BODY = frozenset((204, 304))
# as Twisted takes them out: they are about the connection, not about the page
_OF_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailers", b"transfer-encoding", b"upgrade", b"proxy-connection")
)

_STATUS = re.compile(rb"(HTTP/1\.[01]) ([1-9][0-9]{2})(?: [^\x00-\x08\x0a-\x1f]*+)?\r\n")
_LINE = re.compile(rb"\r\n([^:\r\n]+):[ \t]*([^\r\n]*)")  # of a head that is well-formed
_END = b"\r\n\r\n"
_ODD_STATUS = re.compile(rb"([!-.0-~]*/[0-9]+\.[0-9]+) 0*([1-9][0-9]{0,8})(?: .*)?", re.DOTALL)
_ODD_END = re.compile(rb"\n\r?\n")
_FOLD = re.compile(rb"\r?\n(?=[ \t])")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(rb"[0-9]{1,30}")

HeaderLines = list[tuple[bytes, bytes]]


class BodyEnd(Enum):
    """How a body ended."""

    WHOLE = "whole"
    UNSURE = "partial"  # with the connection, and nothing had said how long it is
    CUT = "dataloss"  # with the connection, before its time


class HttpAnswer:
    """One answer, being read. What `feed` raised once, it is not to be called after."""

    def __init__(self, *, to_head: bool = False, takes_odd: bool = False) -> None:
        self.status = 0  # 0 until the head is there
        self.version = b""
        self.head = b""  # as it came, for archives
        self.headers: HeaderLines = []  # as written, Content-Length first, those of the connection left out
        self.length: int | None = None  # of the body; None: not known before it ends
        self.received = 0  # bytes of the body
        self.ending: BodyEnd | None = None  # None until it is all there
        self.is_reusable = False  # whether the connection may carry another one
        self.has_surplus = False  # whether more than the answer came
        self.is_bodiless = to_head  # there is no body whatever the server thinks: some send one all the same
        self._to_head = to_head
        self._takes_odd, self._is_odd = takes_odd, False
        self._head = bytearray()  # what has come of the head at hand
        self._bytes_left = MAX_HEAD_BYTES
        self._lines_left = MAX_HEAD_LINES
        self._interims_left = MAX_INTERIM_ANSWERS
        self._body: bytes | bytearray = b""
        self._chunks: Chunks | None = None

    @property
    def body(self) -> bytes:
        """What has come so far."""
        return bytes(self._body)

    def body_from(self, start: int) -> bytes:
        """What has come behind so many bytes."""
        return bytes(self._body[start:])

    def feed(self, data: bytes) -> int:
        """Read more bytes of the connection, and return how many; those behind them come next.

        Raises OddAnswer, OversizedAnswer and NoAnswer.
        """
        if self.status:
            return self._read_body(data)
        head, taken = self._next_head(data)
        if head:
            try:
                self._read_head(head)
            except OddAnswer:
                if not self._takes_odd:
                    raise
                taken -= len(head) - self._read_odd_head(head)
        if self.status:
            rest = data[taken:]
            if self.ending is not None:
                self._finish(has_surplus=bool(rest))
                return len(data)
            return taken + self._read_body(rest) if rest else taken
        return taken

    def ended(self) -> None:
        """The connection has ended. Raises NoAnswer when not even the head is there."""
        if not self.status:
            raise NoAnswer("the connection ended before the head did")
        if self.ending is None:
            is_unsure = self.length is None and self._chunks is None
            self.ending = BodyEnd.UNSURE if is_unsure else BodyEnd.CUT
            self.is_reusable = False

    def _next_head(self, data: bytes) -> tuple[bytes, int]:
        """The head that ends in these bytes, empty if none does; and how many of them are done with."""
        before = len(self._head)
        if before:
            self._head += data
        seen = self._head if before else data
        if before < _LONGEST_VERSION and not seen.startswith(b"HTTP/"):
            _check_protocol(seen)
        start = max(0, before - len(_END) + 1)
        end = seen.find(_END, start, self._bytes_left) + len(_END)
        if end < len(_END):
            end = self._odd_end(seen, start)
            if not end:
                if not before:
                    self._head += data
                return b"", len(data)
        self._head = bytearray()
        return bytes(seen[:end]), end - before

    def _odd_end(self, seen: bytes | bytearray, start: int) -> int:
        """The end of a head whose lines end in LF; 0 when it is still to come."""
        found = _ODD_END.search(seen, start, self._bytes_left)
        if found is not None:
            if not self._takes_odd:
                raise OddAnswer("the head has lines that do not end in CR LF")
            return found.end()
        if len(seen) >= self._bytes_left:
            raise OversizedAnswer(f"the head is longer than {MAX_HEAD_BYTES} bytes")
        return 0

    def _read_head(self, head: bytes) -> None:
        """The status stays 0 when the proper answer is still to come. Raises OddAnswer."""
        status = _STATUS.match(head)
        if status is None:
            raise OddAnswer("the status line is not well-formed")
        code = int(status[2])
        if code == 101:
            raise OddAnswer("the server wants to speak another protocol")
        try:
            HttpResponseParser(None).feed_data(head)
        except HttpParserError as error:
            raise OddAnswer(f"the head is not well-formed: {error}") from error
        self.version = status[1]
        self._take_lines(_LINE.findall(head), code)
        self._take_head(head, code)

    def _read_odd_head(self, head: bytes) -> int:
        """Returns how many bytes it has: it may have ended in LF, before."""
        self._is_odd, self.headers = True, []
        found = _ODD_END.search(head)
        assert found is not None
        head = head[: found.end()]
        first, _, lines = head.partition(b"\n")
        status = _ODD_STATUS.fullmatch(first.removesuffix(b"\r"))
        if status is None or lines.startswith((b" ", b"\t")):
            raise NoAnswer("the status line is not well-formed")
        self.version, code = status[1], int(status[2])
        if not 100 <= code < 200:
            self._take_lines(_odd_lines_of(lines), code)
        self._take_head(head, code)
        return len(head)

    def _take_head(self, head: bytes, code: int) -> None:
        self._bytes_left -= len(head)
        self._lines_left -= head.count(b"\n")
        if self._lines_left < 0:
            raise OversizedAnswer(f"the head has more than {MAX_HEAD_LINES} lines")
        if 100 <= code < 200:
            self._pass_over()
        else:
            self.status, self.head = code, head

    def _pass_over(self) -> None:
        """An interim answer (1xx) says only that another one will come."""
        self._interims_left -= 1
        if self._interims_left < 0:
            raise OversizedAnswer(f"more than {MAX_INTERIM_ANSWERS} interim answers (1xx) came first")
        self.headers, self.length, self.ending = [], None, None

    def _take_lines(self, lines: HeaderLines, code: int) -> None:
        lengths: list[bytes] = []
        codings: list[bytes] = []
        connection: list[bytes] = []
        for name, written in lines:
            value = written.rstrip(b" \t")
            lower = name.lower()
            if lower == b"content-length":
                lengths.append(value)
            elif lower not in _OF_CONNECTION:
                self.headers.append((name, value))
            elif lower == b"transfer-encoding":
                codings.append(value)
            elif lower == b"connection":
                connection.append(value.lower())
        if self._is_odd:
            lengths, codings = self._settled(lengths, codings, code)
        else:
            self._check_framing(lengths, codings, code)
        self._frame(lengths, codings, code)
        is_proper = self.version == b"HTTP/1.1" and not self._is_odd
        self.is_reusable = is_proper and b"close" not in b",".join(connection)

    def _check_framing(self, lengths: list[bytes], codings: list[bytes], code: int) -> None:
        """Whatever the status says of a body."""
        if len(lengths) > 1 or (lengths and codings) or (lengths and not _LENGTH.fullmatch(lengths[0])):
            raise OddAnswer("the length of the body is not clear")
        if codings and (self.version != b"HTTP/1.1" or len(codings) > 1 or codings[0].lower() != b"chunked"):
            raise OddAnswer("the transfer coding is not chunked")
        if (code < 200 or code == 204) and (codings or (lengths and int(lengths[0]))):
            raise OddAnswer(f"an answer of status {code} says that it has a body")

    def _settled(self, lengths: list[bytes], codings: list[bytes], code: int) -> tuple[list[bytes], list[bytes]]:
        """The one of several lengths or codings that Scrapy's client takes."""
        if self._to_head or code in _NO_BODY:
            return [length for length in lengths[:1] if _LENGTH.fullmatch(length)], []
        if codings:
            if codings[0].lower() != b"chunked":
                raise NoAnswer("the transfer coding is not chunked")
            return [], codings
        if not lengths:
            return [], []
        given = [length.strip(b" \t") for length in b",".join(lengths).split(b",")]
        if not all(map(_LENGTH.fullmatch, given)) or len(set(map(int, given))) != 1:
            raise NoAnswer("the length of the body is not clear")
        return given[:1], []

    def _frame(self, lengths: list[bytes], codings: list[bytes], code: int) -> None:
        self.is_bodiless = self._to_head or code in _NO_BODY
        if self.is_bodiless:
            self.length = int(lengths[0]) if lengths and self._to_head else 0
            self.ending = BodyEnd.WHOLE
        elif lengths:
            self.length = int(lengths[0])
            self.ending = None if self.length else BodyEnd.WHOLE
        elif codings:
            self._chunks = Chunks()
            self._body = self._chunks.body
        if self.length is not None and (lengths or not self._to_head):
            self.headers.insert(0, (b"Content-Length", str(self.length).encode()))

    def _read_body(self, data: bytes) -> int:
        if self._chunks is not None:
            try:
                taken = self._chunks.feed(data)
            except OddAnswer:
                if not self._takes_odd:
                    raise
                self.ended()  # as if it were cut here
                taken = len(data)
            self.received = len(self._chunks.body)
            if self._chunks.is_whole:
                self._finish(has_surplus=self._chunks.has_surplus)
            return taken
        left = len(data) if self.length is None else self.length - self.received
        content = data if len(data) <= left else data[:left]
        if not self._body:
            self._body = content
        else:
            if not isinstance(self._body, bytearray):
                self._body = bytearray(self._body)
            self._body += content
        self.received += len(content)
        if self.received == self.length:
            self._finish(has_surplus=len(data) > left)
        return len(data)

    def _finish(self, *, has_surplus: bool) -> None:
        self.ending = BodyEnd.WHOLE
        self.has_surplus = has_surplus
        self.is_reusable = self.is_reusable and not has_surplus


def _check_protocol(seen: bytes | bytearray) -> None:
    """As soon as the first line is there, or as much of it as is looked at."""
    first, ends, _ = seen[:_LONGEST_VERSION].partition(b"\n")
    if b"/" not in first and (ends or len(first) == _LONGEST_VERSION):
        raise NoAnswer("this is not HTTP")


def _odd_lines_of(lines: bytes) -> HeaderLines:
    """Header lines that have a colon; a line that begins with a blank goes on with the one before."""
    found: HeaderLines = []
    for line in _FOLD.sub(b"", lines).split(b"\n"):
        name, colon, value = line.partition(b":")
        if colon and not _TOKEN.fullmatch(name):
            raise NoAnswer("a header line is not well-formed")
        if colon:
            found.append((name, b" ".join(value.strip().splitlines())))
    return found


# --- response: builds Scrapy's Response from a plain answer ----------------------------------------------


def headers_of(lines: list[tuple[bytes, bytes]]) -> Headers:
    """As `Headers(lines)` makes them, which spells every name once more."""
    headers = QuickHeaders()
    for name, value in lines:
        values: list[bytes] = dict.setdefault(headers, name.title(), [])
        values.append(value)
    return headers


def class_of(headers: Headers, url: str, body: bytes) -> type[Response]:
    """As Scrapy finds it; for most pages the type in their headers says it."""
    content_types = dict.get(headers, b"Content-Type")
    if content_types and not dict.get(headers, b"Content-Encoding"):
        kind = _class_of_type(content_types[-1])
        if kind is not Response:
            return kind
    return responsetypes.from_args(headers=headers, url=url, body=body)


@lru_cache(maxsize=256)
def _class_of_type(content_type: bytes) -> type[Response]:
    return responsetypes.from_content_type(content_type)
