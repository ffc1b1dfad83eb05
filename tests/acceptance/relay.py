"""A relay in front of a server, which keeps back what it is told to: a server that answers late."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class Relay:
    """Listens on `url`. Data to the server waits there from the first that contains `held` until `let_go`."""

    def __init__(self, target_url: str, held: bytes) -> None:
        parts = urlsplit(target_url)
        self._target = parts.hostname, parts.port
        self._held = held
        self._may_pass = threading.Event()
        self.is_holding = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def let_go(self) -> None:
        """From now on everything passes."""
        self._may_pass.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.let_go()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                threading.Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(65_536):
                if to_server and self._held in data:
                    self.is_holding.set()
                    self._may_pass.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
