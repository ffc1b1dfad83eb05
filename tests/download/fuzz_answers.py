"""Compares readers of HTTP answers, and looks for bytes that reach another request.

    python -m tests.download.fuzz_answers --seconds 600 [--seed 1]

Each round has a number, from which all of it follows; what fails is printed with it, and
`--seed NUMBER --seconds 0` does that round once more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import time
from itertools import pairwise
from random import Random

import uvloop

from site_spider.download.answer import HttpAnswer
from site_spider.download.connection import Connection, NothingCame
from tests.download.answer_grammar import MARK, generated
from tests.download.answer_readers import h11s, ours, scrapys

SECOND = b"<p>second"
_PATIENCE_SECONDS = 0.005


def compare(seed: int) -> None:
    """One answer, cut in every way, by three readers. On a running event loop only."""
    random = Random(seed)
    data = generated(random, b"<p>" + b"x" * random.randrange(20))
    method = random.choice(("GET", "GET", "GET", "HEAD"))
    ends = random.random() < 0.5
    said = (seed, data, method, ends)
    found, odd = (ours([data], method, ends=ends, takes_odd=takes_odd) for takes_odd in (False, True))
    for place in range(1, len(data)):
        assert ours([data[:place], data[place:]], method, ends=ends) == found, (place, *said)
        assert ours([data[:place], data[place:]], method, ends=ends, takes_odd=True) == odd, (place, *said)
    single = [data[place : place + 1] for place in range(len(data))]
    places = sorted({0, len(data), *(random.randrange(len(data) + 1) for _ in range(4))})
    several = [data[a:b] for a, b in pairwise(places)]
    for pieces in (single, several):
        assert ours(pieces, method, ends=ends) == found, said
        assert ours(pieces, method, ends=ends, takes_odd=True) == odd, said
    scrapy, other = scrapys([data], method, ends=ends), h11s([data], method, ends=ends)
    if found.kind != "OddAnswer":
        assert odd == found, said
    else:
        assert not odd.is_reusable, said
        if odd.status and scrapy.status and odd.kind != "dataloss":  # which a fault of chunks is here
            assert (scrapy.kind, scrapy.page) == (odd.kind, odd.page), (odd, scrapy, said)
    if found.status:
        assert (scrapy.kind, scrapy.page) == (found.kind, found.page), (found, scrapy, said)
        assert other.page == found.page, (found, other, said)
        if found.kind == "whole":
            assert other.kind == "whole", (found, other, said)
        if found.is_reusable:  # nobody else would see more bytes, or fewer
            assert other.is_reusable, (found, other, said)
            assert scrapy.is_reusable, (found, scrapy, said)


class Pairs:
    """Two requests on one connection, whose server sends more than it was asked for, or late."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.asked_again = 0  # rounds in which the second request was sent

    def close(self) -> None:
        self._listener.close()

    async def exchange(self, seed: int) -> None:
        """One round."""
        random = Random(seed)
        first = random.choice((generated(random, b"<p>first"), _whole(b"<p>first")))
        stream = first + random.choice(
            (b"", b"", b"\r\n", MARK, generated(random, MARK), _whole(MARK), _whole(MARK)[: random.randrange(60)])
        )
        place = random.choice((len(first), len(first), len(stream), random.randrange(len(stream) + 1)))
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: Connection(lambda _: None), *self._listener.getsockname()[:2])
        server, _ = self._listener.accept()
        server.setblocking(False)
        try:
            answer = await self._first(wire, server, stream[:place], stream[place:])
            if answer.is_reusable and wire.is_open:
                if random.random() < 0.5:
                    await asyncio.sleep(0)
                await self._second(wire, server, (seed, stream, place))
        finally:
            wire.abort()
            server.close()
            await asyncio.sleep(0)

    async def _first(self, wire: Connection, server: socket.socket, now: bytes, late: bytes) -> HttpAnswer:
        """What is late comes when the answer is not whole without it, or else before the next request."""
        answer = HttpAnswer()
        asked = wire.ask(b"GET /1 HTTP/1.1\r\n\r\n", answer, _ignore, _ignore)
        await self._requested(server)
        with contextlib.suppress(OSError):
            server.send(now)
            await asyncio.wait([asked], timeout=_PATIENCE_SECONDS)
            server.send(late)
        if not asked.done():
            await asyncio.wait([asked], timeout=_PATIENCE_SECONDS)
        if not asked.done():
            wire.fail(TimeoutError())
        asked.exception()
        return answer

    async def _second(self, wire: Connection, server: socket.socket, said: object) -> None:
        answer = HttpAnswer()
        try:
            asked = wire.ask(b"GET /2 HTTP/1.1\r\n\r\n", answer, _ignore, _ignore)
        except NothingCame:
            return
        if not await self._requested(server):
            asked.cancel()
            return
        self.asked_again += 1
        with contextlib.suppress(OSError):
            server.send(_whole(SECOND))
        await asyncio.wait([asked], timeout=1)
        assert asked.done(), said
        assert asked.exception() is None, (asked.exception(), said)
        assert (answer.status, answer.body) == (200, SECOND), (answer.body, said)

    @staticmethod
    async def _requested(server: socket.socket) -> bool:
        loop = asyncio.get_running_loop()
        try:
            return bool(await asyncio.wait_for(loop.sock_recv(server, 1_000), 0.1))
        except (TimeoutError, OSError):
            return False


def _ignore(_answer: HttpAnswer) -> None:
    pass


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def _run(seed: int, seconds: float) -> None:
    began = time.monotonic()
    pairs = Pairs()
    first = seed
    while seed == first or time.monotonic() - began < seconds:
        compare(seed)
        if seed % 5 == 0 or seed == first:
            await pairs.exchange(seed)
        seed += 1
    pairs.close()
    print(f"{seed - first} answers compared, {pairs.asked_again} connections used twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()) * 1_000_000)
    arguments = parser.parse_args()
    print(f"from seed {arguments.seed}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(arguments.seed, arguments.seconds))
