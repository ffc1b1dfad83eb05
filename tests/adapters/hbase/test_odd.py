"""What stands in the place of HBase's Thrift server and is none: an outage, in one line."""

from __future__ import annotations

import asyncio
import socketserver

import pytest

from site_spider.adapters.hbase.sink import HBaseSink
from site_spider.errors import SinkUnavailable
from tests.adapters.raw_server import serving

HEAD = b"\x80\x01\x00\x02\x00\x00\x00\x0dgetTableNames\0\0\0\0"
ODD = {
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n" * 5,
    "zeros": b"\0" * 4096,
    "ones": b"\xff" * 4096,
    "nothing": b"",
    "another call": b"\x80\x01\x00\x02\x00\x00\x00\x03foo\0\0\0\0\0",
    "a long name": b"\x80\x01\x00\x02\x7f\xff\xff\xff",
    "a truth": HEAD + b"\x02\0\0\x01\0",
    "a long list": HEAD + b"\x0f\0\0\x0b\x7f\xff\xff\xff",
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_an_outage(name: str) -> None:
    """Whatever the client makes of it."""

    def reply(connection: socketserver.StreamRequestHandler) -> None:
        connection.request.recv(65_536)
        connection.request.sendall(ODD[name])

    async def scenario(port: int) -> None:
        sink = HBaseSink.from_settings(
            {
                "SITE_HBASE_HOST": "127.0.0.1",
                "SITE_HBASE_PORT": port,
                "SITE_HBASE_TABLE": "results",
                "SITE_HBASE_ROW_KEY": "url_id",
                "SITE_HBASE_CELL_BYTES": 10_000,
                "SITE_HBASE_TIMEOUT_SECONDS": 2,
            }
        )
        try:
            await sink.open()
        finally:
            await sink.close()

    with serving(reply) as port, pytest.raises(SinkUnavailable) as caught:
        asyncio.run(scenario(port))
    assert str(caught.value).isprintable()
