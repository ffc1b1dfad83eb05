"""Watches the memory of a process that has a million seeds before it, and a slow world around it.

    eval "$(task_shell/servers.sh env kafka elasticsearch)"
    python -m tools.measure.million [--seeds N] [--seconds S] [--outage-seconds S] [--cap-mb MB]

Nine of ten seeds are for 225 hosts that answer after a second, the others for 25 that answer at once. All
are put on a topic of Kafka (SITE_KAFKA_BROKERS; the embedded seed log without it). One process crawls for so
many seconds, which is not the end of the topic. With --outage-seconds its results go to Elasticsearch
(SITE_ELASTICSEARCH_HOSTS) through a port that refuses every connection for so long in the middle.

Printed are the resident memory of the process and the pages of each 30 s. Exit 1 when the memory passes the
cap, when a window has no fast page (an outage aside), or when the memory at the end is more than a tenth
above that after the first two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from scrapy.settings import Settings

from site_spider.service import config as parts
from tools.site.exchange import host_name
from tools.site.handle import ROOT, Site

HOSTS, FAST_HOSTS = 250, 25
SLOW_MS = 1000
WINDOW_SECONDS = 30
WARM_SECONDS = 120
UNDER_WAY = 20_000
SCRAPY = Path(sys.executable).parent / "scrapy"


class Window(NamedTuple):
    """What was seen at the end of one."""

    at: int
    rss_mb: float
    slow: int
    fast: int
    is_outage: bool


class Gate:
    """A port that leads to a server, or refuses."""

    def __init__(self, target: str) -> None:
        parts_of = urlsplit(target)
        self._target = (parts_of.hostname or "", parts_of.port or 9200)
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.port = 0
        self.open()

    def open(self) -> None:
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            to_reader, to_writer = await asyncio.open_connection(*self._target)
            self._writers |= {writer, to_writer}
            await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer))
            self._writers -= {writer, to_writer}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def produce(settings: Settings, topic: str, site: Site, count: int) -> None:
    log = parts.seed_log(settings)
    producer = log.producer()
    rng, under_way = random.Random(1), deque[Future[None]]()
    for number in range(count):
        fast = rng.random() < 0.1
        host = rng.randrange(FAST_HOSTS) if fast else rng.randrange(FAST_HOSTS, HOSTS)
        url = site.url(f"/page/{number}" if fast else f"/slow/{SLOW_MS}/{number}", host)
        value = json.dumps({"url": url, "meta": {"task_id": "million"}}).encode()
        under_way.append(producer.send(topic, host_name(host).encode(), value))
        if len(under_way) > UNDER_WAY:
            under_way.popleft().result()
    assert producer.flush(300) == 0
    producer.close()
    log.close()


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Pages:
    """Counts the site's record as it grows."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._offset = 0

    def new(self) -> tuple[int, int]:
        """Slow and fast ones since the last call."""
        with self._record.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        return text.count(b'"/slow/'), text.count(b'"/page/')


def watch(
    crawler: subprocess.Popen[bytes], site: Site, seconds: int, outage: int, gate: Gate | None
) -> list[Window]:
    began, pages, windows = time.monotonic(), Pages(site.record), list[Window]()
    away_from = (seconds - outage) // 2 if outage else seconds + 1
    is_away = False
    for at in range(WINDOW_SECONDS, seconds + 1, WINDOW_SECONDS):
        while (now := time.monotonic() - began) < at:
            wanted = away_from <= now < away_from + outage
            if gate is not None and wanted != is_away:
                (gate.close if wanted else gate.open)()
                is_away = wanted
            time.sleep(0.25)
            assert crawler.poll() is None, "the crawler ended"
        touches_outage = at > away_from and at - WINDOW_SECONDS < away_from + outage + WINDOW_SECONDS
        windows.append(Window(at, resident_mb(crawler.pid), *pages.new(), touches_outage))
        one = windows[-1]
        note = " sink away" if is_away else ""
        print(f"| {one.at} | {one.rss_mb:.0f} | {one.slow:,} | {one.fast:,} |{note}", flush=True)
    return windows


def judge(windows: list[Window], cap_mb: float) -> list[str]:
    """What is wrong."""
    wrong = []
    warm = max(window.rss_mb for window in windows if window.at <= WARM_SECONDS)
    last, most = windows[-1].rss_mb, max(window.rss_mb for window in windows)
    print(f"after {WARM_SECONDS} s {warm:.0f} MB, at the end {last:.0f} MB, at most {most:.0f} MB")
    if most > cap_mb:
        wrong.append(f"more than the cap of {cap_mb:.0f} MB")
    if last > warm * 1.1:
        wrong.append("it grew by more than a tenth after the first two minutes")
    if any(not window.fast for window in windows if not window.is_outage):
        wrong.append("a window without a fast page")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=480)
    parser.add_argument("--outage-seconds", type=int, default=0)
    parser.add_argument("--cap-mb", type=float, default=400)
    parser.add_argument("--log", type=Path, help="keep the crawler's log there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, Site(Path(place) / "record.jsonl", HOSTS) as site:
        folder, name = Path(place), uuid.uuid4().hex[:8]
        settings = {
            "SITE_KAFKA_BROKERS": os.environ.get("SITE_KAFKA_BROKERS", ""),
            "SITE_DATA_DIR": str(folder / "data"),
            "SITE_SEED_TOPIC": f"million-{name}",
            "SITE_CONSUMER_GROUP": f"million-{name}",
            "SITE_ALLOW_PRIVATE_HOSTS": "true",
            "CONCURRENT_REQUESTS": "256",
        }
        gate = None
        if options.outage_seconds:
            gate = Gate(os.environ["SITE_ELASTICSEARCH_HOSTS"])
            settings |= {
                "SITE_SINKS": "elasticsearch",
                "SITE_ELASTICSEARCH_HOSTS": f"http://127.0.0.1:{gate.port}",
                "SITE_RESULTS_INDEX": f"million-{name}",
                "SITE_STATS_INDEX": f"million-stats-{name}",
            }
        project = Settings()
        project.setmodule("site_spider.settings", priority="project")
        project.update(settings, priority="cmdline")
        began = time.monotonic()
        produce(project, settings["SITE_SEED_TOPIC"], site, options.seeds)
        print(f"{options.seeds:,} seeds produced in {time.monotonic() - began:.0f} s", flush=True)
        print("| second | RSS, MB | slow pages | fast pages |\n|---|---|---|---|", flush=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SITE_")}
        with (options.log or folder / "crawl.log").open("wb") as log:
            crawler = subprocess.Popen(
                [SCRAPY, "crawl", "crawl_spider"], cwd=ROOT, env=kept | settings, stdout=log, stderr=log
            )
        try:
            while not site.record.exists() or not site.record.stat().st_size:
                time.sleep(0.1)
                assert crawler.poll() is None, "the crawler ended"
            windows = watch(crawler, site, options.seconds, options.outage_seconds, gate)
        finally:
            crawler.kill()
            crawler.wait()
    wrong = judge(windows, options.cap_mb)
    print("; ".join(wrong) or "flat, below the cap, and the fast hosts served throughout")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
