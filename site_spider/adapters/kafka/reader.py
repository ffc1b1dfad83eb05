"""Reads a Kafka topic from its beginning on, without a group, and follows it."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as RawMessage

from site_spider import runtime
from site_spider.adapters.kafka.client import Certificates, KafkaConfig
from site_spider.contracts.seed_log import Message, Partition, TopicReader
from site_spider.errors import LogUnavailable

# --- messages --------------------------------------------------------------------------------------------
# Messages of a Kafka client in our form.


def to_message(raw: RawMessage) -> Message:
    """Our form of a client's message that is not an error."""
    topic, number, offset = raw.topic(), raw.partition(), raw.offset()
    assert topic is not None
    assert number is not None
    assert offset is not None
    headers = tuple(
        (str(name), value.encode() if isinstance(value, str) else value or b"")
        for name, value in list(raw.headers() or ())
    )
    timestamp_ms = max(raw.timestamp()[1], 0)  # negative when there is none
    return Message(Partition(topic, number), offset, raw.key(), raw.value(), headers, timestamp_ms)


_ANSWER_SECONDS = 10.0
_BATCH = 500
_ASK_SECONDS = 1.0  # between two questions whether there is such a topic


class KafkaTopicReader(TopicReader):
    """Partitions that are added later are not read.

    With `starts` and `ends` it reads these partitions alone, from these offsets on.
    """

    def __init__(
        self,
        config: KafkaConfig,
        topic: str,
        starts: Mapping[int, int] | None = None,
        ends: Mapping[int, int] | None = None,
    ) -> None:
        self._address = config.brokers
        self._topic = topic
        self.trouble = ""  # the client's last words
        self._config = config
        self._certificates = Certificates(config, f"the reader of {topic}")
        self._client = self._new_client()
        self._ends: dict[int, int] | None = None  # those not reached; None: there is no such topic yet
        self._next: dict[int, int] = {}  # positions of partitions
        self._ask_at = 0.0
        if starts is None or ends is None:
            self._begin()
        else:
            self._assign(starts, ends)

    @property
    def is_at_end(self) -> bool:
        return not self._ends

    def mark_end(self) -> None:
        if self._ends is None:
            self._begin()
            return
        try:
            parts = self._client.assignment()
            bounds = {
                part.partition: self._client.get_watermark_offsets(part, timeout=_ANSWER_SECONDS)
                for part in parts
            }
        except KafkaException as error:
            raise self._unavailable(error) from error
        self._ends = {
            number: high
            for number, (low, high) in bounds.items()
            if high > max(low, self._next.get(number, 0))
        }

    def poll(self, timeout_seconds: float) -> list[Message]:
        if self._certificates.are_renewed():
            self._renew()
        if self._ends is None:
            self._client.poll(timeout_seconds)  # waits, and lets the client say what is wrong
            if runtime.monotonic() >= self._ask_at:
                self._begin()
        if self._ends is None:
            return []
        first = self._client.poll(timeout_seconds)
        if first is None:
            return []
        return [message for raw in (first, *self._client.consume(_BATCH, 0)) if (message := self._taken(raw))]

    def close(self) -> None:
        self._client.close()

    def _new_client(self) -> Consumer:
        group = f"site_spider-read-{runtime.uuid4().hex}"
        return Consumer(self._config.reader(group, self._note_trouble))

    def _renew(self) -> None:
        self._client.close()
        self._client = self._new_client()
        self._client.assign([TopicPartition(self._topic, *position) for position in self._next.items()])

    def _begin(self) -> None:
        self._ask_at = runtime.monotonic() + _ASK_SECONDS
        try:
            found = self._client.list_topics(self._topic, timeout=_ANSWER_SECONDS).topics[self._topic]
            if found.error is not None or not found.partitions:
                return
            parts = [TopicPartition(self._topic, number, 0) for number in found.partitions]
            bounds = [self._client.get_watermark_offsets(part, timeout=_ANSWER_SECONDS) for part in parts]
        except KafkaException as error:
            raise self._unavailable(error) from error
        lows, highs = (
            {part.partition: bound[n] for part, bound in zip(parts, bounds, strict=True)} for n in (0, 1)
        )
        self._assign(lows, highs)

    def _assign(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
        self._ends = {number: end for number, end in ends.items() if end > starts[number]}
        self._next = dict(starts)
        self._client.assign([TopicPartition(self._topic, *start) for start in starts.items()])

    def _taken(self, raw: RawMessage) -> Message | None:
        error = raw.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            return None  # the client goes on by itself
        number, offset = raw.partition() or 0, raw.offset() or 0
        assert self._ends is not None
        # the last offsets may hold no messages, so the end counts too
        self._next[number] = offset if error is not None else offset + 1
        if self._next[number] >= self._ends.get(number, 0):
            self._ends.pop(number, None)
        return to_message(raw) if error is None else None

    def _unavailable(self, error: KafkaException) -> LogUnavailable:
        why = self.trouble or error.args[0].str()
        return LogUnavailable(f"Kafka at {self._address} (SITE_KAFKA_BROKERS) did not answer: {why}.")

    def _note_trouble(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.trouble = error.str()
