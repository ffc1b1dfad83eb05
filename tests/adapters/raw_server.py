"""Servers on loopback that answer with whatever bytes a test gives them."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

PRODUCT = b"X-Elastic-Product: Elasticsearch\r\n"


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def ids(self) -> list[str]:
        """The ids in a bulk request."""
        return [json.loads(line)["update"]["_id"] for line in self.body.splitlines()[::2]]


Said = bytes | Iterable[bytes]
Answering = Callable[[Asked], Said]


def said(body: Any, status: int = 200, kind: str = "application/json", more: bytes = b"") -> bytes:
    """A whole answer in Elasticsearch's name; what is not bytes is sent as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"Connection: close\r\n" + PRODUCT + more + b"\r\n" + content


@contextmanager
def serving(
    handle: Callable[[socketserver.StreamRequestHandler], None],
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
) -> Iterator[int]:
    """The port of a server while the block runs; `handle` has a connection, and is on its thread."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # whoever asked has heard enough
                handle(self)

    with _Server((host, 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering(answer: Answering, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of an HTTP server while the block runs; a connection is good for one answer."""

    def handle(connection: socketserver.StreamRequestHandler) -> None:
        if (asked := _asked(connection.rfile)) is not None:
            answered = answer(asked)
            for part in [answered] if isinstance(answered, bytes) else answered:
                connection.wfile.write(part)

    with serving(handle, host, tls) as port:
        yield f"http{'s' if tls else ''}://{host}:{port}"


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


def _asked(stream: Any) -> Asked | None:
    words = stream.readline().decode("latin-1").split()
    if len(words) != 3:
        return None
    headers = {}
    while line := stream.readline().decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Asked(words[0], words[1], headers, stream.read(int(headers.get("content-length", 0))))
