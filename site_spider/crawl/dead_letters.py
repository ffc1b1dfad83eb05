"""Sets messages aside in the dead-letter topic, with the reason and where they came from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime

from site_spider.core.escape import escaped
from site_spider.core.ledger import Entry
from site_spider.core.seed_log import Message, Producer
from site_spider.errors import SinkRejected

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
_KEPT_BYTES = 100_000  # of the value of a message that the log refuses as a whole
_KEPT_KEY_BYTES = 1_000  # of its key
_REASON_CHARACTERS = 1_000


class DeadLetters:
    """Sends dead letters and tells when each is durable. On the event loop's thread only."""

    def __init__(self, producer: Producer, topic: str, durable: Callable[[Entry], None]) -> None:
        self._producer = producer
        self._topic = topic
        self._durable = durable
        self._loop = asyncio.get_running_loop()
        self.under_way = 0

    def set_aside(self, message: Message, reason: str, entry: Entry) -> None:
        """Queue a dead letter; when it is durable, `durable(entry)` is called."""
        where = f"{message.partition.topic}/{message.partition.number} offset {message.offset}"
        logger.warning("Dead letter from %s: %s", where, reason)
        self.under_way += 1
        self._send(message, _headers(message, reason), entry)

    def _send(self, message: Message, headers: list[tuple[str, bytes]], entry: Entry) -> None:
        future = self._producer.send(self._topic, message.key, message.value, headers)

        def done(future: Future[None]) -> None:
            self._loop.call_soon_threadsafe(self._sent, future, message, headers, entry)

        future.add_done_callback(done)

    def _sent(
        self, future: Future[None], message: Message, headers: list[tuple[str, bytes]], entry: Entry
    ) -> None:
        error = future.exception()
        if error is None:
            self.under_way -= 1
            self._durable(entry)
        elif isinstance(error, SinkRejected) and _is_large(message):
            # original bytes plus headers pass the broker's limit: keep the beginning, say so,
            # and leave the whole at the offset that the headers name
            cut, marks = _cut(message)
            self._send(cut, [*headers, *marks], entry)
        else:
            logger.error("A dead letter could not be written, trying again: %s", error)
            self._loop.call_later(_RETRY_SECONDS, self._send, message, headers, entry)


def _is_large(message: Message) -> bool:
    return len(message.value or b"") > _KEPT_BYTES or len(message.key or b"") > _KEPT_KEY_BYTES


def _cut(message: Message) -> tuple[Message, list[tuple[str, bytes]]]:
    """The beginning of a message, and headers that say how long it was."""
    key, value = message.key, message.value or b""
    marks = [("truncated_from_bytes", str(len(value)).encode())]
    if key is not None and len(key) > _KEPT_KEY_BYTES:
        marks.append(("truncated_key_from_bytes", str(len(key)).encode()))
        key = key[:_KEPT_KEY_BYTES]
    return Message(message.partition, message.offset, key, value[:_KEPT_BYTES]), marks


def _headers(message: Message, reason: str) -> list[tuple[str, bytes]]:
    origin = message.partition
    values = {
        "error": escaped(reason[:_REASON_CHARACTERS])[:_REASON_CHARACTERS],
        "origin_topic": origin.topic,
        "origin_partition": str(origin.number),
        "origin_offset": str(message.offset),
        "failed_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    return [(name, value.encode("utf-8", "backslashreplace")) for name, value in values.items()]
