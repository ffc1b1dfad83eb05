"""Whole crawls whose results go with the offsets of their seeds, over a seed log that plays Kafka."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider import settings as defaults
from site_spider.adapters.local.log import LocalConsumer, LocalSeedLog
from site_spider.contracts.seed_log import Listener, Partition, Position
from site_spider.contracts.sink import Exchange, Record
from site_spider.errors import LogUnavailable
from site_spider.frontier.spill import Spill
from site_spider.ledger import metadata as commit_metadata
from site_spider.ledger.completion import job_of
from site_spider.results.held import Item, Link
from site_spider.spiders.crawl_spider import SeedSpider
from tests.adapters.warc.test_sink import files
from tests.contracts.warc_results import records_of
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page
from tests.in_process.extraction import in_a_thread

HOST = "http://host.test"
LINKS = 4


class PlayedConsumer(LocalConsumer):
    """Stores items in a list. Notes seeds that a position calls complete while their trees are not stored."""

    stored: ClassVar[list[Record]] = []
    transactions: ClassVar[int] = 0
    away: ClassVar[int] = 0  # so many of the next transactions fail
    refuses: ClassVar[str] = ""  # the url_id of a result

    def commit_with(self, items: Sequence[Item], positions: Mapping[Partition, Position]) -> Mapping[int, str]:
        cls = type(self)
        if items and cls.away:
            cls.away -= 1
            raise LogUnavailable("the played log is away")
        results = [item for item in items if isinstance(item, Record)]
        if cls.refuses in {result.key for result in results}:
            numbers = (n for n, item in enumerate(items) if isinstance(item, Record) and item.key == cls.refuses)
            return dict.fromkeys(numbers, "not this one")
        cls.stored.extend(results)
        cls.transactions += bool(results)
        for link in (item for item in items if isinstance(item, Link)):
            producer = PlayedLog.log.producer()
            producer.send("seeds", link.key, link.value).result(300)
            producer.close()
        if positions:
            super().commit(positions)
        told = sum(_complete(position) for position in positions.values())
        PlayedLog.told.append((told, len(cls.stored)))
        return {}

    def commit(self, positions: Mapping[Partition, Position]) -> None:
        self.commit_with((), positions)

    def was_committed(self, positions: Mapping[Partition, Position]) -> bool:
        raise AssertionError("nothing was in doubt")


class PlayedLog(LocalSeedLog):
    """One partition."""

    log: ClassVar[LocalSeedLog]
    told: ClassVar[list[tuple[int, int]]] = []  # seeds complete and results stored, after each commit

    def __init__(self, folder: Path, partitions: int = 1, keep_seconds: float = 0.0) -> None:
        super().__init__(folder, partitions, keep_seconds)
        type(self).log = self

    def transactional_consumer(self, topic: str, group: str, listener: Listener) -> PlayedConsumer:  # type: ignore[override]
        return PlayedConsumer(self._folder, topic, group, listener)


def _complete(position: Position) -> int:
    runs = commit_metadata.decode(*position).complete
    return position.offset + sum(end - start for start, end in runs)


@pytest.fixture(autouse=True)
def clean() -> None:
    PlayedConsumer.stored.clear()
    PlayedLog.told.clear()
    PlayedConsumer.transactions = PlayedConsumer.away = 0
    PlayedConsumer.refuses = ""


def linked(request: Request) -> Response:
    """A page with links to pages of its own."""
    links = "".join(f'<a href="{request.url}/{number}">x</a>' for number in range(LINKS))
    return page(request, links + "word " * 200)


def crawl_trees(folder: Path, count: int, seeds: Sequence[Mapping[str, Any]] = (), **settings: Any) -> Crawled:
    for number in range(count):
        engine.ANSWERS[f"/tree{number}"] = linked
    trees = [{"url": f"{HOST}/tree{number}", "meta": {"url_id": f"t{number}"}} for number in range(count)]
    return crawl(
        folder,
        [*trees, *seeds],
        SITE_KAFKA_BROKERS="played:9092",
        SITE_KAFKA_EXACTLY_ONCE=True,
        SITE_SEED_LOG_CLASSES=defaults.SITE_SEED_LOG_CLASSES | {"kafka": f"{__name__}.PlayedLog"},
        **{"SITE_SINKS": "local,kafka", **settings},
    )


def stored_keys() -> Counter[str]:
    return Counter(record.key for record in PlayedConsumer.stored)


class ItemSpider(SeedSpider):
    """Gives items on every page of a tree."""

    name = "shop"

    async def parse(self, response: Response) -> AsyncIterator[Any]:  # type: ignore[override,misc]
        yield {"title": "first"}
        for output in await super().parse(response):
            yield output
        yield {"title": "second"}


def test_each_result_and_item_is_stored_once_and_with_its_seed(tmp_path: Path) -> None:
    """After every commit just the trees of the seeds that are complete are stored."""
    crawled = crawl_trees(tmp_path, 12, spider=ItemSpider)
    assert crawled.lag == 0
    kinds = Counter((record.kind, record.key) for record in PlayedConsumer.stored)
    assert set(kinds.values()) == {1}
    assert {key for kind, key in kinds if kind == "result"} == set(crawled.documents)
    assert {key for kind, key in kinds if kind == "item"} == set(crawled.items)
    assert len(crawled.items) == 2 * len(crawled.documents) == 2 * 12 * (1 + LINKS)
    assert {stored - told * 3 * (1 + LINKS) for told, stored in PlayedLog.told} == {0}


@in_a_thread()
def test_a_merged_page_is_stored_with_its_tree_as_its_canonical_page(tmp_path: Path) -> None:
    """Its record is the last one of that document."""
    text = "<link rel=canonical href=/a>The harbour lies behind a long wall."
    engine.ANSWERS["/a"] = lambda request: page(request, f"{text}<a href=/b></a>")
    engine.ANSWERS["/b"] = lambda request: page(request, text)
    settings = {"SITE_TEXT": "plain", "SITE_CANONICAL": "merge"}
    crawled = crawl_trees(tmp_path, 0, seeds=[{"url": f"{HOST}/a"}], **settings)
    assert crawled.lag == 0
    (key,) = crawled.documents
    assert {record.key for record in PlayedConsumer.stored} == {key}
    assert PlayedConsumer.stored[-1].document["additional_urls"] == [f"{HOST}/b"]


def test_entries_of_sitemaps_are_stored_once_and_with_their_seed(tmp_path: Path) -> None:
    """With what the file says of them, also those that its process hands on."""
    entries = "".join(f"<url><loc>/{n}</loc><lastmod>2026-01-02</lastmod></url>" for n in range(120))
    bodies = {
        "/index": "<sitemapindex><sitemap><loc>/map</loc></sitemap></sitemapindex>",
        "/map": f"<urlset>{entries}</urlset>",
    }
    for path, body in bodies.items():
        engine.ANSWERS[path] = lambda request, body=body: Response(request.url, body=body.encode())
    engine.ANSWERS |= {f"/{n}": lambda request: page(request, f"<p>{request.url}") for n in range(120)}
    for name, settings in (("here", {}), ("on", {"SITE_LINKS_TO": "kafka"})):
        PlayedConsumer.stored.clear()
        crawled = crawl_trees(tmp_path / name, 0, seeds=[{"url": f"{HOST}/index"}], **settings)
        assert crawled.lag == 0
        assert stored_keys() == dict.fromkeys(crawled.documents, 1)
        said = [record.document["meta"].get("sitemap", {}) for record in PlayedConsumer.stored[2:]]
        assert [one["lastmod"] for one in said] == ["2026-01-02"] * 120


def test_an_archive_has_each_exchange_once_though_transactions_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is acknowledged before the transaction, which is made again without it."""
    monkeypatch.setattr("site_spider.results.exactly_once._RETRY_SECONDS", 0.05)
    PlayedConsumer.away = 3

    def answer(request: Request) -> Response:
        response, job = page(request, request.url), job_of(request)
        assert job is not None
        head = b"HTTP/1.1 200 OK\r\n\r\n"
        job.exchanged(Exchange(request.url, b"GET / HTTP/1.1\r\n\r\n", head, response.body, 0.0))
        return response

    for tree in range(4):
        engine.ANSWERS |= {f"/tree{tree}/{link}": answer for link in range(LINKS)}
    crawled = crawl_trees(tmp_path, 4, SITE_SINKS="local,kafka,warc")
    assert (crawled.lag, PlayedConsumer.away) == (0, 0)
    assert stored_keys() == dict.fromkeys(crawled.documents, 1)
    archived = [record for path in files(tmp_path) for record in records_of(path)]
    kinds = Counter(record.kind for record in archived)
    assert (kinds["response"], kinds["revisit"], kinds["metadata"]) == (4 * LINKS, 0, 4 * (1 + LINKS))
    assert {one.key for one in archived if one.kind == "metadata"} == set(crawled.documents)


