"""Messages of a Kafka client in our form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from confluent_kafka import KafkaError
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


def before_ends(batch: Iterable[RawMessage], ends: dict[Partition, int]) -> Iterator[Message]:
    """What lies before the ends; removes the partitions that are read to their end."""
    for raw in batch:
        error = raw.error()
        if error and error.code() != KafkaError._PARTITION_EOF:
            continue  # the client goes on by itself; should it not, there will be silence
        partition, offset = Partition(str(raw.topic()), raw.partition() or 0), raw.offset() or 0
        end = ends.get(partition, 0)
        if offset < end and not error:
            yield to_message(raw)
        if error or offset + 1 >= end:  # the last offsets may hold no messages, so the end counts too
            ends.pop(partition, None)


def _bytes(header: str | bytes | None) -> bytes:
    return header.encode() if isinstance(header, str) else header or b""
