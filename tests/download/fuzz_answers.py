"""Compares readers of HTTP answers, and looks for bytes that reach another request.

    python -m tests.download.fuzz_answers --seconds 600 [--seed 1]

Each round has a number, from which all of it follows; what fails is printed with it, and
`--seed NUMBER --seconds 0` does that round once more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import h11
import uvloop
from scrapy.core.downloader.handlers.http11 import _LenientHTTP11ClientProtocol
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web._newclient import Request
from twisted.web.http_headers import Headers

from site_spider.download.answer import HttpAnswer, NoAnswer, OddAnswer, OversizedAnswer
from site_spider.download.connection import Connection, NothingCame

SECOND = b"<p>second"
_PATIENCE_SECONDS = 0.005


def compare(seed: int) -> None:
    """One answer, cut in every way, by three readers. On a running event loop only."""
    random = Random(seed)
    data = generated(random, b"<p>" + b"x" * random.randrange(20))
    method = random.choice(("GET", "GET", "GET", "HEAD"))
    ends = random.random() < 0.5
    said = (seed, data, method, ends)
    found, odd = (ours([data], method, ends=ends, takes_odd=takes_odd) for takes_odd in (False, True))
    for place in range(1, len(data)):
        assert ours([data[:place], data[place:]], method, ends=ends) == found, (place, *said)
        assert ours([data[:place], data[place:]], method, ends=ends, takes_odd=True) == odd, (place, *said)
    single = [data[place : place + 1] for place in range(len(data))]
    places = sorted({0, len(data), *(random.randrange(len(data) + 1) for _ in range(4))})
    several = [data[a:b] for a, b in pairwise(places)]
    for pieces in (single, several):
        assert ours(pieces, method, ends=ends) == found, said
        assert ours(pieces, method, ends=ends, takes_odd=True) == odd, said
    scrapy, other = scrapys([data], method, ends=ends), h11s([data], method, ends=ends)
    if found.kind != "OddAnswer":
        assert odd == found, said
    else:
        assert not odd.is_reusable, said
        if odd.status and scrapy.status and odd.kind != "dataloss":  # which a fault of chunks is here
            assert (scrapy.kind, scrapy.page) == (odd.kind, odd.page), (odd, scrapy, said)
    if found.status:
        assert (scrapy.kind, scrapy.page) == (found.kind, found.page), (found, scrapy, said)
        assert other.page == found.page, (found, other, said)
        if found.kind == "whole":
            assert other.kind == "whole", (found, other, said)
        if found.is_reusable:  # nobody else would see more bytes, or fewer
            assert other.is_reusable, (found, other, said)
            assert scrapy.is_reusable, (found, scrapy, said)


class Pairs:
    """Two requests on one connection, whose server sends more than it was asked for, or late."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.asked_again = 0  # rounds in which the second request was sent

    def close(self) -> None:
        self._listener.close()

    async def exchange(self, seed: int) -> None:
        random = Random(seed)
        first = random.choice((generated(random, b"<p>first"), _whole(b"<p>first")))
        stream = first + random.choice(
            (b"", b"", b"\r\n", MARK, generated(random, MARK), _whole(MARK), _whole(MARK)[: random.randrange(60)])
        )
        place = random.choice((len(first), len(first), len(stream), random.randrange(len(stream) + 1)))
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: Connection(lambda _: None), *self._listener.getsockname()[:2])
        server, _ = self._listener.accept()
        server.setblocking(False)
        try:
            answer = await self._first(wire, server, stream[:place], stream[place:])
            if answer.is_reusable and wire.is_open:
                if random.random() < 0.5:
                    await asyncio.sleep(0)
                await self._second(wire, server, (seed, stream, place))
        finally:
            wire.abort()
            server.close()
            await asyncio.sleep(0)

    async def _first(self, wire: Connection, server: socket.socket, now: bytes, late: bytes) -> HttpAnswer:
        """What is late comes when the answer is not whole without it, or else before the next request."""
        answer = HttpAnswer()
        asked = wire.ask(b"GET /1 HTTP/1.1\r\n\r\n", answer, _ignore)
        await self._requested(server)
        with contextlib.suppress(OSError):
            server.send(now)
            await asyncio.wait([asked], timeout=_PATIENCE_SECONDS)
            server.send(late)
        if not asked.done():
            await asyncio.wait([asked], timeout=_PATIENCE_SECONDS)
        if not asked.done():
            wire.fail(TimeoutError())
        asked.exception()
        return answer

    async def _second(self, wire: Connection, server: socket.socket, said: object) -> None:
        answer = HttpAnswer()
        try:
            asked = wire.ask(b"GET /2 HTTP/1.1\r\n\r\n", answer, _ignore)
        except NothingCame:
            return
        if not await self._requested(server):
            asked.cancel()
            return
        self.asked_again += 1
        with contextlib.suppress(OSError):
            server.send(_whole(SECOND))
        await asyncio.wait([asked], timeout=300)
        assert asked.done(), said
        assert asked.exception() is None, (asked.exception(), said)
        assert (answer.status, answer.body) == (200, SECOND), (answer.body, said)

    @staticmethod
    async def _requested(server: socket.socket) -> bool:
        loop = asyncio.get_running_loop()
        try:
            return bool(await asyncio.wait_for(loop.sock_recv(server, 1_000), 0.1))
        except (TimeoutError, OSError):
            return False


