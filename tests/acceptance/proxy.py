"""A forward proxy on loopback, for http and, by CONNECT, for https; and a site that wants one.

Both run on a loop of their own in a thread, so that tests can start crawlers as processes.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from base64 import b64encode
from collections.abc import Coroutine
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

OUTGOING = "127.0.0.77"  # where connections of a proxy come from: the site tells them by it


class Seen(NamedTuple):
    """One request, as a proxy or a site saw it."""

    method: str
    target: str
    authorization: str | None  # Proxy-Authorization
    peer: str


class LoopbackServer:
    """Listens in a thread, as a context manager."""

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.port = 0
        self.seen: list[Seen] = []
        self._tls = tls
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.02)  # lets them close

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (seen := await self._head(reader, writer)) is not None:
                self.seen.append(seen)
                if not await self.answer(seen, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Seen | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.strip().split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        method, target, _ = first.split(" ")
        return Seen(method, target, fields.get("proxy-authorization"), writer.get_extra_info("peername")[0])

    async def answer(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; True when another may follow on the connection."""
        raise NotImplementedError


async def send(writer: asyncio.StreamWriter, status: str, body: str, *headers: str) -> None:
    content = body.encode()
    lines = [
        f"HTTP/1.1 {status}",
        "Content-Type: text/html",
        f"Content-Length: {len(content)}",
        *headers,
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode() + content)
    await writer.drain()


class ShySite(LoopbackServer):
    """403 for whoever comes directly, a page for whoever comes through a proxy."""

    async def answer(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if seen.peer == OUTGOING:
            await send(writer, "200 OK", f"<p>{seen.target}")
        else:
            await send(writer, "403 Forbidden", "<p>who are you?")
        return seen.peer != OUTGOING or self._tls is not None  # a proxy asks for the end of its connections


class LocalProxy(LoopbackServer):
    """Wants credentials, if it was given any; `fault` makes it fail."""

    def __init__(self, credentials: str = "", fault: str = "") -> None:
        super().__init__()
        self._wanted = f"Basic {b64encode(credentials.encode()).decode()}" if credentials else None
        self.fault = fault  # no tunnel, silent, or closes

    async def answer(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.fault == "silent":
            await asyncio.Event().wait()
        if self.fault == "closes":
            return False
        if seen.authorization != self._wanted:
            await send(
                writer, "407 Proxy Authentication Required", "<p>who?", 'Proxy-Authenticate: Basic realm="x"'
            )
        elif seen.method == "CONNECT" and self.fault == "no tunnel":
            await send(writer, "403 Forbidden", f"<p>you sent {seen.authorization}")
        else:
            await self._forward(seen, reader, writer)
        return False

    async def _forward(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_tunnel = seen.method == "CONNECT"
        parts = urlsplit(f"//{seen.target}" if is_tunnel else seen.target)
        coming, going = await asyncio.open_connection(parts.hostname, parts.port, local_addr=(OUTGOING, 0))
        self._writers.add(going)
        if is_tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            head = f"{seen.method} {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
            going.write(head.encode())
        sending = asyncio.ensure_future(_pass_on(reader, going))
        try:
            await _pass_on(coming, writer)
        finally:
            sending.cancel()
            going.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
