"""The configuration of the Kafka clients, and the options that users must not change."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import methodcaller
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, ThrottleEvent
from confluent_kafka import Message as RawMessage
from confluent_kafka.admin import AdminClient

from site_spider import options, runtime
from site_spider.adapters.files import LOOK_SECONDS, ReplacedFiles
from site_spider.bounded import LogLimit
from site_spider.contracts.seed_log import Message, Partition
from site_spider.errors import ConfigError, LogUnavailable
from site_spider.options import SettingsView
from site_spider.outage import Outage
from site_spider.redaction import without_secrets

R = TypeVar("R")

# The client reports every failed attempt to connect, several a second; BrokerHealth says it once instead.
# CONFWARN: consumer options given to a producer and the reverse, since SITE_KAFKA_OPTIONS serves all.
# GETPID: a producer's first attempt comes before its first connection. TXNERR: what made a transaction
# fail, which the adapter deals with, or says itself. METADATAUPDATE: a starting broker names leaders early.
# PARTCNT: each second of a topic that may not be described.
_NOISE = ("FAIL ", "ERROR ", "CONFWARN ", "GETPID ", "TXNERR ", "METADATAUPDATE ", "PARTCNT ")

_ADDRESS = re.compile(r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")

_MEMBER_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_CLIENT_ID = "site_spider-"
_SESSION_SECONDS = 10.0
_MOST_HEADERS = 50  # of a message; ours are some: one of three bytes takes thirty times that here
_REST_SECONDS = 20.0  # that half of a pair is there
_SCHEMES = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # of Kafka's listeners

# option -> values that keep the promise, and why others do not
_FIXED: dict[str, tuple[tuple[str, ...], str]] = {
    "bootstrap.servers": ((), "SITE_KAFKA_BROKERS names the servers"),
    "metadata.broker.list": ((), "SITE_KAFKA_BROKERS names the servers"),
    "group.id": ((), "SITE_CONSUMER_GROUP names the group"),
    "group.instance.id": ((), "two processes with one instance id fence each other, so each makes its own"),
    "group.protocol": (("classic",), "with another one partitions of a killed process wait 45 s"),
    "partition.assignment.strategy": (("cooperative-sticky",), "partitions are handed over incrementally"),
    "enable.auto.commit": (("false",), "a seed is committed when it is complete, not when it was read"),
    "enable.auto.offset.store": (("false",), "a seed is committed when it is complete, not when it was read"),
    "auto.offset.reset": (("earliest", "smallest", "beginning"), "anything else skips seeds"),
    "enable.partition.eof": (("true",), "the end of a partition would not be noticed"),
    "transactional.id": ((), "SITE_KAFKA_EXACTLY_ONCE makes one for each process"),
    "isolation.level": (("read_committed",), "seeds of a transaction that was aborted are none"),
    "acks": (("all", "-1"), "a message must be durable before it is reported so"),
    "request.required.acks": (("all", "-1"), "a message must be durable before it is reported so"),
    "enable.idempotence": (("true",), "a resend would store a message twice or out of order"),
}


def _without_noise(record: logging.LogRecord) -> bool:
    message = record.getMessage()  # a right that is missing is raised, with who has to get it
    return not message.startswith(_NOISE) and "authorization failed" not in message


def _client_logger() -> logging.Logger:
    logger = logging.getLogger("site_spider.adapters.kafka.seed_log.client")
    logger.addFilter(_without_noise)  # adding the same filter again changes nothing
    return logger


@dataclass(frozen=True)
class KafkaConfig:
    """Settings of all Kafka clients: `brokers` is `host:port,...`, `options` go to the client as they are."""

    brokers: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # with passwords
    member_name: str = ""  # of this container in the group; empty: the slot's own
    _was_taken: set[bool] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        return cls(
            brokers=_checked_brokers(options.text(settings, "SITE_KAFKA_BROKERS", required=True)),
            options=_checked_options(options.mapping(settings, "SITE_KAFKA_OPTIONS")),
            member_name=_checked_name(options.text(settings, "SITE_MEMBER_NAME")),
        )

    def refused(self, error: Exception) -> ConfigError:
        said = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        files = [f"; {name} is {file}" for name, file in self.options.items() if name in _OPTIONS and name in said]
        reason = without_secrets(said, "SITE_KAFKA_OPTIONS", self.options)
        return ConfigError(f"SITE_KAFKA_OPTIONS cannot be used: {reason}{''.join(files)}.")

    def made(self, kind: Callable[[dict[str, Any]], R], config: dict[str, Any]) -> R:
        """A client. Raises ConfigError when it does not take the options.

        Files that a client has taken before are being replaced: waits for the rest. Raises LogUnavailable.
        """
        deadline = runtime.monotonic() + _REST_SECONDS
        while True:
            try:
                client = kind(config)
            except (KafkaException, ValueError, TypeError) as error:
                refused = self.refused(error)
                if not self._was_taken or not any(f"{name} failed" in str(refused) for name in _OPTIONS):
                    raise refused from None
                if runtime.monotonic() > deadline:
                    raise LogUnavailable(str(refused)) from None
            else:
                self._was_taken.add(True)
                return client
            runtime.sleep(_RETRY_SECONDS)

    @staticmethod
    def to_grant(rights: str) -> str:
        return f"Grant the user of SITE_KAFKA_OPTIONS {rights}; docs/security.md has the commands."

    @property
    def session_seconds(self) -> float:
        """How long a member is kept without a heartbeat."""
        given = self.options.get("session.timeout.ms", _SESSION_SECONDS * 1000)
        return float(given) / 1000

    @property
    def client_ids(self) -> str:
        """How those of all processes begin; empty when the options say another one, perhaps of each machine."""
        return "" if "client.id" in self.options else _CLIENT_ID

    def common(self, on_error: Callable[[Any], None]) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.brokers,
            "client.id": f"{_CLIENT_ID}{socket.gethostname()}",
            "allow.auto.create.topics": "false",  # asking about a topic must not create it
            "reconnect.backoff.ms": 250,
            "reconnect.backoff.max.ms": 2_000,  # what an outage may last longer than the server was away
            "topic.metadata.refresh.interval.ms": 5_000,  # how soon a new topic is noticed
            "metadata.max.age.ms": 15_000,
            "log.connection.close": "false",  # servers close idle connections; that is no news
            "error_cb": on_error,
            "throttle_cb": _say_throttled,
            "logger": _client_logger(),
        }

    def admin(self, on_error: Callable[[Any], None]) -> dict[str, Any]:
        """For questions about topics and groups."""
        return {**self.common(on_error), **self.options}

    def reader(self, group: str, on_error: Callable[[Any], None]) -> dict[str, Any]:
        """For a consumer that is told its partitions and belongs to no group."""
        # Some are kept open and seldom asked. A small message takes 0.5 KB besides its text.
        few = {"queued.min.messages": 10_000, "queued.max.messages.kbytes": 4_096}
        return {**self._reading(group, on_error), **few, **self.options}

    def member(self, group: str, instance: str | None, on_error: Callable[[Any], None]) -> dict[str, Any]:
        """For a member of a group; `instance` makes it a static one."""
        config = self._reading(group, on_error) | {
            "partition.assignment.strategy": "cooperative-sticky",
            # A rebalance waits until each member has heard of it by its heartbeat, and those that have
            # heard can commit nothing until it is over.
            "heartbeat.interval.ms": 500,
            "max.poll.interval.ms": 300_000,
            # A seed fetched in advance takes 0.5 KB besides its text, and is compressed to a tenth on its
            # way: with the client's own 100,000 messages and 1 MB of a partition, 600,000 were fetched.
            "queued.min.messages": 1_000,  # of a partition; below it more are fetched
            "queued.max.messages.kbytes": 4_096,
            "max.partition.fetch.bytes": 32_768,  # or one batch, however large
            "fetch.max.bytes": 1_000_000,
        }
        config |= {"group.instance.id": instance} if instance else {}
        return {**config, **self.options}

    def producer(self, on_error: Callable[[Any], None]) -> dict[str, Any]:
        """For a producer that never drops: it tries for as long as the servers are away."""
        config = self.common(on_error) | {
            "allow.auto.create.topics": "true",
            "acks": "all",
            "enable.idempotence": "true",
            "message.timeout.ms": 0,  # no limit: an outage slows, never drops
            "partitioner": "murmur2_random",  # a key finds the same partition as with Java producers
            "compression.type": "zstd",
            "linger.ms": 20,
            "message.max.bytes": 16_000_000,  # the server decides what is too large, not the client
            "batch.size": 262_144,  # bytes; a server that refuses a large batch refuses all that is in it
            "queue.buffering.max.messages": 50_000,
            "queue.buffering.max.kbytes": 65_536,
        }
        return {**config, **self.options}

    def _reading(self, group: str, on_error: Callable[[Any], None]) -> dict[str, Any]:
        return self.common(on_error) | {
            "group.id": group,
            # how long a member that closed or died keeps its partitions; max.poll.interval.ms may not be shorter
            "session.timeout.ms": int(_SESSION_SECONDS * 1000),
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": "true",
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 200,
            "fetch.queue.backoff.ms": 50,  # when the prefetch was full; after the usual 1,000 it is empty
            "queued.max.messages.kbytes": 16_384,  # prefetched, not yet handed out
            "fetch.max.bytes": 16_000_000,
        }


def _checked_name(name: str) -> str:
    if name and not _MEMBER_NAME.fullmatch(name):
        raise ConfigError(
            f"SITE_MEMBER_NAME is {name[:80]!r}; set it to at most 100 letters, digits, dots, dashes and "
            "underscores, such as the name of a pod."
        )
    return name


def _checked_brokers(text: str) -> str:
    addresses = [address.strip() for address in text.split(",")]
    for address in addresses:
        scheme = address.partition("://")[0] if "://" in address else None
        if scheme is not None and scheme.upper() not in _SCHEMES:
            raise ConfigError(
                f"SITE_KAFKA_BROKERS has an address that begins with {scheme[:20]}://, which Kafka "
                "does not speak. Write host:port alone, and set TLS and logins in SITE_KAFKA_OPTIONS."
            )
        match = _ADDRESS.fullmatch(address)
        if not match or not 0 < int(match["port"]) < 65_536:
            raise ConfigError(
                f"SITE_KAFKA_BROKERS names {address.rpartition('@')[2]!r}, which is not host:port; "
                "set it to a comma list such as kafka1:9092,kafka2:9092."
            )
    return ",".join(addresses)


def _checked_options(given: Mapping[str, Any]) -> dict[str, Any]:
    checked = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
    for name, value in checked.items():
        if not isinstance(value, str | int | float):
            raise ConfigError(f"SITE_KAFKA_OPTIONS sets {name} to what is not text, a number or a boolean.")
        allowed, reason = _FIXED.get(name, (None, ""))
        if allowed is not None and str(value).lower() not in allowed:
            raise ConfigError(
                f"SITE_KAFKA_OPTIONS sets {name} to {value!r}, which cannot be changed: {reason}. Remove it."
            )
    return checked


# --- health: logs once when the brokers stop answering, and once when they answer again ------------------

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
_REFUSALS = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})  # theirs, or ours of their certificate
# Its server may be away, which says nothing of the login, unless it answers with an error of RFC 6749.
_OAUTH_AWAY = re.compile(r"Failed to acquire SASL OAUTHBEARER token(?!.*\b(?:invalid|unauthorized)_)", re.DOTALL)
_LOGIN = "the login and the certificates of SITE_KAFKA_OPTIONS"
# The server refuses this very message, and will again.
REFUSED = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD, KafkaError._BAD_MSG,
})  # fmt: skip
MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


def is_fatal(error: KafkaError) -> bool:
    """Whether the client that reports this is of no more use."""
    return error.fatal() or error.code() == KafkaError._FATAL  # as a message, it comes without the flag


_RETRY_SECONDS = 0.1


def insisted(question: Callable[[], R], may_pass: Callable[[KafkaError], bool], seconds: float) -> R:
    """Ask again for so long while the answer is an error that may pass. Raises KafkaException."""
    deadline = runtime.monotonic() + seconds
    while True:
        try:
            return question()
        except KafkaException as error:
            if not may_pass(error.args[0]) or runtime.monotonic() > deadline:
                raise
        runtime.sleep(_RETRY_SECONDS)


_LONG_SECONDS = 0.5  # a delay that is worth a line
_throttled = LogLimit(1, 600.0)


def _say_throttled(event: ThrottleEvent) -> None:
    """The servers delay answers; else it would look as if they did not answer at times."""
    if event.throttle_time >= _LONG_SECONDS and _throttled.admit(runtime.monotonic()):
        logger.warning(
            "Kafka broker %s delays its answers to this process, now by %.1f s, for a quota of its user or client.id. "
            "Raise request_percentage, consumer_byte_rate or producer_byte_rate.",
            event.broker_name, event.throttle_time,
        )  # fmt: skip


class LastErrors:
    """The last errors of one client's connections; it is the client's `error_cb`."""

    def __init__(self, brokers: str) -> None:
        self._brokers = brokers
        self.said = ""
        self.is_refusal = False  # of the login or the certificates

    def __call__(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.said = error.str()
            self.is_refusal = error.code() in _REFUSALS and not _OAUTH_AWAY.match(self.said)

    def unavailable(self, error: KafkaException) -> LogUnavailable:
        why = self.said or error.args[0].str()
        is_refusal = self.is_refusal or "authorization failed" in why
        how = f"cannot be used with {_LOGIN}" if is_refusal else "(SITE_KAFKA_BROKERS) did not answer"
        return LogUnavailable(f"Kafka at {self._brokers} {how}: {why}.")


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
        self.detail = ""  # the client's last words about a connection
        where = f"Kafka at {brokers} (SITE_KAFKA_BROKERS)"
        self._whose = f"{where}, {who}"
        self._question = question
        self._suspected = False
        self._refusal = ""  # what they say of the login, which may change in an outage
        self._next_probe = 0.0
        refuses = f"Kafka at {brokers} cannot be used by {who} with {_LOGIN}"
        self._refused = Outage(logger, refuses, f"Kafka at {brokers} takes {who} again", level)
        self._outage = Outage(
            logger, f"{where} does not answer {who}, which tries until it does", f"{where} answers {who} again", level
        )

    @property
    def away(self) -> bool:
        """Whether they did not answer the last question."""
        return self._outage.is_on

    def on_error(self, error: KafkaError) -> None:
        if error.code() in _DETAILED:
            if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.detail:
                self.detail = error.str()
            if error.code() in _REFUSALS:
                self._refusal = error.str()
            self._suspected = self._suspected or error.code() in _SUSPICIOUS
        elif not is_fatal(error):  # a fatal one is raised where the client is used
            logger.warning("%s: %s", self._whose, error.str())

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
            self._outage.goes_on(self.detail)
            if self._refusal:
                self._refused.goes_on(self._refusal)
            return False
        finally:
            self._next_probe = runtime.monotonic() + _PROBE_INTERVAL_SECONDS
        self._outage.is_over()
        self._refused.is_over()
        self.detail = self._refusal = ""
        return True


# --- Certificates and keys of SITE_KAFKA_OPTIONS that are replaced while the process runs ----------------
# The client library reads them when a client is made, and never again (librdkafka 2.16). So what keeps a
# client for long asks here whether to make another. The answer is yes only when the servers answer a client
# that has read the new files: half of a pair, or an authority that the servers do not use yet, ends no
# connection.

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
    """Certificates as one client has read them. One thread at a time uses it."""

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
        if not self._files.have_changed() or runtime.monotonic() < self._try_at:
            return False
        try:
            AdminClient(self._config.admin(lambda _error: None)).list_topics(_TOPIC, timeout=_ANSWER_SECONDS)
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


# --- closing: closes the client of a member without hanging in it ----------------------------------------
# Theory of operation. An assignment that arrives while the client closes is answered from within its
# `close`. That answer ends the membership at once. The answer to the revocation behind it may then wait for
# ever, with Python's lock held, so that no thread of the process goes on (librdkafka, issue 4884; seen in
# one of four closes in a rebalance). So what waits to be answered is answered first. Should an assignment
# arrive in the moment between, the thread that closes stays in it, with the lock released: the client is
# left as a killed process leaves its own.

_BATCH = 10_000
_CLOSE_ANSWER_SECONDS = 1.0  # for what waits in the client
_PATIENCE_SECONDS = 30.0  # for a close that servers hold up


class ClientClosing:
    """Closes one client, once. Its callbacks ask `has_begun`, and call `stay_if_late` before they answer."""

    def __init__(self, client: Consumer) -> None:
        self._client = client
        self._over = runtime.Event()
        self._thread: int | None = None
        self.has_begun = False

    def run(self) -> None:
        """Returns when the client is closed, is left, or has not closed in 30 s; at once when repeated."""
        if self.has_begun:
            return
        self.has_begun = True
        self._answer_rebalances()
        runtime.Thread(target=self._close, name="site-kafka-closing", daemon=True).start()
        if not self._over.wait(_PATIENCE_SECONDS):
            logger.warning("A Kafka client did not close within %.0f s; going on.", _PATIENCE_SECONDS)

    def stay_if_late(self) -> None:
        """Does not return when the client is within its own close: to be called for an assignment."""
        if runtime.get_ident() == self._thread:
            logger.warning("An assignment arrived while a Kafka client closed; it is left without an answer.")
            self._over.set()
            runtime.Event().wait()

    def _answer_rebalances(self) -> None:
        deadline = runtime.monotonic() + _CLOSE_ANSWER_SECONDS
        try:
            while self._client.consume(_BATCH, 0) and runtime.monotonic() < deadline:
                pass
        except KafkaException as error:
            logger.info("A Kafka client that closes says: %s", error)

    def _close(self) -> None:
        self._thread = runtime.get_ident()
        try:
            self._client.close()
        except KafkaException as error:
            logger.warning("A Kafka client closed with: %s", error)
        finally:
            self._over.set()


# --- Messages of a Kafka client in our form --------------------------------------------------------------


# Python looks at the result of this call: a plain one it trusts from some time on, and follows a null pointer
_headers_of = methodcaller("headers")


def to_message(raw: RawMessage) -> Message:
    """Our form of a client's message that is not an error."""
    partition = _partition(str(raw.topic()), raw.partition() or 0)
    try:
        given = list(_headers_of(raw) or ())[:_MOST_HEADERS]
    except SystemError:  # a name is not UTF-8: whatever the client has of headers by then cannot be touched
        given = []
    headers = [(str(name), value.encode() if isinstance(value, str) else value or b"") for name, value in given]
    timestamp_ms = max(raw.timestamp()[1], 0)  # negative when there is none
    return Message(partition, raw.offset() or 0, raw.key(), raw.value(), tuple(headers), timestamp_ms)


_partition = lru_cache(maxsize=10_000)(Partition)  # one for all messages of it: Python's collector looks at less
