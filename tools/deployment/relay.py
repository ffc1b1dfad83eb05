"""A way to a server that can fail as networks do: late, slow, reset, silent, or silent in one direction."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Self

_LENGTH = struct.Struct(">i")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed by a reset
_CHUNK = 65_536
_CONNECT_SECONDS = 5.0
SHORTEST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.2, 1.0
BYTES_A_SECOND = 50_000.0
SHARE_RESET = 0.2  # of what passes, each with its connection

Receive = Callable[[socket.socket], bytes]


class Fault(Enum):
    DELAY = "delays"
    THROTTLE = "throttles"
    RESET = "resets"
    REFUSE = "refuses"
    SWALLOW = "swallows"
    CUT_REQUESTS = "swallows requests"
    CUT_ANSWERS = "swallows answers"


_SWALLOWS = {
    Fault.SWALLOW: (True, True),  # what goes to the server, what comes from it
    Fault.CUT_REQUESTS: (True, False),
    Fault.CUT_ANSWERS: (False, True),
}


class Relay:
    """Listens on `address` and passes on to the target, with the fault of the moment.

    What was swallowed is missing for ever, so `heal` ends the connections of that time, as the hosts would
    when their retries are over. A Kafka broker tells its clients addresses: those in `names` are replaced by
    ours, so that the clients stay on this way. Use it in a `with`, or call `start` and `close`.
    """

    def __init__(self, target: str, names: Mapping[bytes, bytes] | None = None) -> None:
        host, port = target.rsplit(":", 1)
        self.target = target
        self.fault: Fault | None = None
        self._place = host, int(port)
        self._names = names
        self._healed = threading.Event()
        self._open: set[socket.socket] = set()
        self._holding = socket.socket()  # the port, which nobody else gets while connections are refused
        self._holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holding.bind(("127.0.0.1", 0))
        self._port = self._holding.getsockname()[1]
        self._listening = socket.create_server(("127.0.0.1", self._port))
        self.address = f"127.0.0.1:{self._port}"

    def start(self) -> None:
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def begin(self, fault: Fault) -> None:
        self._healed.clear()
        self.fault = fault
        if fault is Fault.REFUSE:
            self._stop_listening()
            self._end_connections()

    def heal(self) -> None:
        fault, self.fault = self.fault, None
        self._healed.set()
        if fault in _SWALLOWS:
            self._end_connections()
        if fault is Fault.REFUSE:
            self._listening = socket.create_server(("127.0.0.1", self._port))
            self.start()

    def close(self) -> None:
        self.fault = None
        self._healed.set()
        self._stop_listening()
        self._holding.close()
        self._end_connections()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _stop_listening(self) -> None:
        with suppress(OSError):  # wakes who accepts
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _end_connections(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = listening.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._place, _CONNECT_SECONDS)
        except OSError:
            _reset(client)
            return
        server.settimeout(None)
        threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()
        self._pass_on(client, server, True)

    def _pass_on(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        receive = _some if self._names is None else _frame
        self._open.add(source)
        try:
            while self.fault is not Fault.REFUSE and (data := receive(source)):  # it may have begun meanwhile
                if self._passes(data, source, target, to_server=to_server):
                    target.sendall(data if to_server else self._renamed(data))
        except OSError:
            pass  # one of the two has gone
        finally:
            self._open.discard(source)
            for each in (source, target):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            source.close()

    def _passes(self, data: bytes, source: socket.socket, target: socket.socket, *, to_server: bool) -> bool:
        fault = self.fault
        if fault is Fault.DELAY:
            self._healed.wait(random.uniform(SHORTEST_DELAY_SECONDS, LONGEST_DELAY_SECONDS))
        elif fault is Fault.THROTTLE:
            self._healed.wait(len(data) / BYTES_A_SECOND)
        elif fault is Fault.RESET and random.random() < SHARE_RESET:
            _reset(source)
            _reset(target)
        swallowed = _SWALLOWS.get(fault, (False, False)) if fault else (False, False)
        return not swallowed[0 if to_server else 1]

    def _renamed(self, data: bytes) -> bytes:
        for theirs, ours in (self._names or {}).items():
            data = data.replace(theirs, ours)
        return data


def kafka_relays(brokers: str) -> list[Relay]:
    """One for each broker of a comma list; clients that begin at any of them stay on these ways."""
    names: dict[bytes, bytes] = {}
    relays = [Relay(broker.strip(), names) for broker in brokers.split(",")]
    for relay in relays:
        names[_spelled(relay.target)] = _spelled(relay.address)
    return relays


@contextmanager
def kafka_relay(broker: str) -> Iterator[Relay]:
    [relay] = kafka_relays(broker)
    with relay:
        yield relay


def _spelled(address: str) -> bytes:
    """As in Kafka's answers: what replaces it has to be as long."""
    host, port = address.rsplit(":", 1)
    assert host == "127.0.0.1", "the broker has to listen on 127.0.0.1"
    return host.encode() + _LENGTH.pack(int(port))


def _reset(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.shutdown(socket.SHUT_RD)  # wakes who reads from it, and holds it open
    connection.close()


def _some(source: socket.socket) -> bytes:
    return source.recv(_CHUNK)


def _frame(source: socket.socket) -> bytes:
    """One request or answer of Kafka with its length before it; empty at the end."""
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
