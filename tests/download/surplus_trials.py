"""How many pages get the body of another one, from servers that send bytes behind their answers."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from scrapy import Request

from tests.download.handler_trials import handling, listening

STATUS = {"204": b"204 No Content", "304": b"304 Not Modified", "HEAD": b"200 OK", "200": b"200 OK"}


def page(path: str) -> bytes:
    body = f"<p>page {path}".encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@dataclass
class SurplusServer:
    """Answers each path with its own page, and some answers are followed by a page of nobody."""

    is_odd: Callable[[int], bool] = lambda number: number == 0  # which answers of a connection are followed so
    late_seconds: float = 0.02
    takes_seconds: Callable[[], float] = lambda: 0.0
    waits: bool = False  # with the next answer until the surplus is sent
    behind: str = "200"  # the kind of answers that are followed so
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = 0
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(writer, head.split(b" ")[1].decode(), self.is_odd(number))
                number += 1
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, is_odd: bool) -> None:
        if seconds := self.takes_seconds():
            await asyncio.sleep(seconds)
        is_odd = is_odd and (self.behind == "200" or path.endswith("?"))
        answer = page(path)
        if is_odd and self.behind != "200":
            answer = b"HTTP/1.1 " + STATUS[self.behind] + b"\r\n\r\n"
        surplus = page("of nobody") if is_odd else b""
        if not self.late_seconds:
            writer.write(answer + surplus)
            return
        writer.write(answer)
        if surplus and self.waits:
            await asyncio.sleep(self.late_seconds)
            writer.write(surplus)
        elif surplus:
            asyncio.get_running_loop().call_later(self.late_seconds, _write, writer, surplus)


def _write(writer: asyncio.StreamWriter, surplus: bytes) -> None:
    if not writer.is_closing():
        writer.write(surplus)


class Found(NamedTuple):
    wrong: int
    pages: int
    connections: int


async def crawled(
    server: SurplusServer, pages: int = 120, at_a_time: int = 8, tls: ssl.SSLContext | None = None
) -> Found:
    settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": at_a_time, "DOWNLOAD_VERIFY_CERTIFICATES": False}
    paths = [f"/{number}" for number in reversed(range(pages))]
    wrong: Counter[str] = Counter()

    async def download(handler: Any, place: str) -> None:
        while paths:
            path = paths.pop()
            if server.behind != "200":
                method = "HEAD" if server.behind == "HEAD" else "GET"
                await handler.download_request(Request(f"{place}{path}?", method=method))
            response = await handler.download_request(Request(place + path))
            wrong[path] = response.body != page(path).partition(b"\r\n\r\n")[2]

    place = f"http{'s' if tls else ''}://127.0.0.1"
    async with (
        asyncio.timeout(300),
        listening(server.serve, tls) as port,
        handling("plain", **settings) as handler,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(at_a_time):
            group.create_task(download(handler, f"{place}:{port}"))
    return Found(sum(wrong.values()), len(wrong), server.connections)
