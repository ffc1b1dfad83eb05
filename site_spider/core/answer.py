"""Reads one HTTP/1 answer out of bytes, as long as it is plain.

Theory of operation. Bytes go in through `feed` as they come, `ended` says that no more will.
The head is read in one go by two expressions that know well-formed lines only. Whatever they
do not know (a line without a colon, a bare LF, a folded line, two lengths, a transfer coding
other than chunked) raises OddAnswer: odd answers are rare, and a reader that is patient with
them asks again. So nothing is guessed here, and no two readers can differ on where a body
ends.

- What no reader could make anything of is NoAnswer, so that it is not asked for again.
- Of a body with a length, what is missing or too much is seen; of one that the end of the
  connection ends, nothing can be.
- No position is looked at twice: what waits for more bytes is the head (bounded) or the line
  of one chunk (bounded).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

MAX_HEAD_BYTES = 65_536  # a longer one is odd
_MAX_CHUNK_LINE_BYTES = 1_024  # likewise
_LONGEST_VERSION = 64  # before a slash, of any reader's patience
_NO_BODY = frozenset((204, 304))
# as Twisted takes them out: they are about the connection, not about the page
_OF_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailers", b"transfer-encoding", b"upgrade", b"proxy-connection")
)

_STATUS = re.compile(rb"(HTTP/1\.[01]) ([1-9][0-9]{2})(?: [^\x00-\x08\x0a-\x1f]*+)?\r\n")
_LINES = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[^\x00-\x08\x0a-\x1f]*+\r\n)*+\r\n")
_LINE = re.compile(rb"([^:\r\n]++):[ \t]*+([^\r\n]*+)\r\n")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*+(?:;[^\x00-\x08\x0a-\x1f]*+)?\r\n")
_TRAILER = re.compile(rb"[^\x00-\x08\x0a-\x1f]*+\r\n")

Headers = list[tuple[bytes, bytes]]


class OddAnswer(Exception):
    """The answer is not plain HTTP/1; it says why."""


class NoAnswer(Exception):
    """What came is no answer at all, and no reader would make one of it."""


class Ending(Enum):
    """How a body ended."""

    WHOLE = "whole"
    UNSURE = "partial"  # with the connection, and nothing had said how long it is
    CUT = "dataloss"  # with the connection, before its time


class Answer:
    """One answer, being read. What `feed` raised once, it is not to be called after."""

    def __init__(self, *, to_head: bool = False) -> None:
        self.status = 0  # 0 until the head is there
        self.version = b""
        self.headers: Headers = []  # as written, Content-Length first, those of the connection left out
        self.length: int | None = None  # of the body; None: not known before it ends
        self.received = 0  # bytes of the body
        self.ending: Ending | None = None  # None until it is all there
        self.is_reusable = False  # whether the connection may carry another one
        self._to_head = to_head  # an answer to HEAD has no body, whatever it says
        self._parts: list[bytes] = []
        self._rest = b""  # of the head, or of a chunk's line
        self._chunks: _Chunks | None = None

    @property
    def body(self) -> bytes:
        """What has come so far."""
        if self._chunks is not None:
            return bytes(self._chunks.body)
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def feed(self, data: bytes) -> None:
        """More bytes of the connection. Raises OddAnswer and NoAnswer."""
        if not self.status:
            data = self._rest + data
            end = data.find(b"\r\n\r\n") + 4
            if end < 4 or end > MAX_HEAD_BYTES:
                self._wait_for_head(data)
                return
            if not self._read_head(data[:end]):
                self.feed_again(data[end:])
                return
            data = data[end:]
            if self.ending is not None:
                self.is_reusable = self.is_reusable and not data
                return
        if data:
            self._read_body(data)

    def feed_again(self, data: bytes) -> None:
        """Behind an answer that only says that another one will come (1xx)."""
        self._rest = b""
        if data:
            self.feed(data)

    def ended(self) -> None:
        """The connection has ended. Raises NoAnswer when not even the head is there."""
        if not self.status:
            raise NoAnswer("the connection ended before the head did")
        if self.ending is None:
            is_unsure = self.length is None and self._chunks is None
            self.ending = Ending.UNSURE if is_unsure else Ending.CUT
            self.is_reusable = False

    def _wait_for_head(self, data: bytes) -> None:
        if len(data) >= MAX_HEAD_BYTES:
            raise OddAnswer(f"the head is longer than {MAX_HEAD_BYTES} bytes")
        if (len(data) >= _LONGEST_VERSION or b"\n" in data) and b"/" not in data[:_LONGEST_VERSION]:
            raise NoAnswer("this is not HTTP")
        if b"\n\n" in data or b"\n\r\n" in data:
            raise OddAnswer("the head has lines that do not end in CR LF")
        self._rest = data

    def _read_head(self, head: bytes) -> bool:
        """False when the proper answer is still to come."""
        status = _STATUS.match(head)
        if status is None and b"/" not in head.split(b"\n", 1)[0]:
            raise NoAnswer("this is not HTTP")
        if status is None or not _LINES.fullmatch(head, status.end()):
            raise OddAnswer("the head is not well-formed")
        code = int(status[2])
        if code < 200:
            if code == 101:
                raise OddAnswer("the server wants to speak another protocol")
            return False
        self.version = status[1]
        self._take_lines(_LINE.findall(head, status.end()), code)
        self.status = code
        return True

    def _take_lines(self, lines: Headers, code: int) -> None:
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
        self._frame(lengths, codings, code)
        is_closing = any(b"close" in value for value in connection)
        self.is_reusable = self.version == b"HTTP/1.1" and not is_closing

    def _frame(self, lengths: list[bytes], codings: list[bytes], code: int) -> None:
        """How the body will end."""
        if len(lengths) > 1 or (lengths and codings) or (lengths and not _LENGTH.fullmatch(lengths[0])):
            raise OddAnswer("the length of the body is not clear")
        if self._to_head or code in _NO_BODY:
            self.length = int(lengths[0]) if lengths and self._to_head else 0
            self.ending = Ending.WHOLE
        elif lengths:
            self.length = int(lengths[0])
            self.ending = None if self.length else Ending.WHOLE
        elif codings:
            if self.version != b"HTTP/1.1" or len(codings) > 1 or codings[0].lower() != b"chunked":
                raise OddAnswer("the transfer coding is not chunked")
            self._chunks = _Chunks()
        if self.length is not None and (lengths or not self._to_head):
            self.headers.insert(0, (b"Content-Length", str(self.length).encode()))

    def _read_body(self, data: bytes) -> None:
        if self._chunks is not None:
            surplus = self._chunks.feed(data)
            self.received = len(self._chunks.body)
            if surplus is not None:
                self._finish(surplus)
            return
        left = len(data) if self.length is None else self.length - self.received
        self._parts.append(data if len(data) <= left else data[:left])
        self.received += len(self._parts[-1])
        if self.received == self.length:
            self._finish(len(data) - left)

    def _finish(self, surplus: int) -> None:
        self.ending = Ending.WHOLE
        self.is_reusable = self.is_reusable and surplus == 0


class _Chunks:
    """A chunked body."""

    def __init__(self) -> None:
        self.body = bytearray()
        self._left = 0  # of the chunk at hand
        self._state: Callable[[bytes, int], int] = self._line
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """How many bytes came behind the end; None before it. Raises OddAnswer."""
        data, position = self._rest + data, 0
        self._rest = b""
        while position < len(data):
            after = self._state(data, position)
            if after < 0:
                self._rest = data[position:]
                if len(self._rest) > _MAX_CHUNK_LINE_BYTES:
                    raise OddAnswer("the line of a chunk is too long")
                return None
            position = after
            if self._state == self._over:
                return len(data) - position
        return None

    # Each returns where it stopped, -1 when it needs more.

    def _line(self, data: bytes, position: int) -> int:
        found = _CHUNK.match(data, position)
        if found is None:
            return self._missing(data, position)
        self._left = int(found[1], 16)
        self._state = self._content if self._left else self._trailer
        return found.end()

    def _content(self, data: bytes, position: int) -> int:
        taken = data[position : position + self._left]
        self.body += taken
        self._left -= len(taken)
        if not self._left:
            self._state = self._end
        return position + len(taken)

    def _end(self, data: bytes, position: int) -> int:
        if data.startswith(b"\r\n", position):
            self._state = self._line
            return position + 2
        if data[position:] == b"\r":
            return -1
        raise OddAnswer("a chunk is longer than it says")

    def _trailer(self, data: bytes, position: int) -> int:
        found = _TRAILER.match(data, position)
        if found is None:
            return self._missing(data, position)
        if found.end() == position + 2:
            self._state = self._over
        return found.end()

    def _over(self, _data: bytes, position: int) -> int:
        return position

    @staticmethod
    def _missing(data: bytes, position: int) -> int:
        if b"\n" in data[position : position + _MAX_CHUNK_LINE_BYTES]:
            raise OddAnswer("the line of a chunk is not well-formed")
        return -1
