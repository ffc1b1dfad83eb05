"""Crawls in this process: the real engine, seed log and sink, and a scripted site for a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.crawler import Crawler
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings

from site_spider.adapters.local import log as local_log
from site_spider.contracts.seed_log import Message, SeedLog
from site_spider.errors import TopicMissing
from site_spider.service import config as parts
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process import virtual_time

# each look of an idle reader of the log is a jump of virtual time and two changes of thread: most of a long wait
SELDOM = {"_WAIT_SECONDS": 0.1, "_READER_WAIT_SECONDS": 0.25}
Answer = Callable[[Request], Awaitable[Response] | Response]
ANSWERS: dict[str, Answer] = {}  # path -> what the site does; filled by the tests


def page(request: Request, body: str = "<p>page", status: int = 200, **headers: str) -> Response:
    fields = {"Content-Type": "text/html; charset=utf-8"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return HtmlResponse(request.url, status=status, headers=fields, body=body.encode())


class ScriptedHandler(BaseDownloadHandler):
    async def download_request(self, request: Request) -> Response:
        answer = ANSWERS.get(urlsplit(request.url).path, page)(request)
        return answer if isinstance(answer, Response) else await answer


@dataclass
class Crawled:
    documents: dict[str, dict[str, Any]]
    dead_letters: list[Message]
    lag: int
    seeds: dict[str, int]
    stats: dict[str, Any]
    exit_code: int
    items: dict[str, dict[str, Any]]


def settings_for(folder: Path, **overrides: Any) -> Settings:
    """The project's settings on the embedded default, without a reactor."""
    settings = Settings()
    settings.copy = lambda: settings  # type: ignore[method-assign]  # they are one crawl's own; Scrapy copies deeply
    settings.setmodule("site_spider.settings", priority="project")
    scripted = f"{__name__}.ScriptedHandler"
    settings.setdict(
        {
            "TWISTED_REACTOR_ENABLED": False,
            "DOWNLOAD_HANDLERS": {"http": scripted, "https": scripted},
            "LOG_ENABLED": False,
            "SITE_DATA_DIR": str(folder),
            # the environment may name those of other tests
            **dict.fromkeys(("SITE_KAFKA_BROKERS", "SITE_ELASTICSEARCH_HOSTS", "SITE_REDIS_URL"), ""),
            "SITE_SINK_FLUSH_SECONDS": 0.02,
            "SITE_STOP_GRACE_SECONDS": 5,
            "RETRY_TIMES": 1,
            "SITE_RETRY_PAUSE_SECONDS": 0.02,
            **overrides,
        },
        priority="cmdline",
    )
    return settings


def produce(log: SeedLog, topic: str, seeds: Sequence[Mapping[str, Any] | bytes]) -> None:
    producer = log.producer()
    for seed in seeds:
        value = seed if isinstance(seed, bytes) else json.dumps(seed).encode()
        producer.send(topic, b"host.test", value)
    assert producer.flush(300) == 0
    producer.close()


def lag(log: SeedLog, topic: str = "seeds", group: str = "site_spider") -> int:
    return sum(p.end - (p.committed.offset if p.committed else p.start) for p in log.progress(topic, group))


def crawl(
    folder: Path,
    seeds: Sequence[Mapping[str, Any] | bytes],
    spider: type[SeedSpider] = SeedSpider,
    until: Callable[[Crawler], bool] | None = None,
    timeout_seconds: float = 300,
    *,
    run: Callable[[Coroutine[Any, Any, Crawled]], Crawled] = virtual_time.run,
    **overrides: Any,
) -> Crawled:
    """Crawl the seeds until all are committed, or until `until` says so, and stop gracefully.

    In virtual time: nobody waits for a timer while nothing else happens. Tests of uvloop give `asyncio.run`;
    and crawls over a real Kafka have it, because nobody sees what its client waits for.
    """
    if overrides.get("SITE_KAFKA_BROKERS"):
        run = asyncio.run
    with patch.multiple(local_log, **SELDOM):
        return run(_crawl(settings_for(folder, **overrides), seeds, spider, until, timeout_seconds))


async def _crawl(
    settings: Settings,
    seeds: Sequence[Mapping[str, Any] | bytes],
    spider: type[SeedSpider],
    until: Callable[[Crawler], bool] | None,
    timeout_seconds: float,
) -> Crawled:
    log = parts.seed_log(settings)
    topic, group = settings["SITE_SEED_TOPIC"], settings["SITE_CONSUMER_GROUP"]
    await asyncio.to_thread(produce, log, topic, seeds)
    crawler = Crawler(spider, settings)  # without a runner, which would look for the spiders of the project
    crawling = asyncio.ensure_future(crawler.crawl_async())

    async def done() -> None:
        pause_seconds = 0.02 if until else 0.3  # to look into the log costs as much as a page; an hour has many pauses
        while not crawling.done():
            if until is not None and _is_open(crawler) and until(crawler):
                return
            if until is None and await asyncio.to_thread(lag, log, topic, group) == 0:
                return
            pause_seconds = min(1.0, 1.1 * pause_seconds) if until is None else min(0.25, 1.02 * pause_seconds)
            await asyncio.sleep(pause_seconds)

    try:
        await asyncio.wait_for(done(), timeout_seconds)
    finally:
        await crawler.stop_async()
        await asyncio.wait_for(crawling, timeout_seconds)
    return await asyncio.to_thread(_left_behind, crawler, log, topic, group)


def _is_open(crawler: Crawler) -> bool:
    service = None if crawler._engine is None else SeedService.of(crawler)
    return service is not None and service.is_open


def _items(crawler: Crawler) -> dict[str, dict[str, Any]]:
    reader = parts.reader(crawler.settings, of_items=True)
    found = {document.pop("_id"): document for document in reader.search(limit=None)}
    reader.close()
    return found


def _left_behind(crawler: Crawler, log: SeedLog, topic: str, group: str) -> Crawled:
    reader = parts.reader(crawler.settings)
    try:
        dead_letters = list(log.read(f"{topic}.dead-letters"))
    except TopicMissing:
        dead_letters = []
    assert SeedService.of(crawler) is not None
    stats = crawler.stats.get_stats()
    found = Crawled(
        {document["url_id"]: document for document in reader.search(limit=None)},
        dead_letters,
        lag(log, topic, group),
        {key.removeprefix("seeds/"): value for key, value in stats.items() if key.startswith("seeds/")},
        stats,
        getattr(crawler.spider, "exit_code", 0),
        _items(crawler),
    )
    reader.close()
    log.close()
    return found