@pytest.mark.parametrize(
    ("refused", "error"), [("t3", b"not this one"), ("t1-2", b"item t1-2: not this one (page http://host.test/tree1)")]
)
def test_a_refused_record_is_one_dead_letter(tmp_path: Path, refused: str, error: bytes) -> None:
    PlayedConsumer.refuses = refused
    crawled = crawl_trees(tmp_path, 5, spider=ItemSpider)
    (letter,) = crawled.dead_letters
    assert dict(letter.headers)["error"] == error
    assert crawled.seeds["dead_lettered"] == 1
    assert crawled.lag == 0
    assert stored_keys() == dict.fromkeys((crawled.documents | crawled.items).keys() - {refused}, 1)


def test_trees_that_keep_too_much_hand_their_links_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As seeds, in the transaction of the tree; each page is stored once, and the crawl comes to its end."""
    look, were_crowded = Spill.look, [False]

    async def look_and_tell(spill: Spill) -> None:
        were_crowded.append(spill._commits.is_crowded)
        await look(spill)

    async def until_it_was_looked(request: Request) -> Response:
        while not any(were_crowded):
            await asyncio.sleep(0.01)
        return page(request, "word " * 200)

    monkeypatch.setattr(Spill, "look", look_and_tell)
    for number in range(12):
        engine.ANSWERS[f"/tree{number}/0"] = lambda request: page(request, "word " * 200)
        for link in range(1, LINKS):
            engine.ANSWERS[f"/tree{number}/{link}"] = until_it_was_looked
    crawled = crawl_trees(tmp_path, 12, SITE_SINK_BACKLOG_BYTES=3000, CONCURRENT_REQUESTS=2)
    assert crawled.lag == 0
    assert stored_keys() == dict.fromkeys(crawled.documents, 1)
    assert len(PlayedConsumer.stored) == 12 * (1 + LINKS)
    assert crawled.seeds["consumed"] > 12
