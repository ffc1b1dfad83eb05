"""Transactions that write messages and the group's offsets together, or neither.

Theory of operation. The offsets go with the member's own generation (KIP-447), so the coordinator refuses
a member that the group went on without; nothing of its transaction becomes visible then. The id is the
one of the member's slot, so a process that is started again after kill -9 ends at once what its
predecessor had left open, and nobody waits for the transaction's timeout.

Whatever goes wrong before the commit ends in an abort, and nothing is stored. When the end of a
commit itself is not known, the client is thrown away. A new one with the same id makes the servers finish or
abort what was open, and the positions that the group has then tell which.

A batch with one message that is too large is refused as a whole. What was in it is then sent message
by message, and what is refused even so with half of its body, a quarter, ...
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from site_spider import runtime
from site_spider.adapters.kafka.client import REFUSED, KafkaConfig, LastErrors, insisted
from site_spider.adapters.kafka.positions import Signed, committed_by, to_position, to_raw
from site_spider.bounded import LogLimit
from site_spider.contracts.seed_log import Partition, Position
from site_spider.contracts.sink import Kind
from site_spider.errors import CommitInDoubt, ConfigError, LogUnavailable, SinkRejected
from site_spider.results.document import encode, shortened
from site_spider.results.transaction_queue import Item, Link

# --- Items of transactions as Kafka messages, and their delivery reports ---------------------------------

logger = logging.getLogger(__name__)

_LINES, _LINES_SECONDS = 5, 60.0  # so many in that time


Topics = Mapping[Kind, str]  # of results, and of what spiders extracted


class TransactionAttempt:
    """What became of the messages of one transaction, by number."""

    def __init__(self) -> None:
        self.began = self.heard = runtime.monotonic()
        self.unanswered: set[int] = set()
        self.failed: dict[int, KafkaError] = {}

    def report(self, number: int, error: KafkaError | None, _message: object) -> None:
        """A message was delivered, or not; as a client calls it."""
        self.heard = runtime.monotonic()
        self.unanswered.discard(number)
        if error is not None:
            self.failed[number] = error


def values_of(items: Sequence[Item]) -> tuple[list[bytes], dict[int, str]]:
    """The items as messages, and those that cannot be any, with the reason."""
    values: list[bytes] = []
    refused: dict[int, str] = {}
    for number, item in enumerate(items):
        try:
            values.append(item.value if isinstance(item, Link) else encode(item.document))
        except SinkRejected as error:
            values.append(b"")
            refused[number] = str(error)
    return values, refused


class CutBodies:
    """Says of which documents the body was cut, because their topic takes no larger message."""

    def __init__(self) -> None:
        self._limit = LogLimit(_LINES, _LINES_SECONDS)

    def say(self, topic: str, key: str) -> None:
        if self._limit.admit(runtime.monotonic()):
            logger.warning(
                "The body of %s is cut, and has body_truncated: topic %s takes no larger message "
                "(max.message.bytes). Bodies cut before without a line: %d",
                key, topic, self._limit.take_held_back(),
            )  # fmt: skip


def shorter(item: Item, halvings: int, error: KafkaError) -> bytes | None:
    """The message with its body halved so often; None when that does not help or nothing is left."""
    if isinstance(item, Link) or error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
        return None
    document = None if item.kind == "item" else shortened(item.document, halvings)
    return None if document is None else encode(document)


def _with_reason(client: Producer, failed: dict[int, KafkaError]) -> dict[int, KafkaError]:
    """Messages of a transaction that has failed are purged; why, the client says when it is asked for another one."""
    if {error.code() for error in failed.values()} == {KafkaError._PURGE_QUEUE}:
        try:
            client.begin_transaction()
        except KafkaException as error:
            if error.args[0].code() not in REFUSED:  # else of one of them, nobody knows which
                return dict.fromkeys(failed, error.args[0])
    return failed


def _answered(question: Callable[[], None], seconds: float) -> None:
    """Measured with confluent-kafka 2.16: where a coordinator dies, send_offsets_to_transaction may never return.

    Its thread stays behind with its client then. Raises TimeoutError.
    """
    answer: Future[None] = Future()

    def ask() -> None:
        try:
            question()
            answer.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked
            answer.set_exception(error)

    runtime.Thread(target=ask, name="site-kafka-offsets", daemon=True).start()
    answer.result(seconds)


TRANSACTION_SECONDS = 40.0  # then the coordinator aborts; how long a dead process can hold up readers
SEND_SECONDS = 25.0  # for all messages of a transaction, which may be one tree of SITE_SINK_BACKLOG_BYTES
SILENCE_SECONDS = 10.0  # without the broker taking any of them
ANSWER_SECONDS = 10.0  # for one answer of the coordinator
OFFSETS_SECONDS = 25.0  # for its answers to offsets that are sent, the last of which may begin late
_STEP_SECONDS = 0.02
_METADATA_HEAD = 11  # of the client's form: its name, and the generation


class KafkaTransactions:
    """Belongs to one consumer and to its thread. To be made before the consumer joins its group.

    Raises ConfigError when the client refuses its options.
    """

    def __init__(self, config: KafkaConfig, identity: str, topics: Topics, member: Consumer) -> None:
        self._config = config
        self._identity = identity
        self._topics = topics
        self._member = member
        self._outsider = bytes(member.consumer_group_metadata())[:_METADATA_HEAD]
        self._client: Producer | None = None
        self._in_doubt = False
        self._cut = CutBodies()
        self._words = LastErrors(config.brokers)
        try:
            self._ready()
        except LogUnavailable as error:
            logger.warning("No transactions for now, trying again: %s", error)

    def run(self, items: Sequence[Item], positions: Signed) -> dict[int, str]:
        if self._in_doubt:
            raise LogUnavailable("The end of an earlier transaction is not known yet.")
        values, refused = values_of(items)
        halvings: dict[int, int] = {}
        while not refused:
            client = self._begun()
            failed = self._sent(client, items, values, halvings)
            if not failed:
                self._finish(client, items, positions)
                break
            self._abort(client)
            refused = self._after_refusal(items, values, halvings, failed)
        return refused

    def was_committed(self, positions: Mapping[Partition, Position]) -> bool:
        self._ready()
        wanted = [TopicPartition(*partition) for partition in positions]
        try:
            found = committed_by(self._member, wanted, ANSWER_SECONDS) if wanted else []
        except KafkaException as error:
            raise LogUnavailable(f"Kafka did not say what is committed: {error}") from error
        self._in_doubt = False
        committed = {Partition(one.topic, one.partition): to_position(one, "") for one in found}
        return bool(positions) and committed == positions

    # --- the messages ---------------------------------------------------------------------------

    def _sent(
        self, client: Producer, items: Sequence[Item], values: Sequence[bytes], halvings: Mapping[int, int]
    ) -> dict[int, KafkaError]:
        """Send everything, with what was refused in company by itself; returns what failed."""
        attempt = TransactionAttempt()
        try:
            for number, item in enumerate(items):
                if number not in halvings:
                    self._produce(client, attempt, number, (item, values[number]))
            self._await_answers(client, attempt)
            for number in halvings:
                if attempt.failed:
                    break
                self._produce(client, attempt, number, (items[number], values[number]))
                self._await_answers(client, attempt)
        except KafkaException as error:
            if not attempt.failed:
                self._abort(client)
                raise self._unavailable("send results", error) from error
        except LogUnavailable:
            self._abort(client)
            raise
        return _with_reason(client, attempt.failed)

    def _produce(self, client: Producer, attempt: TransactionAttempt, number: int, what: tuple[Item, bytes]) -> None:
        item, value = what
        topic, key = self._topic_of(item), item.key if isinstance(item, Link) else item.key.encode("utf-8", "replace")
        headers: list[tuple[str, str | bytes | None]] = [*item.headers] if isinstance(item, Link) else []
        report = partial(attempt.report, number)
        attempt.unanswered.add(number)
        is_queued = False
        while not is_queued and not attempt.failed:
            try:
                client.produce(topic, value, key, on_delivery=report, headers=headers)
                is_queued = True
                client.poll(0)
            except BufferError:
                client.poll(_STEP_SECONDS)
                self._check(attempt)

    def _await_answers(self, client: Producer, attempt: TransactionAttempt) -> None:
        while attempt.unanswered and not attempt.failed:
            client.poll(_STEP_SECONDS)
            self._check(attempt)
        if attempt.failed:
            client.poll(_STEP_SECONDS)  # the others of its batch

    def _check(self, attempt: TransactionAttempt) -> None:
        now = runtime.monotonic()
        if now - attempt.heard > SILENCE_SECONDS or now - attempt.began > SEND_SECONDS:
            why = self._words.said or "no answer"
            raise LogUnavailable(f"Kafka did not take results in {now - attempt.began:.0f} s: {why}.")

    def _after_refusal(
        self, items: Sequence[Item], values: list[bytes], halvings: dict[int, int], failed: Mapping[int, KafkaError]
    ) -> dict[int, str]:
        """Shorten what is too large; returns what cannot be. Raises LogUnavailable for other failures."""
        own_fault = {number: error for number, error in failed.items() if error.code() in REFUSED}
        if not own_fault:
            error = next(iter(failed.values()))
            why = error.str()
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                topics = ", ".join(sorted({self._topic_of(items[number]) for number in failed}))
                rights = f"Write and Describe on the topics {topics}, and create those that are missing"
                why += f". {self._config.to_grant(rights)}"
            raise LogUnavailable(f"Kafka did not take a result: {why}")
        refused = {}
        for number, error in own_fault.items():
            if number not in halvings:
                halvings[number] = 0  # it may only have been in bad company
                continue
            value = shorter(items[number], halvings[number] + 1, error)
            if value is None:
                refused[number] = f"Kafka refuses the message: {error.str()}"
            else:
                halvings[number] += 1
                if halvings[number] == 1:
                    self._cut.say(self._topics["result"], str(items[number].key))
                values[number] = value
        return refused

    def _topic_of(self, item: Item) -> str:
        return item.topic if isinstance(item, Link) else self._topics[item.kind]

    # --- beginning and ending -------------------------------------------------------------------

    def _finish(self, client: Producer, items: Sequence[Item], positions: Signed) -> None:
        offsets = to_raw(positions)

        def send() -> None:
            client.send_offsets_to_transaction(offsets, self._membership(), ANSWER_SECONDS)

        try:
            if offsets:
                _answered(partial(insisted, send, KafkaError.retriable, ANSWER_SECONDS), OFFSETS_SECONDS)
        except TimeoutError as error:
            self.close()  # it takes no other call, an abort neither
            raise LogUnavailable(f"Kafka did not take offsets with results in {OFFSETS_SECONDS:.0f} s.") from error
        except KafkaException as error:
            self._abort(client)
            raise self._unavailable("commit", error) from error
        except LogUnavailable:
            self._abort(client)
            raise
        try:
            client.commit_transaction(ANSWER_SECONDS)
        except KafkaException as error:
            self._in_doubt = bool(items)  # else nobody asks: what comes next ends it, and says more
            self.close()
            raise CommitInDoubt(self._unavailable("commit", error)) from error

    def _membership(self) -> Any:
        """The member's generation. Without one the coordinator would let anything pass."""
        metadata = self._member.consumer_group_metadata()
        if metadata is None or bytes(metadata)[:_METADATA_HEAD] == self._outsider:
            raise LogUnavailable("This process is no member of its group at the moment.")
        return metadata

    def _begun(self) -> Producer:
        client = self._ready()
        try:
            client.begin_transaction()
        except KafkaException as error:
            self.close()
            raise self._unavailable("begin a transaction", error) from error
        return client

    def _abort(self, client: Producer) -> None:
        try:
            client.abort_transaction(ANSWER_SECONDS)
        except KafkaException as error:
            logger.debug("The next client will end the transaction: %s", error)
        # measured with confluent-kafka 2.16: after a message was refused or purged, the same client fails
        # in its next transaction as well (out of order sequence number)
        self.close()

    def _ready(self) -> Producer:
        """A client without a transaction. Raises LogUnavailable, ConfigError."""
        if self._client is None:
            self._words = LastErrors(self._config.brokers)
            client = self._config.made(Producer, self._options())
            try:
                client.init_transactions(ANSWER_SECONDS)
            except KafkaException as error:
                client.poll(0)  # it tells of its connections
                if error.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                    raise ConfigError(
                        f"Kafka at {self._config.brokers} refuses this process. "
                        f"{KafkaConfig.to_grant(f'Write and Describe on transactional ids such as {self._identity}')}"
                    ) from None
                raise self._words.unavailable(error) from error
            self._client = client
        return self._client

    def _options(self) -> dict[str, Any]:
        return self._config.producer(self._words) | {
            "transactional.id": self._identity,
            "transaction.timeout.ms": int(TRANSACTION_SECONDS * 1000),
            "message.timeout.ms": int(TRANSACTION_SECONDS * 1000),
            "linger.ms": 5,
            # measured with confluent-kafka 2.16: when all connections end, the usual strategy drops the broker to
            # which the offsets are sent, and send_offsets_to_transaction does not return
            "metadata.recovery.strategy": "none",
        }

    def close(self) -> None:
        """Release the client; what is open is aborted by the servers. Another one is made when it is needed."""
        client, self._client = self._client, None
        if client is not None:
            client.purge()

    def _unavailable(self, what: str, error: KafkaException) -> LogUnavailable:
        said: KafkaError = error.args[0]
        return LogUnavailable(f"Kafka at {self._config.brokers} did not let us {what}: {said.str()}")
