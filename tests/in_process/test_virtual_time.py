"""Virtual time: what is jumped over, and what is not."""

from __future__ import annotations

import asyncio
import itertools
import queue
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import engine, virtual_time
from tests.in_process.engine import crawl, page

REAL = time.clock_gettime  # which nothing of it changes


def took(main: Callable[[], Coroutine[Any, Any, object]]) -> float:
    """Seconds by the clocks of `time`, which agree with the loop's."""
    clocks = time.monotonic(), time.time(), time.perf_counter(), time.monotonic_ns() / 1e9
    virtual_time.run(main())
    ahead = [time.monotonic(), time.time(), time.perf_counter(), time.monotonic_ns() / 1e9]
    passed = [now - before for now, before in zip(ahead, clocks, strict=True)]
    assert max(passed) - min(passed) < 10
    return passed[0]


async def of_the_loop() -> None:
    before = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(200_000), 100_000)
    assert 100_000 <= asyncio.get_running_loop().time() - before < 110_000


async def of_a_job() -> None:
    await asyncio.to_thread(time.sleep, 100_000)


async def of_a_thread() -> None:
    """It waits for an event that nobody sets, in vain for an item, and for one that a timer sets."""
    event, items, seen = threading.Event(), queue.Queue[int](), []

    def work() -> None:
        seen.append(event.wait(50_000))
        with pytest.raises(queue.Empty):
            items.get(timeout=40_000)
        timer = threading.Timer(10_000, event.set)
        timer.start()
        seen.append(event.wait(50_000))
        timer.join()

    thread = threading.Thread(target=work)
    thread.start()
    await asyncio.to_thread(thread.join, 200_000)
    assert seen == [False, True]


@pytest.mark.parametrize("main", [of_the_loop, of_a_job, of_a_thread])
def test_nobody_waits_while_nothing_happens(main: Callable[[], Coroutine[Any, Any, object]]) -> None:
    assert 100_000 <= took(main) < 110_000


def test_the_order_of_loop_and_threads_is_that_of_their_times() -> None:
    order: list[int] = []

    async def main() -> None:
        async def on_the_loop(moment: int) -> None:
            await asyncio.sleep(moment)
            order.append(moment)

        def in_a_thread() -> None:
            for moment in range(20, 120, 20):
                time.sleep(20)
                order.append(moment)

        await asyncio.gather(asyncio.to_thread(in_a_thread), *map(on_the_loop, range(10, 110, 20)))

    assert 100 <= took(main) < 150
    assert order == list(range(10, 110, 10))


def test_time_does_not_jump_over_work() -> None:
    """A thread that waits for the real world, and a connection of the loop's, have all of their time."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            reading = asyncio.create_task(asyncio.to_thread(theirs.recv, 1))
            waiting = asyncio.create_task(asyncio.sleep(1000))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            ours.send(b"x")
            assert await reading == b"x"
            reader, _writer = await asyncio.open_connection(sock=ours)
            answer = asyncio.create_task(reader.read(1))
            await asyncio.sleep(0.1)
            theirs.send(b"y")
            assert await answer == b"y"
            assert not waiting.done()
            _writer.close()
            await waiting

    assert 1000 <= took(main) < 1100


def test_a_machine_that_stands_still_while_a_thread_works_makes_nothing_late(monkeypatch: pytest.MonkeyPatch) -> None:
    real, lost = virtual_time._real_ns, itertools.count(step=1000 * 10**9)

    async def main() -> float:
        await asyncio.to_thread(int)  # the loop waits for the start of a thread
        before = asyncio.get_running_loop().time()
        await asyncio.to_thread(virtual_time._sleep, 0.2)
        return asyncio.get_running_loop().time() - before

    with monkeypatch.context() as wall:
        wall.setattr(virtual_time, "_real_ns", lambda: real() + next(lost))
        passed = virtual_time.run(main())
    virtual_time.reset()
    assert passed < 100


def test_a_crawl_does_not_wait_for_a_slow_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def late(request: engine.Request) -> engine.Response:
        assert isinstance(asyncio.get_running_loop(), virtual_time.VirtualLoop)
        await asyncio.sleep(30)
        return page(request)

    monkeypatch.setitem(engine.ANSWERS, "/late", late)
    before = time.monotonic()
    crawled = crawl(tmp_path, [{"url": "http://host.test/late"}], DOWNLOAD_TIMEOUT=60)
    assert [document["status"] for document in crawled.documents.values()] == [200]
    assert time.monotonic() - before >= 30


def test_after_a_test_time_is_real_again() -> None:
    took(of_the_loop)
    virtual_time.reset()
    assert abs(time.monotonic() - REAL(time.CLOCK_MONOTONIC)) < 1000
