"""The contract of a sink, which every store of results fulfils.

An adapter only knows how to write a batch to its server and to tell the answers
apart. Buffering, flushing by size, count and age, retries and back-off are done once,
for all of them, by the delivery.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, Self

Kind = Literal["result", "item"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer as they were on the wire, for archives."""

    url: str  # of this request: each redirect is an exchange of its own
    request: bytes
    head: bytes  # of the answer: status line, header lines and the empty line
    body: bytes  # without its transfer coding, and with its content coding
    began: float  # seconds since 1970
    address: str | None = None  # of the server
    is_cut: bool = False  # the connection ended before the body did

    @property
    def status(self) -> int:
        """Also of an answer that gives no reason behind it."""
        return int(self.head.split(None, 2)[1])

    @property
    def size_bytes(self) -> int:
        """What it holds in memory."""
        return len(self.request) + len(self.head) + len(self.body)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Record:
    """One document on its way to a sink, stored under `key` (a result's url_id)."""

    key: str
    document: Mapping[str, Any]
    size_bytes: int  # about what the document weighs on the wire
    kind: Kind = "result"  # a page's own document, or an item that a spider extracted
    exchanges: Sequence[Exchange] = ()  # that led to a result, in their order; kept with the sink warc only
    is_gone: bool = False  # the page is, and its document is to be deleted where a store can do that
    names: Collection[str] = ()  # of the fields that a result may have, as they are written; none: all as they are


class Answer(Enum):
    """What a server said to one record."""

    ACKNOWLEDGED = "acknowledged"  # stored, durably
    RETRY = "retried"  # not now (overload, say); the same record may pass later
    REJECTED = "rejected"  # never: refused for the record's own sake


class Verdict(NamedTuple):
    """The answer to one record, with the server's reason unless acknowledged."""

    answer: Answer
    reason: str = ""


ACKNOWLEDGED = Verdict(Answer.ACKNOWLEDGED)


class DocumentStore(Protocol):
    """Takes documents. Its methods never block the event loop.

    Writing a record twice leaves the same document (rule 4). A method `async check()` may say in a few words
    what `open` would find, changing nothing; it raises what `open` does.
    """

    name: str

    async def open(self) -> None:
        """Connect and create what is missing (index, table). Raises SinkUnavailable, naming
        the setting and the address, or ConfigError."""

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Write a batch; one verdict for each record, in order.

        Raises SinkUnavailable when the batch as a whole has to be tried again.
        """

    async def close(self) -> None:
        """Release the connection. Never raises."""


class Sink(DocumentStore, Protocol):
    """A store of results. Fields that somebody else put into a document survive (partial update with upsert).

    A class that takes the items of spiders, too, has a class method `for_items` beside `from_settings`; the
    sink that it builds replaces a whole document.
    """

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """Build from Scrapy settings, without connecting. Raises ConfigError."""


class StatisticsStore(DocumentStore, Protocol):
    """A store of statistics documents, which everything that SITE_STATS_TO may name fulfils.

    A sink with its class method is one, too. A record's `key` is the document's id. docs/observability.md
    has the fields of a document; others may be added. The statistics of a crawl call it, with retries, pauses
    and a bounded backlog: that a store is away never slows the crawl.
    """

    @classmethod
    def for_statistics(cls, settings: Any) -> Self:
        """Build from Scrapy settings, without connecting. Raises ConfigError."""


# --- reader: the contract of reading results and items back from a store ---------------------------------

StatusFilter = int | Literal["none", "failed"] | None
"""An HTTP status, or "none" (same as "failed") for results without an answer; None: any."""

Fields = Mapping[str, str]
"""What a document's page must have: `spider`, `host` or `url`."""

ANY: Fields = MappingProxyType({})


class ResultReader(Protocol):
    """Reads from a store of results, or of items. Its methods may block.

    Documents come back as they were written, with their key as `url_id` if they have
    no such field of their own; items with their key as `_id`. All methods raise
    SinkUnavailable, which names the setting and the address. A store that does not exist yet is an empty one.
    """

    address: str  # what a person would recognise: URLs, or the file's path

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """Build from Scrapy settings, without connecting. Raises ConfigError."""

    @classmethod
    def for_items(cls, settings: Any) -> Self:
        """The same for items. Raises ConfigError."""

    def get(self, url_id: str) -> dict[str, Any] | None:
        """One document."""

    def known(self, url_ids: Sequence[str], fields: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """By url_id, at least these fields of the documents that there are, in one question."""

    def search(
        self, status: StatusFilter = None, fields: Fields = ANY, *, limit: int | None = 1000,
        before: Fields = ANY, names: Sequence[str] = (),
    ) -> Generator[dict[str, Any]]:  # fmt: skip
        """At most `limit` documents (None: all), in no order to rely on; those just written included.

        `before`: times that these fields must not exceed. `names`: at least these come back; empty: all."""

    def count(self, status: StatusFilter = None, fields: Fields = ANY) -> int:
        """How many documents `search` would find without a limit."""

    def exchange(self, name: str, changes: Mapping[str, tuple[str | None, str]]) -> set[str]:
        """Set a text field of documents, by url_id, where it still is the first of the two values (None: it
        has none). Durable; returns the url_ids of those. Only for results."""

    def close(self) -> None:
        """Release the connection."""
