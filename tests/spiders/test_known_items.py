"""Lists whose pagination ends where an earlier crawl has been."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response, TextResponse

from site_spider import meta_keys
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.results import ITEMS, RESULTS, LocalResults, LocalStore
from site_spider.contracts.sink import Record
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.sources.extraction import Extracted, FoundLink
from site_spider.spiders import conditional, known_items
from site_spider.spiders.crawl_spider import SeedSpider
from site_spider.spiders.known_items import KnownItems
from tests.in_process.engine import ANSWERS, Crawled, crawl, lag, page, produce
from tests.in_process.extraction import in_a_thread
from tests.project_settings import ours

SIZE = 10
API = """
match: {hosts: [a.test]}
follow: []
pagination: {jmespath: next, stop_when_known: 10}
items: [{each: {jmespath: "all[]"}, fields: {item_id: {jmespath: id}}}]
"""
LISTS = """
match: {hosts: [a.test]}
follow: [{css: p}]
pagination: {css: a.next, stop_when_known: 10}
"""


class List:
    """Entries, the newest first; `moves` come above before a page but the first is answered."""

    def __init__(self, count: int) -> None:
        self.entries = [f"e{number}" for number in range(count)]
        self.moves: list[list[str]] = []
        self.ends_with: str | None = None  # the link of the last page
        self.asked = 0

    def __call__(self, request: Request) -> Response:
        number = int(parse_qs(urlsplit(request.url).query).get("page", ["0"])[0])
        if number and self.moves:
            self.entries = [*self.moves.pop(0), *self.entries]
        self.asked += 1
        shown = self.entries[number * SIZE : (number + 1) * SIZE]
        following = f"/list?page={number + 1}" if (number + 1) * SIZE < len(self.entries) else self.ends_with
        return self.answer(request, shown, following)

    def answer(self, request: Request, shown: list[str], following: str | None) -> Response:
        said = {"all": [{"id": name} for name in shown], "next": following}
        return TextResponse(request.url, body=json.dumps(said).encode(), headers={"Content-Type": "application/json"})


class Links(List):
    def answer(self, request: Request, shown: list[str], following: str | None) -> Response:
        links = "".join(f'<p><a href="/{name}">x</a></p>' for name in shown)
        return page(request, links + (f'<a class=next href="{following}">n</a>' if following else ""))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional, "LOOK_UP_SECONDS", 60.0)


def run(folder: Path, listed: List, source: str = API, **settings: Any) -> Crawled:
    """An hour after what is stored."""
    age(folder / "data", 3600)
    (folder / "sources").mkdir(exist_ok=True, parents=True)
    (folder / "sources" / "list.yaml").write_text(source)
    ANSWERS["/list"], listed.asked = listed, 0
    at = {"SITE_SOURCES_DIR": str(folder / "sources"), **settings}
    seeds = [{"url": "http://a.test/list", "dont_filter": True}]
    with in_a_thread():
        return crawl(folder / "data", seeds, **at)


def age(folder: Path, seconds: float) -> None:
    """All that is stored was fetched so much earlier."""
    before = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - seconds))
    for table, of_items in ((ITEMS, True), (RESULTS, False)):
        found = list(LocalResults(folder, table).search(limit=None))
        store = LocalStore(folder, table)
        for document in found:
            place = document["_page"] if of_items else document
            place["fetched_at"] = before
            store.write([Record(document.pop("_id") if of_items else document["url_id"], document, 1)])
        store.close()


@pytest.mark.parametrize("kind", [List, Links])
def test_a_later_crawl_of_a_list_takes_two_pages(tmp_path: Path, kind: type[List]) -> None:
    listed, source = kind(60), API if kind is List else LISTS
    run(tmp_path, listed, source)
    assert listed.asked == 6
    listed.entries = ["new1", "new2", *listed.entries]
    found = run(tmp_path, listed, source)
    assert listed.asked == 2
    urls = {document["url"] for document in found.documents.values()}
    assert {"new1", "new2"} <= found.items.keys() | {url.rpartition("/")[2] for url in urls}


def test_what_is_new_is_not_missed_while_entries_move_to_the_next_page(tmp_path: Path) -> None:
    """The second page shows again what this crawl has stored of the first, and the new ones stand behind."""
    listed = List(60)
    run(tmp_path, listed)
    new = [f"new{number}" for number in range(30)]
    listed.entries = new + listed.entries
    listed.moves = [[f"late{number}" for number in range(SIZE)]]
    found = run(tmp_path, listed)
    assert set(new) <= found.items.keys()
    assert listed.asked == 5  # the first again, three of new ones, and one that is known
    assert not [name for name in found.items if name.startswith("late")]  # the next crawl has them
    assert {f"late{number}" for number in range(SIZE)} <= run(tmp_path, listed).items.keys()


def test_what_the_crawl_itself_has_stored_is_not_known_where_its_clock_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By five hours, behind that of the broker."""
    monkeypatch.setattr(known_items, "first_written_ms", lambda message: message.timestamp_ms + 5 * 3_600_000)
    listed = List(60)
    new = set(listed.entries)
    listed.moves = [[f"late{number}" for number in range(SIZE)]]
    assert new <= run(tmp_path, listed, DOWNLOAD_DELAY=3.0).items.keys()


