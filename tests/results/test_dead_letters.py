"""Dead letters that the log does not take as they are."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from site_spider.contracts.seed_log import Headers, Message, Partition
from site_spider.engine.background import Background
from site_spider.errors import SinkRejected
from site_spider.ledger.completion import Completion
from site_spider.ledger.entry import Entry
from site_spider.ledger.ledger import Ledger
from site_spider.ledger.lifecycle import SeedListener
from site_spider.results.dead_letters import DeadLetters

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

    def __init__(self, told: asyncio.Future[Entry]) -> None:
        self._told = told

    def ended(self, entry: Entry) -> None:
        self._told.set_result(entry)


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
        ledger = Ledger()
        ledger.assign(P, None)
        entry = ledger.take(P, 0)
        assert entry is not None
        durable: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        failures: list[BaseException] = []
        log = NarrowLog(limit_bytes)
        completion = Completion(ledger, Ended(durable))
        letters = DeadLetters(log, "dead", completion, Background(failures.append))
        letters.set_aside(Message(P, 0, key, value), "why " * 5_000, entry)
        assert await asyncio.wait_for(durable, 5) is entry
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
