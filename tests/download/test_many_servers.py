"""A real process of `scrapy crawl` against many servers: few descriptors, and servers that hang."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from site_spider.service import config as parts
from tests.in_process.engine import lag, produce, settings_for

ROOT = Path(__file__).resolve().parents[2]
SCRAPY = Path(sys.executable).with_name("scrapy")
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nok"
_HALF_A_HELLO = bytes.fromhex("160303007a020000760303") + b"x" * 40
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


async def keep_alive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(10_000):
        writer.write(_OK)


def saying(words: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(words)
        while await reader.read(10_000):
            pass

    return serve


@contextlib.contextmanager
def serving(
    *kinds: Serve, tls: ssl.SSLContext | None = None, host: str = "0.0.0.0", port: int = 0
) -> Iterator[list[int]]:
    """Each at all of 127.0.0.0/8, or at one address, in a thread; yields the ports."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []
    servers: list[asyncio.Server] = []

    async def closing(serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await serve(reader, writer)
        writer.close()

    async def start() -> None:
        for kind in kinds:
            made = await asyncio.start_server(
                lambda reader, writer, kind=kind: closing(kind, reader, writer), host, port, backlog=500, ssl=tls
            )
            servers.append(made)
            ports.append(made.sockets[0].getsockname()[1])
        ready.set()

    async def ended(tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        for server in servers:
            server.close()
        loop.run_until_complete(ended(asyncio.all_tasks(loop)))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(300)
    try:
        yield ports
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


class Crawl:
    """One process, until its seeds are done or `stop` is called."""

    def __init__(self, folder: Path, seeds: list[dict[str, Any]], limit: int, **settings: Any) -> None:
        self.settings: Settings = settings_for(folder)
        self.log = parts.seed_log(self.settings)
        self.topic, self.group = self.settings["SITE_SEED_TOPIC"], self.settings["SITE_CONSUMER_GROUP"]
        produce(self.log, self.topic, seeds)
        given = {"SITE_KAFKA_BROKERS": "", "SITE_DATA_DIR": folder, "SITE_ALLOW_PRIVATE_HOSTS": "true", **settings}
        options = [word for name, value in given.items() for word in ("-s", f"{name}={value}")]
        self.errors = folder / "stderr"
        with self.errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", SCRAPY, "crawl", "crawl_spider", *options],
                cwd=ROOT,
                stderr=stderr,
            )

    def wait_until(self, is_so: Callable[[], bool], seconds: float = 300) -> None:
        until = time.monotonic() + seconds
        while not is_so():
            assert self.process.poll() is None, self.errors.read_text()[-2000:]
            assert time.monotonic() < until, self.errors.read_text()[-2000:]
            time.sleep(0.1)

    def is_done(self) -> bool:
        return lag(self.log, self.topic, self.group) == 0

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)

    def documents(self) -> list[dict[str, Any]]:
        reader = parts.reader(self.settings)
        found = list(reader.search(limit=None))
        reader.close()
        self.log.close()
        return found

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def host(number: int) -> str:
    return f"127.{1 + number // 250}.{number % 250}.1"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_more_hosts_than_descriptors_are_all_served(method: str, tmp_path: Path) -> None:
    """Each keeps its connections alive; 400 of 600 documents were "Too many open files"."""
    with serving(keep_alive) as (port,):
        seeds = [
            {"url": f"http://{host(number)}:{port}/{page}", "method": method}
            for page in range(3)
            for number in range(150)
        ]
        crawl = Crawl(tmp_path, seeds, limit=100, CONCURRENT_REQUESTS=32)
        crawl.wait_until(crawl.is_done)
        assert crawl.stop() == 0
    outcomes = Counter((document["status"], document["description"]) for document in crawl.documents())
    assert outcomes == {(200, None): 450}
    assert "No file descriptor is left" not in crawl.errors.read_text()


def test_a_limit_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    crawl = Crawl(tmp_path, [], limit=40)
    assert crawl.process.wait(300) != 0
    crawl.log.close()
    assert "the process may have 40 open files (ulimit -n)" in crawl.errors.read_text()


def test_servers_that_hang_hold_no_other_up(tmp_path: Path) -> None:
    """After the connection, in the handshake, in the head; what they held is free again."""
    kinds = saying(b""), saying(_HALF_A_HELLO), saying(b"HTTP/1.1 200 OK\r\n")
    with serving(keep_alive, *kinds) as (good, *ports):
        hanging = [("http", ports[0]), ("https", ports[0]), ("https", ports[1]), ("http", ports[2])]
        seeds = [
            {"url": f"{scheme}://{host(4 * number + kind)}:{port}/"}
            for number in range(40)
            for kind, (scheme, port) in enumerate(hanging)
        ]
        patient = {"download_timeout": 300}
        seeds += [{"url": f"http://{host(1000 + number)}:{good}/", "meta": patient} for number in range(40)]
        crawl = Crawl(tmp_path, seeds, limit=200, DOWNLOAD_TIMEOUT=1, RETRY_TIMES=0)
        crawl.wait_until(crawl.is_done)
        assert crawl.peak_bytes() < 300_000_000
        open_now = len(os.listdir(f"/proc/{crawl.process.pid}/fd"))  # noqa: PTH208 - only their number
        assert crawl.stop() == 0
    outcomes = Counter(document["status"] for document in crawl.documents())
    assert outcomes == {200: 40, None: 160}
    assert open_now < 40 + 60  # the good ones are kept