def test_what_the_crawl_itself_has_stored_is_not_known_where_pages_are_sent_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third page, which was sent on some time later, shows the first again."""
    monkeypatch.setattr(known_items, "_SKEW_MS", 500)
    monkeypatch.setattr(known_items, "_BEGAN_MS", 1)
    listed = List(60)
    run(tmp_path, listed)
    new = [f"new{number}" for number in range(30)]
    listed.entries = new + listed.entries
    listed.moves = [[], [f"late{number}" for number in range(2 * SIZE)]]
    found = run(tmp_path, listed, SITE_LINKS_TO="kafka", DOWNLOAD_DELAY=3.0)
    assert set(new) <= found.items.keys()
    assert listed.asked == 6


@pytest.mark.parametrize("kind", [List, Links])
@pytest.mark.parametrize("settings", [{}, {"SITE_LINKS_TO": "kafka", "SITE_FILTER_SEEDS": True}])
def test_a_service_that_goes_on_reads_each_page_of_a_list_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[List], settings: dict[str, Any]
) -> None:
    """As often as the list is asked for; a list that leads back to a page of its own ends."""
    monkeypatch.setattr(known_items, "_SKEW_MS", 0)
    monkeypatch.setattr(known_items, "_BEGAN_MS", 1)
    listed, asked = kind(40), list[int]()
    listed.ends_with = "/list?page=1"

    def is_over(crawler: Crawler) -> bool:
        if crawler.stats.get_value("seeds/in_flight", 1) or lag(LocalSeedLog(tmp_path / "data")):
            return False
        asked.append(listed.asked)
        if len(asked) == 1:
            listed.entries = [f"new{number}" for number in range(25)] + listed.entries
            produce(LocalSeedLog(tmp_path / "data"), "seeds", [{"url": "http://a.test/list", "dont_filter": True}])
        return len(asked) == 2

    found = run(tmp_path, listed, API if kind is List else LISTS, until=is_over, **settings)
    assert asked == [4, 8]
    urls = {document["url"] for document in found.documents.values()}
    assert {f"new{number}" for number in range(25)} <= found.items.keys() | {url.rpartition("/")[2] for url in urls}


@pytest.mark.parametrize("settings", [{}, {"SITE_LINKS_TO": "kafka"}, {"SITE_FILTER_SEEDS": True}])
def test_a_crawl_of_a_list_reads_each_of_its_pages_once(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Also when the last one leads back to the first, and where they are links that are followed anyway."""
    listed = Links(40)
    listed.ends_with = "/list"
    run(tmp_path, listed, LISTS, **settings)
    assert listed.asked == 4
    listed = Links(40)
    run(tmp_path / "links", listed, LISTS.replace("{css: p}", "{css: p}, {allow: [/list]}"), **settings)
    assert listed.asked == 4


