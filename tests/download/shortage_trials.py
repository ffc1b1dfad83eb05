"""Downloads while not one file descriptor is left, and prints what came of it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sys
from typing import Any

from scrapy import Request

from site_spider.download.names import PublicHostResolver
from tests.download.handler_trials import download, handler_of, run_with_reactor, turns

SHORTAGE_SECONDS = 4.0
TIMEOUT_SECONDS = 3.0  # of a download: the wait for a descriptor does not count
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(10_000):
        writer.write(_OK)
    writer.close()


def take_all() -> list[int]:
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return taken


async def fetch(handler: Any, url: str, method: str) -> Any:
    outcome = await download(handler, Request(url, method=method, meta={"download_timeout": TIMEOUT_SECONDS}))
    return outcome.get("status", outcome)


async def main(reactor: Any) -> None:
    PublicHostResolver(reactor, allow_private=True).install_on_reactor()
    others = asyncio.all_tasks()
    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    handler = handler_of("plain", {})
    urls = {"address": f"http://127.0.0.1:{port}/", "name": f"http://localhost:{port}/"}
    for method in ("GET", "POST"):  # what is imported at the first time is imported now
        await asyncio.gather(*(fetch(handler, url, method) for url in urls.values()))
    while handler._wires._close_longest_idle():
        pass
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    while asyncio.all_tasks() - others:  # serve what was closed
        await asyncio.sleep(0)
    await turns()
    taken, handler._wires.places._usual = take_all(), 0  # 0: they are counted for the first time
    asyncio.get_running_loop().call_later(SHORTAGE_SECONDS, lambda: [os.close(one) for one in taken])
    reactor.nameResolver._known.clear()
    found = await asyncio.gather(*(fetch(handler, url, method) for method in ("GET", "POST") for url in urls.values()))
    json.dump(found, sys.stdout)
    await handler.close()
    listening.close()


if __name__ == "__main__":
    run_with_reactor(main, logging.WARNING)
