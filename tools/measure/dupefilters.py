"""Prints what a dupefilter's store takes: bytes for each URL, and µs for each check.

    python -m tools.measure.dupefilters [--count N] [--redis redis://host:port/0] [KIND ...]

Each kind runs in a process of its own. Bytes: growth of the process (memory, bloom, rolling), of the
server's used memory (redis), of the file (local). In-memory kinds are asked one fingerprint at a time;
redis and local are asked as in a crawl, for the 50 links of a page at once, over the courier and its thread,
one page after the other. µs are those of this process's CPU, and for redis and local of the clock besides.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha1
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from redis import Redis

from site_spider.adapters.local.done import LocalDone
from site_spider.adapters.redis.stores import Exact, RedisDone
from site_spider.contracts.done_store import DoneStore
from site_spider.dupefilter.filters import BloomDone, Done, RollingDone, RollingLimits
from site_spider.dupefilter.remote import DoneCourier, RemoteDone
from site_spider.engine.background import Background

ERROR_RATE = 0.000001
SAMPLE = 100_000  # checks that are timed
PAGE = 50  # links
BATCH = 5000  # marks written at once


def fingerprints(first: int, count: int) -> Iterator[bytes]:
    """As Scrapy's: 20 bytes without a pattern."""
    return (sha1(b"%d" % number).digest() for number in range(first, first + count))


def batches(values: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    values = iter(values)
    while batch := list(islice(values, size)):
        yield batch


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def in_memory(make: Callable[[int], Done], count: int) -> dict[str, Any]:
    before = resident_bytes()
    done = make(count)
    seconds = 0.0
    for batch in batches(fingerprints(0, count), BATCH):
        began = time.process_time()
        for fingerprint in batch:
            done.add(fingerprint)
        seconds += time.process_time() - began
    found: dict[str, Any] = {"bytes": (resident_bytes() - before) / count, "mark_us": seconds / count * 1e6}
    for name, first in (("known_us", 0), ("new_us", count)):
        sample = list(fingerprints(first, SAMPLE))
        began = time.process_time()
        hits = sum(fingerprint in done for fingerprint in sample)
        found[name] = (time.process_time() - began) / SAMPLE * 1e6
        assert (hits == SAMPLE) if first == 0 else (hits < SAMPLE / 1000)
    found["mistakes"] = sum(one in done for one in fingerprints(count, count))
    return found


def elsewhere(store: DoneStore, used_bytes: Callable[[], int], count: int) -> dict[str, Any]:
    store.open()
    before = used_bytes()
    seconds = cpu_seconds = 0.0
    for batch in batches(fingerprints(0, count), BATCH):
        began, cpu_began = time.perf_counter(), time.process_time()
        store.add(batch)
        seconds += time.perf_counter() - began
        cpu_seconds += time.process_time() - cpu_began
    found: dict[str, Any] = {"bytes": (used_bytes() - before) / count}
    found |= {"mark_us": seconds / count * 1e6, "mark_cpu_us": cpu_seconds / count * 1e6}
    for name, first in (("known", 0), ("new", count)):
        # spread over all that was added, or never was
        step = max(1, count // SAMPLE)
        sample = [next(fingerprints(first + number * step, 1)) for number in range(min(SAMPLE, count))]
        asked = asyncio.run(ask(store, sample))
        found |= {f"{name}_{unit}": value for unit, value in asked.items()}
    found["mistakes"] = 0
    store.close()
    return found


async def ask(store: DoneStore, sample: list[bytes]) -> dict[str, float]:
    done = RemoteDone(100_000, 1000, inf, time.monotonic)
    courier = DoneCourier(store, done, 60, lambda _key, _by: None, Background(print))
    began, cpu_began = time.perf_counter(), time.process_time()
    for page in batches(sample, PAGE):
        await courier.ask(page)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return {"us": took / len(sample) * 1e6, "cpu_us": cpu / len(sample) * 1e6}


def rolling(count: int) -> RollingDone:
    return RollingDone(RollingLimits(seconds=86_400, count=count), time.monotonic)


def local(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        store = LocalDone(Path(folder), "benchmark")

        def file_bytes() -> int:
            return sum(path.stat().st_size for path in Path(folder).glob("*.sqlite"))

        return elsewhere(store, file_bytes, count)


def redis(url: str, count: int, ttl_seconds: int) -> dict[str, Any]:
    prefix = b"site_spider:benchmark:seen:"
    with Redis.from_url(url) as client:

        def used_bytes() -> int:
            memory: Any = client.info("memory")
            return int(memory["used_memory"])

        try:
            return elsewhere(RedisDone(url, Exact(prefix, ttl_seconds)), used_bytes, count)
        finally:
            for batch in batches(client.scan_iter(prefix + b"*", count=10_000), 10_000):
                client.unlink(*batch)


def measure(kind: str, count: int, url: str) -> dict[str, Any]:
    measured: dict[str, Callable[[], dict[str, Any]]] = {
        "memory": lambda: in_memory(lambda _count: set(), count),
        "bloom": lambda: in_memory(lambda capacity: BloomDone(capacity, ERROR_RATE), count),
        "rolling": lambda: in_memory(rolling, count),
        "local": lambda: local(count),
        "redis": lambda: redis(url, count, 604_800),
        "redis-for-ever": lambda: redis(url, count, 0),
    }
    return measured[kind]()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--redis", default=os.environ.get("SITE_REDIS_URL", ""))
    parser.add_argument("--alone", action="store_true", help="in this process")
    parser.add_argument("kinds", nargs="*")
    given = parser.parse_args()
    usual = ["memory", "bloom", "rolling", "local", *(["redis", "redis-for-ever"] if given.redis else [])]
    for kind in given.kinds or usual:
        if given.alone:
            found = measure(kind, given.count, given.redis)
            figures = ", ".join(
                f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"
                for name, value in found.items()
            )
            print(f"{kind}, {given.count:,} URLs: {figures}", flush=True)
        else:
            arguments = ["--alone", "--count", str(given.count), "--redis", given.redis, kind]
            subprocess.run([sys.executable, "-m", "tools.measure.dupefilters", *arguments], check=True)


if __name__ == "__main__":
    main()
