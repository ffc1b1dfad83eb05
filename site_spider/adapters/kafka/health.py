"""Logs once when the brokers stop answering, and once when they answer again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from site_spider import runtime
from site_spider.adapters.kafka.config import KafkaConfig

logger = logging.getLogger(__name__)

_PROBE_INTERVAL_SECONDS = 2.0
_PROBE_TIMEOUT_SECONDS = 1.0
_SUSPICIOUS = frozenset({
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._AUTHENTICATION,
    KafkaError._RESOLVE,
    KafkaError._SSL,
})  # fmt: skip
_DETAILED = _SUSPICIOUS | {KafkaError._TRANSPORT}


def is_fatal(error: KafkaError) -> bool:
    """Whether the client that reports this is of no more use."""
    return error.fatal() or error.code() == KafkaError._FATAL  # as a message, it comes without the flag


class TopicQuestion:
    """Asks about a topic, by a client of its own.

    `list_topics` of a member, called within a rebalance, makes the next callback of that rebalance abort the
    process (measured with confluent-kafka 2.16).
    """

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._config = config
        self._topic = topic
        self._client: AdminClient | None = None

    def __call__(self, timeout_seconds: float) -> object:
        """Raises KafkaException when no server answers in time."""
        if self._client is None:
            self._client = AdminClient(self._config.admin(lambda _error: None))
        return self._client.list_topics(self._topic, timeout=timeout_seconds)

    def forget(self) -> None:
        """Have a new client for the next question."""
        self._client = None


class BrokerHealth:
    """Follows one client's connection.

    The client reports broken connections also when a server merely closed an idle one, and never
    reports that it connected again; so a report only raises suspicion, and a question decides.
    `question` asks the servers something within the seconds it is given, or raises KafkaException.
    One thread calls `look` and `answers`; the client's own threads call `on_error`. `who` is
    whose connection it is, since a process has several.
    """

    def __init__(
        self, brokers: str, who: str, question: Callable[[float], object], level: int = logging.WARNING
    ) -> None:
        self._level = level  # of the line that says that they are away
        self.away = False
        self.detail = ""  # the client's last words about a connection
        self._where = f"Kafka at {brokers} (SITE_KAFKA_BROKERS)"
        self._who = who
        self._question = question
        self._suspected = False
        self._next_probe = 0.0

    def on_error(self, error: KafkaError) -> None:
        """The client's `error_cb`."""
        if error.code() in _DETAILED:
            if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.detail:
                self.detail = error.str()
            self._suspected = self._suspected or error.code() in _SUSPICIOUS
        elif not is_fatal(error):  # a fatal one is raised where the client is used
            logger.warning("%s, %s: %s", self._where, self._who, error.str())

    @property
    def suspected(self) -> bool:
        """Whether the servers may be away; `look` finds out."""
        return self._suspected or self.away

    def look(self) -> None:
        """Ask the servers when they are suspected and have not been asked for a while."""
        if self.suspected and runtime.monotonic() >= self._next_probe:
            self.answers()

    def answers(self) -> bool:
        """Whether the servers answer now; takes a second when they do not."""
        self._suspected = False  # what is reported from here on is newer than the answer
        try:
            self._question(_PROBE_TIMEOUT_SECONDS)
        except KafkaException as error:
            self.detail = self.detail or str(error)
            self._went_away()
            return False
        finally:
            self._next_probe = runtime.monotonic() + _PROBE_INTERVAL_SECONDS
        self._came_back()
        return True

    def _went_away(self) -> None:
        if not self.away:
            logger.log(
                self._level,
                "%s does not answer %s, which tries until it does: %s",
                self._where,
                self._who,
                self.detail,
            )
        self.away = True

    def _came_back(self) -> None:
        if self.away:
            logger.info("%s answers %s again.", self._where, self._who)
        self.away = False
        self.detail = ""
