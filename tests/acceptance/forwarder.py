"""A way to a server that can be cut: to those behind it, the server is away."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class Forwarder:
    """Listens on `url` and passes on to the target, until `cut`; `mend` listens on the same port again."""

    def __init__(self, target_url: str) -> None:
        parts = urlsplit(target_url)
        self._target = parts.hostname, parts.port
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._serve()

    def cut(self) -> None:
        """Nobody gets through."""
        with suppress(OSError):  # wakes who accepts
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def mend(self) -> None:
        """As before."""
        self._listening = socket.create_server(("127.0.0.1", self._port))
        self._serve()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cut()

    def _serve(self) -> None:
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = listening.accept()
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while some := source.recv(65_536):
            sink.sendall(some)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
    source.close()
