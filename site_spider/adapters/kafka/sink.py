"""Writes documents to a Kafka topic, keyed by url_id.

Theory of operation. The producer never gives a message up by itself, so a record that is brought again
because its acknowledgement took too long is not produced again: `_sendings` knows what became of its
message. An outage of any length therefore doubles nothing; a broker that answers takes what waits.

Only the broker knows what is too large for it, since what counts is the compressed size. What it
refuses for that is sent in rounds by a second producer that puts every message into a batch of its
own, because a batch is refused as a whole: first as it is, then with half of the body, a quarter, ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self
from weakref import ref

from confluent_kafka import KafkaError

from site_spider import options, runtime
from site_spider.adapters.files import ThreadSink
from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.producer import KafkaProducer
from site_spider.adapters.kafka.seed_log import KafkaSeedLog
from site_spider.adapters.kafka.transactions import CutBodies
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import ConfigError, LogUnavailable, SinkRejected, SinkUnavailable
from site_spider.options import SettingsView, text
from site_spider.results.document import encode, shortened

BROKERS = "SITE_KAFKA_BROKERS"
TOPIC = "SITE_RESULTS_TOPIC"
ITEMS_TOPIC = "SITE_ITEMS_TOPIC"
OPEN_SECONDS = 3.0  # for one answer; the delivery asks again
ACKNOWLEDGE_SECONDS = 15.0  # then the sink counts as away; a broker's successor is elected in less
_THREADS = 3  # see BatchLimits.under_way; and one to close while the others wait

_UNANSWERED = Verdict(Answer.RETRY, f"no acknowledgement within {ACKNOWLEDGE_SECONDS:.0f} s")
_TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE).str()  # the producer hands on these words
_ONE_A_BATCH = {"batch.num.messages": 1, "linger.ms": 0}


@dataclass(slots=True, eq=False)
class _Sending:
    """A record's message; `rounds` counts how often it was sent again for its size."""

    record: ref[Record]  # who drops it, as its partition has left, asks no more
    future: Future[Any]
    rounds: int = 0
    verdict: Verdict = _UNANSWERED

    @property
    def is_too_large(self) -> bool:
        return self.verdict.answer is Answer.REJECTED and _TOO_LARGE in self.verdict.reason

    def wait(self, until: float) -> None:
        """For the verdict. One after the other costs half of what `concurrent.futures.wait` does."""
        with suppress(TimeoutError):
            error = self.future.exception(max(0.0, until - runtime.monotonic()))
            answer = Answer.REJECTED if isinstance(error, SinkRejected) else Answer.RETRY
            self.verdict = ACKNOWLEDGED if error is None else Verdict(answer, str(error))


class KafkaSink(ThreadSink):
    """One topic. The broker creates it by its own defaults when it is missing."""

    name = "kafka"

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        if not text(settings, BROKERS):
            raise ConfigError(f"{BROKERS} is empty, but the Kafka sink needs it: host:port,...")
        return cls(KafkaTopic(KafkaConfig.from_settings(settings), options.topic(settings, TOPIC)), _THREADS)

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        return cls(KafkaTopic(KafkaConfig.from_settings(settings), options.topic(settings, ITEMS_TOPIC)), _THREADS)


class KafkaTopic:
    """Threads share it; a key is in one write at a time."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._config = config
        self._topic = topic
        self._servers: KafkaSeedLog | None = None
        self._producer: KafkaProducer | None = None
        self._alone: KafkaProducer | None = None  # for what was too large in company
        self._sendings: dict[str, _Sending] = {}
        self._cut = CutBodies()
        self._lock = runtime.Lock()  # of the producers

    def open(self) -> None:
        self.close()
        self._servers = self._servers or KafkaSeedLog(self._config)  # the same for all attempts
        self._ask(self._servers)
        self._servers = None
        self._producer = KafkaProducer(self._config)

    def check(self) -> str:
        self._ask(KafkaSeedLog(self._config))
        return f"{self._config.brokers} answers"

    def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Produce the records, or ask after those that are under way already. Raises SinkUnavailable."""
        sendings = [self._sending(record) for record in records]
        until = runtime.monotonic() + ACKNOWLEDGE_SECONDS
        under_way = sendings
        while under_way:
            for sending in under_way:
                sending.wait(until)
            under_way = self._sent_again([sending for sending in under_way if sending.is_too_large])
        verdicts = [self._settled(record.key, sending) for record, sending in zip(records, sendings, strict=True)]
        if verdicts and all(verdict.answer is Answer.RETRY for verdict in verdicts):
            raise SinkUnavailable(f"{BROKERS} is {self._config.brokers!r}: {verdicts[0].reason}")
        return verdicts

    def close(self) -> None:
        """End the producers; what they could not send is forgotten."""
        with self._lock:
            producers = [self._producer, self._alone]
            self._producer = self._alone = None
        self._sendings = {}
        for producer in producers:
            if producer is not None:
                producer.close()

    def _ask(self, servers: KafkaSeedLog) -> None:
        try:
            servers.check(OPEN_SECONDS)
        except LogUnavailable as error:
            raise SinkUnavailable(str(error)) from error

    def _sending(self, record: Record) -> _Sending:
        known = self._sendings.get(record.key)
        if known is not None and known.record() is record:
            return known
        if self._producer is None:
            raise SinkUnavailable("The Kafka sink is not open.")
        sent = self._sent(self._producer, record, record.document)
        sending = self._sendings[record.key] = _Sending(ref(record, partial(self._forget, record.key)), sent)
        return sending

    def _forget(self, key: str, record: ref[Record]) -> None:
        if (known := self._sendings.get(key)) is not None and known.record is record:
            self._sendings.pop(key, None)

    def _sent_again(self, sendings: Sequence[_Sending]) -> list[_Sending]:
        """Those of them that can be made smaller, which are under way again."""
        if not sendings:
            return []
        with self._lock:
            if self._producer is None:  # else one more would be made, which nobody closes
                raise SinkUnavailable("The Kafka sink is not open.")
            if self._alone is None:
                config = replace(self._config, options={**self._config.options, **_ONE_A_BATCH})
                self._alone = KafkaProducer(config)
            alone = self._alone
        again = []
        for sending in sendings:
            record = sending.record()
            assert record is not None, "who has it written holds it"
            document = shortened(record.document, sending.rounds)
            if document is None or (sending.rounds and record.kind == "item"):  # not ours to cut
                continue
            sending.rounds += 1
            sending.future, sending.verdict = self._sent(alone, record, document), _UNANSWERED
            again.append(sending)
        return again

    def _sent(self, producer: KafkaProducer, record: Record, document: Mapping[str, Any]) -> Future[Any]:
        try:
            value = encode(document)
        except SinkRejected as error:
            refused: Future[Any] = Future()
            refused.set_exception(error)
            return refused
        return producer.send(self._topic, record.key.encode("utf-8", "replace"), value)

    def _settled(self, key: str, sending: _Sending) -> Verdict:
        verdict = sending.verdict
        if verdict is ACKNOWLEDGED and sending.rounds > 1:  # the first round was the whole document, alone
            self._cut.say(self._topic, key)
        if verdict is not _UNANSWERED:
            self._forget(key, sending.record)
        return verdict
