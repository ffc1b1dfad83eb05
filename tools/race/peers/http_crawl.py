"""crawlee-python with its memory storage and without sessions, in one of two ways.

    python http_crawl.py --seeds FILE --output FILE --concurrency N [--extract] [--lean]

As its guide has it: ParselCrawler and `enqueue_links`. Lean: HttpCrawler, links by lxml and a set of our own,
so that only new links reach it.
"""

from __future__ import annotations

import argparse
import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urljoin

import uvloop
from crawlee import ConcurrencySettings
from crawlee.crawlers import HttpCrawler, HttpCrawlingContext, ParselCrawler, ParselCrawlingContext
from crawlee.http_clients import ImpitHttpClient
from crawlee.storage_clients import MemoryStorageClient
from lxml import html


class Pages:
    """What is done with each page."""

    def __init__(self, output: TextIO, extract: bool) -> None:
        self._output = output
        self._extract = extract
        self._seen: set[str] = set()

    async def by_guide(self, context: ParselCrawlingContext) -> None:
        await self._write(context)
        if self._extract:
            await context.enqueue_links()

    async def lean(self, context: HttpCrawlingContext) -> None:
        body = await self._write(context)
        if self._extract and (links := self._new_links(context.request.url, body)):
            await context.add_requests(links)

    async def _write(self, context: HttpCrawlingContext) -> bytes:
        response = context.http_response
        body = await response.read()
        record = {
            "url": context.request.url.partition("#")[0],
            "status": response.status_code,
            "headers": json.dumps(dict(response.headers)),
            "body": body.decode("utf-8", "replace"),
        }
        self._output.write(json.dumps(record, ensure_ascii=False) + "\n")
        return body

    def _new_links(self, url: str, body: bytes) -> list[str]:
        hrefs = html.fromstring(body).xpath("//a/@href")
        links = {urljoin(url, href) for href in {href.partition("#")[0] for href in hrefs}}
        links -= self._seen
        self._seen |= links
        return list(links)


async def crawl(given: argparse.Namespace) -> None:
    concurrency = given.concurrency
    options: dict[str, Any] = {
        "storage_client": MemoryStorageClient(),
        "http_client": ImpitHttpClient(browser=None, persist_cookies_per_session=False, verify=False),
        "concurrency_settings": ConcurrencySettings(
            min_concurrency=concurrency, max_concurrency=concurrency, desired_concurrency=concurrency
        ),
        "use_session_pool": False,
        "retry_on_blocked": False,
        "request_handler_timeout": timedelta(minutes=10),
    }
    with Path(given.output).open("w", encoding="utf-8") as output:
        pages = Pages(output, given.extract)
        if given.lean or not given.extract:
            crawler: Any = HttpCrawler(request_handler=pages.lean, **options)
        else:
            crawler = ParselCrawler(request_handler=pages.by_guide, **options)
        await crawler.run(Path(given.seeds).read_text().split())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--extract", action="store_true")
    parser.add_argument("--lean", action="store_true")
    logging.basicConfig(level=logging.INFO)
    uvloop.run(crawl(parser.parse_args()))


if __name__ == "__main__":
    main()
