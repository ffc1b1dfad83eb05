"""Dead letters that the log does not take as they are."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future

import pytest
from scrapy import Spider

from site_spider.contracts.seed_log import Headers, Message, Partition
from site_spider.engine.background import Background
from site_spider.errors import LogUnavailable, SeedError, SinkRejected
from site_spider.intake.seed_queue import seed_request
from site_spider.ledger.completion import Completion, SeedListener
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.results.results import DeadLetters
from site_spider.seed.seed import parse_seed

P = Partition("seeds", 0)
LONG = 900_000


class NarrowLog:
    """Takes so many bytes a message."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken: list[Message] = []

    def send(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Future[None]:
        sent: Future[None] = Future()
        size_bytes = (
            len(key or b"") + len(value or b"") + sum(len(name) + len(text) for name, text in headers)
        )
        if size_bytes > self.limit_bytes:
            sent.set_exception(SinkRejected("too large"))
        else:
            self.taken.append(Message(P, 0, key, value, tuple(headers)))
            sent.set_result(None)
        return sent

    def flush(self, timeout_seconds: float) -> int:
        return 0

    def close(self) -> None:
        pass


class Ended(SeedListener):
    """Tells of the first seed that ends."""

    def __init__(self, told: asyncio.Future[SeedInFlight]) -> None:
        self._told = told

    def ended(self, entry: SeedInFlight) -> None:
        self._told.set_result(entry)


class Tree(SeedListener):
    """A seed whose page gave something that cannot be stored, while a link of it waits."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.failures: list[BaseException] = []
        self.log = NarrowLog(LONG)
        self.completion = Completion(Ledger(), self)
        self.completion.assigned({P: None})
        self.message = Message(P, 0, b"h.test", b'{"url": "http://h.test/"}')
        seed = parse_seed(self.message.value)
        taken = self.completion.take(self.message, seed)
        assert taken is not None
        self.entry = taken
        self.entry.reads(seed)
        self.request, job = seed_request(self.entry, Spider("any"))
        self.completion.begin(self.request, job)
        letters = DeadLetters(self.log, "dead", self.completion, Background(self.failures.append))
        self.completion.ledger.decide(self.entry, Outcome.RESULT)
        letters.give_up(job, "no")
        letters.give_up(job, "once more")

    async def link_ends(self) -> None:
        self.completion.release(self.entry)
        await asyncio.sleep(0)  # the letter is durable
        await asyncio.sleep(0)

    def last_hold(self, entry: SeedInFlight) -> None:
        self.told.append(f"last hold, {len(self.log.taken)} dead letters")

    def ended(self, entry: SeedInFlight) -> None:
        assert entry.outcome is not None
        self.told.append(entry.outcome.value)


async def test_a_dead_letter_is_written_when_all_else_of_its_tree_has_ended() -> None:
    """Its next owner would write it a second time, should the partition leave before."""
    tree = Tree()
    assert tree.log.taken == []
    await tree.link_ends()
    assert (len(tree.log.taken), tree.told) == (1, ["dead_letter"])


async def test_the_next_owner_writes_the_dead_letter_of_a_tree_that_it_does_again() -> None:
    """Also when the partition comes back to this process: it does not count as done."""
    tree = Tree()
    tree.completion.lost([P])
    await tree.link_ends()
    assert (tree.log.taken, tree.told) == ([], [])
    assert tree.completion.repeats.outcome(tree.message) is None


async def test_whoever_waits_for_the_last_hold_hears_of_it_when_the_dead_letter_is_durable() -> None:
    """A transaction, or the count of a task, would say that the seed is complete."""
    tree = Tree()
    tree.completion.hold_to_close(tree.entry)
    await tree.link_ends()
    assert tree.told == ["last hold, 1 dead letters"]
    tree.completion.release(tree.entry)
    assert tree.told[1:] == ["dead_letter"]


@pytest.mark.parametrize(
    ("key", "value", "limit_bytes", "kept"),
    [
        (b"k", b"v" * LONG, 1_000_000, (1, LONG)),
        (b"k", b"v" * LONG, LONG, (1, 100_000)),
        (b"k" * LONG, b"v", LONG, (100_000, 1)),
        (b"k" * LONG, None, LONG, (100_000, None)),
        (None, b"v" * LONG, 50_000, (None, 1_000)),
    ],
)
def test_a_message_that_is_too_large_with_its_headers_is_cut(
    key: bytes | None, value: bytes | None, limit_bytes: int, kept: tuple[int | None, int | None]
) -> None:
    """Value and key: else it would be tried for ever, and the watermark would stand."""

    async def scenario() -> Message:
        durable: asyncio.Future[SeedInFlight] = asyncio.get_running_loop().create_future()
        failures: list[BaseException] = []
        log, message = NarrowLog(limit_bytes), Message(P, 0, key, value)
        completion = Completion(Ledger(), Ended(durable))
        completion.assigned({P: None})
        entry = completion.take(message, SeedError("why"))
        assert entry is not None
        letters = DeadLetters(log, "dead", completion, Background(failures.append))
        letters.set_aside(message, "why " * 5_000, entry)
        assert await asyncio.wait_for(durable, 300) is entry
        assert letters.under_way == 0
        assert failures == []
        (taken,) = log.taken
        return taken

    taken = asyncio.run(scenario())
    assert (taken.key and len(taken.key), taken.value and len(taken.value)) == kept
    headers = dict(taken.headers)
    assert len(headers["error"]) == 1_000
    is_whole = (taken.key, taken.value) == (key, value)
    assert headers.get("truncated_from_bytes") == (None if is_whole else str(len(value or b"")).encode())


def test_an_outage_is_said_once_when_it_begins_and_once_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However many dead letters wait, and however often they are tried."""
    caplog.set_level(logging.INFO, "site_spider.results.results")
    monkeypatch.setattr("site_spider.results.results._RETRY_SECONDS", 0.01)

    class Away(NarrowLog):
        refused = 0

        def send(
            self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()
        ) -> Future[None]:
            if self.refused == 100:
                return super().send(topic, key, value, headers)
            self.refused += 1
            sent: Future[None] = Future()
            sent.set_exception(LogUnavailable("no right to write"))
            return sent

    async def scenario() -> None:
        completion = Completion(Ledger())
        completion.assigned({P: None})
        log, failures = Away(1_000_000), list[BaseException]()
        letters = DeadLetters(log, "dead", completion, Background(failures.append))
        for offset in range(20):
            message = Message(P, offset, b"k", b"v")
            if (entry := completion.take(message, SeedError("why"))) is not None:
                letters.set_aside(message, "why", entry)
        while letters.under_way:
            await asyncio.sleep(0.01)
        assert (len(log.taken), failures, completion.ledger.in_flight) == (20, [], 0)

    asyncio.run(asyncio.wait_for(scenario(), 300))
    said = [record.message for record in caplog.records if not record.message.startswith("Dead letter from")]
    assert [line.split(" to dead")[0] for line in said] == [
        "Dead letters cannot be written",
        "Dead letters are written",
    ]
