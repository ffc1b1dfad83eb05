"""Results on their way to several sinks: when one cannot even be given them, and when a batch is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.http import Response

from site_spider.adapters.local.results import LocalSink
from site_spider.contracts.seed_log import Message, Partition
from site_spider.contracts.sink import Record, Verdict
from site_spider.intake.seed_queue import seed_request
from site_spider.ledger.completion import Completion, Job, job_of
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.observe.counters import Counted
from site_spider.results.batches_and_retries import BatchLimits
from site_spider.results.commits import Member, OffsetCommits
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.delivery import Delivery
from site_spider.results.pipeline import Results
from site_spider.seed.seed import parse_seed
from tests.adapters.elasticsearch.played import good, settings_for
from tests.adapters.raw_server import Asked, Said, answering
from tests.in_process.engine import ANSWERS, crawl, page
from tests.in_process.scripted_sink import ScriptedSink

P = Partition("seeds", 0)
QUICK = BatchLimits(age_seconds=0.001)


class BrokenDelivery(Delivery):
    """Has a bug, once a record is there or before."""

    def submit(self, record: Any, done: Any, **how: Any) -> None:
        raise AttributeError("'Handle' object has no attribute 'when'")


class Letters(DeadLetters):
    """Keeps the reasons; each letter is durable at once."""

    def __init__(self, completion: Completion) -> None:
        self.aside: list[str] = []
        self._completion = completion

    def set_aside(self, entry: SeedInFlight, reason: str) -> None:
        self.aside.append(reason)
        self._completion.end_as(entry, Outcome.DEAD_LETTER)


def begun(completion: Completion) -> tuple[SeedInFlight, Request, Job]:
    """A seed that has begun."""
    message = Message(P, 0, b"h.test", b'{"url": "http://h.test/", "meta": {"url_id": "a"}}')
    seed = parse_seed(message.value)
    entry = completion.take(message, seed)
    entry.reads(seed)
    request, job = seed_request(entry, Spider("any"))
    completion.begin(request, job)
    return entry, request, job


class Crawl:
    """One seed that has begun, and what becomes of it."""

    def __init__(self, *deliveries: Delivery) -> None:
        self.completion = completion = Completion(Ledger())
        self.completion.assigned({P: None})
        self.letters = Letters(completion)
        commits = OffsetCommits(completion, None, Member(("seeds",), "group"), lambda call, *rest: call(*rest))  # type: ignore[arg-type]
        told = Counted().pages, (), {}, "trial", None, {}, False
        self.results = Results({"result": deliveries, "item": ()}, commits, completion, self.letters, *told)
        completion.add(self.results)
        _, self.request, _ = begun(completion)

    def end(self) -> None:
        self.results.submit({"url_id": "a", "body": "text"}, job_of(self.request))
        self.completion.ended(self.request)

    @property
    def watermark(self) -> int:
        return self.completion.ledger.positions()[P].offset


async def until(condition: Any) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("broken_first", [True, False])
async def test_a_result_reaches_the_other_sink_and_the_seed_is_set_aside(
    broken_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ScriptedSink()
    good, broken = Delivery(sink, limits=QUICK), BrokenDelivery(ScriptedSink(), limits=QUICK)
    await good.open(300)
    crawl = Crawl(*((broken, good) if broken_first else (good, broken)))
    crawl.end()
    await until(lambda: crawl.watermark == 1)
    assert sink.written == [["a"]]
    (reason,) = crawl.letters.aside
    assert reason.startswith("sink scripted could not be given the result: AttributeError(")
    assert crawl.completion.ledger.outcomes[Outcome.DEAD_LETTER] == 1
    await good.close(300)
    assert [item.levelno for item in caplog.records if item.exc_info] == [logging.ERROR]


async def test_a_result_that_comes_after_the_end_of_the_crawl_leaves_its_seed_to_be_repeated() -> None:
    """It is neither complete nor a dead letter."""
    delivery = Delivery(ScriptedSink(), limits=QUICK)
    await delivery.open(300)
    await delivery.close(300)
    crawl = Crawl(delivery)
    crawl.end()
    assert crawl.letters.aside == []
    assert crawl.watermark == 0
    assert crawl.completion.ledger.in_flight == 1


class Table:
    """As an array of NumPy."""

    def __bool__(self) -> bool:
        raise ValueError("the truth of an array is ambiguous")


async def test_a_value_that_is_neither_true_nor_false_is_left_to_the_sinks() -> None:
    """Which refuse it with its kind; a pipeline may have put it there."""
    delivery = Delivery(sink := ScriptedSink(), limits=QUICK)
    await delivery.open(300)
    crawl = Crawl(delivery)
    crawl.results.submit({"url_id": "a", "body": "text", "rows": Table()}, job_of(crawl.request))
    await until(lambda: sink.written == [["a"]])
    await delivery.close(300)


class Weightless:
    def __sizeof__(self) -> int:
        raise ValueError("it has no size")


def test_a_document_that_cannot_be_made_a_record_counts_as_not_written() -> None:
    """So its page gets a failure result."""
    crawl = Crawl()
    with pytest.raises(ValueError, match="no size"):
        crawl.results.submit({"url_id": "a", "rows": [Weightless()]}, job_of(crawl.request))
    assert not job_of(crawl.request).written


async def test_a_value_within_itself_is_weighed_once() -> None:
    """And left to the sinks, which refuse it."""
    delivery = Delivery(sink := ScriptedSink(), limits=QUICK)
    await delivery.open(300)
    crawl, rows = Crawl(delivery), list[Any]()
    rows += [rows, {"row": rows}]
    crawl.results.submit({"url_id": "a", "rows": rows}, job_of(crawl.request))
    await until(lambda: sink.written == [["a"]])
    await delivery.close(300)


# --- a result waits for its batch only while others are on their way -------------------------------------

ALONE, SOON, SLOW = "http://a.test/alone", "http://b.test/quick", "http://c.test/slow"
PATIENT = {"SITE_SINK_FLUSH_SECONDS": 36_000}  # a batch that is not full would wait longer than the test


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The URLs of each write."""
    written: list[list[str]] = []
    write = LocalSink.write

    async def noted(sink: LocalSink, records: Sequence[Record]) -> Sequence[Verdict]:
        written.append([record.document["url"] for record in records])
        return await write(sink, records)

    monkeypatch.setattr(LocalSink, "write", noted)
    return written


