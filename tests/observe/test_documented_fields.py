"""The list of docs/observability.md names the fields of a real crawl's documents, and no others."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider import SeedSpider
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.results import FILE_NAME
from site_spider.observe.counters import CAUSES
from site_spider.observe.metrics.catalogue import exposition
from site_spider.results.failures import REASONS
from site_spider.service.service import SeedService
from tests.in_process import engine
from tests.in_process.engine import crawl, page

_TEXT = (Path(__file__).parents[2] / "docs/observability.md").read_text(encoding="utf-8")
PAGE = re.sub(r"\n {2}(?=\S)", " ", _TEXT)  # each point of a list in one line
# the last part of a field's name that comes from elsewhere, by what the table writes for it
_NAMED = {
    **dict.fromkeys(("failures", "unknown_fields", "counters", "texts"), "NAME"),
    **dict.fromkeys(("seeds_in_flight", "oldest_in_flight_seconds", "paused"), "PARTITION"),
    **dict.fromkeys(("reasons", "by_reason"), "REASON"),
    **{"responses": "STATUS", "paused_seconds": "CAUSE", "outcomes": "OUTCOME", "levels": "LEVEL"},
}
_WHOLE = {"largest_hosts", "newest_failures", "buckets"}  # described as one


def documented(begins: str, ends: str) -> set[str]:
    """The fields of a list: `a.b`, `.c` is a.b and a.c."""
    part = PAGE.split(begins, 1)[1].split(ends, 1)[0]
    found: set[str] = set()
    for point in re.findall(r"^- (`.*?`): ", part, re.MULTILINE):
        before = ""
        for name in re.findall(r"`([^`]+)`", point):
            full = before.rpartition(".")[0] + name if name.startswith(".") else name
            before = full
            found.add(full)
    return found


FIELDS = documented("### Fields", "### Reasons")
OF_TOPIC = documented("### The statistics topic", "### A store of your own")


def fields(document: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The names of a document's leaves, as the table writes them."""
    for name, value in document.items():
        full = f"{before}{name}"
        if name in _NAMED:
            yield f"{full}.{_NAMED[name]}"
        elif name == "hosts":
            yield from ("hosts.waiting", "hosts.REASON")
        elif name in ("latency", "interval_latency"):
            for histogram in value.values():
                yield from fields(histogram, f"{full}.HISTOGRAM.")
        elif name in _WHOLE:
            yield full
        elif isinstance(value, Mapping):
            yield from fields(value, f"{full}.")
        elif isinstance(value, list):
            for one in value:
                yield from fields(one, f"{full}.")
        else:
            yield full


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a crawl leaves behind that has a bit of everything."""
    made = tmp_path_factory.mktemp("crawl")

    def missing(request: Request) -> Response:
        return page(request, status=404)

    engine.ANSWERS.clear()
    engine.ANSWERS["/missing"] = missing
    seeds = [
        {"url": "http://h.test/", "meta": {"task_id": "t"}, "odd": 1},
        {"url": "http://h.test/missing", "meta": {"task_id": "t"}},
        b"no seed",
    ]
    crawl(made, seeds, SITE_STATS_TO="local", SITE_PROXIES="http://127.0.0.1:1", SITE_PROXY_STATUSES="")
    engine.ANSWERS.clear()
    return made


def test_every_field_of_a_document_is_in_the_table_and_every_field_of_the_table_in_a_document(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        rows = connection.execute("SELECT document FROM statistics ORDER BY rowid").fetchall()
    document = json.loads(rows[-1][0])
    assert set(fields(document)) - FIELDS == set(), "not in docs/observability.md"
    assert FIELDS - set(fields(document)) == set(), "in no document"
    [row] = [line for line in PAGE.splitlines() if line.startswith("- `latency.HISTOGRAM.count`")]
    assert all(f"`{histogram}`" in row for histogram in document["latency"])


def test_every_field_of_the_topic_is_in_a_table(folder: Path) -> None:
    message = list(LocalSeedLog(folder).read("seeds.stats"))[-1]
    document = json.loads(message.value or b"null")
    found = {re.sub(r"^downloads\.(page|robots)\..*", "downloads.KIND", name) for name in fields(document)}
    assert found - FIELDS - OF_TOPIC == set(), "not in docs/observability.md"
    assert OF_TOPIC - found == {"shortened"}


def test_reasons_and_causes_are_described() -> None:
    assert documented("### Reasons", "### Counters of your own") == set(REASONS)
    [row] = [line for line in PAGE.splitlines() if line.startswith("- `paused_seconds.CAUSE`")]
    assert all(f"`{cause}`" in row for cause in CAUSES)


class TwoItems(SeedSpider):
    name = "two_items"

    def parse(self, response: Response) -> Any:
        yield from ({"number": number} for number in range(2))


def test_items_are_counted_and_known_pages_and_tasks_are_metrics(tmp_path: Path) -> None:
    texts: list[bytes] = []

    def is_done(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        if sum(service.parts.completion.ledger.outcomes.values()) < 3:
            return False
        measured = asyncio.ensure_future(service.parts.measurements.measured())
        measured.add_done_callback(lambda taken: texts.append(exposition([taken.result()])))
        return bool(texts)

    seeds = [{"url": f"http://h.test/{n}", "meta": {"task_id": "t", "NotExtract": True}} for n in range(3)]
    crawl(tmp_path, seeds, TwoItems, until=is_done)
    text = texts[-1].decode()
    assert 'items_total{group="site_spider",slot="1",spider="two_items"} 6.0' in text
    assert 'task_pages_total{group="site_spider",slot="1",task="t"} 3.0' in text
    assert 'task_seeds_completed_total{group="site_spider",slot="1",task="t"} 3.0' in text
    assert re.search(r'seen_pages\{group="site_spider",slot="1"\} [0-9]', text)
    assert 'spider="two_items"' in text.split("site_spider_build_info{")[1]
