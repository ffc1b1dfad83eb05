"""A member of a Kafka consumer group.

The end of a partition arrives among its messages; the listener hears of it only when those have been
handed out: in the next poll, when none of them wait in the prefetch any more.

The servers may end a membership for good: when another static member has joined under the same name. The
client is of no more use then, and tells of it once, by an error in place of a message, without any of the
callbacks. All partitions are lost, and the consumer joins again with a new client (kafka_rejoins).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as RawMessage

from site_spider import runtime
from site_spider.adapters.kafka.assignment import KafkaAssignment
from site_spider.adapters.kafka.certificates import Certificates
from site_spider.adapters.kafka.commits import Answered, KafkaCommits
from site_spider.adapters.kafka.complaints import Complaints
from site_spider.adapters.kafka.config import KafkaConfig
from site_spider.adapters.kafka.gaps import Gaps, start_of
from site_spider.adapters.kafka.group_assignment import OwnerWatch, listed
from site_spider.adapters.kafka.health import BrokerHealth, TopicQuestion, is_fatal
from site_spider.adapters.kafka.member_slot import MemberSlot
from site_spider.adapters.kafka.messages import to_message
from site_spider.adapters.kafka.prefetch import KafkaPrefetch
from site_spider.adapters.kafka.rejoins import Rejoins
from site_spider.adapters.kafka.topic_ids import TopicIds
from site_spider.adapters.kafka.transactions import KafkaTransactions, Transactions
from site_spider.contracts.seed_log import Listener, Message, Partition, Position
from site_spider.errors import LogSilent, LogUnavailable
from site_spider.results.held import Item

logger = logging.getLogger(__name__)

_LEARN_SECONDS = 20.0  # until committed positions are told; a new membership aborts what may hold them up
_STEP_SECONDS = 0.5  # one poll of the client; between two we see to what is unlearned or away


class _Ended(LogUnavailable):
    """The servers have ended this membership."""


class KafkaConsumer:
    """Reads `topics` as a member of `group` and tells `listener`; one thread uses it.

    Raises ConfigError when the client refuses its options.
    """

    def __init__(
        self,
        config: KafkaConfig,
        topics: Sequence[str],
        group: str,
        listener: Listener,
        transactions: Transactions | None = None,
    ) -> None:
        self._topics = topics
        self._is_classic = config.group_protocol == "classic"
        self._group = group
        self._complaints = Complaints(group, topics)
        self.session_seconds = config.session_seconds
        self._commits = KafkaCommits(group)
        self._ids = TopicIds(config)
        self._owners = OwnerWatch(self._ids.client, group, topics, rejoins=self._is_classic)
        self._assignment = KafkaAssignment(listener, self._ids, self.commit)
        self._config = config
        who = f"the consumer of {', '.join(topics)}"
        self._certificates = Certificates(config, who)
        self._question = TopicQuestion(config, topics[0])
        self._health = BrokerHealth(config.brokers, who, self._question)
        self._slot = MemberSlot.try_claim(group, config.member_name) if self._is_classic else None
        self._rejoins = Rejoins()
        self._gaps = Gaps(lambda partition: start_of(self._client, partition), listener.deleted)
        self._begin_transactions = transactions
        self._transactions: KafkaTransactions | None = None
        self._prefetch = KafkaPrefetch(
            self._assignment.number,
            lambda partitions: self._client.pause(self._assigned(partitions)),
            lambda partitions: self._client.resume(self._assigned(partitions)),
        )
        self._join()

    def _join(self) -> None:
        instance = self._slot.instance_id if self._slot else None
        owes_join = instance is not None and self._owners.owes_join(instance)
        try:
            config = self._config.member(self._group, instance, self._health.on_error)
            self._client = Consumer({**config, "on_commit": self._commits.on_commit})
        except (KafkaException, ValueError, TypeError) as error:
            self._release_slot()
            raise self._config.refused(error) from None
        if self._begin_transactions is not None:
            identity = f"{self._group}-{instance or runtime.uuid4().hex}"
            self._transactions = self._begin_transactions(identity, self._client)
        self._assignment.subscribe(self._client, self._topics, owes_join=owes_join)

    def _join_again(self, ended: _Ended) -> None:
        """Raises what ended it when that has happened too often."""
        if not self._rejoins.may(runtime.monotonic()):
            raise ended
        logger.warning("%s Joining again.", ended)
        self._replace_client(self._assignment.lose_all)

    def _renew(self) -> None:
        self._assignment.announce_ends(self._prefetch)
        self._replace_client(self._assignment.give_up_all)

    def _replace_client(self, let_go: Callable[[], None]) -> None:
        let_go()
        self._commits.drop()
        self._leave()
        self._question.forget()
        self._ids.forget()
        self._join()
        self._assignment.raise_failure()

    @property
    def member_name(self) -> str:
        """See `site_spider.contracts.seed_log.Consumer`."""
        return self._slot.instance_id if self._slot else ""

    @property
    def is_member(self) -> bool:
        """See `site_spider.contracts.seed_log.Consumer`."""
        return bool(self._client.memberid())

    @property
    def is_away(self) -> bool:
        """See `site_spider.contracts.seed_log.Consumer`."""
        return self._health.away

    def poll(self, timeout_seconds: float, limit: int) -> list[Message]:
        """See `site_spider.contracts.seed_log.Consumer`."""
        try:
            if self._certificates.are_renewed() or self._ids.have_changed():
                self._renew()
            return self._polled(timeout_seconds, limit)
        except _Ended as ended:
            self._join_again(ended)
            return []

    def _polled(self, timeout_seconds: float, limit: int) -> list[Message]:
        deadline = runtime.monotonic() + timeout_seconds
        self._assignment.announce_ends(self._prefetch)
        self._gather(0, limit)  # also when enough waits here: the client answers rebalances in it
        while True:
            self._health.look()
            self._see_to_owners()
            self._assignment.learn_late()
            if not self._health.away and self._assignment.unlearned_seconds() > _LEARN_SECONDS:
                raise _Ended(f"Kafka does not tell group {self._group} what is committed.")
            batch = self._prefetch.take(limit)
            if batch:
                return batch
            self._assignment.announce_ends(self._prefetch)
            remaining = deadline - runtime.monotonic()
            if remaining <= 0:
                return []
            self._gather(min(remaining, _STEP_SECONDS), limit)

    def _see_to_owners(self) -> None:
        if self._assignment.is_to_rejoin:
            self._assignment.rejoin()
        elif not self._health.suspected and self._owners.is_to_rejoin(
            self._client.memberid(), runtime.monotonic()
        ):
            self._assignment.announce_ends(self._prefetch)
            self._assignment.give_up_all()
            self._assignment.rejoin()
            self._assignment.raise_failure()

    def commit(self, positions: Mapping[Partition, Position]) -> None:
        """See `site_spider.contracts.seed_log.Consumer`. Takes up to 10 s when the coordinator is away."""
        if not positions:
            return
        if self._transactions is not None:
            self.commit_with((), positions)
        else:
            self._check(positions)
            self._commits.wait(self._client, self._ids.signed(positions))

    def begin_commit(self, positions: Mapping[Partition, Position], answered: Answered) -> None:
        """See `site_spider.contracts.seed_log.Consumer`."""
        try:
            self._check_assigned(positions)
            if self._transactions is not None:
                self.commit(positions)
        except LogUnavailable as error:
            return answered(error)
        if self._transactions is not None or not positions:
            return answered(None)
        return self._commits.begin(self._client, self._ids.signed(positions), answered)

    def commit_with(
        self, items: Sequence[Item], positions: Mapping[Partition, Position]
    ) -> Mapping[int, str]:
        """See `site_spider.contracts.seed_log.TransactionalConsumer`."""
        assert self._transactions is not None
        self._check(positions)
        return self._transactions.run(items, self._ids.signed(positions))

    def was_committed(self, positions: Mapping[Partition, Position]) -> bool:
        """See `site_spider.contracts.seed_log.TransactionalConsumer`."""
        assert self._transactions is not None
        return self._transactions.was_committed(positions)

    def _check(self, positions: Mapping[Partition, Position]) -> None:
        """Raises LogUnavailable when a commit cannot be, without waiting for servers that are away."""
        self._check_assigned(positions)
        if (self._health.suspected or self._commits.is_late) and not self._health.answers():
            raise LogSilent(
                f"Kafka does not answer, so group {self._group} cannot commit: {self._health.detail}."
            )

    def _check_assigned(self, positions: Mapping[Partition, Position]) -> None:
        foreign = [partition for partition in positions if partition not in self._assignment]
        if foreign:
            raise LogUnavailable(
                f"Group {self._group} cannot commit {listed(foreign)} here: not assigned (any more)."
            )

    def pause(self, partitions: Sequence[Partition]) -> None:
        """See `contracts.seed_log.Consumer`; partitions that were revoked meanwhile are ignored."""
        self._prefetch.pause(partitions)

    def resume(self, partitions: Sequence[Partition]) -> None:
        """See `contracts.seed_log.Consumer`; partitions that were revoked meanwhile are ignored."""
        self._prefetch.resume(partitions)

    def close(self, *, for_good: bool = False) -> None:
        """See `site_spider.contracts.seed_log.Consumer`.

        A static member does not leave the group by closing: its partitions wait for its return
        for the session timeout (10 s), and then go to others. It leaves by unsubscribing.
        """
        try:
            self._assignment.announce_ends(self._prefetch)
            self._assignment.give_up_all()
            if for_good:
                self._assignment.unsubscribe()
        finally:
            self._leave()
            self._release_slot()
        self._assignment.raise_failure()

    def _leave(self) -> None:
        self._assignment.close()
        if self._transactions is not None:
            self._transactions.close()

    # --- messages and events -----------------------------------------------------------

    def _gather(self, timeout_seconds: float, limit: int) -> None:
        """Take what the client has, or wait for the first message."""
        first = self._client.poll(timeout_seconds)
        self._assignment.raise_failure()
        if first is None:
            return
        message = self._handed_out(first)
        number = self._assignment.number(message.partition) if message else None
        rest = self._client.consume(limit - 1, 0) if limit > 1 else []
        self._assignment.raise_failure()
        # A rebalance within `consume` takes back what `poll` had given: its next owner gets it again.
        if message:
            self._prefetch.put(message, number)
        for raw in rest:
            if other := self._handed_out(raw):
                self._prefetch.put(other, self._assignment.number(other.partition))
        self._gaps.look(runtime.monotonic())

    def _handed_out(self, raw: RawMessage) -> Message | None:
        error = raw.error()
        if error is None:
            self._complaints.over()
            message = to_message(raw)
            self._note_gap(message.partition, message.offset, message.offset + 1)
            return message
        if error.code() == KafkaError._PARTITION_EOF:
            self._complaints.over()
            partition, end = Partition(str(raw.topic()), raw.partition() or 0), raw.offset() or 0
            self._note_gap(partition, end, end)
            self._assignment.note_end(partition, end)
        else:
            self._complain(error)
        return None

    def _note_gap(self, partition: Partition, offset: int, following: int) -> None:
        number = self._assignment.number(partition)
        if number is not None:
            self._gaps.saw(partition, offset, following, number, self._assignment.begins_at(partition))

    def _complain(self, error: KafkaError) -> None:
        if is_fatal(error):
            raise _Ended(f"Kafka ended this membership in group {self._group} for good: {error.str()}.")
        self._complaints.hear(error)

    # --- the rest ------------------------------------------------------------------------

    def _assigned(self, partitions: Iterable[Partition]) -> list[TopicPartition]:
        return [TopicPartition(*partition) for partition in partitions if partition in self._assignment]

    def _release_slot(self) -> None:
        if self._slot:
            self._slot.release()
