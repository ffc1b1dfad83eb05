"""Messages by partition."""

from __future__ import annotations

from collections import defaultdict

from site_spider.contracts.seed_log import Message, Partition


def by_partition(messages: list[Message]) -> dict[Partition, list[Message]]:
    parts = defaultdict(list)
    for message in messages:
        parts[message.partition].append(message)
    return parts
