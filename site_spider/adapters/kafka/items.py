"""Items of transactions as Kafka messages, and their delivery reports."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError

from site_spider import runtime
from site_spider.errors import SinkRejected
from site_spider.results.delivery import LogLimit
from site_spider.results.document import encode, shortened
from site_spider.results.held import Item, Link

logger = logging.getLogger(__name__)

_LINES, _LINES_SECONDS = 5, 60.0  # so many in that time
REFUSED = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError._BAD_MSG,
})  # fmt: skip


class Topics(NamedTuple):
    """Where items go: results, and links as seeds; and what spiders extracted."""

    results: str
    seeds: str
    items: str = ""

    def of(self, item: Item) -> str:
        """Where this one goes."""
        if isinstance(item, Link):
            return self.seeds
        return self.results if item.kind == "result" else self.items


class TransactionAttempt:
    """What became of the messages of one transaction, by number."""

    def __init__(self) -> None:
        self.began = self.heard = runtime.monotonic()
        self.unanswered: set[int] = set()
        self.failed: dict[int, KafkaError] = {}

    def report(self, number: int, error: KafkaError | None, _message: object) -> None:
        """A message was delivered, or not; as a client calls it."""
        self.heard = runtime.monotonic()
        self.unanswered.discard(number)
        if error is not None:
            self.failed[number] = error


def values_of(items: Sequence[Item]) -> tuple[list[bytes], dict[int, str]]:
    """The items as messages, and those that cannot be any, with the reason."""
    values: list[bytes] = []
    refused: dict[int, str] = {}
    for number, item in enumerate(items):
        try:
            values.append(item.value if isinstance(item, Link) else encode(item.document))
        except SinkRejected as error:
            values.append(b"")
            refused[number] = str(error)
    return values, refused


class CutBodies:
    """Says of which documents the body was cut, because their topic takes no larger message."""

    def __init__(self) -> None:
        self._limit = LogLimit(_LINES, _LINES_SECONDS)

    def say(self, topic: str, key: str) -> None:
        """One was cut."""
        if self._limit.admit(runtime.monotonic()):
            logger.warning(
                "The body of %s is cut, and has body_truncated: topic %s takes no larger message "
                "(max.message.bytes). Bodies cut before without a line: %d",
                key, topic, self._limit.take_held_back(),
            )  # fmt: skip


def shorter(item: Item, halvings: int, error: KafkaError) -> bytes | None:
    """The message with its body halved so often; None when that does not help or nothing is left."""
    if isinstance(item, Link) or error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
        return None
    document = None if item.kind == "item" else shortened(item.document, halvings)
    return None if document is None else encode(document)
