"""Answers `scrapy frontier` on a socket: one line in, one document out.

Whoever connects costs little, whatever it sends: a few connections at a time, a short line, a few
seconds. The look at the frontier is taken in slices, so the event loop goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from site_spider import runtime
from site_spider.contracts.seed_log import SeedLog, name_of
from site_spider.errors import SiteSpiderError
from site_spider.installation import temporary_folder
from site_spider.observe.snapshot import MOST_HOSTS, Snapshot, Watched, snapshot

# --- The sockets of `scrapy frontier`: one for each crawl, in a folder that only this user may enter -----

_LONGEST_PATH_BYTES = 107  # what a socket's address has room for
_SUFFIX, _KILLED = ".frontier", ".killed"
_KILLED_SECONDS = 600.0  # for which it can be told that a process was killed
_own: set[Path] = set()  # that were made here


def folders() -> Iterator[Path]:
    """Where to put one, and where to look for all."""
    if own := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(own) / "site_spider"
    yield temporary_folder() / f"site_spider-{os.getuid()}"


def new_path() -> Path:
    """The path of a socket that is not there yet. Raises OSError when no folder will do."""
    reasons: list[OSError] = []
    for folder in folders():
        path = folder / f"{os.getpid()}-{runtime.token_hex(3)}{_SUFFIX}"
        try:
            _prepare(path)
        except OSError as error:
            reasons.append(error)
        else:
            _own.add(path)
            return path
    raise reasons[0]


def _prepare(path: Path) -> None:
    folder = path.parent
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise OSError(f"{folder} is too long a name for the folder of a socket")
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(f"{folder} is not this user's alone")


def running() -> dict[Path, int]:
    """The sockets that are there, with the process each is named after; in order."""
    found: dict[Path, int] = {}
    for folder in folders():
        with contextlib.suppress(OSError):
            if _is_own(folder):
                for path in sorted(folder.glob(f"*{_SUFFIX}")):
                    pid = path.name.partition("-")[0]
                    if pid.isascii() and pid.isdigit():
                        found[path] = int(pid)
    return found


def alive() -> dict[Path, int]:
    """Those of processes that run."""
    return {path: pid for path, pid in running().items() if not has_ended(pid)}


def remove_stale() -> None:
    """Remove the sockets of processes that have ended, which a killed one leaves behind; another name tells of them.

    Also of one that had the number of this one: in a container all that follow each other have the same.
    """
    for path, pid in running().items():
        if has_ended(pid) or (pid == os.getpid() and path not in _own):
            with contextlib.suppress(OSError):
                path.rename(path.with_suffix(_KILLED))
    for folder in folders():
        with contextlib.suppress(OSError):
            for path in folder.glob(f"*{_KILLED}") if _is_own(folder) else ():
                if runtime.time() - path.lstat().st_ctime > _KILLED_SECONDS:
                    path.unlink()


def was_killed(path: Path) -> bool:
    """Whether somebody else has taken this socket away."""
    return path.with_suffix(_KILLED).exists()


def has_ended(pid: int) -> bool:
    """Whether there is no such process."""
    try:
        os.kill(pid, 0)  # sends nothing, asks only
    except (OSError, OverflowError) as error:
        return isinstance(error, ProcessLookupError)
    return False


def _is_own(folder: Path) -> bool:
    status = folder.lstat()
    may_others = stat.S_IMODE(status.st_mode) & 0o022
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not may_others


# --- The client's side ------------------------------------------------------------------------------------

LARGEST_BYTES = 2_000_000  # of one snapshot as JSON
NOBODY = (ConnectionRefusedError, FileNotFoundError)  # listens: whose socket it was has ended


class OddSnapshot(SiteSpiderError):
    """What came is no snapshot of a process."""


async def ask(path: Path, question: bytes, seconds: float) -> dict[str, Any]:
    """What the process with this socket answers. Raises OSError, which TimeoutError is, and OddSnapshot."""
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(question + b"\n")
            raw = bytearray()
            while len(raw) <= LARGEST_BYTES and (part := await reader.read(65_536)):
                raw += part
            return parsed(bytes(raw))
        finally:
            writer.close()


def parsed(raw: bytes) -> dict[str, Any]:
    """The document in these bytes. Raises OddSnapshot."""
    if len(raw) > LARGEST_BYTES:
        raise OddSnapshot(f"a snapshot has {len(raw)} bytes, but must have at most {LARGEST_BYTES}")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise OddSnapshot("a snapshot cannot be read as JSON") from error
    if not isinstance(document, dict):
        raise OddSnapshot("a snapshot is no JSON object")
    return document


# --- The server's side ------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

_MOST_CONNECTIONS = 4
_LONGEST_QUESTION_BYTES = 256
METRICS_QUESTION = b"metrics"  # for the snapshot with all that metrics are made of
_SECONDS = 5.0  # for the question, and for taking the answer


class FrontierServer:
    """That it cannot listen never holds up a crawl."""

    def __init__(self, watched: Watched, measured: Callable[[], Awaitable[Snapshot]], log: SeedLog) -> None:
        self._watched = watched
        self._log = log
        self._log_name: dict[str, str] = {}
        self._measured = measured
        self._path: Path | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self._changing = asyncio.Lock()  # a crawl may fail, and close, while this opens
        self._is_closed = False

    async def open(self) -> None:
        async with self._changing:
            if not self._is_closed:
                await self._listen()

    async def _listen(self) -> None:
        try:
            self._log_name = (await asyncio.to_thread(name_of, self._log))._asdict()
            await asyncio.to_thread(remove_stale)
            path = await asyncio.to_thread(new_path)
            # nobody listens before this is known here: the start may be cancelled wherever it waits
            self._server = await asyncio.start_unix_server(
                self._connected, path, limit=_LONGEST_QUESTION_BYTES, start_serving=False
            )
            self._path = path
            await asyncio.to_thread(path.chmod, 0o600)
            await self._server.start_serving()
        except OSError as error:
            logger.warning("scrapy frontier cannot ask this process: %s", error)

    async def close(self) -> None:
        async with self._changing:
            self._is_closed = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._path is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._path.unlink)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._connections) < _MOST_CONNECTIONS:
                self._connections.add(task)
                await self._answer(reader, writer)
        except (OSError, TimeoutError):
            pass  # whoever asked has gone, or is too slow
        except Exception:
            logger.exception("A question about the frontier could not be answered")
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_SECONDS):
            try:
                question = await reader.readuntil(b"\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                return
        document = await self._document(question)
        writer.write(json.dumps(document).encode() + b"\n")
        writer.write_eof()
        async with asyncio.timeout(_SECONDS):
            await writer.drain()
            while await reader.read(_LONGEST_QUESTION_BYTES):
                pass  # until the other side has taken it all, and closes

    async def _document(self, question: bytes) -> dict[str, Any]:
        hosts = question.strip()
        log = {"log": self._log_name}
        if hosts == METRICS_QUESTION:
            return await self._measured() | log
        if not hosts.isdigit() or int(hosts) > MOST_HOSTS:
            return {"error": f"the question is a number of hosts, 0 to {MOST_HOSTS}, or metrics"}
        return await snapshot(self._watched, int(hosts)) | log
