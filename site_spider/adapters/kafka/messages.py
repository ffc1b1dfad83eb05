"""Messages of a Kafka client in our form."""

from __future__ import annotations

from confluent_kafka import Message as RawMessage

from site_spider.contracts.seed_log import Message, Partition


def to_message(raw: RawMessage) -> Message:
    """Our form of a client's message that is not an error."""
    topic, number, offset = raw.topic(), raw.partition(), raw.offset()
    assert topic is not None
    assert number is not None
    assert offset is not None
    headers = tuple((str(name), _bytes(value)) for name, value in list(raw.headers() or ()))
    timestamp_ms = max(raw.timestamp()[1], 0)  # negative when there is none
    return Message(Partition(topic, number), offset, raw.key(), raw.value(), headers, timestamp_ms)


def _bytes(header: str | bytes | None) -> bytes:
    return header.encode() if isinstance(header, str) else header or b""
