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
from cryptography import x509
from scrapy import Request

from tests.download.handler_trials import handler_of
from tests.download.test_certificates import resolve
from tools.site.certificate import Signed, authority, server_context, signed

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ROOT = authority()
LEAF = signed(ROOT, names=[x509.DNSName("h.test")])
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
HEAD = b"HTTP/1.1 200 OK\r\n"
WHOLE = HEAD + b"Content-Length: 4\r\n\r\npage"
OPEN, LONG = HEAD + b"\r\npage", HEAD + b"Content-Length: 40\r\n\r\npage"
ALERT = b"\x15\x03\x03\x00\x02\x02"


@pytest.fixture(autouse=True)
def trusted(trust: Callable[[Signed], None], monkeypatch: pytest.MonkeyPatch) -> None:
    trust(ROOT)
    resolve(monkeypatch)


def context_of(folder: Path, version: str = "1.3") -> ssl.SSLContext:
    context = server_context(folder, LEAF)
    context.maximum_version = VERSIONS[version]
    return context


class Tls:
    """Python's TLS in memory, so that a server of a test may send what it likes."""

    def __init__(self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.incoming, self.sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.sent, server_side=True)
        self.reader, self.writer = reader, writer

    async def request(self) -> None:
        """Shake hands, and wait for the request."""
        await self._until(self.tls.do_handshake)
        await self._until(lambda: self.tls.read(10_000))

    async def _until(self, step: Callable[[], Any]) -> None:
        while True:
            try:
                step()
            except ssl.SSLWantReadError:
                self.writer.write(self.sent.read())
                data = await self.reader.read(65_536)
                if not data:
                    raise ConnectionResetError from None
                self.incoming.write(data)
            else:
                self.writer.write(self.sent.read())
                return

    def says(self, page: bytes) -> bytes:
        self.tls.write(page)
        return self.sent.read()


async def to_the_end(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def after_the_hello(words: bytes, then: str) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10_000)
        writer.write(words)
        if then == "reset":
            reset(writer)
        elif then == "stays":
            await to_the_end(reader)

    return serve


