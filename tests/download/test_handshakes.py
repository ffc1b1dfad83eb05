"""Servers whose TLS fails, is slow or never ends, as a download sees them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from site_spider.download import names
from tests.download.handler_trials import handling, listening, turns
from tests.download.test_tls import ROOT, VERSIONS, Server, context_of
from tools.site.certificate import Signed

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Serve = Callable[[Reader, Writer], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\n"
WHOLE = HEAD + b"Content-Length: 4\r\n\r\npage"
OPEN, LONG = HEAD + b"\r\npage", HEAD + b"Content-Length: 40\r\n\r\npage"
ALERT = b"\x15\x03\x03\x00\x02\x02"
every_version = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture(autouse=True)
def trusted(trust: Callable[[Signed], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name leads to the test's server."""
    trust(ROOT)

    async def found(_host: str) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(names, "addresses_of", found)


async def asked(context: ssl.SSLContext, reader: Reader, writer: Writer, hello: bytes = b"") -> Server:
    """A server that has shaken hands, and has the request."""
    server = Server(context)
    while not server.asked:
        data = hello or await reader.read(65_536)
        if not data:
            raise ConnectionResetError
        hello = b""
        writer.write(server.answer(data))
    return server


async def to_the_end(reader: Reader) -> None:
    while await reader.read(65_536):
        pass


def reset(writer: Writer) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def after_the_hello(words: bytes, then: str) -> Serve:
    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.read(10_000)
        writer.write(words)
        if then == "reset":
            reset(writer)
        elif then == "stays":
            await to_the_end(reader)

    return serve


def after_the_request(context: ssl.SSLContext, page: bytes, then: str | bytes, late_seconds: float = 0) -> Serve:
    """`then`: what is sent behind the page, or how the connection ends."""

    async def serve(reader: Reader, writer: Writer) -> None:
        server = await asked(context, reader, writer)
        writer.write(server.says(page) if page else b"")
        if late_seconds:
            await asyncio.sleep(late_seconds)
        if then == "reset":
            reset(writer)
        elif then != "closes":
            if then == "announced":
                with pytest.raises(ssl.SSLWantReadError):
                    server.tls.unwrap()
            writer.write(then if isinstance(then, bytes) else server.sent.read())
            await to_the_end(reader)

    return serve


def outcomes(serve: Serve, *, times: int = 1, seconds: float = 300) -> list[str]:
    return asyncio.run(_outcomes(serve, times, seconds))


async def _outcomes(serve: Serve, times: int, seconds: float) -> list[str]:
    async def closing(reader: Reader, writer: Writer) -> None:
        try:
            await serve(reader, writer)
        except (OSError, ssl.SSLError):
            pass
        finally:
            writer.close()

    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    found = []
    async with listening(closing) as port, handling("plain", DOWNLOAD_VERIFY_CERTIFICATES=True) as handler:
        request = Request(f"https://h.test:{port}/", meta={"download_timeout": seconds})
        for _ in range(times):
            found.append(await _outcome(handler, request))
            await turns()  # what the server sends behind it has come
    assert not errors
    return found


async def _outcome(handler: Any, request: Request) -> str:
    try:
        response = await handler.download_request(request)
    except Exception as error:  # noqa: BLE001 - its words are the outcome
        return f"{type(error).__name__}: {error}".replace(request.url, "URL")
    return f"{response.text} {response.flags} {response.certificate is not None}"


FAILED = "DownloadFailedError: "
LATE = "DownloadTimeoutError: Getting URL took longer than 0.3 seconds."
CLOSED, RESET = f"{FAILED}ConnectionResetError: ", "[Errno 104] Connection reset by peer"
HALF_A_HELLO = bytes.fromhex("160303007a020000760303")


@pytest.mark.parametrize(
    ("words", "then", "outcome"),
    [
        *((b"", "closes", CLOSED), (b"", "reset", CLOSED + RESET), (b"", "stays", LATE)),
        *((HALF_A_HELLO + b"x" * 40, "stays", LATE), (HALF_A_HELLO, "closes", CLOSED)),
    ],
)
def test_a_handshake_that_does_not_end(words: bytes, then: str, outcome: str) -> None:
    assert outcomes(after_the_hello(words, then), seconds=0.3 if outcome == LATE else 300) == [outcome]


