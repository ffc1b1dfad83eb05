"""Asks the processes of this host for their snapshots, on the sockets of `scrapy frontier`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

from site_spider.console.model.reading import LARGEST_BYTES, OddSnapshot, parsed
from site_spider.observe import sockets

_SECONDS = 5.0  # that a process may take
_AT_ONCE = 8
_MOST_PROCESSES = 1_000


class Answers(NamedTuple):
    """`silent` are the processes that run and do not answer."""

    snapshots: dict[Path, dict[str, Any]]
    silent: list[int]


async def ask_all(question: bytes) -> Answers:
    """What this user's processes answer: a number asks for a snapshot with so many of the largest hosts."""
    paths = await asyncio.to_thread(_alive)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(path: Path) -> dict[str, Any] | None:
        async with turns:
            return await _asked(path, question)

    found = await asyncio.gather(*map(ask, paths))
    snapshots = {path: answer for path, answer in zip(paths, found, strict=True) if answer is not None}
    return Answers(snapshots, [pid for path, pid in paths.items() if path not in snapshots])


def _alive() -> dict[Path, int]:
    found = {path: pid for path, pid in sockets.running().items() if not sockets.has_ended(pid)}
    return dict(list(found.items())[:_MOST_PROCESSES])


async def _asked(path: Path, question: bytes) -> dict[str, Any] | None:
    """None when there is no answer in time, or an odd one."""
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(question + b"\n")
                return parsed(await _read(reader))
            finally:
                writer.close()
    except (OSError, TimeoutError, OddSnapshot):
        return None


async def _read(reader: asyncio.StreamReader) -> bytes:
    raw = bytearray()
    while len(raw) <= LARGEST_BYTES and (part := await reader.read(65_536)):
        raw += part
    return bytes(raw)
