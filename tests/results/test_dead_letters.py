"""Dead letters: when they are written, and those that the log does not take as they are."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future

import pytest

from site_spider.contracts.seed_log import Headers, Message
from site_spider.dupefilter.dupefilter import Seen
from site_spider.engine.background import Background
from site_spider.errors import LogUnavailable, SeedError, SinkRejected
from site_spider.ledger.completion import Completion, SeedListener
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.results.dead_letters import DeadLetters
from tests.results.test_pipeline import P, begun, until

LONG = 900_000


class NarrowLog:
    """Takes so many bytes a message, when it has failed so often."""

    def __init__(self, limit_bytes: int, *failures: Exception) -> None:
        self.limit_bytes, self._failures = limit_bytes, [*failures]
        self.taken: list[Message] = []

    def send(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Future[None]:
        sent: Future[None] = Future()
        size_bytes = len(key or b"") + len(value or b"") + sum(len(name) + len(text) for name, text in headers)
        if self._failures or size_bytes > self.limit_bytes:
            sent.set_exception(self._failures.pop() if self._failures else SinkRejected("too large"))
        else:
            self.taken.append(Message(P, 0, key, value, tuple(headers)))
            sent.set_result(None)
        return sent


def letters_of(log: NarrowLog, *messages: Message, reason: str = "why") -> tuple[DeadLetters, Completion]:
    """Of messages that are no seeds."""
    completion = Completion(Ledger())
    completion.assigned({P: None})
    letters = DeadLetters(log, "dead", completion, Background(pytest.fail))
    for message in messages:
        entry = completion.take(message, SeedError("why"))
        assert entry is not None
        letters.set_aside(entry, reason)
    return letters, completion


class Tree(SeedListener):
    """A seed whose page gave something that cannot be stored, while a link of it waits."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.failures: list[BaseException] = []
        self.log = NarrowLog(LONG)
        self.completion = Completion(Ledger(), self)
        self.completion.assigned({P: None})
        self.entry, _, job = begun(self.completion)
        letters = DeadLetters(self.log, "dead", self.completion, Background(self.failures.append))
        self.completion.ledger.decide(self.entry, Outcome.RESULT)
        letters.give_up(job.entry, "no")
        letters.give_up(job.entry, "once more")

    async def link_ends(self) -> None:
        self.completion.release(self.entry)
        await asyncio.sleep(0)  # the letter is durable
        await asyncio.sleep(0)

    def last_hold(self, entry: SeedInFlight) -> None:
        self.told.append(f"last hold, {len(self.log.taken)} dead letters")

    def ended(self, entry: SeedInFlight) -> None:
        self.told.append(entry.outcome.value)


async def test_what_is_put_back_of_a_dead_letter_is_no_duplicate_of_its_seed() -> None:
    """Somebody may do so before this process has heard that the dead letter is durable."""
    tree, seen = Tree(), Seen()
    tree.completion.add(seen)
    assert seen.begin(b"page", tree.entry)
    tree.completion.release(tree.entry)
    assert (len(tree.log.taken), tree.told, seen.knows(b"page")) == (1, [], False)


async def test_the_next_owner_writes_the_dead_letter_of_a_tree_that_it_does_again() -> None:
    """Also when the partition comes back to this process: it does not count as done."""
    tree = Tree()
    tree.completion.lost([P])
    await tree.link_ends()
    assert (tree.log.taken, tree.told) == ([], [])
    assert tree.completion.repeats.outcome(tree.entry.message) is None


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
async def test_a_message_that_is_too_large_with_its_headers_is_cut(
    key: bytes | None, value: bytes | None, limit_bytes: int, kept: tuple[int | None, int | None]
) -> None:
    """Value and key: else it would be tried for ever, and the watermark would stand."""
    log = NarrowLog(limit_bytes)
    letters, completion = letters_of(log, Message(P, 0, key, value), reason="why " * 5_000)
    await until(lambda: not letters.under_way)
    assert completion.ledger.in_flight == 0
    (taken,) = log.taken
    assert (taken.key and len(taken.key), taken.value and len(taken.value)) == kept
    headers = dict(taken.headers)
    assert len(headers["error"]) == 1_000
    is_whole = (taken.key, taken.value) == (key, value)
    assert headers.get("truncated_from_bytes") == (None if is_whole else str(len(value or b"")).encode())


async def test_what_is_refused_however_short_it_is_keeps_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a topic that takes no message without a key: when that is mended, the whole can be put back."""
    monkeypatch.setattr("site_spider.results.dead_letters._RETRY_SECONDS", 0.01)

    log, message = NarrowLog(1_000_000, *[SinkRejected("too large")] * 3), Message(P, 0, None, b"v" * 200_000)
    letters_of(log, message)
    await until(lambda: log.taken)
    assert log.taken[0].value == message.value
    assert not {"truncated_from_bytes", "truncated_key_from_bytes"} & dict(log.taken[0].headers).keys()


async def test_an_outage_is_said_once_when_it_begins_and_once_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However many dead letters wait, and however often they are tried."""
    caplog.set_level(logging.INFO, "site_spider.results.dead_letters")
    monkeypatch.setattr("site_spider.results.dead_letters._RETRY_SECONDS", 0.01)

    log = NarrowLog(1_000_000, *[LogUnavailable("no right to write")] * 100)
    letters, completion = letters_of(log, *(Message(P, offset, b"k", b"v") for offset in range(20)))
    await until(lambda: not letters.under_way)
    assert (len(log.taken), completion.ledger.in_flight) == (20, 0)
    said = [record.message for record in caplog.records if not record.message.startswith("Dead letter from")]
    assert [line.split(" to dead")[0] for line in said] == [
        "Dead letters cannot be written",
        "Dead letters are written",
    ]
