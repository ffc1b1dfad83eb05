"""Twisted's HTTP client as Scrapy's handler uses it, with bounds on what servers send.

Theory of operation. The protocol stands before Twisted's parser and hands it what has come a step at
a time, while the turn of the event loop has time for it; otherwise reading pauses, and a later turn
goes on. A head goes in as whole lines, because the parser copies a line that waits for its end with
each byte that comes. The parser counts lines and bytes of heads and interim answers, the decoder
counts what of the chunks is not content: both raise OversizedAnswer, and the connection is gone.

A private part of Twisted and of Scrapy's handler, as the handler itself uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from scrapy.core.downloader.handlers.http11 import (
    HTTP11DownloadHandler,
    _LenientHTTP11ClientFactory,
    _LenientHTTP11ClientProtocol,
    _LenientHTTPClientParser,
)
from scrapy.crawler import Crawler
from twisted.internet.defer import fail
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.client import HTTPConnectionPool, ResponseFailed, ResponseNeverReceived
from twisted.web.http import _ChunkedTransferDecoder, _IdentityTransferDecoder

from site_spider.engine.background import Turns
from site_spider.engine.callback_guard import (
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEAD_LINES,
    MAX_INTERIM_ANSWERS,
    OversizedAnswer,
    has_input,
)

_STEP_BYTES = 4_096  # about 3 ms of chunks of one byte


class BoundedClientFactory(_LenientHTTP11ClientFactory):
    """For the pool of connections."""

    def buildProtocol(self, addr: Any) -> BoundedClient:  # noqa: ARG002, N802 - Twisted's names
        return BoundedClient(self._quiescentCallback)


def oversized(error: BaseException) -> OversizedAnswer | None:
    """What was too large, when that is why Scrapy's handler failed."""
    if isinstance(error.__cause__, ResponseFailed):
        for reason in error.__cause__.reasons:
            if isinstance(reason.value, OversizedAnswer):
                return reason.value
    return None


class BoundedClient(_LenientHTTP11ClientProtocol):
    """One connection."""

    transport: Any  # over TCP or TLS
    _parser: Any

    def __init__(self, quiescent_callback: Callable[..., None]) -> None:
        super().__init__(quiescent_callback)  # type: ignore[no-untyped-call]
        self._turns = Turns.of_running_loop()
        self._was_asked = False
        self._unread = bytearray()
        self._searched = 0  # bytes of these that have no end of a line
        self._going_on: asyncio.Task[None] | None = None
        self._lost: Failure | None = None  # the end of the connection, which waits for what came before it

    def request(self, request: Any) -> Any:
        """From Twisted, which makes a request that can be made again on another connection."""
        if self._was_asked and self._state == "QUIESCENT" and has_input(self.transport.fileno()):
            self.transport.abortConnection()
            return fail(ResponseNeverReceived([Failure(ConnectionDone())]))  # type: ignore[no-untyped-call]
        self._was_asked = True
        answered = super().request(request)
        self._parser.__class__ = _BoundedParser  # as Scrapy's own protocol does it
        return answered

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        if self._parser is None:  # nobody asked
            self.transport.abortConnection()
            return
        self._parser._everReceivedData = True
        self._unread += data
        if self._going_on is not None:
            self.transport.pauseProducing()  # the parser may have resumed it
            return
        while step := self._next_step():
            if not self._turns.has_time():
                self._put_off(step)
                return
            self._read(step)

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 - Twisted's name
        if self._going_on is None:
            super().connectionLost(reason)  # type: ignore[no-untyped-call]
        else:
            self._lost = reason

    def _finishResponse_WAITING(self, rest: bytes) -> None:  # noqa: N802 - Twisted's name
        """What came behind the answer would be taken for the next one."""
        if self._currentRequest is not None and (rest or self._unread):
            self._currentRequest.persistent = False
        super()._finishResponse_WAITING(rest)

    _finishResponse_TRANSMITTING = _finishResponse_WAITING  # noqa: N815 - Twisted's name

    def _put_off(self, step: bytes) -> None:
        self._unread[:0] = step
        self.transport.pauseProducing()
        self._going_on = asyncio.get_running_loop().create_task(self._go_on())

    async def _go_on(self) -> None:
        """Read what waits, in turns that have time."""
        await self._turns.time()
        while step := self._next_step():
            self._read(step)
            if self._unread:
                await self._turns.time()
        self._going_on = None
        if self._lost is not None:
            super().connectionLost(self._lost)  # type: ignore[no-untyped-call]
        else:
            self.transport.resumeProducing()

    def _next_step(self) -> bytes:
        """Taken out of what waits. Nothing when more is to come first."""
        if self._parser is None:
            self._unread.clear()
        size = min(len(self._unread), _STEP_BYTES)
        if self._parser is not None and self._parser.bodyDecoder is None:
            size = self._whole_lines()
        elif self._parser is not None and isinstance(self._parser.bodyDecoder, _IdentityTransferDecoder):
            size = len(self._unread)
        step = bytes(self._unread[:size])
        del self._unread[:size]
        return step

    def _whole_lines(self) -> int:
        end = self._unread.find(b"\n", self._searched) + 1
        self._searched = 0 if end else len(self._unread)
        if end:
            return max(end, self._unread.rfind(b"\n", 0, _STEP_BYTES) + 1)
        return len(self._unread) if len(self._unread) > MAX_HEAD_BYTES else 0

    def _read(self, step: bytes) -> None:
        try:
            self._parser.dataReceived(step)
        except Exception:  # noqa: BLE001 - of whatever kind, it is the end of this request
            failure = Failure()  # type: ignore[no-untyped-call]
            self.transport.abortConnection()
            self._disconnectParser(failure)  # type: ignore[no-untyped-call]


