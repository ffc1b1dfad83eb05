"""Three readers of HTTP answers over the same bytes: ours, the one of Scrapy's handler, and h11."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import h11
from scrapy.core.downloader.handlers.http11 import _LenientHTTP11ClientProtocol
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web._newclient import Request
from twisted.web.http_headers import Headers

from site_spider.download.answer import HttpAnswer, NoAnswer, OddAnswer, OversizedAnswer

_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailers", b"transfer-encoding", b"upgrade", b"proxy-connection")
)


class Outcome(NamedTuple):
    """What a reader made of the bytes."""

    kind: str  # whole, partial, dataloss, waiting for more, or the name of an error
    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()  # sorted, names in small letters
    body: bytes = b""
    is_reusable: bool = False

    @property
    def page(self) -> tuple[Any, ...]:
        return self[1:4]


def read(answer: HttpAnswer, pieces: Iterable[bytes]) -> HttpAnswer:
    """As a connection reads it."""
    for piece in pieces:
        rest = piece
        while rest and answer.ending is None:
            rest = rest[answer.feed(rest) :]
        if rest:
            answer.is_reusable = False  # nobody asked
    return answer


def ours(pieces: Iterable[bytes], method: str, *, ends: bool, takes_odd: bool = False) -> Outcome:
    answer = HttpAnswer(to_head=method == "HEAD", takes_odd=takes_odd)
    try:
        read(answer, pieces)
        if ends and answer.ending is None:
            answer.ended()
    except (OddAnswer, OversizedAnswer, NoAnswer) as error:
        return Outcome(type(error).__name__)
    if answer.ending is None:
        return Outcome("waiting")
    found = [(name, value) for name, value in answer.headers if name != b"Content-Length"]
    return Outcome(answer.ending.value, answer.status, _sorted(found), answer.body, answer.is_reusable)


def _sorted(lines: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    shown = ((name.lower(), value) for name, value in lines)
    return tuple(sorted(line for line in shown if line[0] not in _CONNECTION))


class _Body(Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.reason: Any = None

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        self.data += data

    def connectionLost(self, reason: Any = None) -> None:  # noqa: N802 - Twisted's name
        self.reason = reason


class _Transport(StringTransport):
    def abortConnection(self) -> None:  # noqa: N802 - Twisted's name
        self.loseConnection()


def scrapys(pieces: Iterable[bytes], method: str, *, ends: bool) -> Outcome:
    """On a running event loop only."""
    kept: list[Any] = []
    client: Any = _LenientHTTP11ClientProtocol(kept.append)
    transport = _Transport()
    client.makeConnection(transport)
    answered: list[Any] = []
    failed: list[Failure] = []
    body = _Body()
    asked = client.request(Request(method.encode(), b"/", Headers({b"host": [b"a"]}), None, persistent=True))
    asked.addCallbacks(lambda response: (answered.append(response), response.deliverBody(body)), failed.append)
    for piece in pieces:
        if not transport.disconnecting:
            client.dataReceived(piece)
    if ends and not transport.disconnecting:
        client.connectionLost(Failure(ConnectionDone()))
    if failed:
        return Outcome("refused")
    if not answered or body.reason is None:
        return Outcome("waiting")
    response = answered[0]
    headers = _sorted((n, v) for n, values in response.headers.getAllRawHeaders() for v in values)
    headers = tuple(line for line in headers if line[0] != b"content-length")
    kind = {"ResponseDone": "whole", "PotentialDataLoss": "partial"}.get(body.reason.type.__name__, "dataloss")
    return Outcome(kind, response.code, headers, body.data, bool(kept) and not transport.disconnecting)


def h11s(pieces: Iterable[bytes], method: str, *, ends: bool) -> Outcome:
    """A connection may be used again when nothing is left over."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1_000_000)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    status, headers, body, is_whole = 0, (), b"", False
    try:
        for piece in [*pieces, *([b""] if ends else [])]:
            if not is_whole or piece:
                connection.receive_data(piece)
            while not is_whole and (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    status = event.status_code
                    headers = _sorted((n, v) for n, v in event.headers if n != b"content-length")
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    is_whole = True
                elif isinstance(event, h11.ConnectionClosed):
                    break
    except h11.RemoteProtocolError as error:
        is_cut = status and ends and "without sending complete message body" in str(error)
        return Outcome("dataloss" if is_cut else "refused", status, headers, body)
    if not is_whole:
        return Outcome("waiting")
    is_reusable = connection.their_state is h11.DONE and connection.our_state is h11.DONE
    return Outcome("whole", status, headers, body, is_reusable and not connection.trailing_data[0])