def written_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeat has the time of the first; no two of them begin at the same moment."""
    monkeypatch.setattr(known_items, "first_written_ms", lambda _message: 1_000_000)
    monkeypatch.setattr(known_items, "_BEGAN_MS", 10**12)


@pytest.mark.parametrize("settings", [{}, {"SITE_LINKS_TO": "kafka"}])
def test_a_list_whose_seed_is_repeated_is_read_to_its_end_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """What has come above fills its first page, and more of that stands on the second one, which was done."""
    written_as_one(monkeypatch)
    listed = List(20)
    run(tmp_path, listed, SITE_DUPEFILTER="local", **settings)
    for time_of_repeat in ("first", "second"):
        new = {f"{time_of_repeat}{number}" for number in range(15)}
        listed.entries = [*new, *listed.entries]
        assert new <= run(tmp_path, listed, SITE_DUPEFILTER="local", **settings).items.keys()


def test_a_list_whose_seed_is_repeated_is_read_on_where_a_later_page_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second page was in memory when the process died, and the third one had been sent on."""
    written_as_one(monkeypatch)
    listed, other = List(30), tmp_path / "other"
    run(tmp_path, listed, SITE_LINKS_TO="kafka")
    at = {"SITE_SOURCES_DIR": str(tmp_path / "sources"), "SITE_DUPEFILTER": "local"}
    with in_a_thread():
        crawl(other / "data", pages_sent(tmp_path)[1:], **at)
    listed.entries = [*(f"new{number}" for number in range(15)), *listed.entries]
    assert set(listed.entries) <= run(other, listed, SITE_DUPEFILTER="local").items.keys()


def pages_sent(folder: Path) -> list[dict[str, Any]]:
    """The messages of pages of a list behind the first one."""
    with closing(sqlite3.connect(folder / "data" / "seeds.sqlite")) as log:
        sent = [json.loads(value) for (value,) in log.execute("SELECT value FROM messages ORDER BY rowid")]
    return [message for message in sent if "site_place" in message]


def test_pages_of_a_list_that_are_repeated_are_read_once(tmp_path: Path) -> None:
    """Of those that a process had sent on, and not committed when it died, each would read the rest of the list."""
    listed = List(150)
    run(tmp_path, listed, SITE_LINKS_TO="kafka")
    assert listed.asked == 15
    sent, listed.asked = pages_sent(tmp_path), 0
    with in_a_thread():
        at = {"SITE_SOURCES_DIR": str(tmp_path / "sources"), "SITE_LINKS_TO": "kafka"}
        crawl(tmp_path / "other", sent[:6], **at)
    assert listed.asked == 14


def test_entries_that_are_known_count_in_a_row_over_the_ends_of_pages(tmp_path: Path) -> None:
    """A new one below some that stand on top of the list always."""
    listed = List(60)
    run(tmp_path, listed)
    listed.entries.insert(8, "new")
    assert "new" in run(tmp_path, listed).items
    assert listed.asked == 2
    listed.entries.insert(13, "new2")
    run(tmp_path, listed, API.replace("known: 10", "known: 25"))
    assert listed.asked == 4


@pytest.mark.parametrize(("fetched_at", "asked_for"), [("1970-01-01T00:00:00+00:00", 200), (None, 3_000)])
async def test_many_entries_are_looked_up_some_at_a_time_until_enough_are_known(
    fetched_at: str | None, asked_for: int
) -> None:
    """A page may have thousands, which held up the event loop."""
    counts = Counter[str]()

    async def of(_url_id: str) -> dict[str, Any]:
        counts.update(["asked", "now"])
        counts["most"] = max(counts["most"], counts["now"])
        await asyncio.sleep(0)
        counts["now"] -= 1
        return {"status": 200, "fetched_at": fetched_at}

    found = Extracted(links=[FoundLink(f"http://a.test/{number}", 0) for number in range(3_000)])
    response = Mock(meta={meta_keys.KNOWN_RUN: (0, 1_000)})
    await KnownItems(Mock(), Mock(of=of)).cut(10, found, response, Mock())
    assert (counts["asked"], counts["most"]) == (asked_for, 200)


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (LocalResults, "known", SinkUnavailable("the store is away")),
        (KnownItems, "of", ConfigError("no sink can be read")),
    ],
)
def test_without_an_answer_of_the_store_a_list_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception
) -> None:
    listed = List(60)
    run(tmp_path, listed)

    def away(*_: object) -> Any:
        raise error

    monkeypatch.setattr(owner, name, away)
    run(tmp_path, listed)
    assert listed.asked == 6


async def test_a_feed_may_ask_a_spider_for_each_of_its_attributes() -> None:
    """As Scrapy's do for `%(name)s` in their URIs: no store is opened, and `scrapy parse` has none to open."""
    spider = SeedSpider.from_crawler(Crawler(SeedSpider, ours()))
    assert {name: getattr(spider, name) for name in dir(spider)}["name"] == "crawl_spider"
