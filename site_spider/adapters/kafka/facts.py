"""What Kafka knows of a topic and a group: members, retention, times of messages."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined] # not in its stubs

from site_spider import runtime
from site_spider.adapters.kafka.config import KafkaConfig
from site_spider.adapters.kafka.group_assignment import members_of
from site_spider.contracts.seed_log import LogFacts, Partition

_ANSWER_SECONDS = 5.0
_READ_SECONDS = 3.0  # for the messages of all partitions


def facts(
    admin: AdminClient, config: KafkaConfig, topic: str, group: str, offsets: Mapping[Partition, int]
) -> LogFacts:
    """As SeedLog.facts. A right that is missing leaves one of them unknown."""
    return LogFacts(
        _members(admin, config, group), _retention_seconds(admin, topic), _written_at(config, offsets)
    )


def _members(admin: AdminClient, config: KafkaConfig, group: str) -> int | None:
    found = members_of(admin, group, _ANSWER_SECONDS) if config.group_protocol == "classic" else None
    return None if found is None else len(found)


def _retention_seconds(admin: AdminClient, topic: str) -> float | None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        (answer,) = admin.describe_configs([resource], request_timeout=_ANSWER_SECONDS).values()
        milliseconds = int(answer.result()["retention.ms"].value)
    except (KafkaException, KeyError, ValueError, TypeError):
        return None
    return milliseconds / 1000 if milliseconds >= 0 else None


def _written_at(config: KafkaConfig, offsets: Mapping[Partition, int]) -> dict[Partition, float]:
    """Of those that answer in time."""
    found: dict[Partition, float] = {}
    if not offsets:
        return found
    client = Consumer(config.reader(f"site_spider-facts-{runtime.uuid4().hex}", lambda _error: None))
    deadline = runtime.monotonic() + _READ_SECONDS
    try:
        client.assign([TopicPartition(*partition, offset) for partition, offset in offsets.items()])
        while len(found) < len(offsets) and runtime.monotonic() < deadline:
            for raw in client.consume(len(offsets), 0.1):
                partition = Partition(str(raw.topic()), raw.partition() or 0)
                if raw.error() or (raw.offset() or 0) < offsets[partition]:
                    continue  # the offset lies beyond the end, and the client has begun anew
                if partition not in found:
                    found[partition] = raw.timestamp()[1] / 1000
                    client.pause([TopicPartition(*partition)])
    except KafkaException:
        pass  # what is known by now is better than nothing
    finally:
        client.close()
    return found