def after_the_request(context: ssl.SSLContext, page: bytes, then: str | bytes) -> Serve:
    """`then`: what is sent behind the page, or how the connection ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = Tls(context, reader, writer)
        await tls.request()
        writer.write(tls.says(page) if page else b"")
        if isinstance(then, bytes):
            writer.write(then)
            await to_the_end(reader)
        elif then == "announced":
            with pytest.raises(ssl.SSLWantReadError):
                tls.tls.unwrap()
            writer.write(tls.sent.read())
            await to_the_end(reader)
        elif then == "reset":
            await asyncio.sleep(0.05)
            reset(writer)

    return serve


def outcomes(serve: Serve, *, times: int = 1, seconds: float = 300, **settings: Any) -> list[str]:
    return asyncio.run(_outcomes(serve, times, seconds, settings))


async def _outcomes(serve: Serve, times: int, seconds: float, settings: dict[str, Any]) -> list[str]:
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, ssl.SSLError):
            pass
        finally:
            writer.close()

    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    listening = await asyncio.start_server(closing, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    handler = handler_of("plain", {"DOWNLOAD_VERIFY_CERTIFICATES": True} | settings)
    request = Request(f"https://h.test:{port}/", meta={"download_timeout": seconds})
    found = []
    for _ in range(times):
        found.append(await _outcome(handler, request))
        await asyncio.sleep(0.02)  # what the server sends behind it has come
    await handler.close()
    listening.close()
    await asyncio.sleep(0.01)
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
HANDSHAKES = {
    "it closes": (b"", "closes", FAILED + "ConnectionResetError: "),
    "it resets": (b"", "reset", FAILED + "ConnectionResetError: [Errno 104] Connection reset by peer"),
    "it is silent": (b"", "stays", LATE),
    "half a hello": (bytes.fromhex("160303007a020000760303") + b"x" * 40, "stays", LATE),
    "half a hello and the end": (
        bytes.fromhex("160303007a020000760303"), "closes", FAILED + "ConnectionResetError: ",
    ),
    "HTTP": (
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        "stays",
        FAILED + "SSLError: [SSL: WRONG_VERSION_NUMBER] wrong version number",
    ),
    "SSH": (b"SSH-2.0-x\r\n", "stays", FAILED + "SSLError: [SSL: WRONG_VERSION_NUMBER] wrong version number"),
    "it refuses": (
        ALERT + b"\x28",
        "stays",
        FAILED + "SSLError: [SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] sslv3 alert handshake failure",
    ),
    "it does not know the name": (
        ALERT + b"\x70",
        "stays",
        FAILED + "SSLError: [SSL: TLSV1_UNRECOGNIZED_NAME] tlsv1 unrecognized name",
    ),
    "it wants another version": (
        ALERT + b"\x46",
        "stays",
        FAILED + "SSLError: [SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert protocol version",
    ),
    "it ends TLS": (
        b"\x15\x03\x03\x00\x02\x01\x00",
        "stays",
        FAILED + "SSLZeroReturnError: TLS/SSL connection has been closed (EOF)",
    ),
    "a page first": (
        b"\x17\x03\x03\x00\x04page",
        "stays",
        FAILED + "SSLError: [SSL: UNEXPECTED_MESSAGE] unexpected message",
    ),
    "a record that is too long": (
        b"\x16\x03\x03\xff\xff" + b"x" * 70_000,
        "stays",
        FAILED + "SSLError: [SSL: DATA_LENGTH_TOO_LONG] data length too long",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HANDSHAKES)
def test_a_handshake_that_fails(case: str) -> None:
    """In the words that descriptions have had before."""
    words, then, outcome = HANDSHAKES[case]
    assert outcomes(after_the_hello(words, then), seconds=0.3 if outcome == LATE else 300) == [outcome]


AES128, AES256 = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"


@pytest.mark.parametrize(
    ("version", "settings", "is_wanted"),
    [
        ("1.2", {}, True),
        ("1.2", {"DOWNLOAD_TLS_MIN_VERSION": "TLSv1.3"}, False),
        ("1.3", {}, True),
        ("1.3", {"DOWNLOAD_TLS_MAX_VERSION": "TLSv1.2"}, False),
        ("1.2", {"DOWNLOADER_CLIENT_TLS_CIPHERS": AES128}, True),
        ("1.2", {"DOWNLOADER_CLIENT_TLS_CIPHERS": AES256}, False),
    ],
)
def test_versions_and_ciphers_of_the_settings(
    version: str, settings: dict[str, Any], is_wanted: bool, tmp_path: Path
) -> None:
    context = context_of(tmp_path, version)
    context.minimum_version = VERSIONS[version]
    context.set_ciphers(AES128)
    (found,) = outcomes(after_the_request(context, WHOLE, "closes"), **settings)
    assert found == "page [] True" if is_wanted else found.startswith(FAILED + "ConnectionResetError")


LOST = "ResponseDataLossError: "
ENDS = {
    "a whole page": (WHOLE, "closes", "page [] True"),
    "a whole page, announced": (WHOLE, "announced", "page [] True"),
    "a page without a length": (OPEN, "closes", "page ['partial'] True"),
    "a page without a length, announced": (OPEN, "announced", "page ['partial'] True"),
    "a page without a length, reset": (OPEN, "reset", "page ['partial'] True"),
    "less than its length": (LONG, "closes", LOST),
    "less than its length, announced": (LONG, "announced", LOST),
    "less than its length, reset": (LONG, "reset", LOST),
    "nothing": (b"", "closes", FAILED + "no answer: the connection was closed without an answer"),
    "nothing, announced": (
        b"", "announced", FAILED + "no answer: the connection was closed without an answer",
    ),
    "nothing, reset": (b"", "reset", FAILED + "no answer: [Errno 104] Connection reset by peer"),
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", ENDS)
def test_a_connection_that_ends(case: str, version: str, tmp_path: Path) -> None:
    page, then, outcome = ENDS[case]
    assert outcomes(after_the_request(context_of(tmp_path, version), page, then)) == [outcome]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("page", [OPEN, LONG, b""])
@pytest.mark.parametrize(
    "forged", [b"\x17\x03\x03\x00\x40" + b"x" * 64, b"x" * 100, ALERT + b"\x28"], ids=["record", "text", "alert"]
)
def test_what_is_forged_is_no_end_of_a_page(page: bytes, forged: bytes, version: str, tmp_path: Path) -> None:
    """Not even of one that ends with the connection; it may come at once, or later."""
    context = context_of(tmp_path, version)

    async def later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = Tls(context, reader, writer)
        await tls.request()
        writer.write(tls.says(page) if page else b"")
        await asyncio.sleep(0.05)
        writer.write(forged)
        await to_the_end(reader)

    for serve in (after_the_request(context, page, forged), later):
        (found,) = outcomes(serve)
        assert found.startswith(FAILED + "no answer: [SSL: "), found


@pytest.mark.parametrize("how", ["reset", "closes", ALERT + b"\x28"])
def test_a_server_that_cannot_take_a_session_up_is_asked_without(how: str | bytes, tmp_path: Path) -> None:
    """At once, and it costs no page; it did not lose one before there were sessions."""
    context = context_of(tmp_path)
    hellos = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await reader.read(65_536)
        hellos.append(has_session(hello))
        if hellos[-1]:
            writer.write(how if isinstance(how, bytes) else b"")
            if how == "reset":
                reset(writer)
            return
        tls = Tls(context, reader, writer)
        tls.incoming.write(hello)
        await tls.request()
        writer.write(tls.says(WHOLE))

    assert outcomes(serve, times=4) == ["page [] True"] * 4
    assert hellos == [False, True, False, False, False]  # the second time it is remembered


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_asked_while_a_record_has_come_in_part(version: str, tmp_path: Path) -> None:
    """Nobody asked for it, so what is in it would be taken for the next answer."""
    context = context_of(tmp_path, version)
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        tls = Tls(context, reader, writer)
        await tls.request()
        late = tls.says(WHOLE) + tls.says(WHOLE.replace(b"page", b"evil"))
        writer.write(late[:-10])
        await reader.read(1000)
        writer.write(late[-10:])
        await to_the_end(reader)

    assert outcomes(serve, times=3) == ["page [] True"] * 3
    assert len(connections) == 3


def has_session(hello: bytes) -> bool:
    """Whether a pre-shared key is at its end, where TLS 1.3 wants it; a ticket has more than 100 bytes."""
    return b"\x00\x29" in hello[-400:-100] and len(hello) > 400


def longest_turn(serve: Serve, seconds: float) -> tuple[str, float]:
    """The outcome, and the most CPU time between two turns of the loop; the server is in a thread's loop."""

    async def main() -> tuple[str, float]:
        longest, cpu = 0.0, time.thread_time()

        def look() -> None:
            nonlocal longest, cpu
            now = time.thread_time()
            longest, cpu = max(longest, now - cpu), now
            asyncio.get_running_loop().call_later(0.001, look)

        look()
        return (await _outcomes(serve, 1, seconds, {}))[0], longest

    return asyncio.run(main())