HANDSHAKES = {
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
    "SSH": (b"SSH-2.0-x\r\n", "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
    "it refuses": (ALERT + b"\x28", "[SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] sslv3 alert handshake failure"),
    "it does not know the name": (ALERT + b"\x70", "[SSL: TLSV1_UNRECOGNIZED_NAME] tlsv1 unrecognized name"),
    "it wants another version": (
        ALERT + b"\x46", "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert protocol version",
    ),
    "it ends TLS": (b"\x15\x03\x03\x00\x02\x01\x00", "TLS/SSL connection has been closed (EOF)"),
    "a page first": (b"\x17\x03\x03\x00\x04page", "[SSL: UNEXPECTED_MESSAGE] unexpected message"),
    "a long record": (b"\x16\x03\x03\xff\xff" + b"x" * 70_000, "[SSL: DATA_LENGTH_TOO_LONG] data length too long"),
}  # fmt: skip


@pytest.mark.parametrize("case", HANDSHAKES)
def test_a_handshake_that_fails(case: str) -> None:
    words, said = HANDSHAKES[case]
    kind = "SSLZeroReturnError" if case == "it ends TLS" else "SSLError"
    assert outcomes(after_the_hello(words, "stays")) == [f"{FAILED}{kind}: {said}"]


@every_version
@pytest.mark.parametrize("then", ["closes", "announced", "reset"])
def test_a_connection_that_ends(then: str, version: str, tmp_path: Path) -> None:
    context, late_seconds = context_of(tmp_path, version), 0.05 if then == "reset" else 0
    pages = (WHOLE, OPEN, LONG, b"")
    found = [outcomes(after_the_request(context, page, then, late_seconds)) for page in pages]
    said = RESET if then == "reset" else "the connection was closed without an answer"
    assert found == [
        ["page [] True"], ["page ['partial'] True"], ["ResponseDataLossError: "], [f"{FAILED}no answer: {said}"],
    ]  # fmt: skip


@every_version
@pytest.mark.parametrize("late_seconds", [0, 0.05])
@pytest.mark.parametrize(
    "forged", [b"\x17\x03\x03\x00\x40" + b"x" * 64, b"x" * 100, ALERT + b"\x28"], ids=["record", "text", "alert"]
)
def test_what_is_forged_is_no_end_of_a_page(forged: bytes, late_seconds: float, version: str, tmp_path: Path) -> None:
    context = context_of(tmp_path, version)
    for page in (OPEN, LONG, b""):
        (found,) = outcomes(after_the_request(context, page, forged, late_seconds))
        assert found.startswith(FAILED + "no answer: [SSL: "), found


@pytest.mark.parametrize("how", ["reset", "closes", ALERT + b"\x28"])
def test_a_server_that_cannot_take_a_session_up_is_asked_without(how: str | bytes, tmp_path: Path) -> None:
    """At once, and it costs no page; it did not lose one before there were sessions."""
    context = context_of(tmp_path)
    hellos = []

    async def serve(reader: Reader, writer: Writer) -> None:
        hello = await reader.read(65_536)
        hellos.append(has_session(hello))
        if hellos[-1]:
            writer.write(how if isinstance(how, bytes) else b"")
            if how == "reset":
                reset(writer)
            return
        writer.write((await asked(context, reader, writer, hello)).says(WHOLE))

    assert outcomes(serve, times=4) == ["page [] True"] * 4
    assert hellos == [False, True, False, False, False]  # the second time it is remembered


def has_session(hello: bytes) -> bool:
    """Whether a pre-shared key is at its end, where TLS 1.3 wants it; a ticket has more than 100 bytes."""
    return b"\x00\x29" in hello[-400:-100] and len(hello) > 400


@every_version
def test_nothing_is_asked_while_a_record_has_come_in_part(version: str, tmp_path: Path) -> None:
    """Nobody asked for it, so what is in it would be taken for the next answer."""
    context = context_of(tmp_path, version)
    connections = []

    async def serve(reader: Reader, writer: Writer) -> None:
        connections.append(writer)
        server = await asked(context, reader, writer)
        late = server.says(WHOLE) + server.says(WHOLE.replace(b"page", b"evil"))
        writer.write(late[:-10])
        await reader.read(1000)
        writer.write(late[-10:])
        await to_the_end(reader)

    assert outcomes(serve, times=3) == ["page [] True"] * 3
    assert len(connections) == 3


MOST_TURN_SECONDS = 0.5  # of CPU, as in tests/hostile: the first turn takes 0.15 with its imports, the others 0.01


def outcome_in_short_turns(serve: Serve, seconds: float) -> str:
    """None of the loop takes long, of CPU time; the server is in the same one."""

    async def main() -> tuple[str, float]:
        longest, cpu = 0.0, time.thread_time()

        def look() -> None:
            nonlocal longest, cpu
            now = time.thread_time()
            longest, cpu = max(longest, now - cpu), now
            asyncio.get_running_loop().call_later(0.001, look)

        look()
        return (await _outcomes(serve, 1, seconds))[0], longest

    found, longest = asyncio.run(main())
    assert longest < MOST_TURN_SECONDS
    return found


EMPTY = {
    "changes of cipher": b"\x14\x03\x03\x00\x01\x01",
    "warnings": b"\x15\x03\x03\x00\x02\x01\x70",
    "requests for a hello": b"\x16\x03\x03\x00\x04\x00\x00\x00\x00",
    "empty records": b"\x16\x03\x03\x00\x00",
    "bytes of a certificate": b"\x16\x03\x03\x00\x01\x0b",
}


@pytest.mark.parametrize("record", EMPTY)
def test_an_endless_handshake_holds_nobody_up(record: str) -> None:
    block = EMPTY[record] * 40_000

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.read(10_000)
        while True:
            writer.write(block)
            await writer.drain()

    found = outcome_in_short_turns(serve, 0.3)
    assert found == LATE or found.startswith(FAILED), found


@every_version
def test_thousands_of_small_records_hold_nobody_up(version: str, tmp_path: Path) -> None:
    context = context_of(tmp_path, version)

    async def serve(reader: Reader, writer: Writer) -> None:
        server = await asked(context, reader, writer)
        data = [server.says(HEAD + b"Content-Length: 50000\r\n\r\n")]
        for number in range(50_000):
            data.append(server.says(b"x"))
            if not number % 100:
                await asyncio.sleep(0)
        writer.write(b"".join(data))
        await writer.drain()
        await to_the_end(reader)

    assert outcome_in_short_turns(serve, 300) == f"{'x' * 50_000} [] True"
