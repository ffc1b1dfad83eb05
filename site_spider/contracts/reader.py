"""The contract of reading results and items back from a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, Protocol, Self

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

    def search(
        self,
        status: StatusFilter = None,
        task_id: str | None = None,
        limit: int | None = 1000,
        fields: Fields = ANY,
    ) -> Iterator[dict[str, Any]]:
        """At most `limit` documents (None: all), in no order to rely on; those just written included."""

    def count(self, status: StatusFilter = None, task_id: str | None = None, fields: Fields = ANY) -> int:
        """How many documents `search` would find without a limit."""

    def close(self) -> None:
        """Release the connection."""
