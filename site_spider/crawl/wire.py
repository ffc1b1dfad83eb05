"""One connection to a server, which carries one request at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from twisted.internet.ssl import Certificate

from site_spider.core.answer import Answer, NoAnswer

_certificate = lru_cache(maxsize=256)(Certificate.load)  # a server has the same one each time


class NothingCame(Exception):
    """The connection ended without a byte of the answer: one that was kept may have been closed already."""


class Wire(asyncio.Protocol):
    """A protocol of asyncio's. `on_lost` is called once, when the connection is of no more use."""

    def __init__(self, on_lost: Callable[[Wire], None]) -> None:
        self.is_open = False
        self.idle_since = 0.0
        self._on_lost = on_lost
        self._transport: Any = None
        self._answer: Answer | None = None
        self._heard = False  # something of the answer has come
        self._on_head: Callable[[Answer], None] | None = None
        self._on_more: Callable[[Answer], None]
        self._waiter: asyncio.Future[None] | None = None
        self._peer = ""
        self._tls: Any = None
        self._address: IPv4Address | IPv6Address | None = None
        self._certificate: Certificate | None = None

    @property
    def address(self) -> IPv4Address | IPv6Address:
        """Of the server."""
        if self._address is None:
            self._address = ip_address(self._peer)
        return self._address

    @property
    def certificate(self) -> Certificate | None:
        """Of the server; None without TLS."""
        if self._certificate is None and isinstance(self._tls, ssl.SSLObject):
            der = self._tls.getpeercert(binary_form=True)
            self._certificate = None if der is None else _certificate(der)
        return self._certificate

    def ask(
        self,
        request: bytes,
        answer: Answer,
        on_head: Callable[[Answer], None],
        on_more: Callable[[Answer], None],
    ) -> asyncio.Future[None]:
        """Send a request and read its answer; the future is done when it has ended.

        `on_head` is called when the head is there, `on_more` after each further piece; what they
        raise is the end of it. The future raises OddAnswer, NoAnswer and NothingCame too.
        """
        self._answer, self._on_head, self._on_more = answer, on_head, on_more
        self._heard = False
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._waiter

    def fail(self, error: BaseException) -> None:
        """End what is under way, and the connection with it."""
        waiter, self._waiter, self._answer = self._waiter, None, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        self.abort()

    def pause(self, is_paused: bool) -> None:
        """Take nothing more from the server for a while, or go on."""
        if self.is_open:
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    def abort(self) -> None:
        """Of no more use."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    def _lose(self) -> None:
        if self.is_open:
            self.is_open = False
            self._on_lost(self)

    # --- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """From asyncio."""
        self._transport = transport
        self.is_open = True
        # asked now: a transport that has closed knows neither
        self._peer = transport.get_extra_info("peername")[0]
        self._tls = transport.get_extra_info("ssl_object")

    def data_received(self, data: bytes) -> None:
        """From asyncio."""
        answer = self._answer
        if answer is None:  # nobody asked
            self.abort()
            return
        self._heard = True
        try:
            answer.feed(data)
            if answer.status:
                if self._on_head is not None:
                    on_head, self._on_head = self._on_head, None
                    on_head(answer)
                self._on_more(answer)
        except Exception as error:  # noqa: BLE001 - of whatever kind, it is the end of this request
            self.fail(error)
            return
        if answer.ending is not None:
            self._finish(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """From asyncio."""
        self._lose()
        answer = self._answer
        if answer is None:
            return
        if not self._heard:
            self.fail(NothingCame(str(exc or "the connection was closed without an answer")))
            return
        try:
            answer.ended()
        except NoAnswer as error:
            self.fail(error)
        else:
            self._finish(answer)

    def _finish(self, answer: Answer) -> None:
        waiter, self._waiter, self._answer = self._waiter, None, None
        if not answer.is_reusable:
            self.abort()
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
