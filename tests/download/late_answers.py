"""Two requests, one after the other, of which the first has two answers; run with the name of a handler."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from scrapy import Request

from tests.download.handler_trials import handler_of, run_with_reactor


def answer_of(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class Server:
    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self._bodies = [b"first", b"second"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer_of(self._bodies.pop(0)))
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()


async def main() -> None:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    handler: Any = handler_of(sys.argv[1], {})
    first = await handler.download_request(Request(url))
    server.writers[0].write(answer_of(b"evil"))  # in the socket at once; the loop has not turned since
    second = await handler.download_request(Request(url))
    await handler.close()
    listening.close()
    bodies = [first.text, second.text] if first else []
    json.dump({"bodies": bodies, "connections": len(server.writers)}, sys.stdout)


if __name__ == "__main__":
    run_with_reactor(lambda _: main())
