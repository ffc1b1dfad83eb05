"""A public site and a private one at the same port, and a resolver that says what a test wants.

127.0.0.9 counts as public, so that the guard itself is what stands between the two.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from site_spider.download import address
from tests.download.test_many_servers import serving

PUBLIC, PRIVATE = "127.0.0.9", "127.0.0.1"
Addresses = Callable[[int], list[str]]  # by how many times the name was looked up before


def make_public(patch: Callable[..., None]) -> None:
    patch(address, "_OPEN_IPV4", address._AddressBlocks({**address._IPV4, f"{PUBLIC}/32": True}))


class Names:
    """In place of socket.getaddrinfo, for names that end in .test."""

    def __init__(self, names: dict[str, Addresses]) -> None:
        self.names = names
        self.asked: list[str] = []
        self._real = socket.getaddrinfo

    def __call__(self, host: Any, port: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(host, str) or not host.endswith(".test"):
            return self._real(host, port, *arguments, **keywords)
        host.encode("idna")
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found = self.names[host](self.asked.count(host))
        self.asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (where, port or 0)) for where in found]


class Sites:
    """Both of them; `answers` has what the public one says by host and path."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers = answers
        self.reached: list[str] = []  # the addresses that were connected to
        self.port = 0
        self._serving = ExitStack()

    def __enter__(self) -> Self:
        (self.port,) = self._serving.enter_context(serving(self._serve, host=PRIVATE))
        self._serving.enter_context(serving(self._serve, host=PUBLIC, port=self.port))
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached.append(writer.get_extra_info("sockname")[0])
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ")[1]
            host = next(line[6:] for line in head.split("\r\n") if line.lower().startswith("host: "))
            body = self.answers.get(host.partition(":")[0] + path, b"")
            writer.write(body.replace(b"PORT", b"%d" % self.port) or ok())
            await writer.drain()
        except asyncio.IncompleteReadError:
            pass


def ok(body: bytes = b"fine") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        len(body),
        body,
    )


def redirect(to: str) -> bytes:
    return b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % to.encode()