MOST_TURN_SECONDS = 0.5  # as in tests/hostile
EMPTY = {
    "changes of cipher": b"\x14\x03\x03\x00\x01\x01",
    "warnings": b"\x15\x03\x03\x00\x02\x01\x70",
    "requests for a hello": b"\x16\x03\x03\x00\x04\x00\x00\x00\x00",
    "empty records": b"\x16\x03\x03\x00\x00",
    "bytes of a certificate": b"\x16\x03\x03\x00\x01\x0b",
}


@pytest.mark.parametrize("record", EMPTY)
def test_an_endless_handshake_holds_nobody_up(record: str) -> None:
    """It fails, or it takes no longer than the timeout."""
    block = EMPTY[record] * 40_000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10_000)
        while True:
            writer.write(block)
            await writer.drain()

    found, seconds = longest_turn(serve, 0.3)
    assert found == LATE or found.startswith(FAILED), found
    assert seconds < MOST_TURN_SECONDS


@pytest.mark.parametrize("version", VERSIONS)
def test_thousands_of_small_records_hold_nobody_up(version: str, tmp_path: Path) -> None:
    context = context_of(tmp_path, version)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = Tls(context, reader, writer)
        await tls.request()
        data = [tls.says(HEAD + b"Content-Length: 50000\r\n\r\n")]
        for number in range(50_000):
            data.append(tls.says(b"x"))
            if not number % 100:
                await asyncio.sleep(0)
        writer.write(b"".join(data))
        await writer.drain()
        await to_the_end(reader)

    found, seconds = longest_turn(serve, 300)
    assert found == f"{'x' * 50_000} [] True"
    assert seconds < MOST_TURN_SECONDS
