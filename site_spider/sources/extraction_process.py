"""Has pages extracted by a process of its own, which a page cannot keep for longer than its limit.

There is one such process a crawl, made when the first page comes. When it dies of a page, by the limit of
CPU time or of memory, that page fails and the next one gets a new process.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from site_spider import runtime
from site_spider.bounded import BoundedDict
from site_spider.errors import SiteSpiderError
from site_spider.page.decode import BodyLimits, is_html
from site_spider.page.directives import directives
from site_spider.page.links import MAX_PAGE_CHARS, read_text, said_to_robots, tags
from site_spider.page.url import host_of
from site_spider.sources.extraction import Extracted, FoundLink, SourcePage, extract
from site_spider.sources.model import Source

MAX_LINE_BYTES: Final = 64_000_000  # of an answer
MAX_TEXT_BYTES: Final = 4_000_000  # of a page that its text is read from
_MAX_METAS: Final = 100  # with directives for robots
_MOST_SLOW: Final = 5  # pages of a host that end the process within _SLOW_SECONDS: all wait for its pages
_SLOW_SECONDS: Final = 600.0
_Found = TypeVar("_Found")
_PACKAGES = Path(__file__).resolve().parents[2]
CPU_SECONDS = 2.0  # of one page
_WALL_SECONDS = 30.0  # the same on a machine that has other things to do
_MAX_BODY_BYTES = 4 * MAX_PAGE_CHARS


class NotExtracted(SiteSpiderError):
    """A page took the process that extracts more than it may."""


class PageBody(NamedTuple):
    """What is extracted from."""

    url: str
    body: bytes
    content_type: str | None
    wants_links: bool = True
    follow_nofollow: bool = False


@dataclass
class _Worker:
    """One process, and what it knows."""

    _running: subprocess.Popen[bytes]
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _known: dict[str, Source] = field(default_factory=dict)

    @classmethod
    async def start(cls) -> _Worker:
        ours, theirs = socket.socketpair()
        with ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                running = _started(theirs)
            undo.callback(running.wait)
            undo.callback(running.kill)
            reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
            undo.pop_all()
        return cls(running, reader, writer)

    async def extract(self, source: Source, page: PageBody, cpu_seconds: float) -> Extracted:
        head = {**page._asdict(), "name": source.name, "seconds": cpu_seconds}
        body = head.pop("body")[:_MAX_BODY_BYTES]
        if self._known.get(source.name) is not source:
            head["source"] = source.model_dump(mode="json", by_alias=True, exclude_unset=True)
            self._known[source.name] = source
        answer = await self.ask(head, body)
        return Extracted(**{**answer, "links": [FoundLink(*link) for link in answer["links"]]})

    async def ask(self, head: dict[str, Any], body: bytes) -> dict[str, Any]:
        self._writer.write(line({**head, "bytes": len(body)}))
        self._writer.write(body)
        await self._writer.drain()
        answer: dict[str, Any] = json.loads(await self._reader.readline())
        return answer

    async def end(self) -> int:
        """Returns how it ended."""
        self._writer.close()
        if self._reader.at_eof():  # it has ended by itself, or is about to
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._running.wait, 1)
        self._running.kill()
        status = await asyncio.to_thread(self._running.wait)
        with suppress(OSError):
            await self._writer.wait_closed()
        return status


async def _new_worker(said: str) -> _Worker:
    try:
        return await _Worker.start()
    except OSError as error:  # for want of descriptors or memory
        raise NotExtracted(f"{said}: the process that extracts cannot be started: {error}") from error


def _started(connection: socket.socket) -> subprocess.Popen[bytes]:
    """With nothing of the settings, which may be secret, and with no way to the terminal."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "site_spider.sources.extraction_process"],
        stdin=connection.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


