"""Prints what a waiting request takes in memory, and what a process with many of them has.

    python -m tools.measure.frontier_memory [--count N] [KIND ...]

Kinds: `link` (a link found by our spider, as it waits), `request` (anything else), `seed` (polled, in the
ledger, and waiting for its turn), `stock` (a Request in Scrapy's own ScrapyPriorityQueue, in memory). Each
runs in a process of its own. Links are made as a page of 50 makes them: 60-character URLs, a Referer,
depth and lineage in the meta.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.settings import Settings
from scrapy.squeues import FifoMemoryQueue

from site_spider import meta_keys
from site_spider.contracts.seed_log import Message, Partition
from site_spider.frontier.waiting_room import WaitingRoom
from site_spider.intake.seed_queue import Waiting
from site_spider.ledger.completion import Job, Root
from site_spider.ledger.ledger import Entry, Ledger
from site_spider.seed.seed import parse_seed
from site_spider.spiders.crawl_spider import SeedSpider
from tools.measure.rooms import bare_room

PAGE = 50  # links
HOSTS = 1_000
KINDS = ("link", "request", "seed", "stock")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def page_root(number: int) -> Root:
    """The job of a page that links were found on."""
    value = b'{"url": "http://www.host%05d.example/seed"}' % (number % HOSTS)
    seed, partition = parse_seed(value), Partition("seeds", 0)
    return Root(Request(seed.url), Entry(partition, number, 1), seed, Message(partition, number, None, value))


def links(count: int) -> Iterator[tuple[Request, Job]]:
    """Requests as the scheduler gets them, their jobs begun."""
    root = page_root(0)
    for number in range(count):
        if number % PAGE == 0:
            root = page_root(number // PAGE)
        url = f"{root.url}/section-{number % 97:02}/article-{number:09}"
        request = Request(url, headers={"Referer": root.url}, meta={"depth": 1}, priority=1)
        job = request.meta[meta_keys.JOB] = Job(request, root)
        yield request, job


def in_room(put: Callable[[WaitingRoom, Request, Job], object]) -> Callable[[int], Any]:
    def fill(count: int) -> Any:
        room = bare_room()
        for request, job in links(count):
            put(room, request, job)
        return room

    return fill


def in_ledger(count: int) -> Any:
    """Seeds of 70 bytes."""
    room, ledger = bare_room(), Ledger()
    partition = Partition("seeds", 0)
    ledger.assign(partition, None)
    for number in range(count):
        value = b'{"url": "http://www.host%05d.example/section/article-%09d"}' % (number % HOSTS, number)
        entry = ledger.take(partition, number)
        assert entry is not None
        message = Message(partition, number, b"www.host%05d.example" % (number % HOSTS), value, (), number)
        room.put_seed(Waiting(entry, message, parse_seed(value)))
    return room, ledger


def in_stock_queue(count: int) -> Any:
    crawler = Crawler(SeedSpider, Settings())
    queue = ScrapyPriorityQueue.from_crawler(crawler, FifoMemoryQueue, "")
    for request, _ in links(count):
        del request.meta[meta_keys.JOB]  # Scrapy has no such thing
        queue.push(request)
    return queue


FILL: dict[str, Callable[[int], Any]] = {
    "link": in_room(lambda room, request, job: room.put_link(request, job)),
    "request": in_room(lambda room, request, job: room.put_request(request)),
    "seed": in_ledger,
    "stock": in_stock_queue,
}


async def measure(kind: str, count: int) -> None:
    FILL[kind](PAGE)  # what is made once
    gc.collect()
    before = resident_bytes()
    kept = FILL[kind](count)
    after = resident_bytes()
    print(f"| {kind} | {count:,} | {(after - before) / count:.0f} | {after / 1e6:.0f} |")
    if isinstance(kept, WaitingRoom):
        print(f"  estimated: {kept.load.request_bytes / count:.0f} bytes each")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    options = parser.parse_args()
    if options.here:
        asyncio.run(measure(options.kinds[0], options.count))
        return
    print("| kind | waiting | bytes each | RSS of the process, MB |\n|---|---|---|---|", flush=True)
    for kind in options.kinds:
        command = [sys.executable, "-m", "tools.measure.frontier_memory", "--here", kind]
        subprocess.run([*command, "--count", str(options.count)], check=True)


if __name__ == "__main__":
    main()
