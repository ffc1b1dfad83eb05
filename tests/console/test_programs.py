"""What the console answers to programs: metrics and health of this host, over TLS where it is asked for."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectorError, ClientSession, ServerDisconnectedError, TCPConnector, web

from site_spider.console.access import Listening
from site_spider.observe import frontier_socket
from tests.console.consoles import Client, Console
from tests.console.snapshots import snapshot
from tools.site.certificate import authority


async def crawl_like(answer: bytes | None) -> asyncio.Server:
    """A process of this host that answers so, or never."""

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if answer is not None:
            writer.write(answer)
            writer.close()

    folder = next(iter(frontier_socket.folders()))
    folder.mkdir(mode=0o700, exist_ok=True)
    return await asyncio.start_unix_server(answered, frontier_socket.new_path())


def scenario_with(
    answers: list[bytes | None], check: Callable[[Client], Awaitable[None]]
) -> Callable[[Client], Awaitable[None]]:
    async def scenario(client: Client) -> None:
        servers = [await crawl_like(answer) for answer in answers]
        try:
            await check(client)
        finally:
            for server in servers:
                server.close()

    return scenario


def test_metrics_are_those_of_all_processes_of_this_host(tmp_path: Path) -> None:
    answers = [json.dumps(snapshot(number, at=time.time())).encode() for number in (1, 2)]

    async def check(client: Client) -> None:
        response = await client.get("/metrics")
        text = await response.text()
        assert response.content_type == "text/plain"
        found = re.findall(r'seeds_consumed_total\{group="site_spider",slot="[^"]+"\} ([\d.]+)', text)
        assert found == ["100.0", "100.0"]
        accept = {"Accept": "application/openmetrics-text"}
        assert (await (await client.get("/metrics", headers=accept)).text()).endswith("# EOF\n")
        health = await client.get("/healthz")
        assert (health.status, (await health.json())["processes"]) == (200, 2)

    Console(tmp_path, time.time()).serve(scenario_with(answers, check))


@pytest.mark.parametrize("answers", [[], [b"nonsense"], [b"[1]"], [b""]])
def test_a_host_without_processes_that_answer_is_not_healthy(tmp_path: Path, answers: list[bytes]) -> None:
    async def check(client: Client) -> None:
        health = await client.get("/healthz")
        assert health.status == 503
        assert len((await health.json())["silent"]) == len(answers)
        assert (await client.get("/metrics")).status == 200

    Console(tmp_path, time.time()).serve(scenario_with([*answers], check))


# --- TLS ------------------------------------------------------------------------------------------------


def certificate(folder: Path, name: str) -> tuple[str, str]:
    """A self-signed one, and its key, as files."""
    made = authority(name)
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    for path, content in zip(paths, (made.pem, made.key_pem), strict=True):
        path.write_bytes(content)
    return str(paths[0]), str(paths[1])


def client_tls(*own: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if own:
        context.load_cert_chain(*own)
    return context


async def asked(port: int, tls: ssl.SSLContext) -> int:
    url = f"https://127.0.0.1:{port}/"
    async with ClientSession(connector=TCPConnector(ssl=tls)) as session, session.get(url) as response:
        assert "Secure" in response.headers["Set-Cookie"]
        return response.status


def test_only_clients_with_a_certificate_get_in(tmp_path: Path) -> None:
    server, key = certificate(tmp_path, "server")
    friend, stranger = certificate(tmp_path, "friend"), certificate(tmp_path, "stranger")
    options: dict[str, Any] = {"certificate": server, "key": key, "client_ca": friend[0]}
    console = Console(tmp_path, time.time(), host="0.0.0.0", **options)

    async def scenario() -> None:
        runner = web.AppRunner(console.app)
        await runner.setup()
        tls = Listening("127.0.0.1", 0, **options).tls()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        port = runner.addresses[0][1]
        try:
            assert await asked(port, client_tls(*friend)) == 200
            for refused in (client_tls(), client_tls(*stranger)):
                with pytest.raises((ssl.SSLError, OSError, ClientConnectorError, ServerDisconnectedError)):
                    await asked(port, refused)
        finally:
            await runner.cleanup()

    asyncio.run(scenario())