class _BoundedDecoder(_ChunkedTransferDecoder):
    """Twisted's, whose content is handed on once a step and not once a chunk."""

    def __init__(self, on_content: Callable[[bytes], None], on_end: Callable[[bytes], None]) -> None:
        super().__init__(self._collect, self._end)
        self._on_content = on_content
        self._on_end = on_end
        self._collected = bytearray()
        self._content = self._fed = 0
        self._rest = b""  # behind the step at hand
        self._to_bound = _STEP_BYTES  # bytes until the bound is looked at: a fixed place of the stream

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        while data and self.state != "FINISHED":
            step, data = data[: self._to_bound], data[self._to_bound :]
            self._fed += len(step)
            self._to_bound = self._to_bound - len(step) or _STEP_BYTES
            self._rest = data
            try:
                super().dataReceived(step)
            finally:
                self._hand_on()
            if self._to_bound == _STEP_BYTES and self.state != "FINISHED":
                self._check_bound()

    def _check_bound(self) -> None:
        framing = self._fed - self._content
        if framing > MAX_FRAMING_BYTES + self._content:
            raise OversizedAnswer(
                f"{framing} bytes of chunk lines came for {self._content} of content; "
                f"{MAX_FRAMING_BYTES} more than content is the limit"
            )

    def _collect(self, content: bytes) -> None:
        self._collected += content
        self._content += len(content)

    def _hand_on(self) -> None:
        if self._collected:
            content, self._collected = bytes(self._collected), bytearray()
            self._on_content(content)

    def _end(self, rest: bytes) -> None:
        self._hand_on()
        self._on_end(rest + self._rest)


class _BoundedParser(_LenientHTTPClientParser):
    """Twisted's, as Scrapy changes it. Its class is set later, so what it counts has its beginning here."""

    MAX_LENGTH = MAX_HEAD_BYTES  # of one line
    _transferDecoders = {b"chunked": _BoundedDecoder}  # type: ignore[dict-item] # noqa: RUF012, N815 - as Twisted's
    _bytes_left = MAX_HEAD_BYTES
    _lines_left = MAX_HEAD_LINES
    _interims_left = MAX_INTERIM_ANSWERS

    def lineReceived(self, line: bytes) -> None:  # noqa: N802 - Twisted's name
        """From Twisted: a line of a head, without its end."""
        self._bytes_left -= len(line) + 1
        self._lines_left -= 1
        if self._bytes_left < 0:
            self.lineLengthExceeded(line)
        if self._lines_left < 0:
            raise OversizedAnswer(f"the head has more than {MAX_HEAD_LINES} lines")
        super().lineReceived(line)

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: ARG002, N802 - Twisted's names
        raise OversizedAnswer(f"the head is longer than {MAX_HEAD_BYTES} bytes")

    def allHeadersReceived(self) -> None:  # noqa: N802 - Twisted's name
        if 100 <= self.response.code < 200:
            self._interims_left -= 1
            if self._interims_left < 0:
                raise OversizedAnswer(f"more than {MAX_INTERIM_ANSWERS} interim answers (1xx) came first")
        super().allHeadersReceived()  # type: ignore[no-untyped-call]


# --- Scrapy's HTTP/1.1 handler with a bounded pool of idle connections and a bounded client --------------


class _BoundedPool(HTTPConnectionPool):
    """Keeps connections for the next request, a few of all servers together, the last ones used."""

    most_kept = 1

    def _putConnection(self, key: Any, connection: Any) -> None:  # noqa: N802 - the name is Twisted's
        super()._putConnection(key, connection)  # type: ignore[no-untyped-call]
        while len(self._timeouts) > self.most_kept:
            self._close_oldest()
        if len(self._connections) > 2 * self.most_kept:
            self._connections = {key: kept for key, kept in self._connections.items() if kept}

    def _close_oldest(self) -> None:
        oldest = next(iter(self._timeouts))
        self._timeouts[oldest].cancel()
        key = next(key for key, kept in self._connections.items() if oldest in kept)
        self._removeConnection(key, oldest)  # type: ignore[no-untyped-call]


class BoundedHttp11Handler(HTTP11DownloadHandler):
    """Keeps at most `most_kept` idle connections."""

    def __init__(self, crawler: Crawler, most_kept: int) -> None:
        super().__init__(crawler)
        from twisted.internet import reactor  # noqa: PLC0415 - importing it installs one

        pool = _BoundedPool(reactor, persistent=True)  # type: ignore[no-untyped-call]
        pool.maxPersistentPerHost, pool._factory = self._pool.maxPersistentPerHost, BoundedClientFactory
        pool.most_kept = most_kept
        self._pool = pool
