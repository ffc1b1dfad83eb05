"""The rules of the design, each shown in a whole crawl: take one out of the code and a test fails here."""

from __future__ import annotations

import asyncio
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.errors import SinkUnavailable
from site_spider.service.service import SeedService
from tests.in_process import engine
from tests.in_process.engine import crawl, page
from tests.in_process.scripted_sink import ScriptedSink

SINK = ScriptedSink()
SINKS = {"SITE_SINKS": f"local,{__name__}.ThatSink"}
SEEDS = [{"url": f"http://h.test/rules/{number}", "meta": {"url_id": str(number)}} for number in range(5)]


class ThatSink:
    """As a setting names it."""

    @classmethod
    def from_settings(cls, settings: Any) -> ScriptedSink:
        return SINK


@pytest.fixture(autouse=True)
def fresh_sink() -> None:
    SINK.__init__()  # type: ignore[misc]


def test_rule_1_an_offset_waits_until_every_sink_has_acknowledged(tmp_path: Path) -> None:
    """One of two sinks is away to the end: nothing is committed, and the next start does it all again."""
    SINK.away = True
    first = crawl(tmp_path, SEEDS, until=lambda _: SINK.attempts > 0, SITE_STOP_GRACE_SECONDS=1, **SINKS)
    assert (first.lag, first.seeds["completed"]) == (5, 0)
    SINK.away = False
    second = crawl(tmp_path, [], **SINKS)
    assert second.lag == 0
    assert {*chain(*SINK.written)} == set(second.documents) == {str(number) for number in range(5)}


def test_rule_1_an_offset_waits_for_the_whole_tree(tmp_path: Path) -> None:
    """The seed's own page is done, a link still downloads: the offset stays until that has ended."""
    gates: list[asyncio.Event] = []
    noted: list[tuple[int, set[int]]] = []

    async def gated(request: Request) -> Response:
        gates.append(asyncio.Event())
        await gates[0].wait()
        return page(request)

    engine.ANSWERS["/root"] = lambda r: page(r, "<a href=/gated>")
    engine.ANSWERS["/gated"] = gated

    def is_done(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        if (
            service is None
            or not gates
            or not tuple(service.parts.sinks)
            or next(iter(service.parts.sinks)).backlog_count
        ):
            return False
        if not noted:
            safe = {position.offset for position in service.parts.completion.ledger.positions().values()}
            noted.append((service.parts.completion.ledger.in_flight, safe))
            gates[0].set()
        return service.parts.completion.ledger.in_flight == 0

    found = crawl(tmp_path, [{"url": "http://h.test/root", "meta": {"url_id": "r"}}], until=is_done)
    assert noted == [(1, {0})]
    assert found.lag == 0
    assert len(found.documents) == 2


def test_rule_3_what_is_lost_completes_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The partitions go while requests wait: nothing of them is committed, queued or remembered."""
    engine.ANSWERS["/busy"] = lambda r: page(r, "".join(f"<a href=/busy/{n}>" for n in range(50)))

    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.03)
        return page(request)

    engine.ANSWERS.update({f"/busy/{number}": slow for number in range(50)})
    left: list[Any] = []

    def lose(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        if service is None or not service.is_open or (not left and len(service.parts.room) < 20):
            return False
        parts = service.parts
        if not left:
            parts.seeds.lost(parts.completion.ledger.partitions())
            assert isinstance(parts.dupefilter, SeenDupeFilter)
            left.extend([parts.completion.ledger.in_flight, len(parts.dupefilter.seen._seeds)])
        return not len(parts.room)

    found = crawl(tmp_path, [{"url": "http://h.test/busy"}], until=lose, CONCURRENT_REQUESTS=1)
    assert left == [0, 0]
    assert found.lag == 1
    assert found.seeds["consumed"] == 0
    assert found.seeds["handed_back"] == 1
    assert len(crawl(tmp_path, []).documents) == 51


def test_rule_4_doing_a_seed_twice_leaves_the_same_documents(tmp_path: Path) -> None:
    """Only the times differ."""
    engine.ANSWERS["/again"] = lambda r: page(r, "<a href=/again/link>")
    seed = {"url": "http://h.test/again", "meta": {"url_id": "again", "extra": [1]}}
    first = crawl(tmp_path, [seed]).documents
    second = crawl(tmp_path, [seed]).documents
    times = {"fetched_at", "checked_at", "latency_ms"}
    assert [{k: v for k, v in d.items() if k not in times} for d in first.values()] == [
        {k: v for k, v in d.items() if k not in times} for d in second.values()
    ]


def test_rules_6_and_9_a_bad_message_stops_nothing_and_nothing_of_it_is_executed(tmp_path: Path) -> None:
    """Neither a class, nor a callback that is not on the list, nor a setting of the download.

    Each is set aside with its reason and origin, and its offset is committed.
    """
    bad = [
        *(b"{", b'{"url": "ftp://h/"}'),
        b'{"url": "http://h.test/", "_class": "os.system"}',
        b'{"url": "http://h.test/", "callback": "from_crawler"}',
        b'{"url": "http://h.test/", "meta": {"proxy": "http://127.0.0.1:1"}}',
    ]
    found = crawl(tmp_path, [bad[0], SEEDS[0], *bad[1:], SEEDS[1]])
    assert set(found.documents) == {"0", "1"}
    assert [letter.value for letter in found.dead_letters] == bad
    assert (found.lag, found.seeds["dead_lettered"]) == (0, 5)


def test_rule_7_an_outage_slows_and_drops_nothing(tmp_path: Path) -> None:
    """Batches are kept and tried again. A record that is refused becomes a dead letter, its neighbours are stored."""

    def answer(record: Record) -> Verdict:
        if SINK.attempts <= 3:
            raise SinkUnavailable("the scripted sink is away")
        return Verdict(Answer.REJECTED, "the scripted sink does not like it") if record.key == "3" else ACKNOWLEDGED

    SINK.answer = answer
    found = crawl(tmp_path, SEEDS, **SINKS)
    assert SINK.attempts > 3
    assert {*chain(*SINK.written)} == {str(number) for number in range(5)}
    (letter,) = found.dead_letters
    assert dict(letter.headers)["error"] == b"the scripted sink does not like it"
    assert b"rules/3" in (letter.value or b"")
    assert found.lag == 0
    assert (found.seeds["dead_lettered"], found.seeds["completed_with_result"]) == (1, 4)
