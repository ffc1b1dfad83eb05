"""Appends to Kafka and never drops a message.

Theory: the client keeps a bounded queue and sends it from its own threads; delivery reports
arrive in `poll`, for which a daemon thread is kept. What does not fit into the queue waits in an
overflow of our own, and as long as that is not empty new messages queue behind it, so that
the order of a key is kept. The event loop sends: so the lock is never held for a call that waits, and only
for a few messages at a time. While the client is broken nobody but the thread uses it.

A topic that refuses messages because of their time (the clock of this machine is wrong) will refuse the next
ones as well. They are kept, and those for other topics go on; the first of them asks by itself now and then.

An acknowledgement without an offset is none. The client gives it when the server calls what was sent again a
duplicate. It need not be one when the server has just refused another message for good: those under way
are numbered anew then, and one of them is lost (measured with librdkafka 2.16.0: the predecessor of a message
that was too large, in a topic that had just been made).

A client may send nothing any more though servers answer it (seen with librdkafka 2.16.0, twice in some 200
times that a server stood still for seconds while a client began). So one that is silent for long is replaced.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Producer
from confluent_kafka import Message as RawMessage

from site_spider import runtime
from site_spider.adapters.kafka.client import REFUSED, BrokerHealth, Certificates, KafkaConfig, is_fatal
from site_spider.contracts import seed_log
from site_spider.contracts.seed_log import Headers, MessagePlace, Partition
from site_spider.errors import ConfigError, LogUnavailable, SinkRejected
from site_spider.outage import Outage

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_CLOSE_SECONDS = 5.0
_OVERFLOW_SECONDS = 0.01
_STEP = 100  # messages for which the lock is held: well below a millisecond
_REJECTED = REFUSED | {KafkaError.TOPIC_EXCEPTION}
# The clock of this machine is wrong, so all that it sends will be refused. Of several messages together the
# server says no more than that a record is invalid, and may mean one of the others.
_OURS = frozenset({
    KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD,
})  # fmt: skip
_SILENT_SECONDS = 60.0  # twice the time in which the client itself sends a message again
_MOST_NAMED = 10  # partitions
_REFUSED_SECONDS = 1.0  # between two questions whether the topic takes messages again


class _ProducerRecord(NamedTuple):
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]
    future: Future[MessagePlace]


@dataclass(slots=True)
class _Kept:
    """What waits for a topic that refuses it, in the order in which it was sent."""

    back: deque[_ProducerRecord] = field(default_factory=deque)  # from the client; never empty
    later: deque[_ProducerRecord] = field(default_factory=deque)
    ask_at: float = 0.0


class KafkaProducer(seed_log.Producer):
    """Raises ConfigError when the client refuses its options."""

    def __init__(self, config: KafkaConfig, purpose: str = "") -> None:
        self._config = config
        self._lock = runtime.RLock()  # a future's callback may send the next message from within
        self._overflow: deque[_ProducerRecord] = deque()
        self._refused: dict[str, _Kept] = {}  # by topic
        self._with_client: Counter[str] = Counter()  # messages without a report, by topic
        self._unfinished: set[Future[MessagePlace]] = set()
        self._topic = ""  # the last one used: a topic to ask about that exists for certain
        self._broken = False
        self._has_reported = False  # since the thread looked last
        self._silent_since = runtime.monotonic()
        self._closed = runtime.Event()
        who = f"the producer{purpose and f' of {purpose}'}"
        self._clock = Outage(
            logger,
            f"Kafka at {config.brokers} refuses what this machine sends, because of its clock: "
            "an outage of ours. Nothing is lost, and it is sent again. Set the clock as that of the brokers",
            f"Kafka at {config.brokers} takes what this machine sends again",
        )
        level = logging.INFO if purpose else logging.WARNING
        self._replicas = Outage(
            logger,
            f"Kafka at {config.brokers} takes nothing from {who}: partitions have no leader, or fewer replicas in "
            "sync than min.insync.replicas. Nothing is lost; start the brokers that are away. Replicas in sync",
            f"Kafka at {config.brokers} takes messages from {who} again",
            level,
        )
        self._certificates = Certificates(config, who)
        self._health = BrokerHealth(
            config.brokers, who, lambda seconds: self._client.list_topics(self._topic, timeout=seconds), level=level
        )
        self._client = self._new_client()
        self._thread = runtime.Thread(target=self._serve, name="site-kafka-producer", daemon=True)
        self._thread.start()

    def send(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Future[MessagePlace]:
        future: Future[MessagePlace] = Future()
        future.set_running_or_notify_cancel()  # from here on nobody can take it back
        outgoing = _ProducerRecord(topic, key, value, list(headers), future)
        with self._lock:
            if not (is_closed := self._closed.is_set()):
                self._unfinished.add(future)
                self._topic = topic
                if (kept := self._refused.get(topic)) is not None:
                    kept.later.append(outgoing)
                elif self._overflow or self._broken or not self._produce(outgoing):
                    self._overflow.append(outgoing)
        if is_closed:
            future.set_exception(LogUnavailable("The producer is closed."))
        return future

    def flush(self, timeout_seconds: float) -> int:
        deadline = runtime.monotonic() + timeout_seconds
        while self._unfinished:
            remaining = deadline - runtime.monotonic()
            self._client.flush(max(min(remaining, _POLL_SECONDS), 0))
            if remaining <= 0:
                break
            if self._overflow or self._refused:  # which the client knows nothing of
                self._closed.wait(_OVERFLOW_SECONDS)
        return len(self._unfinished)

    def close(self) -> None:
        """After 5 s what is left fails with LogUnavailable."""
        left = self.flush(_CLOSE_SECONDS)
        with self._lock:
            self._closed.set()
        self._thread.join()
        self._empty_client()
        self._overflow.clear()
        self._refused.clear()
        self._give_up(set(self._unfinished), "The producer was closed before Kafka acknowledged the message.")
        if left:
            logger.warning("%d messages were not acknowledged by Kafka at %s.", left, self._config.brokers)

    # --- the thread ------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._closed.is_set():
            self._poll()
            if self._broken:
                logger.warning(
                    "Kafka's client gave up (%s); a new one takes over.", self._health.detail or "fatal error"
                )
                self._renew()
            elif self._certificates.are_renewed():
                with self._lock:
                    self._broken = True  # later messages wait for the next client
                self._client.flush(_CLOSE_SECONDS)  # what this one has is sent, if servers still answer it
                self._renew()
            elif self._is_stuck():
                logger.warning(
                    "Kafka's client sent nothing for %.0f s though servers answer it; a new one takes over.",
                    _SILENT_SECONDS,
                )
                self._renew()
            while self._hand_on():
                self._client.poll(0)
            self._ask_refusing()
            if self._topic:
                self._health.look()

    def _poll(self) -> None:
        try:
            self._client.poll(_POLL_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                raise
            raise ConfigError(
                f"Kafka at {self._config.brokers} refuses this process: its user may write no topic. "
                f"{KafkaConfig.to_grant('Write on the topics that it writes, or IdempotentWrite on the cluster')}"
            ) from None

    def _is_stuck(self) -> bool:
        """Whether nothing was reported for long, of topics whose partitions can all be written."""
        now = runtime.monotonic()
        with self._lock:
            topics = [topic for topic, count in self._with_client.items() if count > 0]
        if self._has_reported or not topics:
            self._has_reported, self._silent_since = False, now
            self._replicas.is_over()
        if now - self._silent_since < _SILENT_SECONDS:
            return False
        self._silent_since = now
        try:
            found = [self._client.list_topics(topic, timeout=1).topics[topic] for topic in topics]
        except KafkaException:
            return False
        partitions = [(topic.topic, *item) for topic in found for item in topic.partitions.items()]
        # one of several replicas is too few for the usual min.insync.replicas, which only those with a right may ask
        few = [
            f"{topic}/{number} {len(one.isrs)} of {len(one.replicas)}"
            for topic, number, one in partitions
            if one.leader < 0 or len(one.isrs) < 2 <= len(one.replicas)
        ]
        if few:
            self._replicas.goes_on(", ".join(few[:_MOST_NAMED]))
        return bool(partitions) and not few

    def _hand_on(self) -> bool:
        """Give the client some of what waits; whether it may take more."""
        with self._lock:
            for _ in range(_STEP):
                if self._broken or not self._overflow or not self._produce(self._overflow[0]):
                    return False
                self._overflow.popleft()
        return True

    def _ask_refusing(self) -> None:
        """Whether topics that refused what was sent take the first of it now, by itself."""
        with self._lock:
            now = runtime.monotonic()
            for topic, kept in self._refused.items():
                is_alone = not self._with_client[topic]
                if is_alone and now >= kept.ask_at and not self._broken:
                    self._produce(kept.back[0])

    def _keep(self, outgoing: _ProducerRecord, error: KafkaError) -> bool:
        """Whether it is sent again, because this machine is to blame, or may be."""
        code = error.code()
        if self._closed.is_set():
            return code in _OURS  # and is given up with the others
        if code in _REJECTED and code != KafkaError.INVALID_RECORD:
            return False
        with self._lock:
            is_first = self._is_first_kept(outgoing)
            if code not in _OURS and not is_first:
                return False
            if code == KafkaError.INVALID_RECORD and is_first:
                return False  # it was by itself
            kept = self._refused.setdefault(outgoing.topic, _Kept())
            if not is_first:
                kept.back.append(outgoing)
            if code == KafkaError.INVALID_TIMESTAMP:
                self._clock.goes_on(f"{outgoing.topic}: {error.str()}")
                kept.ask_at = runtime.monotonic() + _REFUSED_SECONDS
            return True

    def _is_first_kept(self, outgoing: _ProducerRecord) -> bool:
        kept = self._refused.get(outgoing.topic)
        return kept is not None and kept.back[0] is outgoing

    def _answered(self, outgoing: _ProducerRecord, *, is_taken: bool) -> None:
        """The first of what a topic refused has its answer."""
        with self._lock:
            if not self._is_first_kept(outgoing):
                return
            kept = self._refused[outgoing.topic]
            kept.back.popleft()
            if is_taken or not kept.back:
                del self._refused[outgoing.topic]
                self._overflow.extend(kept.back)
                self._overflow.extend(kept.later)
                if not self._refused:
                    self._clock.is_over()

    def _produce(self, outgoing: _ProducerRecord) -> bool:
        """Hand one message to the client; false when its queue is full."""
        report = partial(self._report, outgoing)
        try:
            self._client.produce(
                outgoing.topic, outgoing.value, outgoing.key, on_delivery=report, headers=outgoing.headers
            )
            self._with_client[outgoing.topic] += 1
        except BufferError:
            return False
        except KafkaException as error:
            self._finish(outgoing, error.args[0])
        except (TypeError, ValueError) as error:
            if self._is_mine(outgoing.future):
                outgoing.future.set_exception(SinkRejected(f"Kafka's client cannot send this message: {error}."))
        return True

    def _is_mine(self, future: Future[MessagePlace]) -> bool:
        """Whether the caller, whichever thread it is on, is the one to say what became of a message."""
        with self._lock:
            is_mine = future in self._unfinished
            self._unfinished.discard(future)
        return is_mine

    def _report(self, outgoing: _ProducerRecord, error: KafkaError | None, message: RawMessage) -> None:
        self._has_reported = True
        with self._lock:
            self._with_client[outgoing.topic] -= 1
        if error is None and message.offset() is None:
            self._send_again(outgoing)
        elif error is None or not self._keep(outgoing, error):
            if self._refused:
                self._answered(outgoing, is_taken=error is None)
            self._finish(outgoing, error, message)

    def _send_again(self, outgoing: _ProducerRecord) -> None:
        """It may not be stored: twice is better than never."""
        logger.info("Kafka did not say where in %s a message is; it is sent once more.", outgoing.topic)
        with self._lock:
            if self._broken or not self._produce(outgoing):
                self._overflow.append(outgoing)

    def _finish(self, outgoing: _ProducerRecord, error: KafkaError | None, message: RawMessage | None = None) -> None:
        future = outgoing.future
        if error is not None and error.code() in {KafkaError._FATAL, KafkaError._STATE}:
            self._broken = True
        if not self._is_mine(future):
            return
        if error is None and message is not None:
            future.set_result(_place(message))
        elif error is not None and error.code() in _REJECTED:
            future.set_exception(SinkRejected(f"Kafka refuses the message: {error.str()}"))
        else:
            why = "no answer" if error is None else error.str()
            if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                rights = f"Write and Describe on the topic {outgoing.topic}, and create it if it is missing"
                why += f". {self._config.to_grant(rights)}"
            future.set_exception(LogUnavailable(f"Kafka did not take the message: {why}"))

    # --- the client --------------------------------------------------------------------------

    def _new_client(self) -> Producer:
        return self._config.made(Producer, self._config.producer(self._on_error))

    def _on_error(self, error: KafkaError) -> None:
        if is_fatal(error):
            self._broken = True
        self._health.on_error(error)

    def _renew(self) -> None:
        """Replace a client that cannot go on (when it is in doubt about the order of messages, say)."""
        with self._lock:  # whoever was handing it a message has done so
            self._broken = True
            lost = self._unfinished - self._kept()
        self._empty_client()
        with self._lock:
            lost -= self._kept()  # those that are sent again
            self._with_client.clear()
        self._give_up(lost, "Kafka's client gave up before the message was acknowledged.")
        client = self._new_client()
        with self._lock:
            self._client, self._broken = client, False

    def _kept(self) -> set[Future[MessagePlace]]:
        refused = chain.from_iterable((*kept.back, *kept.later) for kept in self._refused.values())
        return {outgoing.future for outgoing in chain(self._overflow, refused)}

    def _empty_client(self) -> None:
        self._client.purge()
        self._client.flush(1)  # lets the client report what was purged

    def _give_up(self, futures: Iterable[Future[MessagePlace]], reason: str) -> None:
        for future in futures:
            if self._is_mine(future):
                future.set_exception(LogUnavailable(reason))


def _place(message: RawMessage) -> MessagePlace:
    kind, timestamp_ms = message.timestamp()
    written_ms = timestamp_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0
    partition = Partition(str(message.topic()), message.partition() or 0)
    return MessagePlace(partition, message.offset() or 0, written_ms)
