"""Certificates and keys of SITE_KAFKA_OPTIONS that are replaced while the process runs.

The client library reads them when a client is made, and never again (librdkafka 2.16). So what keeps a client
for long asks here whether to make another. The answer is yes only when the servers answer a client that has
read the new files: half of a pair, or an authority that the servers do not use yet, ends no connection.
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaException

from site_spider import runtime
from site_spider.adapters.kafka.config import KafkaConfig
from site_spider.adapters.kafka.health import TopicQuestion
from site_spider.adapters.replaced_files import LOOK_SECONDS, ReplacedFiles
from site_spider.outage import Outage

logger = logging.getLogger(__name__)

_OPTIONS = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
)
_ANSWER_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 60.0  # after new files with which nobody answered; doubled from a look to the next
_TOPIC = "site_spider"  # is asked about; there need be none


class Certificates:
    """As one client has read them. One thread at a time uses it."""

    def __init__(self, config: KafkaConfig, who: str) -> None:
        self._config = config
        self._who = who
        self._files = ReplacedFiles(config.options.get(name) for name in _OPTIONS)
        self._pause_seconds = LOOK_SECONDS
        self._try_at = 0.0
        self._refused = Outage(
            logger,
            f"New certificates of SITE_KAFKA_OPTIONS do not work yet, so {who} keeps those before",
            f"The new certificates of SITE_KAFKA_OPTIONS work for {who}",
        )

    def are_renewed(self) -> bool:
        """Whether to make another client; then they count as read. With new ones it takes up to 2 s."""
        if not self._files.is_due() or not self._files.look() or runtime.monotonic() < self._try_at:
            return False
        try:
            TopicQuestion(self._config, _TOPIC)(_ANSWER_SECONDS)
        except (KafkaException, ValueError, TypeError) as error:
            self._refused.goes_on(self._config.refused(error))
            self._try_at = runtime.monotonic() + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
            return False
        self._pause_seconds = LOOK_SECONDS
        self._files.use()
        self._refused.is_over()
        logger.info("New certificates of SITE_KAFKA_OPTIONS: %s begins to use them.", self._who)
        return True
