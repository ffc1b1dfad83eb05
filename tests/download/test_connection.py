"""One connection: reading that is put off, and what must not reach another request."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Request
from scrapy.settings import Settings

from site_spider.download.answer import BodyEnd, HttpAnswer
from site_spider.download.connection import AnswerDoubt, Connection, NothingCame
from site_spider.download.handler import DownloadWatch
from site_spider.download.tls import TlsClient, TlsStream, tls_context
from site_spider.ledger import completion
from tests.download.handler_trials import certificate, handling, listening, turns
from tests.download.raw_answers import Case, RawServer
from tests.growth import assert_grows

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nA\r\n" * 10_000
WHOLE = OK + b"Content-Length: 4\r\n\r\npage"
REQUEST = b"GET / HTTP/1.1\r\n\r\n"
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(params=["plain", "TLS"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> ssl.SSLContext | None:
    return certificate(tmp_path) if request.param == "TLS" else None


class NeverTime:
    def __init__(self) -> None:
        self.waited = 0

    def has_time(self) -> bool:
        return False

    async def time(self) -> None:
        self.waited += 1
        await asyncio.sleep(0)


def insecure() -> TlsClient:
    return TlsClient(tls_context(Settings({"DOWNLOAD_VERIFY_CERTIFICATES": False})), 1)


@asynccontextmanager
async def connected(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Connection, Peer]]:
    peers: asyncio.Queue[Peer] = asyncio.Queue()
    listener = await asyncio.start_server(lambda r, w: peers.put_nowait((r, w)), "127.0.0.1", 0, ssl=tls)
    wire = Connection(lambda _: None, TlsStream(insecure(), "x", 443) if tls else None)
    await asyncio.get_running_loop().create_connection(lambda: wire, *listener.sockets[0].getsockname())
    await wire.ready()
    peer = await peers.get()
    try:
        yield wire, peer
    finally:
        wire.abort()
        peer[1].transport.abort()
        listener.close()
        await turns()


def _end_at_once(writer: asyncio.StreamWriter) -> None:
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as raw:
        raw.shutdown(socket.SHUT_WR)


def ask(wire: Connection, *, waits: bool = True) -> tuple[HttpAnswer, asyncio.Future[None], NeverTime]:
    answer, turns = HttpAnswer(), NeverTime()
    if waits:
        wire._turns = turns  # type: ignore[assignment]
    return answer, wire.ask(REQUEST, answer, lambda _: None), turns


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def test_reading_goes_on_in_later_turns(tls: ssl.SSLContext | None) -> None:
    async with connected(tls) as (wire, (_, writer)):
        for _ in range(2):
            answer, asked, turns = ask(wire)
            writer.write(CHUNKS + b"0\r\n\r\n")
            await asked
            assert answer.body == b"A" * 10_000
            assert turns.waited >= len(CHUNKS) // 16_384
            assert answer.is_reusable


async def test_what_is_behind_an_answer_is_surplus_although_there_is_no_time_to_read_it(
    tls: ssl.SSLContext | None,
) -> None:
    """The answer may be that of the request before, and the proper one stand there."""
    async with connected(tls) as (wire, (_, writer)):
        for _ in range(3):
            _, asked, _ = ask(wire)
            writer.write(WHOLE)
            await asked
        _, asked, _ = ask(wire)
        writer.write(OK + b"Content-Length: 16000\r\n\r\n" + b"x" * 16_000)
        writer.write(WHOLE * 20)
        with pytest.raises(NothingCame):  # noqa: PT012 - of the answer, or of what is behind it
            await asked
            wire.check()


@pytest.mark.parametrize("count", [1, 2])
async def test_a_server_whose_surplus_there_is_no_time_to_read_is_known_for_it(
    tls: ssl.SSLContext | None, count: int
) -> None:
    """Its other connections are doubted then, as for surplus that was read; and no descriptor is lost."""
    async with connected(tls) as (wire, (_, writer)):
        for _ in range(count):
            _, asked, _ = ask(wire, waits=False)
            writer.write(WHOLE)
            await asked
        before = descriptors()
        wire._turns = NeverTime()  # type: ignore[assignment]
        writer.write(WHOLE)
        while not wire._unread:
            await asyncio.sleep(0)
        wire._going_on.cancel()  # type: ignore[union-attr] # that turn does not come
        look = partial(wire.ask, REQUEST, HttpAnswer(), lambda _: None) if count == 1 else wire.check
        with pytest.raises(NothingCame):
            look()
        assert wire.had_surplus
        assert descriptors() <= before


async def test_a_server_that_ends_tls_in_a_turn_without_time_has_sent_no_surplus(tmp_path: Path) -> None:
    async with connected(certificate(tmp_path)) as (wire, (_, writer)):
        for _ in range(3):
            answer, asked, _ = ask(wire, waits=False)
            writer.write(WHOLE)
            await asked
        wire._turns = NeverTime()  # type: ignore[assignment]
        writer.close()
        while not wire._unread:
            await asyncio.sleep(0)
        wire._going_on.cancel()  # type: ignore[union-attr]
        wire.check()
        assert (answer.body, wire.had_surplus, wire.is_open) == (b"page", False, False)


async def test_half_a_record_behind_the_first_answer_costs_no_descriptor(tmp_path: Path) -> None:
    async with connected(certificate(tmp_path)) as (wire, (_, writer)):
        _, asked, _ = ask(wire, waits=False)
        writer.write(WHOLE)
        await asked
        before = descriptors()
        wire.data_received(b"\x17\x03\x03\x00\x40half")
        with pytest.raises(NothingCame):
            ask(wire)
        assert descriptors() <= before


async def test_the_end_of_the_connection_waits_for_what_came_before_it(tls: ssl.SSLContext | None) -> None:
    async with connected(tls) as (wire, (_, writer)):
        answer, asked, _ = ask(wire)
        writer.write(OK + b"\r\n" + b"x" * 100_000)
        writer.close()
        await asked
        assert (answer.ending, len(answer.body)) == (BodyEnd.UNSURE, 100_000)
        assert not wire.is_open


async def test_what_waits_is_read_although_the_connection_is_lost(tls: ssl.SSLContext | None) -> None:
    """As when a write fails: the end is heard of before reading has come to it."""
    async with connected(tls) as (wire, (_, writer)):
        answer, asked, turns = ask(wire)
        writer.write(CHUNKS)
        while not turns.waited:
            await asyncio.sleep(0)
        wire.connection_lost(ConnectionResetError())
        await asked
        assert answer.ending is BodyEnd.CUT
        assert answer.received > 4000


@pytest.mark.parametrize("how", ["fail", "abort", "cancel"])
async def test_an_answer_that_is_given_up_is_not_read_on(how: str, tls: ssl.SSLContext | None) -> None:
    async with connected(tls) as (wire, (_, writer)):
        answer, asked, _ = ask(wire)
        writer.write(CHUNKS)
        while not answer.status:
            await asyncio.sleep(0)
        if how == "fail":
            wire.fail(TimeoutError())
            assert isinstance(asked.exception(), TimeoutError)
        else:
            if how == "cancel":
                asked.cancel()
            wire.abort()
        received = answer.received
        await turns()
        assert asked.done()
        assert answer.received == received < 10_000


async def test_what_comes_behind_an_answer_that_waits_ends_the_connection(tls: ssl.SSLContext | None) -> None:
    async with connected(tls) as (wire, (_, writer)):
        answer, asked, _ = ask(wire)
        writer.write(CHUNKS + b"0\r\n\r\n")
        writer.write(WHOLE)
        await asked
        assert answer.body == b"A" * 10_000
        assert not wire.is_open


@pytest.mark.parametrize("late", [WHOLE, b"", b"\r\n"])
async def test_nothing_is_asked_on_a_connection_that_has_bytes_nobody_asked_for(
    late: bytes, tls: ssl.SSLContext | None
) -> None:
    """They, or the end of it, are in the socket, and the event loop has not seen them yet."""
    async with connected(tls) as (wire, (reader, writer)):
        answer, asked, _ = ask(wire, waits=False)
        writer.write(WHOLE)
        await asked
        await reader.readuntil(b"\r\n\r\n")
        assert answer.is_reusable
        if late:
            writer.write(late)
        else:
            _end_at_once(writer)
        with pytest.raises(NothingCame):
            ask(wire)
        wire.abort()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_a_connection_that_is_held_reads_no_more(tls: ssl.SSLContext | None) -> None:
    async with connected(tls) as (wire, (_, writer)):
        answer, asked, _ = ask(wire, waits=False)
        wire.hold()
        wire.hold()
        writer.write(WHOLE)
        await turns()
        wire.release()
        await turns()
        assert not answer.status
        wire.release()
        await asked
        assert answer.body == b"page"


class DeafTransport:
    """To a server that sends, and takes nothing."""

    def __init__(self) -> None:
        self.waiting = b""
        self.is_aborted = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 443)

    def write(self, data: bytes) -> None:
        self.waiting += data

    def get_write_buffer_size(self) -> int:
        return 70_000 + len(self.waiting)

    def abort(self) -> None:
        self.is_aborted = True


async def test_tls_says_no_more_to_a_server_that_does_not_listen(tmp_path: Path) -> None:
    """What it says by itself, such as alerts, would wait in memory."""
    incoming, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = certificate(tmp_path).wrap_bio(incoming, sent, server_side=True)
    wire, transport = Connection(lambda _: None, TlsStream(insecure(), "x", 443)), DeafTransport()
    wire.connection_made(transport)  # type: ignore[arg-type]
    assert not transport.is_aborted
    incoming.write(transport.waiting)
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    wire.data_received(sent.read())
    assert transport.is_aborted
    assert not wire.is_open


class Asker:
    """Knows the connection that tells it of the answer."""

    def __init__(self, wire: Connection) -> None:
        self.wire = wire
        self.told = 0

    def tell(self, _answer: HttpAnswer) -> None:
        self.told += 1


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_connection_forgets_who_has_asked(is_kept: bool) -> None:
    """Else both would wait for the collector, with the request, which costs more than a tenth of a page."""
    async with connected() as (wire, (_, writer)):
        asker = Asker(wire)
        asked = wire.ask(REQUEST, HttpAnswer(), asker.tell)
        writer.write(WHOLE if is_kept else WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        await asked
        assert asker.told == 1
        left = weakref.ref(asker)
        del asker, asked
        assert left() is None


def doubts(*times: float) -> list[float]:
    """For how long each answer is withheld that takes so long, where the next request follows at once."""
    doubt, now, found = AnswerDoubt(), 0.0, []
    for seconds in times:
        asked_at, now = now, now + seconds
        found.append(doubt.seconds(asked_at, now, now))
    return [round(seconds, 3) for seconds in found]


def test_second_answers_and_those_of_an_unusual_time_are_withheld_and_one_of_a_hundred() -> None:
    """The second one of a connection until surplus of the first had its time, an unusual one for a usual time."""
    assert doubts(0.03, 0.03, 0.03, 0.032) == [0, 0.17, 0, 0]
    assert doubts(0.5, 0.5, 0.5) == [0, 0.13, 0]  # 1.25 of the usual time, and 5 ms, since the request
    assert doubts(*[0.04] * 8, 0.02, 0.04, 0.08)[8:] == [0.055, 0, 0.055]
    assert doubts(*[3.0] * 8, 0.5)[8] == 1.0  # not for ever
    assert doubts(*[0.04] * 7, 0.03)[7] == 0  # what is usual is hardly known yet
    assert doubts(*[0.04] * 3, 0.02)[3] == 0.055
    found = doubts(*[0.04] * 301)
    assert [number for number, seconds in enumerate(found) if seconds] == [1, 100, 200, 300]


@pytest.mark.parametrize(("said", "is_surplus"), [(WHOLE, True), (b"HTTP/1.1 408 Request Timeout", False)])
async def test_bytes_that_nobody_asked_for_are_surplus_unless_they_say_that_the_connection_ends(
    said: bytes, is_surplus: bool
) -> None:
    async with connected() as (wire, (_, writer)):
        answer, asked, _ = ask(wire, waits=False)
        writer.write(WHOLE)
        await asked
        writer.write(said)
        while wire.is_open:
            await asyncio.sleep(0)
        assert wire.had_surplus is is_surplus
        assert answer.body == b"page"


class Soon:
    """Doubts each later answer of a connection until it ends, as one that came sooner than is usual."""

    was_soon = True

    def __init__(self) -> None:
        self._count = 0

    def seconds(self, *_times: float) -> float:
        self._count += 1
        return 3_600.0 if self._count > 1 else 0.0


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_soon_answer_of_a_server_that_closes_is_taken_unless_our_request_was_left_unread(
    is_taken: bool,
) -> None:
    """Then the connection is reset: the answer was that to another request."""
    async with connected() as (wire, (_, writer)):
        wire._doubt = Soon()  # type: ignore[assignment]
        _, asked, _ = ask(wire, waits=False)
        writer.write(WHOLE)
        await asked
        answer, asked, _ = ask(wire, waits=False)
        writer.write(WHOLE)
        while not wire.is_withholding:  # a reset would overtake it
            await asyncio.sleep(0)
        if not is_taken:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()
        [found] = await asyncio.gather(asked, return_exceptions=True)
        assert isinstance(found, NothingCame) is not is_taken
        assert not is_taken or answer.body == b"page"


@pytest.mark.parametrize("has_surplus", [True, False])
async def test_an_answer_under_way_is_withheld_when_its_server_sent_surplus_elsewhere(
    monkeypatch: pytest.MonkeyPatch, has_surplus: bool
) -> None:
    """It is asked for again only if more comes."""
    monkeypatch.setattr("site_spider.download.connection._LONGEST_DOUBT_SECONDS", 0.2)

    async with connected() as (wire, (_, writer)):
        _, asked, _ = ask(wire, waits=False)
        writer.write(WHOLE)
        await asked
        answer, asked, _ = ask(wire, waits=False)
        wire.doubt()
        writer.write(WHOLE)
        while not wire.is_withholding:
            await asyncio.sleep(0)
        if has_surplus:
            writer.write(WHOLE)
        [found] = await asyncio.gather(asked, return_exceptions=True)
        assert isinstance(found, NothingCame) is has_surplus
        assert has_surplus or answer.body == b"page"


# --- What a connection that is kept for the next request keeps of the one before


async def download(handler: Any, url: str) -> weakref.ref[Request]:
    request = Request(url)
    completion.work_on(request)
    response = await handler.download_request(request)
    assert response.status == 200
    assert completion.current_request() is request  # middlewares and the callback come after this
    return weakref.ref(request)


async def test_an_idle_connection_keeps_no_request_alive(tls: ssl.SSLContext | None, no_collector: None) -> None:
    """Requests have seeds with them, of up to 1 MB each, and there are 2,000 idle connections."""
    server = RawServer(Case(closes=False))
    async with listening(server.serve, tls) as port, handling("plain") as handler:
        for _ in range(2):  # the first opens the connection, the second finds it
            left = await asyncio.create_task(download(handler, f"http{'s' if tls else ''}://127.0.0.1:{port}/"))
            await asyncio.sleep(0)
            assert left() is None
        assert server.connections == 1


async def test_who_hears_of_bytes_hears_of_all_of_an_answer_that_is_asked_for_again() -> None:
    """Those of the first one were perhaps of another page."""
    told: list[bytes | None] = []
    watch = DownloadWatch(Request("http://h.test/"), 0, 0, None)
    watch.heard_by = Mock(signals=Mock(send_catch_log=lambda _signal, **said: told.append(said.get("data")) or ()))
    for body in (b"of another", b"page"):
        watch.begin(Mock())
        answer = HttpAnswer()
        answer.feed(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        watch.came(answer)
        watch.end()
    assert told == [None, b"of another", None, b"page"]  # each behind the head


@pytest.mark.parametrize("head", [b"Content-Length: 16000000", b"Transfer-Encoding: chunked"])
async def test_who_hears_of_bytes_does_not_hold_up_others_by_that(head: bytes) -> None:
    """Each piece was cut from a copy of all before: a page of 40 MB took 10 s of CPU time."""
    body = b"x" * 16_000
    piece = body if b"Length" in head else b"3e80\r\n%b\r\n" % body

    def heard(pieces: int) -> None:
        told: list[int] = []
        watch = DownloadWatch(Request("http://h.test/"), 0, 0, None)
        watch.heard_by = Mock(
            signals=Mock(send_catch_log=lambda _signal, **said: told.append(len(said.get("data", ""))) or ())
        )
        watch.begin(Mock())
        answer = HttpAnswer()
        answer.feed(OK + head + b"\r\n\r\n")
        for _ in range(pieces):
            rest = piece
            while rest:
                rest = rest[answer.feed(rest) :]
                watch.came(answer)
        watch.end()
        assert sum(told) == 16_000 * pieces

    assert_grows(lambda pieces: partial(heard, pieces), 250)
