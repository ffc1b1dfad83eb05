"""Which way a connection is opened, how many may be open, what happens when descriptors run out, and look-ups."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import twisted.internet
from scrapy import Request, Spider
from scrapy.exceptions import CannotResolveHostError, DownloadFailedError
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from twisted.internet._resolver import GAIResolver
from twisted.internet.address import IPv4Address
from twisted.python.threadpool import ThreadPool

from site_spider import meta_keys, runtime
from site_spider.download import bodies, connection_pool, descriptors, names
from site_spider.download.address import is_address
from site_spider.download.bodies import Bodies
from site_spider.download.connection import Connection
from site_spider.download.connection_pool import ConnectionPool, ConnectionSlots, Server
from site_spider.download.descriptors import check_limit, is_shortage, raise_limit
from site_spider.download.handler import PlainDownloadHandler
from site_spider.download.names import HostNames, PrivateHostError, PublicHostResolver, addresses_of, look_up
from site_spider.download.tls import TlsClient, tls_context
from site_spider.errors import ConfigError
from site_spider.ledger.completion import Job
from tests.download.handler_trials import certificate, listening, said_by, turns
from tests.download.raw_answers import Case, RawServer


async def wire_to(made: ConnectionPool, server: Server) -> Connection:
    await made.places.take()
    return await made.open(server)


async def _until_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        await reader.read()
    writer.close()


@asynccontextmanager
async def wires(
    at: str = "0.0.0.0", look_up: Any = addresses_of, *, allow_private: bool = True
) -> AsyncIterator[tuple[ConnectionPool, int]]:
    """Beside a server that keeps its connections open; its port."""
    tls = TlsClient(tls_context(Settings()), 1)
    made = ConnectionPool(tls, HostNames(look_up), allow_private=allow_private, most_idle_of_server=1)
    async with listening(_until_the_end, host=at) as port:
        try:
            yield made, port
        finally:
            made.close()


async def opened(host: str, *addresses: str, allow_private: bool = True) -> str:
    """The address that a connection to a listener at 127.0.0.2 leads to, where a name has these."""

    async def found(_host: str) -> list[str]:
        return list(addresses)

    async with wires("127.0.0.2", found, allow_private=allow_private) as (made, port):
        return str((await wire_to(made, Server("http", host, port))).address)


@pytest.mark.parametrize("addresses", [["127.0.0.2"], ["127.0.0.1", "127.0.0.2"], ["::1", "127.0.0.2"]])
async def test_one_address_or_the_first_that_answers(addresses: list[str]) -> None:
    assert await opened("h.test", *addresses) == "127.0.0.2"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.1", "127.0.0.3"]])
async def test_where_nobody_listens(addresses: list[str]) -> None:
    with pytest.raises(ConnectionRefusedError):
        await opened("h.test", *addresses)


async def test_an_address_is_not_looked_up() -> None:
    """But one in another spelling is, and it passes the guard all the same."""
    assert await opened("127.0.0.2") == "127.0.0.2"
    with pytest.raises(CannotResolveHostError):
        await opened("127.2")
    for address in ("127.0.0.2", "::ffff:127.0.0.2", "::1"):
        with pytest.raises(PrivateHostError, match="set SITE_ALLOW_PRIVATE_HOSTS=true"):
            await opened(address, allow_private=False)


async def test_idle_connections_of_all_servers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the process may open: of many servers that keep theirs open, the longest idle go."""
    monkeypatch.setattr(connection_pool, "_MOST_IDLE", 3)
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
        monkeypatch.setattr(connection_pool, "_SURPLUS_SECONDS", -1.0)
        found.append(made.keeps(server))
    assert found == [False, True, False, True, True]
    assert caplog.text.count("127.0.0.1 sent bytes that nobody asked for") == 1


# --- How many may be open, and what happens when descriptors run out


EMFILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Kept:
    """Connections that are kept; each has a place until it is closed."""

    def __init__(self, most: int) -> None:
        self.places = ConnectionSlots(lambda: most, self.close_one)
        self.count = 0

    async def keep(self, count: int) -> None:
        for _ in range(count):
            await self.places.take()
        self.count += count

    def close_one(self) -> bool:
        if not self.count:
            return False
        self.count -= 1
        asyncio.get_running_loop().call_soon(self.places.give_back)
        return True


async def test_a_connection_that_is_kept_is_closed_for_the_next() -> None:
    kept = Kept(10)
    await kept.keep(10)
    assert await kept.places.take() < 10
    await asyncio.gather(*(kept.places.take() for _ in range(4)))
    assert kept.count == 5


async def test_a_download_without_a_place_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(runtime, "monotonic", lambda: now)
    places = ConnectionSlots(lambda: 4, lambda: False)
    for _ in range(4):
        assert await places.take() == 0
    waiting = [asyncio.create_task(places.take()) for _ in range(3)]
    await turns()
    assert places.are_wanted
    now += 1
    waiting[0].cancel()
    places.give_back()
    assert await waiting[1] == 1
    assert not waiting[2].done()
    waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    places.give_back()
    assert await places.take() == 0


async def test_no_more_is_called_waiting_than_took_place() -> None:
    """The time counts in milliseconds with uvloop: what was over in less would have a negative latency."""
    places = ConnectionSlots(lambda: 100_000, lambda: False)
    for _ in range(20_000):
        began = runtime.monotonic()
        assert await places.take() <= runtime.monotonic() - began


async def test_a_turn_that_is_not_taken_goes_on() -> None:
    """A task that is cancelled just as a place becomes free does not keep it from others."""
    places = ConnectionSlots(lambda: 4, lambda: False)
    for _ in range(4):
        await places.take()
    first, second = (asyncio.create_task(places.take()) for _ in range(2))
    await asyncio.sleep(0)
    places.give_back()
    first.cancel()
    await second


async def test_a_shortage_closes_what_is_kept_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        kept = Kept(50)
        await kept.keep(40)
        kept.places.ran_out()
        kept.places.ran_out()
        assert kept.count == 0
    assert len(caplog.records) == 1
    assert "ulimit -n" in caplog.text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EMFILE, True),
        (OSError(errno.ENFILE, "in the system"), True),
        (OSError(f"Multiple exceptions: {EMFILE}, [Errno 111] refused"), True),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Too many open files"), False),
        (DownloadFailedError("HTTP/1.1 500 Too many open files"), False),  # a server's own words
        (OSError(errno.EADDRINUSE, "in use"), False),
        (None, False),
    ],
)
def test_a_shortage_is_told_from_what_a_server_says(error: BaseException | None, expected: bool) -> None:
    assert is_shortage(error) is expected
    wrapped = DownloadFailedError("failed")
    wrapped.__cause__ = error
    assert is_shortage(wrapped) is expected


@pytest.mark.parametrize(("possible", "is_refused"), [(64, None), (63, False), (4, False), (3, True), (-9, True)])
def test_concurrent_requests_are_checked_against_the_limit(
    possible: int, is_refused: bool | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "for_connections", lambda: possible)
    settings = Settings({"CONCURRENT_REQUESTS": 64})
    if is_refused:
        with pytest.raises(ConfigError, match=r"CONCURRENT_REQUESTS is 64, .* Raise the hard limit to \d+"):
            check_limit(settings)
    else:
        check_limit(settings)
    assert ("lower CONCURRENT_REQUESTS" in caplog.text) is (is_refused is False)


