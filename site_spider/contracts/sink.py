"""The contract of a sink, which every store of results fulfils.

An adapter only knows how to write a batch to its server and to tell the answers
apart. Buffering, flushing by size, count and age, retries and back-off are done once,
for all of them, by the delivery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol, Self

Kind = Literal["result", "item"]


@dataclass(frozen=True, slots=True)
class Record:
    """One document on its way to a sink, stored under `key` (a result's url_id)."""

    key: str
    document: Mapping[str, Any]
    size_bytes: int  # about what the document weighs on the wire
    kind: Kind = "result"  # a page's own document, or an item that a spider extracted


class Answer(Enum):
    """What a server said to one record."""

    ACKNOWLEDGED = "acknowledged"  # stored, durably
    RETRY = "retry"  # not now (overload, say); the same record may pass later
    REJECTED = "rejected"  # never: refused for the record's own sake


class Verdict(NamedTuple):
    """The answer to one record, with the server's reason unless acknowledged."""

    answer: Answer
    reason: str = ""


ACKNOWLEDGED = Verdict(Answer.ACKNOWLEDGED)


class Sink(Protocol):
    """A store of documents. Its methods never block the event loop.

    Writing a record twice leaves the same document (rule 4), and fields that somebody
    else put into a document survive (partial update with upsert).

    `from_settings` builds the sink of results. A class that takes the items of spiders, too, has a class
    method `for_items` beside it; the sink that it builds replaces a whole document. A method `async check()`
    may say in a few words what `open` would find, changing nothing; it raises what `open` does.
    """

    name: str

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """Build from Scrapy settings, without connecting. Raises ConfigError."""

    async def open(self) -> None:
        """Connect and create what is missing (index, table). Raises SinkUnavailable, naming
        the setting and the address, or ConfigError."""

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Write a batch; one verdict for each record, in order.

        Raises SinkUnavailable when the batch as a whole has to be tried again.
        """

    async def close(self) -> None:
        """Release the connection. Never raises."""
