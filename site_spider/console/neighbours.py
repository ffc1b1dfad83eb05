"""Asks the processes of this host for their snapshots, on the sockets of `scrapy frontier`.

Each says once which seed log it uses; those of another log are not asked again. A process of an older release
does not say it, and is asked.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple, Self

from site_spider.console.model.reading import LARGEST_BYTES, OddSnapshot, parsed
from site_spider.contracts.seed_log import LogName, SeedLog, name_of
from site_spider.observe import frontier_socket
from site_spider.observe.frontier_socket import IDENTITY_QUESTION

_SECONDS = 5.0  # that a process may take
_NAMING_SECONDS = 1.0
_AT_ONCE = 8
_MOST_PROCESSES = 1_000
_LONGEST = 300  # characters of a name


class Answers(NamedTuple):
    """`silent` are the processes that run and do not answer, `others` those of other logs by name."""

    snapshots: dict[Path, dict[str, Any]]
    silent: list[int]
    others: list[str]


class Neighbours:
    """Those of this user."""

    def __init__(self, log: SeedLog) -> None:
        self._log = log
        self._own = LogName("", log.address)
        self._naming: asyncio.Task[LogName] | None = None
        self._known: dict[Path, _Said] = {}  # of those that are there

    async def ask_all(self, question: bytes) -> Answers:
        """What those of this log answer: a number asks for a snapshot with so many of the largest hosts."""
        paths = await asyncio.to_thread(_alive)
        await self._learn_own_name()
        self._known = {path: said for path, said in self._known.items() if path in paths}
        turns = asyncio.Semaphore(_AT_ONCE)

        async def ask(path: Path) -> dict[str, Any] | None:
            async with turns:
                return await _asked(path, question) if await self._is_mine(path) else None

        found = await asyncio.gather(*map(ask, paths))
        others = {path: said for path, said in self._known.items() if not said.is_of(self._own)}
        snapshots = {path: answer for path, answer in zip(paths, found, strict=True) if answer is not None}
        silent = [pid for path, pid in paths.items() if path not in snapshots and path not in others]
        return Answers(snapshots, silent, [f"{said.name}, of another seed log" for said in others.values()])

    async def _learn_own_name(self) -> None:
        """Without a wait for a log that is away: until it has answered its address stands for it."""
        if self._own.identity:
            return
        self._naming = self._naming or asyncio.create_task(asyncio.to_thread(name_of, self._log))
        done, _ = await asyncio.wait([self._naming], timeout=_NAMING_SECONDS)
        if done:
            self._own, self._naming = self._naming.result(), None

    async def _is_mine(self, path: Path) -> bool:
        if path not in self._known:
            answer = await _asked(path, IDENTITY_QUESTION)
            if answer is None:
                return False
            self._known[path] = _Said.of(answer)
        return self._known[path].is_of(self._own)


class _Said(NamedTuple):
    """What a process says of itself; an older release does not know the question."""

    name: str
    log: LogName | None

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Self:
        identity, address = answer.get("identity"), answer.get("address")
        is_said = isinstance(identity, str) and isinstance(address, str)
        name = f"{str(answer.get('process'))[:_LONGEST]} ({str(answer.get('group'))[:_LONGEST]})"
        return cls(name, LogName(str(identity), str(address)) if is_said else None)

    def is_of(self, log: LogName) -> bool:
        return self.log is None or self.log.is_same(log)


def _alive() -> dict[Path, int]:
    found = {
        path: pid for path, pid in frontier_socket.running().items() if not frontier_socket.has_ended(pid)
    }
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
