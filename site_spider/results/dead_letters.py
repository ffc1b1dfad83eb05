"""Writes dead letters, with reason and origin."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from datetime import UTC
from functools import partial
from sys import maxsize

from site_spider import runtime
from site_spider.contracts.seed_log import Message, MessagePlace, Producer
from site_spider.engine.background import Background
from site_spider.errors import SinkRejected
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Outcome, SeedInFlight
from site_spider.outage import Outage
from site_spider.seed.seed import FIRST_WRITTEN, first_written_ms
from site_spider.text import escaped

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
# Of value and key, when they and the headers pass the broker's limit: first so much, then so little.
# The whole is at the offset that the headers name.
_KEPT_BYTES = (100_000, 1_000)
_LONGEST_REASON = 1_000  # characters: a header counts for the limit as well


class DeadLetters:
    """Sends dead letters and tells when each is durable. On the event loop's thread only."""

    def __init__(self, producer: Producer, topic: str, completion: Completion, background: Background) -> None:
        self._background = background
        self._producer = producer
        self._topic = topic
        self._completion = completion
        self._loop = asyncio.get_running_loop()
        self.under_way = 0
        self._away = Outage(
            logger,
            f"Dead letters cannot be written to {topic}, trying again; their seeds stay in flight",
            f"Dead letters are written to {topic} again",
        )

    def set_aside(self, entry: SeedInFlight, reason: str) -> None:
        """Queue a dead letter; when it is durable, one hold of the seed is given back."""
        message = entry.message
        logger.warning("Dead letter from %s offset %d: %s", message.partition, message.offset, reason)
        self.under_way += 1
        self._completion.tell("leaves", entry)
        self._send(entry, headers_of(message, reason))

    def give_up(self, entry: SeedInFlight, reason: str) -> None:
        """Nothing can be written for one of its jobs: the seed becomes a dead letter, once.

        When all else of its tree has ended: should its partition leave before, its next owner does it again.
        """
        if not entry.is_set_aside:
            entry.is_set_aside = True
            self._completion.at_last(entry, partial(self.set_aside, entry, reason))

    def _send(self, entry: SeedInFlight, headers: list[tuple[str, bytes]], most: int = maxsize) -> None:
        """With so many bytes of value and key at most."""
        message = entry.message
        key, value = (part and part[:most] for part in (message.key, message.value))
        marks = {"truncated_from_bytes": message.value} if most < _size(message) else {}
        marks |= {"truncated_key_from_bytes": message.key} if key != message.key else {}
        lengths = [(name, b"%d" % len(whole or b"")) for name, whole in marks.items()]
        sent = self._producer.send(self._topic, key, value, [*headers, *lengths])
        self._background.when_done(sent, self._sent, entry, headers, most)

    def _sent(
        self, future: Future[MessagePlace], entry: SeedInFlight, headers: list[tuple[str, bytes]], most: int
    ) -> None:
        error = future.exception()
        less = next((size for size in _KEPT_BYTES if size < min(most, _size(entry.message))), None)
        if error is None:
            self._away.is_over()
            self.under_way -= 1
            self._completion.end_as(entry, Outcome.DEAD_LETTER)
        elif isinstance(error, SinkRejected) and less is not None:
            self._send(entry, headers, less)
        else:  # its size is not why: the whole is tried again
            self._away.goes_on(error)
            self._loop.call_later(_RETRY_SECONDS, self._background.guarded(self._send), entry, headers)


def _size(message: Message) -> int:
    """Of the longer one of key and value."""
    return max(len(message.key or b""), len(message.value or b""))


def headers_of(message: Message, reason: str) -> list[tuple[str, bytes]]:
    """Those of a dead letter: why, and from where."""
    origin = message.partition
    values = {
        "error": escaped(reason[:_LONGEST_REASON])[:_LONGEST_REASON],
        "origin_topic": origin.topic,
        "origin_partition": str(origin.number),
        "origin_offset": str(message.offset),
        "origin_timestamp": str(message.timestamp_ms),
        FIRST_WRITTEN: str(first_written_ms(message)),
        "failed_at": runtime.now(UTC).isoformat(timespec="milliseconds"),
    }
    return [(name, value.encode("utf-8", "backslashreplace")) for name, value in values.items()]
