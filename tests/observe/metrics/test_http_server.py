"""The server of metrics: bounded in connections, bytes and time, whatever is sent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from site_spider.observe.metrics import exporter as http_server
from site_spider.observe.metrics.exporter import Reply, RouteServer

WAIT_SECONDS = 300


@pytest.fixture
def server() -> Iterator[RouteServer]:
    routes = {"/there": lambda accept: Reply(HTTPStatus.OK, f"asked for {accept}".encode())}
    made = RouteServer("127.0.0.1", 0, routes)
    yield made
    made.close()


def connected(server: RouteServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.server_port))
    connection.settimeout(WAIT_SECONDS)
    return connection


def answered(server: RouteServer, request: bytes) -> bytes:
    with connected(server) as connection:
        connection.sendall(request)
        return read(connection)


def read(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while some := connection.recv(65_536):
            answer += some
    except ConnectionResetError:
        pass  # it was not interested in the rest of the request
    return answer


def test_a_route_answers_and_the_connection_ends(server: RouteServer) -> None:
    answer = answered(server, b"GET /there?x=1 HTTP/1.1\r\nHost: a\r\nAccept: all\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nasked for all")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"GET //evil.test/there HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /there HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"HEAD /there HTTP/1.1\r\n\r\n", b"405"),
        (b"DELETE /there HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /there SPDY/9\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00 tls\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /there HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /there HTTP/1.1\r\na: " + b"b" * 70_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_anything_else_is_refused(server: RouteServer, request_: bytes, status: bytes) -> None:
    answer = answered(server, request_)
    assert status in answer.split(b"\n")[0] or status == b"400", answer[:200]
    assert b"asked for" not in answer


def test_further_connections_are_closed_while_so_many_are_open(server: RouteServer) -> None:
    held = [connected(server) for _ in range(http_server._MOST_CONNECTIONS)]
    time.sleep(0)  # the places are taken in the order of the connections
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        with connected(server) as one_more:
            if read(one_more) == b"":  # closed at once: no place
                break
        assert time.monotonic() < deadline
    for connection in held:
        connection.close()
    while b"200" not in answered(server, b"GET /there HTTP/1.1\r\n\r\n"):
        assert time.monotonic() < deadline


def test_who_says_nothing_or_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_LONGEST_SECONDS", 0.5)
    server = RouteServer("127.0.0.1", 0, {})
    ended = threading.Event()

    def trickle(connection: socket.socket) -> None:
        try:
            while not ended.wait(0.05):
                connection.sendall(b"G")
        except OSError:
            pass

    try:
        with connected(server) as connection:
            work = threading.Thread(target=trickle, args=(connection,))
            work.start()
            began = time.monotonic()
            read(connection)
            assert time.monotonic() - began < WAIT_SECONDS / 2
            ended.set()
            work.join()
    finally:
        server.close()


def test_an_address_that_is_taken_is_an_error(server: RouteServer) -> None:
    with pytest.raises(OSError, match="in use"):
        RouteServer("127.0.0.1", server.server_port, {})
