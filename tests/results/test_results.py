"""Results on their way to several sinks, when one of them cannot even be given them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from site_spider.contracts.seed_log import Message, Partition
from site_spider.intake.seed_queue import seed_request
from site_spider.ledger.completion import Completion, job_of
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.observe.snapshot import Counted
from site_spider.results.batch import BatchLimits
from site_spider.results.commits import Member, OffsetCommits
from site_spider.results.delivery import Delivery
from site_spider.results.results import DeadLetters, Results
from site_spider.seed.seed import Seed, parse_seed
from tests.in_process.scripted_sink import ScriptedSink

P = Partition("seeds", 0)
QUICK = BatchLimits(age_seconds=0.001)


class BrokenDelivery(Delivery):
    """Has a bug, once a record is there or before."""

    def submit(self, record: Any, done: Any, *, at_once: bool = False) -> None:
        raise AttributeError("'Handle' object has no attribute 'when'")


class Letters(DeadLetters):
    """Keeps the reasons; each letter is durable at once."""

    def __init__(self, completion: Completion) -> None:
        self.aside: list[str] = []
        self._completion = completion

    def set_aside(self, message: Message, reason: str, entry: SeedInFlight) -> None:
        self.aside.append(reason)
        self._completion.set_aside(entry)


class Crawl:
    """One seed that has begun, and what becomes of it."""

    def __init__(self, *deliveries: Delivery) -> None:
        self.completion = completion = Completion(Ledger())
        self.completion.assigned({P: None})
        self.letters = Letters(completion)
        commits = OffsetCommits(completion, None, Member("seeds", "group"), lambda call, *rest: call(*rest))  # type: ignore[arg-type]
        self.results = Results(
            deliveries, (), commits, completion, self.letters, Counted().pages, lambda: False
        )
        completion.add(self.results)
        message = Message(P, 0, None, b'{"url": "http://h.test/", "meta": {"url_id": "a"}}')
        seed = parse_seed(message.value, frozenset())
        assert isinstance(seed, Seed)
        entry = self.completion.take(message, seed)
        assert entry is not None
        entry.reads(seed)
        self.request, self.job = seed_request(entry, object())  # type: ignore[arg-type]
        self.completion.begin(self.request, self.job)

    def end(self) -> None:
        self.results.submit({"url_id": "a", "body": "text"}, job_of(self.request))
        self.completion.ended(self.request)

    @property
    def watermark(self) -> int:
        return self.completion.positions()[P].offset


async def until(condition: Any) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_result_reaches_the_other_sink_and_the_seed_is_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    """In whichever order the sinks are named; the watermark moves on."""

    async def scenario(broken_first: bool) -> None:
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

    for broken_first in (True, False):
        asyncio.run(scenario(broken_first))
    assert [item.levelno for item in caplog.records if item.exc_info] == [logging.ERROR] * 2


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
