"""A public site and a private one at the same port, and a resolver that says what a test wants.

127.0.0.9 counts as public, so that the guard itself is what stands between the two. As a program it asks both
download handlers for hosts whose names lead to private addresses, and prints what came of it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from scrapy import Request

from site_spider.download import address
from site_spider.download.names import PublicHostResolver
from tests.download.handler_trials import download, handler_of, run_with_reactor
from tests.download.test_many_servers import serving

PUBLIC, PRIVATE = "127.0.0.9", "127.0.0.1"
Addresses = Callable[[int], list[str]]  # by how many times the name was looked up before


def make_public(patch: Callable[..., None]) -> None:
    patch(address, "_BLOCKS_IPV4", address._smallest_first({**address._IPV4, f"{PUBLIC}/32": True}))


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


NAMES = {
    "mixed.test": lambda _: [PRIVATE, PUBLIC, "10.0.0.1"],
    "many.test": lambda _: [PUBLIC] * 10_000,
    "many-private.test": lambda _: [PRIVATE] * 10_000,
    "public.test": lambda _: [PUBLIC],
    "private.test": lambda _: [PRIVATE],
}
ODD = {
    "empty label": "a..test",
    "long label": "a" * 64 + ".test",
    "long name": "a." * 2000 + "test",
    "nobody": "no.test",
}
SPELLED = (
    *("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "[::1]"),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "10.0.0.1", "192.168.1.1", "169.254.169.254", "[fe80::1]"),
    *("[64:ff9b::7f00:1]", "①②⑦.0.0.1", "127.0.0.1.", "LOCALHOST", "100.64.0.1", "[fc00::1]"),
)


def reactor() -> Any:
    from twisted.internet import reactor as installed

    return installed


async def fetch(handler: Any, url: str) -> str | None:
    seconds = 4 if url.startswith("http:") else 0.5  # nobody there speaks TLS
    outcome = await download(handler, Request(url, meta={"download_timeout": seconds}))
    return outcome.get("error")


async def trial(sites: Sites, handler: Any, url: str, times: int = 1, *, forgets: bool = False) -> Any:
    sites.reached.clear()
    errors = []
    for number in range(times):
        if forgets and number == times // 2:
            reactor().nameResolver._known.clear()
        errors.append(await fetch(handler, url))
    return {"reached": list(sites.reached), "errors": errors}


async def trials_of(sites: Sites, name: str, names: Names) -> dict[str, Any]:
    handler = handler_of(name, {"SITE_ALLOW_PRIVATE_HOSTS": False})
    found: dict[str, Any] = {}
    for scheme in ("http", "https"):
        host = f"turns-{name}-{scheme}.test"
        names.names[host] = lambda times: [PUBLIC if times == 0 else PRIVATE]
        url = f"{scheme}://{host}:{sites.port}/"
        found[f"{name} {scheme} turns"] = await trial(sites, handler, url, 4, forgets=True)
    for host in ("mixed", "many", "many-private"):
        found[f"{name} http {host}"] = await trial(sites, handler, f"http://{host}.test:{sites.port}/")
    found[f"{name} spelled"] = [await trial(sites, handler, f"http://{host}:{sites.port}/") for host in SPELLED]
    for title, host in ODD.items():
        found[f"{name} {title}"] = [await fetch(handler, f"http://{host}:{sites.port}/")]
    asked = len(names.asked)
    found["metadata"] = [await fetch(handler, f"http://{host}/") for host in ("metadata.google.internal", "METADATA")]
    assert len(names.asked) == asked
    await handler.close()
    return found


async def main() -> None:
    make_public(setattr)
    names = Names(dict(NAMES))
    socket.getaddrinfo = names
    PublicHostResolver(reactor(), allow_private=False).install_on_reactor()
    with Sites({}) as sites:
        found = await trials_of(sites, "stock", names) | await trials_of(sites, "plain", names)
        json.dump(found, sys.stdout)


if __name__ == "__main__":
    run_with_reactor(lambda _: main())