def test_the_soft_limit_is_raised_towards_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    for limits in ((1024, 4096), (1024, 10**9), (1024, resource.RLIM_INFINITY), (4096, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        raise_limit()
    assert asked == [(4096, 4096), (65_536, 10**9), (65_536, resource.RLIM_INFINITY)]


def test_a_crawl_begins_where_no_descriptors_can_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc, as in a chroot."""
    monkeypatch.setattr(descriptors, "_OWN", Path("/proc/none"))
    check_limit(Settings({"CONCURRENT_REQUESTS": 8}))
    assert not descriptors.are_short()


def test_downloads_wait_while_no_descriptor_is_left() -> None:
    """To an address and to a name, and the wait is no part of DOWNLOAD_TIMEOUT."""
    found, stderr = said_by("shortage_trials")
    assert found == [200] * 4
    assert stderr.count("No file descriptor is left") == 1


async def test_http_and_https_share_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy asks for a handler for each scheme; connections that are kept count for both."""
    monkeypatch.setattr(connection_pool, "for_connections", lambda: 6)

    crawler = get_crawler(Spider, {"SITE_ALLOW_PRIVATE_HOSTS": True, "DOWNLOAD_VERIFY_CERTIFICATES": False})
    handlers = {scheme: PlainDownloadHandler.from_crawler(crawler) for scheme in ("http", "https")}
    server = RawServer(Case(closes=False))
    async with (
        listening(server.serve, host="0.0.0.0") as plain,
        listening(server.serve, certificate(tmp_path), "0.0.0.0") as secure,
    ):
        for number in range(1, 7):
            for scheme, port in (("http", plain), ("https", secure)):
                await handlers[scheme].download_request(Request(f"{scheme}://127.0.0.{number}:{port}/"))
        assert server.connections == 12
        assert sum(len(made) for made in {id(one): one._wires._open for one in handlers.values()}.values()) == 6
        for handler in handlers.values():
            await handler.close()


# --- which blocks of memory a crawl keeps ----------------------------------------------------------------

TAKEN_AGAIN = """
import ctypes, resource, sys
from site_spider.download.bodies import give_back_large_blocks
give_back_large_blocks(beside_large_bodies=sys.argv[1] == "True")
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for size in map(int, sys.argv[2:]):
    for attempt in range(21):
        block = libc.malloc(size)
        ctypes.memset(block, 1, size)
        libc.free(block)
        if attempt == 0:
            before = faults()
    print((faults() - before) * 4096 > 10 * size)
"""


@pytest.mark.parametrize(
    ("beside_large_bodies", "are_mapped_anew"), [(False, [False, False, True]), (True, [False, True, True])]
)
def test_a_block_of_the_kafka_client_is_mapped_once(beside_large_bodies: bool, are_mapped_anew: list[bool]) -> None:
    """It takes one for each batch that it compresses; larger ones are those of bodies."""
    sizes = ("300000", "3661824", "8000000")
    command = [sys.executable, "-c", TAKEN_AGAIN, str(beside_large_bodies), *sizes]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(each) for each in are_mapped_anew]


def test_many_large_bodies_have_memory_given_back_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(
        bodies, "give_back_large_blocks", lambda *, beside_large_bodies: told.append(beside_large_bodies)
    )
    large = Bodies(256_000_000, lambda: True, lambda: None, bool)
    for number, count in enumerate([0] * 8 + [1] * 3):
        large.weigh(Request(f"http://h.test/{number}"), 1_000_000)
        assert len(told) == count
    assert told == [True]


def test_a_large_body_whose_request_has_ended_does_not_count() -> None:
    """A spider's own download goes on when its callback has run out of time: the crawl stood still for ever."""
    under_way: set[Request] = set()
    large, request = Bodies(1_000_000, lambda: True, lambda: None, under_way.__contains__), Request("http://h.test/")
    for are_under_way, has_room in (({request}, False), (set[Request](), True)):
        under_way.clear()
        under_way.update(are_under_way)
        large.arriving(request, 300_000, lambda _: None)
        assert large.has_room is has_room
        large.ended(request)
    large.weigh(request, 900_000)  # unpacked
    assert large.bytes == 0


def test_a_paused_body_whose_request_ends_goes_on() -> None:
    """Else a spider's own download would never end when its callback has run out of time, and keep its host's place."""
    large, said = Bodies(1_000_000, lambda: True, lambda: None, bool), list[bool]()
    first, second = (Request(f"http://h.test/{number}") for number in range(2))
    large.arriving(first, 300_000, lambda _: None)
    large.arriving(second, 300_000, said.append)
    assert said == [True]
    large.ended(second)
    assert said == [True, False]
    large.ended(first)
    assert said == [True, False]


def test_one_of_the_bodies_that_a_spider_downloads_itself_always_arrives() -> None:
    """The page whose callback, or pipeline of files, waits for them may be the oldest body: all stood still."""
    large, paused = Bodies(1_000_000, lambda: True, lambda: None, bool), set[str]()
    job = Job.__new__(Job)
    page, link = (Request(f"http://h.test/{name}", meta={meta_keys.JOB: job}) for name in ("page", "link"))
    own, next_own = Request("http://h.test/own"), Request("http://h.test/next")
    for request in (page, link, own, next_own):

        def pause(is_paused: bool, url: str = request.url) -> None:
            (paused.add if is_paused else paused.remove)(url)

        large.arriving(request, 300_000, pause)
    large.arrived(page)
    assert paused == {link.url, next_own.url}
    large.arrived(own)
    large.ended(own)
    assert paused == {link.url}


def test_while_large_bodies_fill_the_memory_the_oldest_alone_arrives() -> None:
    """Of those that are paused the next oldest goes on when it ends, and all when there is room."""
    large, paused = Bodies(2_000_000, lambda: True, lambda: None, bool), set[str]()
    first, second, third = (Request(f"http://h.test/{number}") for number in range(3))

    def arriving(request: Request, size_bytes: int) -> None:
        def pause(is_paused: bool) -> None:
            (paused.add if is_paused else paused.remove)(request.url)

        large.arriving(request, size_bytes, pause)

    for request, size_bytes, expected in (
        (first, 300_000, set()),
        (second, 300_000, {second.url}),
        (third, 200_000, {second.url, third.url}),
        (first, 400_000, {second.url, third.url}),
    ):
        arriving(request, size_bytes)
        assert paused == expected
    large.ended(first)
    assert (paused, large.has_room) == ({third.url}, False)
    large.ended(second)
    large.look()  # nobody is told twice
    assert (paused, large.has_room) == (set(), True)


# --- Names are looked up once at a time, and each look-up ends

NAMES = {"a.test": "8.8.4.4", "inside.test": "10.0.0.2"}  # as a resolver of somebody's own has them


class Resolver:
    """Answers when it is let, with the host's name for an address."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Event()

    async def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        await self.go.wait()
        if host == "bad.test":
            raise OSError("no descriptor")
        return [host]


@pytest.fixture
def resolver() -> Resolver:
    return Resolver()


async def test_downloads_of_one_host_share_its_lookup(resolver: Resolver) -> None:
    made = HostNames(resolver.look_up)
    waiting = [asyncio.create_task(made.addresses(host)) for host in ["a.test"] * 3 + ["bad.test"] * 2]
    await asyncio.sleep(0)
    waiting[0].cancel()
    resolver.go.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:3] == [["a.test"]] * 2
    assert [str(each) for each in found[3:]] == ["no descriptor"] * 2
    assert await made.addresses("a.test") == ["a.test"]  # asked anew: the resolver has the cache
    assert resolver.asked == ["a.test", "bad.test", "a.test"]


async def test_a_lookup_that_never_ends_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, resolver: Resolver
) -> None:
    """A resolver that gets no thread says nothing; the next download asks anew."""
    monkeypatch.setattr(names, "_LOOKUP_SECONDS", 0.02)
    monkeypatch.setattr(names, "is_reactor_installed", lambda: False)
    monkeypatch.setattr(names, "_resolved_in_thread", resolver.look_up)
    made = HostNames(addresses_of)
    with pytest.raises(TimeoutError):
        await made.addresses("a.test")
    resolver.go.set()
    assert await made.addresses("a.test") == ["a.test"]
    assert resolver.asked == ["a.test", "a.test"]


async def test_a_lookup_that_is_given_up_takes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """While name servers are silent each thread hangs for seconds, and thousands would wait for one in an hour."""
    asked, go, pool = list[str](), threading.Event(), ThreadPool(1, 1)

    def getaddrinfo(host: str, *_: Any) -> list[Any]:
        asked.append(host)
        go.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 0))]

    reactor = Mock(callFromThread=asyncio.get_running_loop().call_soon_threadsafe, getThreadPool=lambda: pool)
    reactor.seconds.return_value, reactor.nameResolver = 0.0, GAIResolver(reactor)
    made = PublicHostResolver(reactor, allow_private=False)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(names, "is_reactor_installed", lambda: True)
    monkeypatch.setattr(twisted.internet, "reactor", Mock(nameResolver=made), raising=False)
    pool.start()
    try:
        first, *given_up = (asyncio.create_task(addresses_of(f"{name}.test")) for name in "abcd")
        while not asked:
            await asyncio.sleep(0)
        for one in given_up:
            one.cancel()
        last = asyncio.create_task(addresses_of("e.test"))
        await asyncio.sleep(0)
        go.set()
        assert await first == await last == ["8.8.8.8"]
    finally:
        go.set()
        pool.stop()
    assert asked == ["a.test", "e.test"]


async def test_an_end_leaves_no_lookup_behind(resolver: Resolver) -> None:
    made = HostNames(resolver.look_up)
    waiting = asyncio.create_task(made.addresses("a.test"))
    while not resolver.asked:
        await asyncio.sleep(0)
    made.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert resolver.asked == ["a.test"]


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.ENOENT, errno.EMFILE])
def test_a_lookup_that_fails_ends_also_when_descriptors_cannot_be_counted(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Twisted waits for ever after any error but gaierror."""
    monkeypatch.setattr(descriptors, "_OWN", Mock(iterdir=Mock(side_effect=OSError(number, "no list"))))
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror(socket.EAI_NONAME, "unknown")))
    with pytest.raises(socket.gaierror):
        look_up("a.test")