def _ignore(_answer: HttpAnswer) -> None:
    pass


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


# --- Three readers: ours, the one of Scrapy's handler, and h11


_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailers", b"transfer-encoding", b"upgrade", b"proxy-connection")
)


class Outcome(NamedTuple):
    kind: str  # whole, partial, dataloss, waiting for more, or the name of an error
    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()  # sorted, names in small letters
    body: bytes = b""
    is_reusable: bool = False

    @property
    def page(self) -> tuple[Any, ...]:
        return self[1:4]


def read(answer: HttpAnswer, pieces: Iterable[bytes]) -> HttpAnswer:
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


# --- Answers, well-formed and nearly so, out of a random number generator


MARK = b"evil"  # in whatever no answer may end up with

_STATUS = (b"HTTP/1.1 200 OK", b"HTTP/1.1 404 Not Found", b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.1 204 No Content")
_RARE_STATUS = (
    *(b"HTTP/1.1 304 Not Modified", b"HTTP/1.0 200 OK", b"HTTP/1.1 201 \xff", b"HTTP/1.1 999 X", b"HTTP/1.1 20 OK"),
    *(b"HTTP/1.1 2000 OK", b"HTTP/2.0 200 OK", b"http/1.1 200 OK", b"HTTP/1.1  200 OK", b" HTTP/1.1 200 OK"),
    *(b"HTTP/1.1 101 Switching Protocols", b"HTTP/1.1 099 X", b"HTTP/1.1 200\tOK", b"HTTP/1.2 200 OK", b"HTTP 200 OK"),
)
_LINES = (
    *(b"Content-Type: text/html", b"Set-Cookie: a=b", b"X: y", b"X:y", b"Vary:  a, b \t", b"Empty:", b"Y: \xe9"),
    *(b"Connection: keep-alive", b"Connection: close", b"Keep-Alive: timeout=5", b"Date: now"),
)
_RARE_LINES = (
    *(b"no colon", b"X : y", b" X: y", b"X: a\r\n b", b"X: a\r\n\tb", b": y", b"X: a\0b", b"X: a\rb", b"X: a\nY: b"),
    *(b"X Y: z", b"\xff: y", b"X: \x01", b"Transfer-Encoding: x", b"Transfer-Encoding: identity", b"\r"),
    *(b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked"),
    *(b"Content-Length: 3", b"Content-Length : 3", b"Content-Length: +3", b"Content-Length: 3, 3", b"Content-Length:"),
    *(b"Content-Length: 0x3", b"Content-Length: -1", b"Content-Length: 03", b"Content-Length: 99999999999999999999"),
    *(b"Upgrade: x\r\nConnection: upgrade", b"Trailer: X", b"TE: trailers", b"Transfer-Encoding: Chunked"),
)
_ENDS = (b"\n", b"\r\r\n", b"\r", b"\r\n ", b"\n\r")
_SIZES = (b" ", b"\t", b";", b";a", b";a=b", b';a="b"', b';a="b\r\n"', b" ;a", b";a b", b";\xff", b";a=b;c", b"\r")
_TRAILERS = (
    *(b"X: y", b"HTTP/1.1 200 OK", b"no colon", b"Content-Length: 3", b"Transfer-Encoding: chunked", b"X : y"),
    *(b"Connection: keep-alive", b"X: a\r\n b", b"X: a\nb", b": y"),
)


def generated(random: Random, body: bytes) -> bytes:
    """One answer with this body, perhaps behind interim ones, perhaps spoilt."""
    answer = b"".join(_interim(random) for _ in range(random.choice((0, 0, 0, 0, 1, 2)))) + _answer(random, body)
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        answer = _spoilt(random, answer)
    return answer


def _interim(random: Random) -> bytes:
    lines = [random.choice((b"HTTP/1.1 100 Continue", b"HTTP/1.1 103 Early Hints"))]
    lines += [_line(random) for _ in range(random.choice((0, 0, 1)))]
    return _head(random, lines)


def _answer(random: Random, body: bytes) -> bytes:
    lines = [_of(random, _STATUS, _RARE_STATUS), *(_line(random) for _ in range(random.randrange(4)))]
    kind = random.choice(("length", "length", "chunks", "chunks", "end", "wrong length"))
    if kind == "chunks":
        body = _chunks(random, body)
        lines.append(b"Transfer-Encoding: chunked")
    elif kind != "end":
        size = len(body) + (random.choice((-2, -1, 1, 2)) if kind == "wrong length" else 0)
        lines.append(b"Content-Length: %d" % max(0, size))
    return _head(random, lines) + body


def _line(random: Random) -> bytes:
    return _of(random, _LINES, _RARE_LINES)


def _of(random: Random, usual: tuple[bytes, ...], rare: tuple[bytes, ...]) -> bytes:
    return random.choice(rare if random.random() < 0.1 else usual)


def _head(random: Random, lines: list[bytes]) -> bytes:
    return b"".join(line + _end(random) for line in [*lines, b""])


def _end(random: Random) -> bytes:
    return random.choice(_ENDS) if random.random() < 0.02 else b"\r\n"


def _chunks(random: Random, body: bytes) -> bytes:
    parts = []
    while body:
        size = random.randint(1, len(body))
        parts.append(_size(random, size) + body[:size] + _end(random))
        body = body[size:]
    trailers = [random.choice(_TRAILERS) for _ in range(random.choice((0, 0, 0, 1, 2)))]
    return b"".join(parts) + _size(random, 0) + b"".join(t + _end(random) for t in [*trailers, b""])


def _size(random: Random, size: int) -> bytes:
    digits = random.choice((b"%x", b"%X", b"0%x", b"%08x")) % size
    return digits + (random.choice(_SIZES) if random.random() < 0.1 else b"") + _end(random)


def _spoilt(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data) + 1)
    new = random.choice((b"\r", b"\n", b" ", b"\0", b":", b";", b"0", b"\r\n", b"\r\n\r\n", b"\xff", b"-"))
    return random.choice(
        (
            data[:place] + new + data[place:],
            data[:place] + new + data[place + 1 :],
            data[:place] + data[place + 1 :],
            data[:place] + data[place : place + 9] + data[place:],
            data[:place],
        )
    )


async def _run(seed: int, seconds: float) -> None:
    began = time.monotonic()
    pairs = Pairs()
    first = seed
    while seed == first or time.monotonic() - began < seconds:
        compare(seed)
        if seed % 5 == 0 or seed == first:
            await pairs.exchange(seed)
        seed += 1
    pairs.close()
    print(f"{seed - first} answers compared, {pairs.asked_again} connections used twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()) * 1_000_000)
    arguments = parser.parse_args()
    print(f"from seed {arguments.seed}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(arguments.seed, arguments.seconds))
