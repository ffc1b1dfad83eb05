"""Runs every case over Scrapy's download handler and ours, in a process with a reactor, and prints what came of it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

from scrapy import Request, Spider, signals
from scrapy.exceptions import StopDownload
from scrapy.http import Response
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.reactor import install_reactor
from scrapy.utils.test import get_crawler

from tests.download.raw_answers import CASES, OK, PAGE, Case, RawServer
from tests.hostile.raw_site import raw_site
from tools.site.certificate import server_context, signed

ROOT = Path(__file__).resolve().parents[2]
FILES = Path("/proc/self/fd")
HANDLERS = {
    "stock": "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler",
    "plain": "site_spider.download.handler.PlainDownloadHandler",
}


def handler_of(name: str, settings: dict[str, Any]) -> Any:
    from scrapy.utils.misc import load_object

    crawler = get_crawler(Spider, {"SITE_ALLOW_PRIVATE_HOSTS": True, "LOG_ENABLED": False} | settings)
    crawler.spider = Spider.from_crawler(crawler, name="trial")
    return load_object(HANDLERS[name]).from_crawler(crawler)


async def turns() -> None:
    """What has come by loopback is read, and what was closed has heard of it, unless nobody listens."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def listening(serve: Any, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """Who connected has to be closed before: what serves it ends."""
    serving: set[Any] = set()

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        await serve(reader, writer)

    server = await asyncio.start_server(noted, host, 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*serving, return_exceptions=True), 300)
        await turns()


@asynccontextmanager
async def handling(name: str, **settings: Any) -> AsyncIterator[Any]:
    handler = handler_of(name, settings)
    try:
        yield handler
    finally:
        await handler.close()
        await turns()


async def trial(name: str, case: Case, tls: ssl.SSLContext) -> dict[str, Any]:
    server = RawServer(case)
    outcomes = []
    async with listening(server.serve, tls if case.tls else None) as port, handling(name, **case.settings) as handler:
        for _ in range(case.times):
            url = f"{'https' if case.tls else 'http'}://127.0.0.1:{port}{case.path}"
            url = case.url.replace("PORT", str(port)) or url
            meta = {k: v.replace("PORT", str(port)) if isinstance(v, str) else v for k, v in case.meta.items()}
            request = Request(url, method=case.method, headers=dict(case.headers), body=case.body, meta=meta)
            outcome = await download(handler, request)
            outcomes.append({key: value.replace(str(port), "PORT") if isinstance(value, str) else value
                             for key, value in outcome.items()})  # fmt: skip
            await turns()
    sent = [message.replace(str(port).encode(), b"PORT").decode("latin-1") for message in server.received]
    return {"outcomes": outcomes, "connections": server.connections, "sent": sent, "peers": sorted(server.peers)}


async def download(handler: Any, request: Request) -> dict[str, Any]:
    try:
        response: Response = await asyncio.wait_for(handler.download_request(request), 100)
    except Exception as error:  # noqa: BLE001 - its kind is the outcome
        return {"error": type(error).__name__, "message": str(error)}
    return {
        "url": response.url,
        "class": type(response).__name__,
        "status": response.status,
        "headers": [[str(name), [str(v) for v in values]] for name, values in response.headers.items()],
        "body": response.body.decode("latin-1"),
        "flags": response.flags,
        "protocol": response.protocol,
        "ip_address": str(response.ip_address),
        "has_certificate": response.certificate is not None,
        "has_latency": request.meta.get("download_latency", -1) >= 0,
    }  # fmt: skip


async def stopped(fails: bool) -> dict[str, Any]:
    found: dict[str, Any] = {name: [] for name in HANDLERS}
    for name, signal in product(HANDLERS, (signals.headers_received, signals.bytes_received)):
        server = RawServer(Case(answer=OK + b"Content-Length: 70\r\n\r\n" + PAGE, stays_silent=True))
        heard: list[Any] = []

        def stop(heard: list[Any] = heard, **said: Any) -> None:
            heard.append([said.get("data", b"").decode(), said.get("body_length"), str(said.get("headers"))])
            raise StopDownload(fail=fails)

        async with listening(server.serve) as port, handling(name) as handler:
            handler.crawler.signals.connect(stop, signal)
            try:
                response = await handler.download_request(Request(f"http://127.0.0.1:{port}/"))
            except StopDownload as error:
                response = error.response
                heard.append("raised")
            found[name].append([heard, response.flags, response.status, response.text])
    return found


async def refused() -> dict[str, Any]:
    async with listening(lambda r, w: None) as unused:
        pass
    found = {}
    for name in HANDLERS:
        async with handling(name) as handler:
            found[name] = await download(handler, Request(f"http://127.0.0.1:{unused}/"))
    return found


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


async def resets(tls: ssl.SSLContext) -> dict[str, Any]:
    """Of TLS 1.3: uvloop tells nobody of some, and what waits for an event waits for ever."""
    async with handling("plain", DOWNLOAD_VERIFY_CERTIFICATES=False) as handler:
        with raw_site({"/": reset}, tls=tls) as site:
            request = Request(site.url("/"), method="POST", meta={"download_timeout": 0.5})
            outcomes = await asyncio.gather(*(download(handler, request.copy()) for _ in range(8)))
            files = len(list(FILES.iterdir()))
            outcomes += await asyncio.gather(*(download(handler, request.copy()) for _ in range(8)))
        return {"errors": [outcome["error"] for outcome in outcomes], "left": len(list(FILES.iterdir())) - files}


def certificate(folder: Path) -> ssl.SSLContext:
    context = server_context(folder, signed())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


async def main(_reactor: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tls = certificate(Path(folder))
        newest = server_context(Path(folder), signed())
        found: dict[str, Any] = {"cases": {}, "refused": await refused(), "resets": await resets(newest)}
        found["stopped"] = [await stopped(fails) for fails in (False, True)]
        for title, case in CASES.items():
            found["cases"][title] = {name: await trial(name, case, tls) for name in HANDLERS}
    json.dump(found, sys.stdout)


def run_with_reactor(program: Callable[[Any], Coroutine[Any, Any, None]], level: int | None = None) -> None:
    """Run it as a whole process: a reactor cannot be started twice. Without a level nothing is logged."""
    if level is None:
        logging.disable(logging.CRITICAL)
    else:
        logging.basicConfig(level=level)
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor", "uvloop.Loop")
    from twisted.internet.task import react

    react(lambda reactor: deferred_from_coro(program(reactor)))


def said_by(program: str, *arguments: str) -> tuple[Any, str]:
    """What the process of a program prints as JSON, and its stderr."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", f"tests.download.{program}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), done.stderr


if __name__ == "__main__":
    run_with_reactor(main)
