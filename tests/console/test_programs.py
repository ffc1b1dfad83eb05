"""What the console answers to programs: metrics and health of this host, over TLS where it is asked for."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectorError, ClientSession, ServerDisconnectedError, TCPConnector, web
from aiohttp.test_utils import TestServer

from site_spider.console.access import Listening
from site_spider.errors import ConfigError
from site_spider.observe import frontier_socket
from site_spider.observe.frontier_socket import LARGEST_BYTES
from tests.authority import Authority
from tests.console.consoles import Client, Console
from tests.console.snapshots import snapshot


async def crawl_like(answer: bytes) -> asyncio.Server:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    folder = next(iter(frontier_socket.folders()))
    folder.mkdir(mode=0o700, exist_ok=True)
    return await asyncio.start_unix_server(answered, frontier_socket.new_path())


@asynccontextmanager
async def asking(folder: Path, *answers: bytes) -> AsyncIterator[Client]:
    """A client of a console, on a host whose processes answer so."""
    servers = [await crawl_like(answer) for answer in answers]
    try:
        async with Console(folder, time.time()).client() as client:
            yield client
    finally:
        for server in servers:
            server.close()


async def test_metrics_are_those_of_all_processes_of_this_host(tmp_path: Path) -> None:
    answers = [json.dumps(snapshot(number, at=time.time())).encode() for number in (1, 2)]
    async with asking(tmp_path, *answers) as client:
        response = await client.get("/metrics")
        text = await response.text()
        assert response.content_type == "text/plain"
        found = re.findall(r'seeds_consumed_total\{group="site_spider",slot="[^"]+"\} ([\d.]+)', text)
        assert found == ["100.0", "100.0"]
        accept = {"Accept": "application/openmetrics-text"}
        assert (await (await client.get("/metrics", headers=accept)).text()).endswith("# EOF\n")
        health = await client.get("/healthz")
        assert (health.status, (await health.json())["processes"]) == (200, 2)


@pytest.mark.parametrize(
    "answers",
    [[], *([odd] for odd in (b"", b"[1]", b"null", b"{", b"\xff", b"[" * 100_000, b" " * LARGEST_BYTES + b"{}"))],
)
async def test_a_host_without_processes_that_answer_is_not_healthy(tmp_path: Path, answers: list[bytes]) -> None:
    async with asking(tmp_path, *answers) as client:
        health = await client.get("/healthz")
        assert health.status == 503
        assert len((await health.json())["silent"]) == len(answers)
        metrics = await (await client.get("/metrics")).text()
    found = re.findall(r'processes_(\w+){group="site_spider"} ([\d.]+)', metrics)
    assert found == [("expected", "1.0"), ("answering", "0.0")] * len(answers)  # or no alert would fire


async def test_a_process_that_falls_silent_is_missed_in_its_group(tmp_path: Path) -> None:
    answer = bytearray(json.dumps(snapshot(1, at=time.time(), group="other")).encode())
    async with asking(tmp_path, answer) as client:
        await client.get("/metrics")
        answer.clear()
        metrics = await (await client.get("/metrics")).text()
    assert re.findall(r'processes_\w+{group="(\w+)"} ([\d.]+)', metrics) == [("other", "1.0"), ("other", "0.0")]


async def test_a_socket_that_nobody_listens_at_is_of_no_process(tmp_path: Path) -> None:
    """It was of one that was killed, and another has its number."""
    answer = json.dumps(snapshot(1, at=time.time())).encode()
    async with asking(tmp_path, answer) as client:
        frontier_socket.new_path().touch()
        health = await client.get("/healthz")
        assert (health.status, (await health.json())["processes"]) == (200, 1)


# --- TLS ------------------------------------------------------------------------------------------------


def client_tls(folder: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if folder is not None:
        context.load_cert_chain(folder / "client.pem", folder / "client.key")
    return context


async def asked(port: int, tls: ssl.SSLContext) -> int:
    url = f"https://127.0.0.1:{port}/"
    async with ClientSession(connector=TCPConnector(ssl=tls)) as session, session.get(url) as response:
        assert "Secure" in response.headers["Set-Cookie"]
        return response.status


async def test_only_clients_with_a_certificate_get_in(tmp_path: Path) -> None:
    friend, stranger = (Authority(tmp_path / name, name).folder for name in ("friend", "stranger"))
    files = {"certificate": "server.pem", "key": "server.key", "client_ca": "ca.pem"}
    options: dict[str, Any] = {name: str(friend / file) for name, file in files.items()}
    with pytest.raises(
        ConfigError, match=r"--certificate '.*/none.pem', --key .* No such file or directory: '.*/none.pem'"
    ):
        Listening("127.0.0.1", 0, certificate=str(tmp_path / "none.pem"), key=options["key"]).tls()
    with pytest.raises(ConfigError, match=r"without --key the certificate's file must hold the key"):
        Listening("127.0.0.1", 0, certificate=options["certificate"]).tls()
    server = TestServer(Console(tmp_path, time.time(), host="0.0.0.0", **options).app, host="127.0.0.1")
    await server.start_server(ssl=Listening("127.0.0.1", 0, **options).tls())
    try:
        assert await asked(server.port, client_tls(friend)) == 200
        for refused in (client_tls(), client_tls(stranger)):
            with pytest.raises((ssl.SSLError, OSError, ClientConnectorError, ServerDisconnectedError)):
                await asked(server.port, refused)
    finally:
        await server.close()


async def test_an_answer_that_cannot_be_sent_is_logged_and_what_is_no_http_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody can send the one; the other is a fault of the console."""
    console, addresses = Console(tmp_path, time.time()), list[str]()

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(headers={"X": "a\nb"})

    async def run() -> None:
        async with ClientSession() as client:
            for path in (f"?{'x' * 9_000}", f"static/{'x' * 300}"):
                async with client.get(addresses[0] + path) as answer:
                    assert answer.status in (400, 404)
            assert caplog.text == ""
            with pytest.raises(ServerDisconnectedError):
                await client.get(f"{addresses[0]}healthz")

    monkeypatch.setattr(console.handlers, "healthz", healthz)
    monkeypatch.setattr(console.watch, "run", run)
    await console.handlers.serve(addresses.append)
    assert "Forbidden control character" in caplog.text
