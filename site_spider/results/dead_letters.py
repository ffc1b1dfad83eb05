"""Writes dead letters, with reason and origin."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC
from functools import partial

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
_TRUNCATED = "truncated_from_bytes"
_TRUNCATED_KEY = "truncated_key_from_bytes"
_MARKS = (_TRUNCATED, _TRUNCATED_KEY)


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

    def set_aside(self, message: Message, reason: str, entry: SeedInFlight) -> None:
        """Queue a dead letter; when it is durable, one hold of the seed is given back."""
        where = f"{message.partition} offset {message.offset}"
        logger.warning("Dead letter from %s: %s", where, reason)
        self.under_way += 1
        self._completion.tell("leaves", entry)
        self._send(message, headers_of(message, reason), entry)

    def give_up(self, entry: SeedInFlight, reason: str) -> None:
        """Nothing can be written for one of its jobs: the seed becomes a dead letter, once.

        When all else of its tree has ended: should its partition leave before, its next owner does it again.
        """
        if not entry.is_set_aside:
            entry.is_set_aside = True
            self._completion.at_last(entry, partial(self.set_aside, entry.message, reason, entry))

    def _send(self, message: Message, headers: list[tuple[str, bytes]], entry: SeedInFlight) -> None:
        sent = self._producer.send(self._topic, message.key, message.value, headers)
        self._background.when_done(sent, self._sent, message, headers, entry)

    def _sent(
        self, future: Future[MessagePlace], message: Message, headers: list[tuple[str, bytes]], entry: SeedInFlight
    ) -> None:
        error = future.exception()
        if error is None:
            self._away.is_over()
            self.under_way -= 1
            self._completion.end_as(entry, Outcome.DEAD_LETTER)
        elif isinstance(error, SinkRejected) and (shorter := _shortened(message)) is not None:
            self._send(shorter, _marked(headers, message, shorter), entry)
        else:
            self._away.goes_on(error)
            if isinstance(error, SinkRejected):  # whatever is cut off, so its size is not why
                message, headers = entry.message, [one for one in headers if one[0] not in _MARKS]
            again = self._background.guarded(self._send)
            self._loop.call_later(_RETRY_SECONDS, again, message, headers, entry)


def _shortened(message: Message) -> Message | None:
    """The beginning of what the log refuses; None when there is nothing left to cut off."""
    key, value = message.key or b"", message.value or b""
    for most in _KEPT_BYTES:
        if max(len(key), len(value)) > most:
            return replace(message, key=message.key and key[:most], value=message.value and value[:most])
    return None


def _marked(headers: list[tuple[str, bytes]], message: Message, shorter: Message) -> list[tuple[str, bytes]]:
    """With how long value and key were, said when each is cut for the first time."""
    marks = {_TRUNCATED: message.value}
    if shorter.key != message.key:
        marks[_TRUNCATED_KEY] = message.key
    said = {name for name, _ in headers}
    new = [(name, b"%d" % len(was or b"")) for name, was in marks.items() if name not in said]
    return [*headers, *new]


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