class Extractor:
    """On the event loop's thread only; pages take turns."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS, patience_seconds: float = 60.0) -> None:
        self._cpu_seconds = cpu_seconds
        self.patience_seconds = patience_seconds  # that the text of a page may wait for others
        self._process: _Worker | None = None
        self._turn = asyncio.Lock()
        self._slow: BoundedDict[str, list[float]] = BoundedDict(1_000)  # by host: when it had pages too slow

    async def extract(self, source: Source, page: PageBody) -> Extracted:
        """What a source finds in a page; one that takes too much has nothing but the reason."""
        said = f"the source {source.name} could not be applied"
        try:
            return await self._in_turn(said, lambda process: process.extract(source, page, self._cpu_seconds))
        except NotExtracted as error:
            return Extracted(lost=[str(error)])

    async def read(self, page: PageBody, mode: str, until: float | None = None) -> dict[str, Any]:
        """Fields of a result (page/text.py); `mode` is plain, main or robots. Raises NotExtracted.

        By `until`, a time of the event loop, it has to have begun.
        """
        body, size = page.body[:MAX_TEXT_BYTES], len(page.body)
        notes = [f"text: of the first {len(body)} of {size} bytes"] if size > len(body) else []
        head: dict[str, Any] = {"read": mode, "url": page.url, "content_type": page.content_type}
        head |= {"notes": notes, "seconds": self._cpu_seconds}
        host = None if mode == "robots" else host_of(page.url)
        said = "its text could not be read"
        answer = await self._in_turn(said, lambda process: process.ask(head, body), host, until)
        if "failed" in answer:
            raise NotExtracted(answer["failed"])
        return answer

    async def _in_turn(
        self,
        said: str,
        work: Callable[[_Worker], Awaitable[_Found]],
        host: str | None = None,
        until: float | None = None,
    ) -> _Found:
        try:
            async with runtime.Patience(None if until is None else until - asyncio.get_running_loop().time()):
                await self._turn.acquire()
        except TimeoutError:
            raise NotExtracted("its text is not read: too many pages waited for that") from None
        try:
            return await self._work(said, work, host)
        finally:
            self._turn.release()

    async def _work(self, said: str, work: Callable[[_Worker], Awaitable[_Found]], host: str | None) -> _Found:
        """Of a host few slow pages are read, also of those that wait together: others wait behind them."""
        now = runtime.monotonic()
        slow = [at for at in self._slow.get(host or "", ()) if now - at < _SLOW_SECONDS]
        if len(slow) >= _MOST_SLOW:
            raise NotExtracted(f"its text is not read: {len(slow)} pages of its host took too much")
        try:
            if self._process is None:
                self._process = await _new_worker(said)
            async with runtime.Patience(_WALL_SECONDS):
                return await work(self._process)
        except (OSError, EOFError, TimeoutError, ValueError, RecursionError) as error:
            if host is not None:
                self._slow[host] = [*slow, now]
            raise NotExtracted(f"{said}: {self._reason(await self._end())}") from error
        except BaseException:  # cancelled: an answer under way would be the next page's
            await asyncio.shield(self._end())
            raise

    def _reason(self, status: int | None) -> str:
        if status == -signal.SIGPROF:
            return f"this page takes more than {self._cpu_seconds:g} s of CPU time"
        if status == -signal.SIGKILL:
            return f"this page takes more than {_WALL_SECONDS:g} s"
        return f"this page ended the process that extracts (exit status {status}), by its memory for example"

    async def close(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end()

    async def _end(self) -> int | None:
        process, self._process = self._process, None
        return None if process is None else await process.end()


# --- The process that extracts: one page after the other, each within a limit of CPU time ----------------
# An XPath on a page made for it can take minutes inside of libxml2, where no other thread can stop it. So
# the system does: a timer of the process ends it. Whoever sent the page sees the end of the connection. It
# speaks on its standard input, a socket: a line of JSON, the bytes of a page behind it; an answer is a line.

MEMORY_BYTES = 1_000_000_000


def line(document: dict[str, Any]) -> bytes:
    """As it is sent."""
    return json.dumps(document).encode() + b"\n"


def serve(connection: socket.socket) -> None:
    """Answer until the other side closes."""
    sources: dict[str, Source] = {}
    with connection, connection.makefile("rb") as stream:
        for asked in stream:
            head = json.loads(asked)
            body = stream.read(head["bytes"])
            signal.setitimer(signal.ITIMER_PROF, head["seconds"])
            answer = answer_to(head, body, sources)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(line(answer))


def answer_to(head: dict[str, Any], body: bytes, sources: dict[str, Source]) -> dict[str, Any]:
    """To one page; `sources` are those of earlier ones."""
    if "source" in head:
        sources[head["name"]] = Source.model_validate(head["source"], strict=False)
    try:
        return _read(head, body) if "read" in head else _extracted(head, body, sources[head["name"]])
    except MemoryError:
        raise  # a new process begins without what this page has left
    except Exception as error:  # noqa: BLE001 - a page ends nothing but itself
        said = f"{type(error).__name__}: {str(error)[:200]!a}"
    if "read" in head:
        return {"failed": f"its text could not be read: {said}"}
    return vars(Extracted(lost=[f"{head['name']} could not be applied: {said}"]))


def _extracted(head: dict[str, Any], body: bytes, source: Source) -> dict[str, Any]:
    text, encoding = _decoded(body, head["content_type"])
    page = SourcePage(head["url"], text, encoding, follow_nofollow=head["follow_nofollow"])
    return vars(extract(source, page, wants_links=head["wants_links"]))


def _read(head: dict[str, Any], body: bytes) -> dict[str, Any]:
    """The fields of a result that a page's text is read for, with `robots`: its own; None: the rest may have some."""
    text, _ = _decoded(body, head["content_type"])
    is_page = is_html(body, head["content_type"])
    robots, is_whole = _robots(text) if is_page else ([], True)
    is_whole = is_whole and not (is_page and head["notes"])
    answer: dict[str, Any] = {"robots": robots if robots or is_whole else None}
    if head["read"] != "robots":
        # here alone: sources need no Resiliparse, and no other process has it
        texts = importlib.import_module("site_spider.page.text")
        url, main_only = head["url"] if is_page else None, head["read"] == "main"
        answer |= texts.read_page(text, url, main_only=main_only, now=runtime.now(UTC))
        answer["notes"] += head["notes"]
    return answer


def _robots(text: str) -> tuple[list[str], bool]:
    """What the meta tags for all robots say, and whether all of them were read."""
    said: list[str] = []
    reading, is_whole = tags(text), False
    try:
        while len(said) < _MAX_METAS:
            name, written = next(reading) or ("", {})
            if name == "meta" and (one := said_to_robots(written)):
                said.append(one)
    except StopIteration as end:
        is_whole = end.value is True
    return directives(said), is_whole


def _decoded(body: bytes, content_type: str | None) -> tuple[str, str]:
    steps = read_text(body, content_type, BodyLimits(max_bytes=1), MAX_PAGE_CHARS)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value.read, end.value.encoding


def main() -> None:
    """With the connection as standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the crawl, which closes the connection
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with suppress(ValueError):  # a lower one is there
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(socket.socket(fileno=sys.stdin.fileno()))


if __name__ == "__main__":
    main()
