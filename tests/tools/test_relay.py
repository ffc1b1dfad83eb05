"""The relay between a client and a server: each fault, and that it heals."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from socketserver import StreamRequestHandler
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.adapters.raw_server import serving
from tools.deployment.deployment import wait_until
from tools.deployment.relay import LONGEST_DELAY_SECONDS, SHORTEST_DELAY_SECONDS, Fault, Relay, kafka_relays


class Echo:
    def __init__(self) -> None:
        self.got = bytearray()
        self._serving = ExitStack()
        self.address = f"127.0.0.1:{self._serving.enter_context(serving(self._answer))}"
        self.close = self._serving.close

    def _answer(self, connection: StreamRequestHandler) -> None:
        while data := connection.connection.recv(1000):
            self.got += data
            connection.connection.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def relay(echo: Echo) -> Iterator[Relay]:
    with Relay(echo.address) as relay:
        yield relay


def connect(relay: Relay) -> socket.socket:
    host, port = relay.address.split(":")
    return socket.create_connection((host, int(port)), timeout=300)


def asks(client: socket.socket, text: bytes = b"hello") -> bytes:
    client.sendall(text)
    return client.recv(1000)


def test_what_is_sent_arrives_and_the_end_is_passed_on(relay: Relay) -> None:
    with connect(relay) as client:
        assert asks(client) == b"hello"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1000) == b""


@pytest.mark.parametrize("fault", [Fault.SWALLOW, Fault.CUT_REQUESTS, Fault.CUT_ANSWERS])
def test_what_is_swallowed_is_not_answered(relay: Relay, echo: Echo, fault: Fault) -> None:
    with connect(relay) as client:
        assert asks(client) == b"hello"
        relay.begin(fault)
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            asks(client, b"more")
        wait_until(lambda: (b"more" in echo.got) is (fault is Fault.CUT_ANSWERS), 300, "what passes")
        relay.heal()
        client.settimeout(300)
        assert client.recv(1000) == b""  # something is missing on it for ever
    with connect(relay) as client:
        assert asks(client) == b"hello"


@pytest.mark.parametrize("fault", [Fault.DELAY, Fault.THROTTLE])
def test_what_is_slow_arrives_whole_when_its_time_has_passed_and_at_once_when_it_is_healed(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    waits: list[float] = []
    healed = threading.Event.wait

    def wait(event: threading.Event, seconds: float | None = None) -> bool:
        if event is relay._healed and seconds is not None:
            waits.append(seconds)
        return healed(event, seconds)

    monkeypatch.setattr(threading.Event, "wait", wait)
    with connect(relay) as client:
        relay.begin(fault)
        text = b"x" * 1000
        assert asks(client, text) == text
        assert len(waits) >= 2  # there and back
        if fault is Fault.DELAY:
            assert all(SHORTEST_DELAY_SECONDS <= each <= LONGEST_DELAY_SECONDS for each in waits)
        relay.heal()
        waits.clear()
        assert asks(client) == b"hello"
        assert not waits


def test_connections_are_reset_now_and_then(relay: Relay) -> None:
    relay.begin(Fault.RESET)
    ends = []
    for _ in range(80):
        with connect(relay) as client:
            try:
                ends.append(asks(client))
            except OSError:
                ends.append(b"reset")
    assert {b"hello", b"reset"} <= {end or b"reset" for end in ends}


def test_a_refused_connection_is_taken_again_when_it_is_healed(relay: Relay) -> None:
    with connect(relay) as client:
        assert asks(client) == b"hello"
        relay.begin(Fault.REFUSE)
        assert client.recv(1000) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(relay)
    relay.heal()
    with connect(relay) as client:
        assert asks(client) == b"hello"


def test_nobody_else_gets_its_port_while_connections_are_refused(relay: Relay) -> None:
    relay.begin(Fault.REFUSE)
    host, port = relay.address.split(":")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(port)))
    relay.heal()
    connect(relay).close()


def test_a_connection_that_is_just_made_when_others_are_ended_ends_as_well(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_made, go_on, pass_on = threading.Event(), threading.Event(), Relay._pass_on

    def late(*how: Any) -> None:
        is_made.set()
        assert go_on.wait(300)
        pass_on(*how)

    monkeypatch.setattr(Relay, "_pass_on", late)
    with connect(relay) as client:
        assert is_made.wait(300)
        relay.begin(Fault.REFUSE)
        go_on.set()
        assert client.recv(1000) == b""


def test_a_server_that_is_away_resets_the_connection_and_no_more(relay: Relay, echo: Echo) -> None:
    echo.close()
    for _ in range(2):
        with pytest.raises(ConnectionResetError), connect(relay) as client:
            client.recv(1000)


def test_a_kafka_client_stays_on_the_relays_of_three_brokers_through_faults() -> None:
    """A mock cluster of the client library itself; real brokers answer alike."""
    cluster = Producer({"test.mock.num.brokers": 3, "log_level": 0})
    brokers = [f"{one.host}:{one.port}" for one in cluster.list_topics(timeout=300).brokers.values()]
    relays = kafka_relays(",".join(brokers))
    for relay in relays:
        relay.start()
    addresses = {relay.address for relay in relays}
    client = Producer({"bootstrap.servers": ",".join(addresses), "log_level": 0})
    for fault in (Fault.CUT_ANSWERS, Fault.RESET, Fault.REFUSE):
        client.produce("seeds", b"before")
        assert client.flush(60) == 0
        for relay in relays:
            relay.begin(fault)
        client.produce("seeds", fault.value.encode())
        client.flush(0.5)
        for relay in relays:
            relay.heal()
        assert client.flush(60) == 0
    known = client.list_topics(timeout=300).brokers.values()
    assert {f"{one.host}:{one.port}" for one in known} == addresses
    for relay in relays:
        relay.close()
