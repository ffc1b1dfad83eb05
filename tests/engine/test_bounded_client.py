"""Twisted's client behind the bounds: reading that is put off, and what is handed to the parser."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.web._newclient import Request
from twisted.web.http_headers import Headers

from site_spider.engine.bounded_client import BoundedClient, oversized
from tests.download.answer_readers import Outcome, _Body, _Transport, scrapys
from tests.download.test_wire import NeverTime

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Asked:
    """A client that has no time within a turn, one request, and what came of it."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.client = BoundedClient(self.kept.append)
        self.client._turns = NeverTime()  # type: ignore[assignment]
        self.transport = _Transport()
        self.client.makeConnection(self.transport)
        self.body = _Body()
        self.failure: Failure | None = None
        request = Request(b"GET", b"/", Headers({b"host": [b"a"]}), None, persistent=True)
        self.client.request(request).addCallbacks(lambda answer: answer.deliverBody(self.body), self._fail)

    def _fail(self, failure: Failure) -> None:
        self.failure = failure

    async def ended(self) -> None:
        async with asyncio.timeout(300):
            while self.body.reason is None and self.failure is None:
                await asyncio.sleep(0)


async def test_reading_that_is_put_off_pauses_the_connection_until_it_has_caught_up() -> None:
    asked = Asked()
    asked.client.dataReceived(CHUNKED + b"1\r\nA\r\n" * 3_000)
    assert asked.transport.producerState == "paused"
    asked.client.dataReceived(b"1\r\nA\r\n" * 3_000 + b"0\r\n\r\n")
    assert asked.body.data == b""
    await asked.ended()
    assert asked.body.data == b"A" * 6_000
    await asyncio.sleep(0)
    assert asked.transport.producerState == "producing"
    assert asked.kept


async def test_the_end_of_the_connection_waits_for_what_came_before_it() -> None:
    asked = Asked()
    asked.client.dataReceived(OK + b"\r\n" + b"x" * 50_000)
    asked.client.connectionLost(Failure(ConnectionDone()))
    await asked.ended()
    assert len(asked.body.data) == 50_000


@pytest.mark.parametrize("surplus", [b"HTTP/1.1 200 OK\r\n\r\n", b"x", b"\r\n"])
async def test_a_connection_on_which_more_came_than_the_answer_is_given_up(surplus: bytes) -> None:
    for whole in (
        OK + b"Content-Length: 1\r\n\r\nA",
        CHUNKED + b"1\r\nA\r\n0\r\n\r\n",
        OK + b"Content-Length: 0\r\n\r\n",
    ):
        for pieces in ([whole + surplus], [whole, surplus]):
            found = scrapys(pieces, "GET", ends=False)
            assert (found.kind, found.is_reusable) == ("whole", False)
        assert scrapys([whole], "GET", ends=False).is_reusable


@pytest.mark.parametrize("size", [13, 100, 4_096, 1_000_000])
async def test_bounds_do_not_depend_on_how_the_bytes_come(size: int) -> None:
    answers = {
        "a head": (OK + b"X: y\r\n" * 3_998 + b"Content-Length: 0\r\n\r\n", "refused"),
        "a head at the bound": (OK + b"X: y\r\n" * 3_997 + b"Content-Length: 0\r\n\r\n", "whole"),
        "chunks": (CHUNKED + b"1\r\nA\r\n" * 20_000 + b"0\r\n\r\n", "dataloss"),
        "chunks within the bound": (CHUNKED + b"1\r\nA\r\n" * 9_000 + b"0\r\n\r\n", "whole"),
    }

    for name, (data, kind) in answers.items():
        found: Outcome = scrapys([data[n : n + size] for n in range(0, len(data), size)], "GET", ends=False)
        assert found.kind == kind, name


async def test_what_was_too_large_is_found_in_the_error() -> None:
    asked = Asked()
    asked.client.dataReceived(OK + b"X: " + b"x" * 70_000)
    await asked.ended()
    assert asked.failure is not None
    error = RuntimeError()
    error.__cause__ = asked.failure.value
    assert str(oversized(error)) == "the head is longer than 65536 bytes"
    assert oversized(RuntimeError()) is None
