"""Run the site: python -m tools.site --hosts 60 --record FILE. Prints READY and the port; ends at SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import uvloop

from tools.site.exchange import host_name
from tools.site.handle import Recorder
from tools.site.server import Connection, Site

FLUSH_SECONDS = 0.1
BACKLOG = 4096


def _listen(hosts: list[str], port: int) -> list[socket.socket]:
    """One socket for each host, all on one port."""
    sockets: list[socket.socket] = []
    try:
        for host in hosts:
            sockets.append(socket.create_server((host, port), backlog=BACKLOG))
            port = sockets[0].getsockname()[1]
    except OSError:
        for opened in sockets:
            opened.close()
        raise
    return sockets


def listen(hosts: list[str], port: int, tries: int = 50) -> list[socket.socket]:
    """Like `_listen`; without a given port, one that is free on all hosts is looked for."""
    for left in range(tries, 0, -1):
        try:
            return _listen(hosts, port)
        except OSError:
            if port or left == 1:
                raise
    raise AssertionError("not reached")


async def _serve(hosts: list[str], port: int, record: Path) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    sockets = listen(hosts, port)
    with record.open("a", encoding="utf-8") as file:
        recorder = Recorder(file)
        site = Site(sockets[0].getsockname()[1], recorder)
        for host, listening in zip(hosts, sockets, strict=True):
            await loop.create_server(partial(Connection, site, host), sock=listening)
        print(f"READY {site.port}", flush=True)
        while not stopped.is_set():
            recorder.flush()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), FLUSH_SECONDS)
        recorder.flush()


def main(arguments: list[str]) -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(prog="python -m tools.site")
    parser.add_argument("--hosts", type=int, default=60)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args(arguments)
    hosts = [host_name(index) for index in range(options.hosts)]
    uvloop.run(_serve(hosts, options.port, options.record))


if __name__ == "__main__":
    main(sys.argv[1:])
