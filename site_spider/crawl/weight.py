"""About what something takes in memory while it waits; measured by tests/benchmarks/frontier_memory.py."""

from __future__ import annotations

from scrapy import Request

from site_spider.crawl.waiting_link import WaitingLink

# Besides the texts; the place in the frontier included.
_LINK_BYTES = 330
_REQUEST_BYTES = 1_850
_HEADER_BYTES = 250


def size_bytes(waiter: Request | WaitingLink) -> int:
    """Its weight, as long as nothing of it is changed."""
    if isinstance(waiter, WaitingLink):
        return _LINK_BYTES + len(waiter.url)
    size = _REQUEST_BYTES + 2 * len(waiter.url) + len(waiter.body)
    for name in waiter.headers:
        size += _HEADER_BYTES + sum(map(len, waiter.headers.getlist(name)))
    return size
