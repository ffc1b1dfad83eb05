"""The contract of a store of statistics, which everything that SITE_STATS_TO may name fulfils.

It is that of a sink (contracts.sink), made by another class method. So a sink with that method is a store of
statistics, too. The statistics of a crawl call it, with retries, pauses and a bounded backlog: a store
only knows how to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

from site_spider.contracts.sink import Record, Verdict


class StatisticsStore(Protocol):
    """Takes statistics documents. Its methods never block the event loop.

    A record's `key` is the document's id. Writing a record twice leaves one document. docs/observability.md
    has the fields of a document; others may be added. That a store is away never slows the crawl.
    """

    name: str

    @classmethod
    def for_statistics(cls, settings: Any) -> Self:
        """Build from Scrapy settings, without connecting. Raises ConfigError."""

    async def open(self) -> None:
        """Connect and create what is missing. Raises SinkUnavailable, naming the setting and the
        address, or ConfigError."""

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Write a batch; one verdict for each record, in order.

        Raises SinkUnavailable when the batch as a whole has to be tried again.
        """

    async def close(self) -> None:
        """Release the connection. Never raises."""
