"""What the client reports about a member's topics: said once, or the end of the crawl."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from confluent_kafka import KafkaError

from site_spider.errors import ConfigError

logger = logging.getLogger("site_spider.adapters.kafka.consumer")

_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Read and Describe on the topic {topics}",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Read and Describe on the group {group}",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "Write and Describe on transactional ids that begin with {group}"
    ),
}


class Complaints:
    """Of one member."""

    def __init__(self, group: str, topics: Sequence[str]) -> None:
        self._group = group
        self._topics = ", ".join(topics)
        self._is_one = len(topics) == 1
        self._last: int | None = None

    def over(self) -> None:
        """Messages come."""
        self._last = None

    def hear(self, error: KafkaError) -> None:
        """Say it, unless the client repeats itself. Raises ConfigError for a right that is missing."""
        self.raise_missing_right(error)
        if error.code() == self._last:
            return
        self._last = error.code()
        if error.code() not in _MISSING:
            logger.warning("Group %s on topic %s: %s", self._group, self._topics, error.str())
        elif self._is_one:
            logger.info("Topic %s does not exist yet; waiting for it.", self._topics)
        else:
            logger.info("A topic of %s does not exist yet; waiting for it: %s", self._topics, error.str())

    def raise_missing_right(self, error: KafkaError) -> None:
        """Raise ConfigError where trying again is of no use until somebody grants a right."""
        right = _RIGHTS.get(error.code())
        if right is not None:
            raise ConfigError(
                f"Kafka refuses this process: {error.str()}. Grant the user of SITE_KAFKA_OPTIONS "
                f"{right.format(topics=self._topics, group=self._group)}; docs/security.md has the commands."
            )
