"""The limit: a loop around aiohttp on uvloop, lxml, a set, and a file. No queue, no retry, no promise.

python bare.py --seeds FILE --output FILE --concurrency N [--extract]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
from collections import deque
from pathlib import Path
from typing import TextIO
from urllib.parse import urljoin

import aiohttp
import uvloop
from lxml import html


class Crawl:
    """What is to be fetched, and what was met."""

    def __init__(self, seeds: list[str], output: TextIO, extract: bool) -> None:
        self.waiting = deque(seeds)
        self.seen: set[str] = set()
        self.output = output
        self.extract = extract
        self.busy = 0
        self.news = asyncio.Event()

    async def work(self, session: aiohttp.ClientSession) -> None:
        """Fetch until nothing is left, here and with all others."""
        while True:
            if self.waiting:
                self.busy += 1
                await self.fetch(session, self.waiting.popleft())
                self.busy -= 1
            elif self.busy:
                self.news.clear()
                await self.news.wait()
            else:
                self.news.set()
                return

    async def fetch(self, session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(url) as response:
            body = await response.read()
        text = body.decode("utf-8", "replace")
        record = {
            "url": url,
            "status": response.status,
            "headers": json.dumps(dict(response.headers)),
            "body": text,
        }
        self.output.write(json.dumps(record, ensure_ascii=False) + "\n")
        if self.extract:
            self.add_links(url, body)
        if self.waiting or self.busy == 1:
            self.news.set()

    def add_links(self, url: str, body: bytes) -> None:
        hrefs = html.fromstring(body).xpath("//a/@href")
        for href in dict.fromkeys(href.partition("#")[0] for href in hrefs):
            link = urljoin(url, href)
            if link not in self.seen:
                self.seen.add(link)
                self.waiting.append(link)


async def crawl(given: argparse.Namespace) -> None:
    seeds = Path(given.seeds).read_text().split()
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=8, ssl=ssl.create_default_context())
    with Path(given.output).open("w", encoding="utf-8") as output:
        work = Crawl(seeds, output, given.extract)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(work.work(session) for _ in range(given.concurrency)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--extract", action="store_true")
    uvloop.run(crawl(parser.parse_args()))


if __name__ == "__main__":
    main()
