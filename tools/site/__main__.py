"""The site's process: puts answers on the wire, malformed ones included, and records each request.

    python -m tools.site --hosts 60 --record FILE

Prints READY and the port; ends at SIGTERM. A hand-made HTTP/1.1 server on `asyncio.Protocol`: requests of a
connection are answered one after another, connections are kept unless the answer says otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import cast

import uvloop

from tools.site.exchange import Answer, Ask, Fault, Framing, host_name
from tools.site.expected import answer, phrase
from tools.site.handle import Entry

RESET_AFTER_SECONDS = 0.05  # time for the part before a reset to arrive
FLUSH_SECONDS = 0.1
GARBAGE = b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n\r\n"
CHUNK_BYTES = 1500
BACKLOG = 4096
_BODILESS = {204, 304}


class Served:
    """What the connections share: counters, and lines of the record until the next flush."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.attempts: Counter[tuple[str, str]] = Counter()
        self.in_progress: Counter[str] = Counter()
        self.lines: list[str] = []


class Connection(asyncio.Protocol):
    def __init__(self, site: Served, host: str) -> None:
        self._site = site
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._busy: Entry | None = None
        self._is_continued = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour only

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._busy:
            self._done(None, 0)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._serve()

    def _serve(self) -> None:
        while self._transport and not self._busy and (ask := self._next()):
            self._site.in_progress[self._host] += 1
            self._busy = self._entry(ask)
            found = answer(ask)
            if found.fault is Fault.HANG:
                self._done(None, 0)  # noted now: its end may never come
                return
            if found.delay_seconds:
                asyncio.get_running_loop().call_later(found.delay_seconds, self._finish, ask, found)
            else:
                self._send(ask, found)

    def _finish(self, ask: Ask, found: Answer) -> None:
        if self._transport:
            self._send(ask, found)
            self._serve()

    def _next(self) -> Ask | None:
        """The next whole request of the buffer."""
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name.strip().lower(), []).append(value.strip())
        length = int(headers.get("content-length", ["0"])[0])
        if len(rest) < length:
            if "expect" in headers and not self._is_continued and self._transport:
                self._is_continued = True
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return None
        self._buffer, self._is_continued = rest[length:], False
        method, _, target = first.partition(" ")
        target = target.rpartition(" ")[0]
        attempt = self._site.attempts[self._host, target]
        self._site.attempts[self._host, target] += 1
        return Ask(self._host, self._site.port, method, target, headers, rest[:length], attempt)

    def _entry(self, ask: Ask) -> Entry:
        agent, cookie = (ask.headers.get(name, [None])[0] for name in ("user-agent", "cookie"))
        number = self._site.in_progress[self._host]
        asked = (self._host, self._site.port, ask.method, ask.target, ask.parts[0])
        return Entry(time.time(), 0, *asked, None, 0, ask.attempt, number, agent, cookie)

    def _done(self, status: int | None, body_bytes: int) -> None:
        assert self._busy
        self._site.in_progress[self._host] -= 1
        entry = self._busy._replace(sent=time.time(), status=status, body_bytes=body_bytes)
        self._site.lines.append(f"{json.dumps(entry._asdict())}\n")
        self._busy = None

    def _send(self, ask: Ask, found: Answer) -> None:
        assert self._transport
        if found.fault in (Fault.NO_ANSWER, Fault.GARBAGE):
            self._transport.write(GARBAGE if found.fault is Fault.GARBAGE else b"")
            self._done(None, 0)
            self._transport.close()
            return
        has_body = ask.method != "HEAD" and found.status not in _BODILESS
        body = found.body if has_body else b""
        if found.fault is Fault.RESET and has_body:
            self._transport.write(_head(found) + body[: len(body) // 2])
            self._done(found.status, len(body) // 2)
            asyncio.get_running_loop().call_later(RESET_AFTER_SECONDS, self._reset)
            return
        is_chunked = has_body and found.framing is Framing.CHUNKED
        self._transport.write(_head(found) + (_chunks(body) if is_chunked else body))
        self._done(found.status, len(body))
        if found.close or "close" in ask.headers.get("connection", [""])[0].lower():
            self._transport.close()

    def _reset(self) -> None:
        """Close with a TCP reset: a linger time of zero on the same socket says so."""
        if self._transport:
            same = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            same.close()
            self._transport.abort()


def _chunks(body: bytes) -> bytes:
    parts = [body[start : start + CHUNK_BYTES] for start in range(0, len(body), CHUNK_BYTES)]
    return b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def _head(found: Answer) -> bytes:
    reason = phrase(found.status) if found.reason is None else found.reason
    lines = [f"HTTP/{found.http_version} {found.status} {reason}"]
    lines += [f"{name}: {value}" for name, value in found.headers]
    if found.framing is Framing.CHUNKED:
        lines.append("Transfer-Encoding: chunked")
    elif found.framing is Framing.LENGTH and found.status not in _BODILESS:
        length = len(found.body) if found.declared_length is None else found.declared_length
        lines.append(f"Content-Length: {length}")
    if found.close:
        lines.append("Connection: close")
    return found.prelude + ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def listen(hosts: list[str], port: int, tries: int = 50) -> list[socket.socket]:
    """One socket for each host, all on one port; without a given one, on one that is free on all hosts."""
    sockets: list[socket.socket] = []
    try:
        for host in hosts:
            wanted = sockets[0].getsockname()[1] if sockets else port
            sockets.append(socket.create_server((host, wanted), backlog=BACKLOG))
    except OSError:
        for opened in sockets:
            opened.close()
        if port or tries == 1:
            raise
        return listen(hosts, port, tries - 1)
    return sockets


async def _serve(hosts: list[str], port: int, record: Path) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    sockets = listen(hosts, port)
    site = Served(sockets[0].getsockname()[1])
    with record.open("a", encoding="utf-8") as file:
        for host, listening in zip(hosts, sockets, strict=True):
            await loop.create_server(partial(Connection, site, host), sock=listening)
        print(f"READY {site.port}", flush=True)
        is_last = False
        while not is_last:
            is_last = stopped.is_set()
            if site.lines:
                file.write("".join(site.lines))  # whole lines
                file.flush()
                site.lines.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), FLUSH_SECONDS)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.site")
    parser.add_argument("--hosts", type=int, default=60)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args(arguments)
    hosts = [host_name(index) for index in range(options.hosts)]
    uvloop.run(_serve(hosts, options.port, options.record))


if __name__ == "__main__":
    main(sys.argv[1:])
