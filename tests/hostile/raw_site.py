"""A site whose paths are answered by functions that hold the socket: they may send whatever they like."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

Answer = Callable[[socket.socket], None]


def whole(body: bytes, content_type: str = "text/html", *lines: str) -> bytes:
    """A well-formed answer, kept alive."""
    head = ("HTTP/1.1 200 OK", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *lines)
    return "\r\n".join((*head, "", "")).encode() + body


def sends(*pieces: bytes, closes: bool = True) -> Answer:
    """Sends these pieces, one `send` each."""

    def answer(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)
        if closes:
            connection.shutdown(socket.SHUT_RDWR)

    return answer


def sends_for_ever(begin: bytes, again: bytes) -> Answer:
    """Sends until the other side has had enough."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(begin)
        block = again * max(1, 65_536 // len(again))
        while True:
            connection.sendall(block)

    return answer


class RawSite:
    """Listens on a loopback address; a path without an answer is a good page."""

    def __init__(
        self, answers: Mapping[str, Answer], host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self._answers = answers
        self._tls = tls
        self._open: set[socket.socket] = set()
        self._socket = socket.create_server((host, 0), backlog=512)
        self.host, self.port = host, self._socket.getsockname()[1]
        self.requested: Counter[str] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, path: str) -> str:
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}{path}"

    def close(self) -> None:
        """Nothing more is accepted, and what is open is cut off."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), self._encrypted(connection) as ready:
            while path := _path_of(ready):
                self.requested[path] += 1
                answer = self._answers.get(path.partition("?")[0]) or sends(whole(b"<p>good"), closes=False)
                answer(ready)
        self._open.discard(connection)

    def _encrypted(self, connection: socket.socket) -> socket.socket:
        return connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True)


def _path_of(connection: socket.socket) -> str:
    """Of the next request; empty when there is none."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = connection.recv(65_536)
        if not data:
            return ""
        received += data
    return received.split(b" ", 2)[1].decode("latin-1")


@contextmanager
def raw_site(
    answers: Mapping[str, Answer] | None = None, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[RawSite]:
    site = RawSite(answers or {}, host, tls)
    try:
        yield site
    finally:
        site.close()
