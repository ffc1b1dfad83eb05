"""crawlee-python at its fastest: HttpCrawler, memory storage, no sessions; links by lxml and a set.

Its own parsers and `enqueue_links` take longer.

    python http_crawl.py --seeds FILE --output FILE --concurrency N [--extract]
"""

from __future__ import annotations

import argparse
import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import TextIO
from urllib.parse import urljoin

import uvloop
from crawlee import ConcurrencySettings
from crawlee.configuration import Configuration
from crawlee.crawlers import HttpCrawler, HttpCrawlingContext
from crawlee.http_clients import ImpitHttpClient
from crawlee.storage_clients import MemoryStorageClient
from lxml import html


class Pages:
    """What is done with each page."""

    def __init__(self, output: TextIO, extract: bool) -> None:
        self._output = output
        self._extract = extract
        self._seen: set[str] = set()

    async def handle(self, context: HttpCrawlingContext) -> None:
        response = context.http_response
        body = await response.read()
        record = {
            "url": context.request.url,
            "status": response.status_code,
            "headers": json.dumps(dict(response.headers)),
            "body": body.decode("utf-8", "replace"),
        }
        self._output.write(json.dumps(record, ensure_ascii=False) + "\n")
        if self._extract and (links := self._new_links(context.request.url, body)):
            await context.add_requests(links)

    def _new_links(self, url: str, body: bytes) -> list[str]:
        hrefs = html.fromstring(body).xpath("//a/@href")
        links = {urljoin(url, href) for href in {href.partition("#")[0] for href in hrefs}}
        links -= self._seen
        self._seen |= links
        return list(links)


async def crawl(given: argparse.Namespace) -> None:
    with Path(given.output).open("w", encoding="utf-8") as output:
        pages = Pages(output, given.extract)
        crawler = HttpCrawler(
            configuration=Configuration(purge_on_start=False, available_memory_ratio=0.9),
            storage_client=MemoryStorageClient(),
            http_client=ImpitHttpClient(browser=None, persist_cookies_per_session=False, verify=False),
            concurrency_settings=ConcurrencySettings(
                min_concurrency=given.concurrency,
                max_concurrency=given.concurrency,
                desired_concurrency=given.concurrency,
            ),
            use_session_pool=False,
            retry_on_blocked=False,
            request_handler_timeout=timedelta(minutes=10),
            request_handler=pages.handle,
        )
        await crawler.run(Path(given.seeds).read_text().split())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--extract", action="store_true")
    logging.basicConfig(level=logging.INFO)
    uvloop.run(crawl(parser.parse_args()))


if __name__ == "__main__":
    main()