def test_a_seed_that_comes_alone_is_stored_at_once(tmp_path: Path, batches: list[list[str]]) -> None:
    crawl(tmp_path, [{"url": ALONE}], timeout_seconds=600, **PATIENT)
    assert batches == [[ALONE]]


def test_a_seed_that_comes_alone_is_in_elasticsearch_at_once(tmp_path: Path, batches: list[list[str]]) -> None:
    written = []

    def answer(asked: Asked) -> Said:
        if "_bulk" in asked.path:
            written.append(asked.ids)
        return good(asked)

    with answering(answer) as address:
        settings = settings_for(address) | PATIENT | {"SITE_SINKS": "local,elasticsearch", "SITE_STATS_TO": ""}
        crawl(tmp_path, [{"url": ALONE, "meta": {"url_id": "a"}}], timeout_seconds=600, **settings)
    assert batches == [[ALONE]]
    assert [ids for ids in written if "a" in ids] == [["a"]]


def test_the_last_of_a_tree_sends_all(tmp_path: Path, batches: list[list[str]]) -> None:
    ANSWERS["/alone"] = lambda request: page(request, "<a href=/1>1</a><a href=/2>2</a>")
    crawled = crawl(tmp_path, [{"url": ALONE}], timeout_seconds=600, **PATIENT)
    assert len(crawled.documents) == 3


def test_what_comes_while_others_are_fetched_waits_for_them(tmp_path: Path, batches: list[list[str]]) -> None:
    is_quick_done = asyncio.Event()

    async def slow(request: Request) -> Response:
        await is_quick_done.wait()
        for _ in range(3):  # long enough for the result of the other to be written, if it did not wait
            await asyncio.sleep(10)
        return page(request)

    def quick(request: Request) -> Response:
        is_quick_done.set()
        return page(request)

    ANSWERS.update({"/quick": quick, "/slow": slow})
    crawl(tmp_path, [{"url": SLOW}, {"url": SOON}], timeout_seconds=600, **PATIENT)
    assert [sorted(batch) for batch in batches] == [sorted([SOON, SLOW])]
