"""Reads back what the crawl has stored: results and items, each with its key, as often as they are there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from site_spider.contracts.sink import ResultReader
from site_spider.errors import TopicMissing
from site_spider.service import config as parts
from tools.deployment.deployment import Deployment


class Stored(NamedTuple):
    """One document and its key."""

    key: str
    document: dict[str, Any]


class StoreOutlet:
    """A store that has one document under a key."""

    is_once = True

    def __init__(self, deployment: Deployment) -> None:
        self._settings = deployment.scrapy_settings

    def results(self) -> Iterator[Stored]:
        """One after the other: there may be more than fit into memory."""
        for document in self._all(parts.reader(self._settings)):
            yield Stored(str(document.get("url_id")), document)

    def items(self) -> Iterator[Stored]:
        """Likewise."""
        for document in self._all(parts.reader(self._settings, of_items=True)):
            yield Stored(str(document.get("_id")), document)

    def _all(self, reader: ResultReader) -> Iterator[dict[str, Any]]:
        try:
            yield from reader.search(limit=None)
        finally:
            reader.close()


class TopicOutlet:
    """Topics of Kafka, as a reader of committed messages sees them."""

    def __init__(self, deployment: Deployment, *, is_once: bool) -> None:
        self.is_once = is_once
        self._deployment = deployment

    def results(self) -> Iterator[Stored]:
        """As above."""
        return self._all("SITE_RESULTS_TOPIC")

    def items(self) -> Iterator[Stored]:
        """As above."""
        return self._all("SITE_ITEMS_TOPIC")

    def _all(self, setting: str) -> Iterator[Stored]:
        try:
            for message in self._deployment.log.read(self._deployment.settings[setting]):
                yield Stored((message.key or b"").decode(), json.loads(message.value or b"{}"))
        except TopicMissing:
            return


Outlet = StoreOutlet | TopicOutlet
