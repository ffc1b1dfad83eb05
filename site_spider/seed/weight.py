"""Estimates the memory of a seed; tests/frontier/test_weight.py measures it.

Besides the texts, the numbers are those of tools/measure/frontier_memory.py.
"""

from __future__ import annotations

from sys import getsizeof

from site_spider.contracts.seed_log import Message
from site_spider.errors import SeedError
from site_spider.seed.seed import Seed
from site_spider.seed.spilled import Spilled

TEXT_BYTES = 60  # a string or bytes besides what is in them, with their place in a list
_SEED_BYTES = 1_400  # in flight: with its entry in the ledger and its place in the frontier
_PAIR_BYTES = 200  # name and value of a seed's header or cookie


def seed_bytes(message: Message, seed: Seed | SeedError) -> int:
    """The weight of a seed in flight: its message, and what was made of it."""
    size = _SEED_BYTES + len(message.value or b"") + len(message.key or b"")
    if message.headers:
        size += sum(_PAIR_BYTES + len(name) + len(value) for name, value in message.headers)
    if isinstance(seed, SeedError):
        return size
    size += len(seed.url) + len(seed.extra_json) + len(seed.body or b"")
    if seed.headers:
        size += sum(_PAIR_BYTES + len(name) + len(value) for name, value in seed.headers)
    if seed.cookies:
        size += object_bytes(seed.cookies)
    return size if seed.spilled is None else size + _spilled_bytes(seed.spilled)


def _spilled_bytes(spilled: Spilled) -> int:
    return (
        _SEED_BYTES // 4
        + len(spilled.url)
        + text_bytes(spilled.redirect_urls)
        + text_bytes(spilled.retry_reasons)
    )


def text_bytes(texts: tuple[str, ...] | list[str]) -> int:
    """What a list of strings takes."""
    return sum(TEXT_BYTES + len(text) for text in texts)


def object_bytes(value: object) -> int:
    """What JSON objects take, those within them included."""
    size, left = 0, [value]
    while left:
        value = left.pop()
        size += getsizeof(value)
        if isinstance(value, dict):
            left += value.keys()
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
    return size
