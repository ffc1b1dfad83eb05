"""Sends dead letters to the topics they came from, byte by byte as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from site_spider.contracts.seed_log import Message, Producer
from site_spider.errors import SinkRejected

TRUNCATED = "truncated_from_bytes"  # the header of a dead letter that does not hold the whole message


class PuttingBack:
    """Counts what went and what cannot go; `complain(message, reason)` hears of the latter."""

    def __init__(self, producer: Producer, complain: Callable[[Message, str], None]) -> None:
        self.sent = 0
        self.skipped = 0
        self._producer = producer
        self._complain = complain

    def send(self, messages: Sequence[Message]) -> None:
        """Send a batch and wait until it is durable. Raises LogUnavailable."""
        under_way = [(message, self._send(message)) for message in messages]
        for message, future in under_way:
            try:
                if future is not None:
                    future.result()
                    self.sent += 1
            except SinkRejected as error:
                self._skip(message, str(error))

    def _send(self, message: Message) -> Future[None] | None:
        headers = dict(message.headers)
        origin = headers.get("origin_topic", b"").decode("utf-8", "replace")
        if not origin:
            self._skip(message, "it has no header origin_topic")
            return None
        if TRUNCATED in headers:
            self._skip(message, "it holds the beginning of its message only; the whole is where it came from")
            return None
        return self._producer.send(origin, message.key, message.value)

    def _skip(self, message: Message, reason: str) -> None:
        self.skipped += 1
        self._complain(message, reason)
