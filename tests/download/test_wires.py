"""Which way a connection is opened, by what a host's addresses are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from scrapy.exceptions import CannotResolveHostError
from scrapy.settings import Settings

from site_spider.download import connections
from site_spider.download.connections import Server, Wires
from site_spider.download.names import HostNames, PrivateHostError, addresses_of
from site_spider.download.tls import TlsClient, tls_context
from site_spider.download.wire import Wire


async def wire_to(made: Wires, server: Server) -> Wire:
    await made.places.take()
    return await made.open(server)


async def _until_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        await reader.read()
    writer.close()


@asynccontextmanager
async def wires(
    at: str = "0.0.0.0", look_up: Any = addresses_of, *, allow_private: bool = True
) -> AsyncIterator[tuple[Wires, int]]:
    """Beside a server that keeps its connections open; its port."""
    listener = await asyncio.start_server(_until_the_end, at, 0)
    tls = TlsClient(tls_context(Settings()), 1)
    made = Wires(tls, HostNames(look_up), allow_private=allow_private, most_idle_of_server=1)
    try:
        yield made, listener.sockets[0].getsockname()[1]
    finally:
        made.close()
        listener.close()
        await asyncio.sleep(0.05)


async def opened(host: str, *addresses: str, allow_private: bool = True) -> str:
    """The address that a connection to a listener at 127.0.0.2 leads to, where a name has these."""

    async def found(_host: str) -> list[str]:
        return list(addresses)

    async with wires("127.0.0.2", found, allow_private=allow_private) as (made, port):
        return str((await wire_to(made, Server("http", host, port))).address)


@pytest.mark.parametrize("addresses", [["127.0.0.2"], ["127.0.0.1", "127.0.0.2"], ["::1", "127.0.0.2"]])
async def test_one_address_or_the_first_that_answers(addresses: list[str]) -> None:
    """Nobody listens at the others."""
    assert await opened("h.test", *addresses) == "127.0.0.2"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.1", "127.0.0.3"]])
async def test_where_nobody_listens(addresses: list[str]) -> None:
    """The error is the same for one address and for several."""
    with pytest.raises(ConnectionRefusedError):
        await opened("h.test", *addresses)


async def test_an_address_is_not_looked_up() -> None:
    """But one in another spelling is, and it passes the guard all the same."""
    assert await opened("127.0.0.2") == "127.0.0.2"
    with pytest.raises(CannotResolveHostError):
        await opened("127.2")
    for address in ("127.0.0.2", "::ffff:127.0.0.2", "::1"):
        with pytest.raises(PrivateHostError):
            await opened(address, allow_private=False)


async def test_idle_connections_of_all_servers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the process may open: of many servers that keep theirs open, the longest idle go."""
    monkeypatch.setattr(connections, "_MOST_IDLE", 3)
    async with wires() as (made, port):
        servers = [Server("http", f"127.0.0.{number}", port) for number in range(1, 8)]
        opened = [await wire_to(made, server) for server in servers]
        for server, wire in zip(servers, opened, strict=True):
            made.keep(server, wire)
        found = [made.take_idle(server) is not None for server in servers]
    assert found == [False] * 4 + [True] * 3


async def test_a_host_that_sent_surplus_gets_a_connection_for_each_request_for_an_hour(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those to it that are kept are closed, on whatever port."""
    caplog.set_level(logging.INFO)
    async with wires() as (made, port):
        server, other = (Server("http", host, port) for host in ("127.0.0.1", "127.0.0.2"))
        for kept in (server, other):
            made.keep(kept, await wire_to(made, kept))
        wire = await wire_to(made, server)
        wire.had_surplus = True
        wire.abort()
        found = [made.keeps(server), made.keeps(other)]
        found += [made.take_idle(one) is not None for one in (server, other)]
        monkeypatch.setattr(connections, "_SURPLUS_SECONDS", -1.0)
        found.append(made.keeps(server))
    assert found == [False, True, False, True, True]
    assert caplog.text.count("127.0.0.1 sent bytes that nobody asked for") == 1
