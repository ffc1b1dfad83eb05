"""About what something takes in memory; tests/frontier/test_weight.py measures it.

Besides the texts, the numbers are those of tools/measure/frontier_memory.py.
"""

from __future__ import annotations

from sys import getsizeof

from scrapy import Request

from site_spider.contracts.seed_log import Message
from site_spider.errors import SeedError
from site_spider.frontier.waiting_link import WaitingLink
from site_spider.seed.moved import Moved
from site_spider.seed.seed import Seed

_LINK_BYTES = 330  # with its place in the frontier
_REQUEST_BYTES = 1_850  # likewise
_SEED_BYTES = 1_400  # in flight: with its entry in the ledger and its place in the frontier
_HEADER_BYTES = 250
_PAIR_BYTES = 200  # name and value of a seed's header or cookie
_TEXT_BYTES = 60  # a string or bytes besides what is in them, with their place in a list


def size_bytes(waiter: Request | WaitingLink) -> int:
    """Its weight, as long as nothing of it is changed."""
    if isinstance(waiter, WaitingLink):
        return _LINK_BYTES + len(waiter.url)
    size = _REQUEST_BYTES + 2 * len(waiter.url) + len(waiter.body)
    for name in waiter.headers:
        values = waiter.headers.getlist(name)
        size += _HEADER_BYTES + _TEXT_BYTES * len(values) + sum(map(len, values))
    if "redirect_urls" in waiter.meta:
        size += _texts(waiter.meta["redirect_urls"])
    return size


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
    return size if seed.moved is None else size + _moved_bytes(seed.moved)


def _moved_bytes(moved: Moved) -> int:
    return _SEED_BYTES // 4 + len(moved.url) + _texts(moved.redirect_urls) + _texts(moved.retry_reasons)


def _texts(texts: tuple[str, ...] | list[str]) -> int:
    return sum(_TEXT_BYTES + len(text) for text in texts)


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
