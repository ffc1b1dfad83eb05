"""Reads chunked bodies, with bounds on the bytes that are not content.

llhttp reads them in C and says what it is given; it does not say where a message ended, nor how
long a line is. So the bytes are fed in steps that end at fixed places of the stream, and the
bounds are looked at there: the outcome does not depend on how the bytes came.
"""

from __future__ import annotations

from httptools import HttpParserError, HttpResponseParser

from site_spider.download.answer_errors import OddAnswer
from site_spider.engine.http_bounds import MAX_FRAMING_BYTES, OversizedAnswer

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
        """Whether the body has ended."""
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
            self._look_behind(len(data) > len(step))
            return len(data)
        self._fed += len(step)
        self._to_bound -= len(step)
        if not self._to_bound:
            self._check_bounds()
        return len(step)

    def _look_behind(self, is_more: bool) -> None:
        """llhttp does not speak of line ends behind a message."""
        self.has_surplus = self.has_surplus or is_more or not self._last.strip(b"\r\n")

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
        """From httptools."""
        self._is_behind_head = True

    def on_header(self, name: bytes, _value: bytes) -> None:
        """From httptools: a trailer. It refuses a length there by itself."""
        if self._is_behind_head and name.lower() == b"transfer-encoding":
            raise OddAnswer("a transfer coding is among the trailers")

    def on_message_complete(self) -> None:
        """From httptools."""
        self.is_complete = True
