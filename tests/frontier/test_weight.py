"""What things are estimated to take in memory is what they take, within a factor of two."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from scrapy import Request

from site_spider.contracts.seed_log import Message, Partition
from site_spider.errors import SeedError
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.waiter import size_bytes
from site_spider.intake.room import MAX_SEED_BYTES
from site_spider.ledger.ledger import Ledger, SeedInFlight
from site_spider.seed.seed import object_bytes, parse_seed, seed_bytes

PARTITION = Partition("seeds", 0)
URL = "http://www.host.example/section/article"
NESTED: Any = json.loads("[" * 27 + "]" * 27)

SEEDS: dict[str, dict[str, Any]] = {
    "small": {},
    "large url": {"url": URL + "/a" * 4_000},
    "many headers": {"headers": {f"X-{number}": f"value {number}" for number in range(400)}},
    "values of a header": {"headers": {"X": ["v" * 100] * 400}},
    "cookies": {"cookies": {f"name-{number}": f"value {number}" for number in range(400)}},
    "long cookies": {"cookies": [{"name": f"n{n}", "value": "v", "path": "/"} for n in range(400)]},
    "nested meta": {"meta": {"x": [NESTED] * 300}},
    "wide meta": {"meta": {f"k{number}": {"a": number} for number in range(4_000)}},
    "numbers": {"meta": {"x": [number * 1e10 for number in range(9_000)]}},
    "text in meta": {"meta": {"x": "text " * 100_000}},
    "unicode text": {"meta": {"x": "日本語 text 😀 " * 20_000}},
    "one character beyond": {"meta": {"x": "a" * 500_000 + "😀"}},
    "big body": {"method": "POST", "body": "b" * 900_000},
    "unicode body": {"method": "POST", "body": "日本語" * 50_000},
    "wider body": {"method": "POST", "body": "é" * 200_000, "_encoding": "gb18030"},
    "unknown fields": {f"unknown-{number}": "x" * 50 for number in range(5_000)},
    "retried": {"meta": {"site_moved": {"url": URL, "retry_times": 9, "retry_reasons": ["HTTP 503"] * 9}}},
    "redirected": {"meta": {"site_moved": {"url": URL, "redirect_urls": [URL + "/a" * 1_000] * 20}}},
}


def measured(make: Callable[[int], Any], count: int) -> float:
    """Bytes that each of these takes."""
    make(0)
    gc.freeze()  # what other tests have left is not looked through, nor later: `unfreeze` would take in all modules
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = [make(number) for number in range(count)]
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(kept) == count
    return taken / count


def many(size: int) -> int:
    """So many of this size that what another thread takes meanwhile does not matter."""
    return min(100, max(2, 400_000 // size))


def assert_near(estimated: float, taken: float) -> None:
    assert 0.5 < estimated / taken < 2, f"{estimated:,.0f} estimated, {taken:,.0f} taken"


@pytest.mark.parametrize("shape", SEEDS)
def test_seeds_in_flight(shape: str) -> None:
    document = {"url": URL, **SEEDS[shape]}
    weights: list[int] = []
    frontier: Frontier[SeedInFlight] = Frontier()
    ledger = Ledger()
    ledger.assign(PARTITION, None)

    def poll(number: int) -> SeedInFlight:
        value = json.dumps(document, ensure_ascii=False).encode()
        entry = ledger.take(PARTITION, number)
        assert entry is not None
        message = Message(PARTITION, number, b"%d.example" % number, value, (), number)
        seed = parse_seed(value)
        weights.append(seed_bytes(message, seed))
        entry.message = message
        entry.reads(seed)
        frontier.push(0, f"{number % 20}.example", entry, 0.0)
        return entry

    taken = measured(_from_one(poll), many(len(json.dumps(document))))
    assert_near(weights[-1], taken)
    assert weights[-1] <= MAX_SEED_BYTES


def _from_one(make: Callable[[int], Any]) -> Callable[[int], Any]:
    """Offsets that ascend, over two rounds."""
    numbers = iter(range(10**9))
    return lambda _number: make(next(numbers))


def test_messages_that_are_no_seeds() -> None:
    """They wait for their dead letters."""

    def refuse(number: int) -> tuple[Message, SeedError]:
        message = Message(PARTITION, number, b"k" * 1_000, b"[" * 100_000, (("h", b"x" * 5_000),), 0)
        with pytest.raises(SeedError) as caught:
            parse_seed(message.value)
        return message, SeedError(caught.value.reason)

    message, error = refuse(0)
    assert 106_000 < seed_bytes(message, error) < 110_000


REQUESTS: dict[str, Callable[[int], Request]] = {
    "plain": lambda number: Request(f"{URL}/{number}"),
    "large url": lambda number: Request(f"{URL}/{number}" + "/a" * 4_000),
    "body": lambda number: Request(f"{URL}/{number}", method="POST", body=b"%09d" % number * 5_000),
    "headers": lambda number: Request(f"{URL}/{number}", headers={f"X-{n}": f"{n}" for n in range(200)}),
    "values": lambda number: Request(f"{URL}/{number}", headers={"X": [f"{n}" for n in range(400)]}),
    "redirected": lambda number: Request(
        f"{URL}/{number}", meta={"redirect_urls": [f"{URL}/{number}/{n}" + "/a" * 1_000 for n in range(20)]}
    ),
}


@pytest.mark.parametrize("shape", REQUESTS)
def test_requests_that_wait(shape: str) -> None:
    frontier: Frontier[Request] = Frontier()

    def put(number: int) -> Request:
        request = REQUESTS[shape](number)
        frontier.push(1, f"{number % 20}.example", request, 0.0)
        return request

    estimated = size_bytes(REQUESTS[shape](299))
    assert_near(estimated, measured(put, many(estimated)))


@pytest.mark.parametrize("text", ['[{"a": [[], {}, "x", 1.5]}]', '{"x": "日本 😀"}', '{"a": {"b": {"c": {}}}}'])
def test_objects_of_results(text: str) -> None:
    """Such as the meta of a seed, while its result waits for a sink."""
    document = json.loads(text)
    wide = json.dumps([document] * 200, ensure_ascii=False)
    assert_near(object_bytes(json.loads(wide)), measured(lambda _number: json.loads(wide), 10))