async def test_a_resolver_of_ones_own_that_is_made_of_ours_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds counts, private addresses too: who asks judges them, also if it has a receiver of its own."""

    class Between:
        def __init__(self, receiver: Any) -> None:
            self.resolutionBegan = receiver.resolutionBegan
            self.addressResolved = receiver.addressResolved
            self.resolutionComplete = receiver.resolutionComplete

    class Own(PublicHostResolver):
        def resolveHostName(self, receiver: Any, name: str, *more: Any, **rest: Any) -> Any:  # noqa: N802
            to = Between(receiver) if has_its_own_receiver else receiver
            return super().resolveHostName(to, NAMES.get(name, name), *more, **rest)

    def resolve(receiver: Any, host: str, *_: Any) -> None:
        host = "10.0.0.3" if host == "metadata" else host  # nothing but a name, where it is that of a proxy
        if is_address(host):
            receiver.addressResolved(IPv4Address("TCP", host, 0))
        receiver.resolutionComplete()

    monkeypatch.setattr(names, "is_reactor_installed", lambda: True)
    made = Own(Mock(**{"seconds.return_value": 0.0}), allow_private=False)
    made._original = Mock(resolveHostName=resolve)
    monkeypatch.setattr(twisted.internet, "reactor", Mock(nameResolver=made), raising=False)
    has_its_own_receiver = False
    found = [await addresses_of(host) for host in ("a.test", "8.8.8.8", "10.0.0.1", "inside.test", "metadata")]
    assert found == [["8.8.4.4"], ["8.8.8.8"], ["10.0.0.1"], ["10.0.0.2"], ["10.0.0.3"]]
    has_its_own_receiver = True
    found = [await addresses_of(host) for host in ("a.test", "8.8.8.8", "10.0.0.1", "no.test")]
    assert found == [["8.8.4.4"], ["8.8.8.8"], ["10.0.0.1"], []]
