"""A relay in front of a Kafka broker that can swallow packets: nothing is reset, nothing is answered."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Self

_LENGTH = struct.Struct(">i")


class KafkaRelay:
    """Listens on `address`, and puts itself in the place of the broker in all that the broker answers.

    While `is_swallowing`, what arrives from either side is read and dropped. What was dropped is missing for
    ever, so `heal` ends the connections of that time, as the hosts would when their retries are over.
    """

    def __init__(self, broker: str) -> None:
        host, port = broker.rsplit(":", 1)
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._port = self._listening.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self._theirs = host.encode() + _LENGTH.pack(int(port))
        self._ours = b"127.0.0.1" + _LENGTH.pack(self._port)
        assert len(self._theirs) == len(self._ours), "the broker has to listen on 127.0.0.1"
        self._hole = threading.Event()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_swallowing(self) -> bool:
        """Whether packets vanish."""
        return self._hole.is_set()

    def swallow(self) -> None:
        """From now on packets vanish."""
        self._hole.set()

    def heal(self) -> None:
        """From now on they pass, on new connections."""
        opened, self._open = self._open, []
        self._hole.clear()
        for each in opened:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._listening.close()
        self.heal()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                self._open += (client, server)
                for job in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass_on, args=job, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, from_server: bool) -> None:
        with suppress(OSError), source, target:
            while frame := _frame(source):
                if self._hole.is_set():
                    continue
                target.sendall(frame.replace(self._theirs, self._ours) if from_server else frame)
            target.shutdown(socket.SHUT_WR)


def _frame(source: socket.socket) -> bytes:
    """One request or answer with its length before it; empty at the end."""
    head = _exactly(source, _LENGTH.size)
    return head + _exactly(source, _LENGTH.unpack(head)[0]) if head else b""


def _exactly(source: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = source.recv(count - len(found))
        if not data:
            return b""
        found += data
    return bytes(found)
