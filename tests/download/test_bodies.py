"""Large bodies are read one by one."""

from __future__ import annotations

import asyncio

from scrapy import Request

from site_spider.download.bodies import Bodies
from tests.in_process import virtual_time


def test_a_large_body_is_read_when_the_one_before_has_ended_and_the_sinks_have_taken_it() -> None:
    """Or when that one has had its turn for long: its callback may wait for the next."""
    first, second, third = (Request(f"http://host.test/{n}") for n in range(3))
    read: list[Request] = []
    sinks_have_room = True

    async def takes(bodies: Bodies, request: Request) -> None:
        await bodies.turn(request)
        read.append(request)

    async def turns() -> None:
        nonlocal sinks_have_room
        bodies = Bodies(10**9, lambda: sinks_have_room, lambda: None, lambda _: True)
        tasks = [asyncio.create_task(takes(bodies, request)) for request in (first, second, third)]
        await asyncio.sleep(1)
        assert read == [first]
        await bodies.turn(first)  # it has it still
        sinks_have_room = False
        bodies.ended(first)
        await asyncio.sleep(1)
        assert read == [first]
        sinks_have_room = True
        bodies.look()
        await asyncio.sleep(5)
        assert read == [first, second]
        await asyncio.sleep(10)
        bodies.look()
        await asyncio.gather(*tasks)
        assert read == [first, second, third]

    virtual_time.run(turns())
