"""A site that costs next to nothing to serve: pages of about 10 KB with 49 links, or a few bytes.

`/small/N` is a few bytes, `/found/N` links to another host (links are found, and none is in scope),
`/site/N` links to other pages of the same site.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

LINKS = 49
_TEXT = "<p>Lorem ipsum dolor sit amet, <b>consectetur</b> adipiscing elit, sed do eiusmod tempor {}.</p>"
_HEAD = (
    "HTTP/1.1 200 OK\r\nServer: fast\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\r\n"
)


def page(kind: str, number: int, pages: int) -> bytes:
    """The answer as it is sent."""
    parts = [f"<!DOCTYPE html><html><head><title>Page {number}</title></head><body>"]
    for index in range(0 if kind == "small" else LINKS):
        target = (number * 7 + index * 61 + 1) % pages
        href = f"/site/{target}" if kind == "site" else f"http://other.test/{target}.html"
        link = f'<a class="link" href="{href}" title="t">Link {index}</a>'
        parts.append(f'<div class="item">{link}{_TEXT.format(index)}</div>')
    body = "".join([*parts, "</body></html>"]).encode()
    return _HEAD.format(len(body)).encode() + body


class Server(asyncio.Protocol):
    """Keeps every connection, and every page that it has made."""

    made: dict[bytes, bytes] = {}  # noqa: RUF012 - shared by all connections
    pages = 2000

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            path = head.split(b" ", 2)[1]
            if path not in self.made:
                _, kind, number = path.decode().split("/")
                self.made[path] = page(kind, int(number), self.pages)
            self._transport.write(self.made[path])


async def main(pages: int) -> None:
    Server.pages = pages
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
