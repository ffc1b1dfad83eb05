"""Servers that answer with given bytes, well-formed and otherwise, for trials of download handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

PAGE = b"<p>page"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
LENGTH = b"Content-Length: 7\r\n\r\n" + PAGE  # the rest of an answer
WHOLE = OK + LENGTH
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Case(NamedTuple):
    answer: bytes = WHOLE
    closes: bool = True  # right after the answer
    pieces: int = 1_000_000  # the answer is sent in pieces of so many bytes
    stays_silent: bool = False  # after the answer: neither more nor the end
    method: str = "GET"
    path: str = "/page?a=b"
    headers: Mapping[str, Any] = MappingProxyType({})
    body: bytes = b""
    meta: Mapping[str, Any] = MappingProxyType({})
    settings: Mapping[str, Any] = MappingProxyType({})
    answers: int = 1_000_000  # of one connection; at the next request it is closed
    url: str = ""  # another one than that of the server
    times: int = 1  # the same request, one after the other
    tls: bool = False


def head(*lines: bytes, status: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join((status, *lines, b"", b""))


PLAIN = {
    "with a length": Case(),
    "with a length, kept alive": Case(closes=False, times=3),
    "a kept connection that is closed at the next request": Case(closes=False, answers=1, times=3),
    "byte by byte": Case(pieces=1),
    "without a body": Case(head(b"Content-Length: 0")),
    "without any header line": Case(head() + PAGE),
    "until the end of the connection": Case(OK + b"\r\n" + PAGE),
    "HTTP/1.0": Case(head(b"Content-Type: text/html", status=b"HTTP/1.0 200 OK") + PAGE),
    "HTTP/1.0 with a length": Case(head(b"Content-Length: 7", status=b"HTTP/1.0 200 OK") + PAGE, times=2),
    "chunks": Case(CHUNKED + b"3\r\n<p>\r\n4\r\npage\r\n0\r\n\r\n"),
    "chunks, kept alive": Case(CHUNKED + b"7\r\n<p>page\r\n0\r\n\r\n", closes=False, times=3),
    "chunks with extensions and trailers": Case(
        CHUNKED + b'7;a="b"\r\n<p>page\r\n0\r\nX-Trailer: a\r\nY: b\r\n\r\n', closes=False, times=2
    ),
    "a repeated header line": Case(OK + b"Set-Cookie: a=b\r\nX: 1\r\nset-cookie: c=d\r\n" + LENGTH),
    "blanks around values": Case(OK + b"X:  a b \t\r\nY:c\r\nZ:\r\nContent-Length:7 \r\n\r\n" + PAGE),
    "bytes that are no ASCII": Case(OK + b"X: \xe9\xff\r\n" + LENGTH),
    "an encoding": Case(OK + b"Content-Encoding: gzip\r\n" + LENGTH),
    "lines about the connection": Case(OK + b"Connection: close\r\nKeep-Alive: timeout=5\r\n" + LENGTH, closes=False),
    "103 first": Case(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + WHOLE, pieces=9),
    "304 with a body": Case(
        head(b"Content-Length: 7", status=b"HTTP/1.1 304 Not Modified") + PAGE, closes=False, times=2
    ),
    "HEAD with a body": Case(WHOLE, method="HEAD", closes=False, times=2),
    "204": Case(head(b"X: y", status=b"HTTP/1.1 204 No Content"), closes=False, times=2),
    "304": Case(head(b"Content-Length: 99", status=b"HTTP/1.1 304 Not Modified"), closes=False, times=2),
    "a redirect is not followed": Case(head(b"Location: /x", b"Content-Length: 0", status=b"HTTP/1.1 302 Found")),
    "HEAD": Case(head(b"Content-Length: 1234", b"Content-Type: text/html"), method="HEAD", closes=False, times=2),
    "HEAD without a length": Case(head(b"Content-Type: text/html"), method="HEAD"),
    "HEAD of chunks": Case(head(b"Transfer-Encoding: chunked"), method="HEAD"),
    "less than its length": Case(head(b"Content-Length: 70") + PAGE),
    "less than its length, which is accepted": Case(
        head(b"Content-Length: 70") + PAGE, settings={"DOWNLOAD_FAIL_ON_DATALOSS": False}
    ),
    "less than its length, accepted by the request": Case(
        head(b"Content-Length: 70") + PAGE, meta={"download_fail_on_dataloss": False}
    ),
    "chunks without an end": Case(CHUNKED + b"7\r\n<p>page\r\n"),
    "chunks without an end, which is accepted": Case(
        CHUNKED + b"7\r\n<p>page\r\n", settings={"DOWNLOAD_FAIL_ON_DATALOSS": False}
    ),
    "more than its length": Case(WHOLE + b"surplus", closes=False, times=2),
    "nothing": Case(b""),
    "half a head": Case(OK),
    "half a status line": Case(b"HTTP/1.1 2"),
    "no HTTP": Case(b"220 smtp ready\r\n"),
    "no HTTP at all": Case(b"\x00\x01\x02\x03" * 100),
    "silence": Case(b"", closes=False, stays_silent=True, meta={"download_timeout": 0.3}),
    "silence within the head": Case(OK, closes=False, stays_silent=True, meta={"download_timeout": 0.3}),
    "silence within the body": Case(
        head(b"Content-Length: 70") + PAGE, closes=False, stays_silent=True, meta={"download_timeout": 0.3}
    ),
    "a length over the limit": Case(head(b"Content-Length: 7") + PAGE, settings={"DOWNLOAD_MAXSIZE": 6}),
    "a length at the limit": Case(head(b"Content-Length: 7") + PAGE, settings={"DOWNLOAD_MAXSIZE": 7}),
    "a length over the request's limit": Case(WHOLE, meta={"download_maxsize": 6}),
    "chunks over the limit": Case(
        CHUNKED + b"4\r\npage\r\n" * 9 + b"0\r\n\r\n", pieces=5, settings={"DOWNLOAD_MAXSIZE": 20}
    ),
    "endless, over the limit": Case(OK + b"\r\n" + PAGE * 9, pieces=5, settings={"DOWNLOAD_MAXSIZE": 20}),
    "a fragment": Case(path="/page?a=b#fragment"),
    "no path": Case(path=""),
    "a query without a path": Case(path="?a=b"),
    "signs in the path": Case(path="/%C3%A9/a%20b/'(x)*!~|/..?q=%zz&x=[]{}"),
    "headers of the request": Case(headers={"X-A": ["1", "2"], "User-Agent": "me", "DNT": "1", "X-a_b": "c"}),
    "a host of the request's own": Case(headers={"Host": "other.test"}),
    "a Proxy-Authorization header": Case(headers={"Proxy-Authorization": "Basic secret"}),
    "TLS": Case(tls=True, closes=False, times=2, settings={"DOWNLOAD_VERIFY_CERTIFICATES": False}),
    "TLS, and the connection closed": Case(
        head(b"Connection: close", b"Content-Length: 7") + PAGE,
        tls=True,
        settings={"DOWNLOAD_VERIFY_CERTIFICATES": False},
    ),
    "TLS whose certificate nobody vouches for": Case(tls=True, settings={"DOWNLOAD_VERIFY_CERTIFICATES": True}),
    "TLS of a version that is not wanted": Case(
        tls=True, settings={"DOWNLOAD_VERIFY_CERTIFICATES": False, "DOWNLOAD_TLS_MIN_VERSION": "TLSv1.3"}
    ),
}

ODD = {
    "a line without a colon": Case(OK + b"no colon here\r\nX: y\r\n" + LENGTH, times=2),
    "bare LF": Case(WHOLE.replace(b"\r\n", b"\n")),
    "a folded line": Case(OK + b"X: a\r\n b\r\n" + LENGTH),
    "a length and chunks": Case(
        OK + b"Content-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n<p>page\r\n0\r\n\r\n"
    ),
    "a chunk of no length": Case(CHUNKED + b"x\r\n<p>page\r\n0\r\n\r\n"),
    "204 with a coding": Case(head(b"Transfer-Encoding: x", status=b"HTTP/1.1 204 No Content"), closes=False, times=2),
    "204 with a length and a body": Case(
        head(b"Content-Length: 7", status=b"HTTP/1.1 204 No Content") + PAGE, closes=False, times=2
    ),
    "chunks in HTTP/1.0": Case(
        head(b"Transfer-Encoding: chunked", status=b"HTTP/1.0 200 OK") + b"7\r\n<p>page\r\n0\r\n\r\n"
    ),
    "100 with a length": Case(head(b"Content-Length: 7", status=b"HTTP/1.1 100 Continue") + WHOLE),
    "a status line in small letters": Case(b"http/1.1 200 ok\r\n" + LENGTH),
    "HTTP/2.0 in the status line": Case(head(b"Content-Length: 7", status=b"HTTP/2.0 200 OK") + PAGE),
}

# More than any reader should take. It is asked for once.
OVERSIZED = {
    "a head of 70,000 bytes": Case(OK + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(70)) + LENGTH),
    "a header line of 70,000 bytes": Case(OK + b"X: " + b"x" * 70_000 + b"\r\n" + LENGTH),
    "a header line without an end": Case(OK + b"X: " + b"x" * 200_000, closes=False, stays_silent=True),
    "5,000 header lines": Case(OK + b"X: y\r\n" * 5_000 + LENGTH),
    "500 interim answers first": Case(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 500 + WHOLE),
    "20,000 chunks of a byte": Case(CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n", pieces=1_000),
    "chunk lines of 1,000 bytes": Case(
        CHUNKED + (b"1;" + b"x" * 1_000 + b"\r\nx\r\n") * 200 + b"0\r\n\r\n", pieces=9_000
    ),
}

OTHER_WAYS = {
    "POST": Case(method="POST", body=b"a=b"),
    "POST without a body": Case(method="POST"),
    "GET with a body": Case(body=b"a=b"),
    "PUT": Case(method="PUT", body=b"x", times=2, closes=False),
    "a bound address": Case(meta={"bindaddress": "127.0.0.2"}),
    "all bound to an address": Case(settings={"DOWNLOAD_BIND_ADDRESS": "127.0.0.2"}),
    "a length of the request's own": Case(headers={"Content-Length": "0"}),
    "a proxy": Case(url="http://site.test/page", meta={"proxy": "http://127.0.0.1:PORT"}),
    "a proxy that wants a name": Case(
        url="http://site.test/page", meta={"proxy": "127.0.0.1:PORT"}, headers={"Proxy-Authorization": "Basic secret"}
    ),
    "a proxy that refuses a tunnel": Case(
        head(b"Content-Length: 0", status=b"HTTP/1.1 403 Forbidden"),
        url="https://site.test/page",
        meta={"proxy": "http://127.0.0.1:PORT"},
        headers={"Proxy-Authorization": "Basic secret"},
    ),
    "a name before the host": Case(url="http://me:secret@127.0.0.1:PORT/page"),
    "a Connection header": Case(headers={"Connection": "close"}, closes=False),
}

CASES = PLAIN | ODD | OVERSIZED | OTHER_WAYS


class RawServer:
    """Does as its case says, and keeps what it was sent."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.says: Iterator[bytes] = repeat(case.answer)
        self.connections = 0
        self.received: list[bytes] = []
        self.peers: set[str] = set()
        self._answers: dict[asyncio.StreamWriter, int] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.peers.add(writer.get_extra_info("peername")[0])
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        case = self._case
        sent = await reader.readuntil(b"\r\n\r\n")
        if case.body:
            sent += await reader.readexactly(len(case.body))
        self.received.append(sent)
        self._answers[writer] = self._answers.get(writer, 0) + 1
        if self._answers[writer] > case.answers:
            return False
        answer = next(self.says)
        for start in range(0, len(answer), case.pieces):
            writer.write(answer[start : start + case.pieces])
            if len(answer) > case.pieces:
                await writer.drain()
                await asyncio.sleep(0)
        await writer.drain()
        if case.stays_silent:
            await reader.read()
        return not case.closes
