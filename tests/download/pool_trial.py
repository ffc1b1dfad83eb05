"""Keeps many connections in the pool of Scrapy's handler, and prints how many it has at most."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from scrapy import Request

from tests.download.handler_trials import handler_of, run_with_reactor
from tests.download.shortage_trials import serve


async def main(_: Any) -> None:
    listening = await asyncio.start_server(serve, "0.0.0.0", 0)
    port = listening.sockets[0].getsockname()[1]
    handler = handler_of("stock", {})
    handler._pool.most_kept = 5
    kept = []
    for number in range(1, 31):
        await handler.download_request(Request(f"http://127.0.0.{number}:{port}/"))
        await asyncio.sleep(0)
        kept.append([len(handler._pool._timeouts), len(handler._pool._connections)])
    peers = sorted(key[1].decode() for key, one in handler._pool._connections.items() if one)
    json.dump({"kept": kept, "last": peers}, sys.stdout)
    await handler.close()
    listening.close()


if __name__ == "__main__":
    run_with_reactor(main)
