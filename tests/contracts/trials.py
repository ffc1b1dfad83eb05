"""What every sink with a server is put through, whatever the server: an outage, a stall."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from site_spider.contracts.sink import Answer, Record, Sink, Verdict
from site_spider.errors import SinkUnavailable
from site_spider.results.batch import BatchLimits
from site_spider.results.delivery import Delivery

T = TypeVar("T")
BEAT_SECONDS = 0.01
TRIES_IN_VAIN = 4  # how long a server that was killed stays away: the pauses in between have grown by then


def page(number: int) -> Record:
    """A result of about 10 KB that says which one it is."""
    document = {
        "url_id": str(number),
        "status": 200,
        "response_size": number,
        "body": f"{number} word " * 1200,
    }
    return Record(str(number), document, 10_000)


def written(sink: Sink, *records: Record) -> list[Verdict]:
    """What an open sink answers to one batch."""

    async def scenario() -> list[Verdict]:
        await sink.open()
        try:
            return list(await sink.write(records))
        finally:
            await sink.close()

    return asyncio.run(scenario())


def answers(verdicts: Sequence[Verdict]) -> list[Answer]:
    """Without the reasons."""
    return [verdict.answer for verdict in verdicts]


class Tried:
    """A sink, and how often in a row its server did not answer."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self.name, self.in_vain = sink, sink.name, 0

    async def open(self) -> None:
        await self._counted(self._sink.open())

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        return await self._counted(self._sink.write(records))

    async def close(self) -> None:
        await self._sink.close()

    async def _counted(self, trying: Awaitable[T]) -> T:
        try:
            answer = await trying
        except SinkUnavailable:
            self.in_vain += 1
            raise
        self.in_vain = 0
        return answer


async def outlast_an_outage(
    sink: Sink,
    kill: Callable[[], object],
    restart: Callable[[], object],
    count: int,
    tries_in_vain: int = TRIES_IN_VAIN,
    make: Callable[[int], Record] = page,
) -> tuple[list[Verdict], int]:
    """Kill the server in mid-stream and start it again: the verdicts, and how many waited in between."""
    tried = Tried(sink)
    loop = asyncio.get_running_loop()
    verdicts: list[Verdict] = []
    changes = asyncio.Event()
    delivery = Delivery(tried, limits=BatchLimits(count=100), on_change=changes.set)
    await delivery.open(300)

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():
            changes.clear()
            await changes.wait()

    for number in range(count // 2):
        delivery.submit(make(number), verdicts.append)
    await until(lambda: bool(verdicts))
    killing = loop.run_in_executor(None, kill)
    for number in range(count // 2, count):
        delivery.submit(make(number), verdicts.append)
    await killing
    await until(lambda: not delivery.available)
    waiting = delivery.backlog_count
    assert waiting + len(verdicts) == count
    while tried.in_vain < tries_in_vain:
        await asyncio.sleep(BEAT_SECONDS)
    assert not delivery.available
    await loop.run_in_executor(None, restart)
    await until(lambda: delivery.available)
    assert await delivery.close(120) == 0
    return verdicts, waiting


async def assert_loop_stays_free(sink: Sink, processes: Sequence[int], seconds: float) -> None:
    """Write while the server's processes stand still: the loop goes on, nearly as often as another thread.

    Then they go on, and all that was written has to be acknowledged.
    """
    verdicts: list[Verdict] = []
    delivery = Delivery(sink)
    await delivery.open(300)
    delivery.submit(page(0), verdicts.append)
    while not verdicts:
        await asyncio.sleep(BEAT_SECONDS)
    with stopped(*processes):
        for number in range(1, 2001):
            delivery.submit(page(number), verdicts.append)
        beats, beats_of_thread = await _beats(seconds)
        assert len(verdicts) < 2001, "the server was not stalled"
    assert await delivery.close(300) == 0
    assert {verdict.answer for verdict in verdicts} == {Answer.ACKNOWLEDGED}
    assert beats > beats_of_thread / 10  # a call that waits for the server takes seconds


@contextmanager
def stopped(*processes: int) -> Iterator[None]:
    """They stand still: on a busy machine threads of a process still work for a while after the signal."""
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        while not all(_stands_still(process) for process in processes):
            time.sleep(0.001)
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def _stands_still(process: int) -> bool:
    return all(_state(thread) in "TZ" for thread in Path(f"/proc/{process}/task").iterdir())


def _state(thread: Path) -> str:
    """The state of a thread, or none when it has ended."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def pids(folder: Path, *roles: str) -> list[int]:
    """The processes of a server that servers.sh has started in its folder."""
    return [int((folder / f"{role}.pid").read_text().split()[0]) for role in roles]


async def _beats(seconds: float) -> tuple[int, int]:
    """How often the loop went on, and how often a thread did beside it."""
    loop = asyncio.get_running_loop()
    beats = beats_of_thread = 0
    is_over = threading.Event()

    def beat() -> None:
        nonlocal beats_of_thread
        while not is_over.wait(BEAT_SECONDS):
            beats_of_thread += 1

    thread = threading.Thread(target=beat)
    thread.start()
    ending = loop.time() + seconds
    while loop.time() < ending:
        await asyncio.sleep(BEAT_SECONDS)
        beats += 1
    is_over.set()
    thread.join()
    return beats, beats_of_thread
