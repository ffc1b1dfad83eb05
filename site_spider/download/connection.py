"""One connection to a server, which carries one request at a time.

Theory of operation. Bytes are read as they come, a step at a time, while the turn of the event loop
has time for it. When it has not, reading is held: what came waits, no more is taken from the
socket, and a later turn goes on. The end of the connection waits likewise for what came before it.
With TLS a step is some bytes of the network, deciphered and read; without, some bytes of the answer.

No byte may be taken for the answer to another request. What comes behind the end of an answer, or
while nobody asked, is surplus: it ends the connection, and what a connection that was used before has
just answered is not taken, because the surplus may be the proper answer. So
- a connection that was used is looked at before it carries the next request, and behind each later
  answer, because what came since may not have been read yet;
- behind an answer that has no body, whatever the server thinks, it rests for a moment;
- a later answer is withheld for a moment where it may be surplus of the one before: the first of them,
  which shows what kind of server this is, every hundredth, whichever came sooner or later than is usual,
  and the one that is under way when surplus of its server comes on another connection. If it was surplus,
  the proper answer follows meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from twisted.internet.ssl import Certificate

from site_spider import runtime
from site_spider.download.answer import HttpAnswer, NoAnswer
from site_spider.download.tls import TlsStream
from site_spider.engine.background import Turns

_STEP_BYTES = 16_384  # of the network; as records of a byte each, they take 3 ms
_MOST_WAITING_BYTES = 65_536  # of what TLS says by itself, to a server that does not listen
_QUIET_SECONDS = 0.2  # a server that sends surplus has sent it by then
_LONGEST_DOUBT_SECONDS = 1.0
_USUAL_ANSWERS = 32  # the last ones of a connection, whose times are the usual ones
_FEWEST_ANSWERS = 8  # before, many a time is not usual
_VOUCHED_ANSWERS = 100  # of so many answers in a row one is withheld in any case
_SOON, _LATE = 0.9, 1.5  # of the usual times
_SOON_AT_FIRST, _LATE_AT_FIRST = 0.7, 2.0
_MARGIN, _MARGIN_SECONDS = 1.25, 0.005  # to the usual time of the proper answer

_IDLE_FOR_LONG = (b"HTTP/1.1 408", b"HTTP/1.0 408")  # as some say it before they close a connection

_address_of = lru_cache(maxsize=1_024)(ip_address)


class NothingCame(Exception):
    """Nothing that is an answer to this request for certain: ask again, on a connection of its own.

    A connection that was kept may have been closed already, or bytes that nobody asked for came on it.
    """


class AnswerDoubt:
    """For how long an answer is withheld until it is known to be that of its request. Pure."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_USUAL_ANSWERS)  # from the request to the first byte
        self._count = 0
        self._ended_at = 0.0
        self.was_soon = False  # sooner than is usual

    def seconds(self, asked_at: float, heard_at: float, now: float) -> float:
        """Of the answer that is whole now; 0 for the first one of a connection."""
        took, before, count, times = heard_at - asked_at, self._ended_at, self._count, self._times
        self._ended_at, self._count = now, count + 1
        until, self.was_soon = now, False
        if count:
            soon, late = (_SOON, _LATE) if count >= _FEWEST_ANSWERS else (_SOON_AT_FIRST, _LATE_AT_FIRST)
            self.was_soon = took < soon * min(times)
            is_late = took > late * max(times) + _MARGIN_SECONDS
            if self.was_soon or is_late or count % _VOUCHED_ANSWERS == 0:
                until = now + self._usual_seconds()
            if count == 1:
                until = max(until, asked_at + self._usual_seconds(), before + _QUIET_SECONDS)
        times.append(took)
        return min(_LONGEST_DOUBT_SECONDS, until - now) if until > now else 0.0

    def _usual_seconds(self) -> float:
        """In which the proper answer comes, from most servers."""
        return _MARGIN * sorted(self._times)[len(self._times) * 3 // 4] + _MARGIN_SECONDS


class Connection(asyncio.Protocol):
    """A protocol of asyncio's. `on_lost` is called once, when the connection is of no more use."""

    def __init__(self, on_lost: Callable[[Connection], None], tls: TlsStream | None = None) -> None:
        self.is_open = False
        self.tls = tls
        self.had_surplus = False  # bytes came that nobody asked for
        self._is_doubted = False  # surplus of this server came on another connection
        self.rests_until = 0.0  # of the monotonic clock: no request before
        self.unvouched = 0  # answers since it was quiet last, which might be those of other requests
        self._on_lost = on_lost
        self._transport: Any = None
        self._answer: HttpAnswer | None = None
        self._heard = False  # something of the answer has come
        self._on_more: Callable[[HttpAnswer], None] = _nobody
        self._waiter: asyncio.Future[None] | None = None
        self._holds = 0
        self._unread: bytes | memoryview = b""  # came in a turn that had no time for it
        self._going_on: asyncio.Task[None] | None = None
        self._turns = Turns.of_running_loop()
        self._doubt = AnswerDoubt()
        self._asked = 0  # requests
        self._asked_at = self._heard_at = self._ended_at = 0.0
        self._withheld: HttpAnswer | None = None  # whole, and may be that of another request
        self._vouching: asyncio.TimerHandle | None = None
        self._fileno = 0
        self.address: IPv4Address | IPv6Address  # of the server
        self._certificate: Certificate | None = None
        self._secured: asyncio.Future[None] | None = None
        self._error: Exception | None = None  # that ended the connection

    @property
    def is_new(self) -> bool:
        return not self._asked

    @property
    def certificate(self) -> Certificate | None:
        """Of the server; None without TLS."""
        if self._certificate is None and self.tls is not None and (found := self.tls.certificate):
            self._certificate = Certificate(found)  # type: ignore[no-untyped-call]
        return self._certificate

    async def ready(self) -> None:
        """Return when requests can be sent. Raises OSError, which ssl.SSLError is."""
        tls = self.tls
        if tls is not None and self.is_open and not tls.is_ready:
            self._secured = asyncio.get_running_loop().create_future()
            await self._secured
        if tls is not None and not tls.is_ready:
            raise self._error or ConnectionResetError
        if not self.is_open:
            raise ConnectionResetError("the server has closed the connection as soon as it was made")

    def ask(self, request: bytes, answer: HttpAnswer, on_more: Callable[[HttpAnswer], None]) -> asyncio.Future[None]:
        """Send a request and read its answer; the future is done when it has ended.

        `on_more` is called when the head is there, and after each further piece; what it raises is the end
        of it. The future raises OddAnswer, OversizedAnswer, NoAnswer and NothingCame too, and so does this
        call NothingCame, before anything is sent.
        """
        if self._asked and self._has_input():
            self._read_input()
            raise NothingCame("the server closed a connection that was kept, or sent what nobody asked for")
        self._asked += 1
        self._asked_at = runtime.monotonic()
        if self._asked_at - self._ended_at > _QUIET_SECONDS:
            self.unvouched = 0
        self._answer, self._on_more = answer, on_more
        self._heard = False
        try:
            self._transport.write(request if self.tls is None else self.tls.encrypt(request))
        except ssl.SSLError as error:
            raise NothingCame(str(error)) from error
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    @property
    def is_withholding(self) -> bool:
        """Whether an answer is whole, and waits for what might come behind it."""
        return self._withheld is not None

    def check(self) -> None:
        """Look for bytes behind an answer. Raises NothingCame when it may not be that of its request."""
        if self._asked > 1:
            if self.is_open and self._has_input():
                self._read_input()
            if self.had_surplus or self._unread:
                raise _surplus()

    def doubt(self) -> None:
        """Surplus of this server came on another connection."""
        self._is_doubted = True

    def fail(self, error: BaseException) -> None:
        """End what is under way, and the connection with it."""
        waiter = self._forget()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        self.abort()

    def hold(self) -> None:
        """Read no more from the server until `release` was called as often as this."""
        self._holds += 1
        if self.is_open and not self._transport.is_closing():
            self._transport.pause_reading()

    def release(self) -> None:
        self._holds -= 1
        if self.is_open and not self._holds and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        self._unread = b""
        if self._transport is not None:
            self._transport.abort()
        self._lose()
        self._end_tls()

    def _lose(self) -> None:
        if self.is_open:
            self.is_open = False
            self._on_lost(self)

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.is_open = True
        peer = transport.get_extra_info("peername")[0]  # a transport that has closed does not know it
        self.address = _address_of(peer)
        if self.tls is not None:
            self._transport.write(self.tls.begin(peer))

    def data_received(self, data: bytes) -> None:
        if self._unread:
            self._unread = bytes(self._unread) + data
            return
        tls = self.tls
        left: bytes | memoryview = data if tls is None else memoryview(data)
        while left:
            if not self._turns.has_time():
                self._put_off(left)
                return
            left = self._read(bytes(left)) if tls is None else self._step(left, tls)

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = self._error or exc
        self._lose()
        if not self._unread:
            self._end()

    # --- reading --------------------------------------------------------------------------------

    def _step(self, data: bytes | memoryview, tls: TlsStream) -> bytes | memoryview:
        was_ready = tls.is_ready
        page = tls.feed(data[:_STEP_BYTES])
        if tls.is_ready is was_ready:
            self._flush(tls)
        else:  # the end of the handshake goes with the request, which who is woken sends at once
            self._wake()
            asyncio.get_running_loop().call_soon(self._flush, tls)
        while page:
            page = self._read(page)
        if tls.is_ended:
            self._error = tls.error
            self._transport.abort()
            self._lose()
            self._end()
        return b"" if tls.is_over else data[_STEP_BYTES:]

    def _flush(self, tls: TlsStream) -> None:
        """Send what TLS says by itself."""
        words = tls.outgoing()
        if words and self.is_open:
            self._transport.write(words)
            if self._transport.get_write_buffer_size() > _MOST_WAITING_BYTES:
                self.abort()

    def _end_tls(self) -> None:
        """When all that came is read: nothing can be afterwards."""
        if self.tls is not None:
            self.tls.end()
        self._wake()

    def _read(self, data: bytes) -> bytes:
        """What is left of the bytes of an answer."""
        answer = self._answer
        if answer is None:  # nobody asked
            if runtime.monotonic() - self._ended_at > _QUIET_SECONDS:
                self.unvouched = 0
            self.had_surplus = self._withheld is not None or not data.startswith(_IDLE_FOR_LONG)
            self.fail(_surplus())
            return b""
        if not self._heard:
            self._heard, self._heard_at = True, runtime.monotonic()
        try:
            taken = answer.feed(data)
            if answer.status:
                self._on_more(answer)
        except Exception as error:  # noqa: BLE001 - of whatever kind, it is the end of this request
            self.fail(error)
            return b""
        if answer.ending is not None:
            self._finish(answer)
            return b""
        return data[taken:]

    def _put_off(self, data: bytes | memoryview) -> None:
        self._unread = data
        self.hold()
        self._going_on = asyncio.get_running_loop().create_task(self._go_on())

    def _begun(self, data: bytes | memoryview) -> bytes | memoryview:
        """What is left of it behind one step."""
        return self._read(bytes(data)) if self.tls is None else self._step(data, self.tls)

    async def _go_on(self) -> None:
        """Read what waits, in turns that have time."""
        while self._unread:
            await self._turns.time()
            if self._unread:  # an answer that was given up has none
                self._unread = self._begun(self._unread)
        self.release()
        if not self.is_open:
            self._end()

    def _end(self) -> None:
        """The connection has ended, and all that came is read."""
        self._end_tls()
        if self._withheld is not None:
            self._vouch()
            return
        answer = self._answer
        if answer is None:
            return
        if not self._heard:
            self.fail(NothingCame(str(self._error or "the connection was closed without an answer")))
            return
        if isinstance(self._error, ssl.SSLError):
            self.fail(NoAnswer(f"no answer: {self._error}"))
            return
        try:
            answer.ended()
        except NoAnswer as error:
            self.fail(error)
        else:
            self._finish(answer)

    def _wake(self) -> None:
        """Who waits for TLS."""
        if self._secured is not None and not self._secured.done():
            self._secured.set_result(None)

    def _has_input(self) -> bool:
        """Whether bytes, or the end of the connection, have come. Takes a microsecond."""
        self._fileno = self._fileno or self._transport.get_extra_info("socket").fileno()
        if self._unread or (self.tls is not None and not self.tls.records.is_between):
            return True
        poll = select.poll()
        poll.register(self._fileno, select.POLLIN)
        return bool(poll.poll(0))

    def _read_input(self) -> None:
        """A step of what waits, and what is in the socket, whether or not this turn has time for it."""
        if self._unread:
            self._unread = self._begun(self._unread)
        if self._unread or not self.is_open:
            return
        with suppress(OSError), socket.socket(fileno=os.dup(self._fileno)) as own:
            if data := own.recv(_STEP_BYTES, socket.MSG_DONTWAIT):
                self._unread = self._begun(data)

    def _finish(self, answer: HttpAnswer) -> None:
        now = self._ended_at = runtime.monotonic()
        if answer.has_surplus:
            self.had_surplus = True
            if self._asked > 1:
                self.fail(_surplus())
                return
        if answer.is_bodiless:
            self.rests_until = now + _QUIET_SECONDS
        seconds = self._doubt.seconds(self._asked_at, self._heard_at, now)
        if self._is_doubted and self._asked > 1:
            seconds = _LONGEST_DOUBT_SECONDS
        self._answer, self._on_more = None, _nobody
        self._withheld = answer
        if not seconds:
            self.unvouched += self._asked > 1
            self._deliver()
        elif self.is_open:
            self._vouching = asyncio.get_running_loop().call_later(seconds, self._vouch)
        else:
            self._vouch()

    def _vouch(self) -> None:
        """No more is waited for what might come behind the answer that is withheld."""
        if self.is_open and self._has_input():
            self._read_input()
        if self._withheld is None:
            return
        # a server that closes with our request unread resets the connection
        if self._doubt.was_soon and isinstance(self._error, ConnectionResetError):
            self.fail(_surplus())
            return
        self.unvouched = 0
        self._deliver()

    def _deliver(self) -> None:
        assert self._withheld is not None
        is_reusable = self._withheld.is_reusable
        waiter = self._forget()
        if not is_reusable:
            self.abort()
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _forget(self) -> asyncio.Future[None] | None:
        """Forget what was asked, so that nothing waits for the collector; returns who waits for the answer."""
        waiter, self._waiter, self._answer, self._withheld = self._waiter, None, None, None
        self._on_more = _nobody
        if self._vouching is not None:
            self._vouching.cancel()
            self._vouching = None
        return waiter


def _nobody(_answer: HttpAnswer) -> None:
    """Nothing is asked."""


def _surplus() -> NothingCame:
    return NothingCame("bytes that nobody asked for came on a connection that was kept")
