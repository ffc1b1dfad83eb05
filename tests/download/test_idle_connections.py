"""What a connection that is kept for the next request keeps of the one before."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from site_spider.ledger import completion
from tests.download.handler_trials import certificate, handler_of
from tests.download.raw_answers import Case, RawServer


async def download(handler: Any, url: str) -> weakref.ref[Request]:
    request = Request(url)
    completion.work_on(request)
    response = await handler.download_request(request)
    assert response.status == 200
    assert completion.current_request() is request  # middlewares and the callback come after this
    return weakref.ref(request)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_idle_connection_keeps_no_request_alive(
    scheme: str, tmp_path: Path, no_collector: None
) -> None:
    """Requests have seeds with them, of up to 1 MB each, and there are 2,000 idle connections."""
    server = RawServer(Case(closes=False))
    tls = certificate(tmp_path) if scheme == "https" else None
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    handler = handler_of("plain", {})
    url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    try:
        for _ in range(2):  # the first opens the connection, the second finds it
            left = await asyncio.create_task(download(handler, url))
            await asyncio.sleep(0)
            assert left() is None
        assert server.connections == 1
    finally:
        await handler.close()
        listening.close()
