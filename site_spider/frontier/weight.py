"""Estimates the memory of a waiting request; tests/frontier/test_weight.py measures it.

Besides the texts, the numbers are those of tools/measure/frontier_memory.py.
"""

from __future__ import annotations

from scrapy import Request

from site_spider.frontier.waiting_link import WaitingLink
from site_spider.seed.seed import TEXT_BYTES, text_bytes

_LINK_BYTES = 330  # with its place in the frontier
_REQUEST_BYTES = 1_850  # likewise
_HEADER_BYTES = 250


def size_bytes(waiter: Request | WaitingLink) -> int:
    """Its weight, as long as nothing of it is changed."""
    if isinstance(waiter, WaitingLink):
        return _LINK_BYTES + len(waiter.url)
    size = _REQUEST_BYTES + 2 * len(waiter.url) + len(waiter.body)
    for name in waiter.headers:
        values = waiter.headers.getlist(name)
        size += _HEADER_BYTES + TEXT_BYTES * len(values) + sum(map(len, values))
    if "redirect_urls" in waiter.meta:
        size += text_bytes(waiter.meta["redirect_urls"])
    return size
